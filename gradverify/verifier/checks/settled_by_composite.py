"""What a confirmed composite settles: pairs of which the numbers are too noisy in part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.composite import (
    Composite,
    NoComposite,
    confirmed_composite,
)
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import FirstOrder, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import blocks, part
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.round_off import ROUND_OFF, gradient_spread
from gradverify.verifier.numerics.tolerance import SAFETY
from gradverify.verifier.numerics.verdict import Judged

NEAR = 1e-9
"""Relative room for a composite beside the measured bounds: far below any tolerance, far above rounding."""

_Unknown = dict[tuple[int, str], Uncovered]


def settled(sample: Sample, first: FirstOrder) -> tuple[FirstOrder, Composite | NoComposite]:
    """The first order without what a confirmed composite settles; and the composite, where there is one."""
    composite = confirmed_composite(sample, first)
    if isinstance(composite, NoComposite):
        return first, composite
    return settled_first_order(sample, composite, first), composite


def settled_first_order(sample: Sample, composite: Composite, first: FirstOrder) -> FirstOrder:
    """The first order without the pairs of which a part was too noisy, where a composite settles that part.

    Its Jacobian must be the measured one wherever that is known, in a pair that is known in part. A jump or
    a kink is no noise: there it is not known.
    """
    comparison, measured = first.comparison, first.measured
    if not first.result.uncovered or comparison is None or measured is None:
        return first
    if comparison.analytical.shape != (sample.problem.outputs.size, sample.inputs.size):
        return first  # rows of a Jacobian too large to build
    claimed = analytical_jacobian(composite.problem)
    if isinstance(claimed, Raised) or not _is_measured(claimed.value, comparison):
        return first
    theirs = claimed.value
    scale = theirs.abs() + theirs.abs().median(dim=1, keepdim=True).values
    agree = (comparison.analytical - theirs).abs() <= sample.subject.settings.rtol * scale
    agree &= measured.error.isfinite() & ~comparison.kinks
    in_part = _known(comparison) & (theirs != 0)
    positions, names = sample.problem.output_positions, sample.problem.input_names
    keys = (
        ((positions[o], names[i]), output, source)
        for o, output, i, source in blocks(sample.problem.outputs, sample.inputs)
        if part(in_part, output, source).any()
    )
    left = _unsettled(first.result.uncovered, keys, agree)
    return replace(first, result=replace(first.result, uncovered=left))


def settled_second_order(
    sample: Sample,
    composite: Composite | NoComposite,
    second: VjpProblem,
    judged: Judged,
    uncovered: _Unknown,
) -> _Unknown:
    """The pairs that stay unknown: not those on which backward and a composite agree.

    The composite's second derivative must be the measured one wherever that is known, and it must be known
    somewhere that is not in `u` alone.
    """
    if not uncovered or isinstance(composite, NoComposite):
        return uncovered
    layout = Layout.of(second.primals)
    if judged.comparison.analytical.shape != (second.outputs.size, layout.size):
        return uncovered  # rows of a Jacobian too large to build
    other = VjpProblem(composite.problem, second.cotangents)
    theirs = analytical_jacobian(other)
    by_inputs = Layout.of(second.first_order.primals).size
    if isinstance(theirs, Raised) or not _known(judged.comparison)[:, :by_inputs].any():
        return uncovered
    if not _is_measured(theirs.value, judged.comparison):
        return uncovered
    agree = _agreeing(sample, second, other, judged.comparison.analytical, theirs.value)
    keys = (
        ((o, f"second order, {second.input_names[i]}"), output, source)
        for o, output, i, source in blocks(second.outputs, layout)
    )
    return _unsettled(uncovered, keys, agree)


def _unsettled(
    uncovered: _Unknown, keys: Iterable[tuple[tuple[int, str], Block, Block]], agree: Tensor
) -> _Unknown:
    """What is left of unknown pairs without those whose unknown entries all agree (bool, M × N)."""
    settled = {
        key
        for key, output, source in keys
        if key in uncovered and bool((part(agree, output, source) | ~uncovered[key].mask).all())
    }
    return {key: unknown for key, unknown in uncovered.items() if key not in settled}


def _known(comparison: Comparison) -> Tensor:
    return comparison.covered & ~comparison.kinks & ~comparison.wrong


def _is_measured(theirs: Tensor, comparison: Comparison) -> bool:
    """Whether a Jacobian is the measured one at every covered entry."""
    near = (theirs - comparison.numerical).abs() <= comparison.bound + NEAR * theirs.abs()
    return bool(near[_known(comparison)].all())


def _agreeing(sample: Sample, second: VjpProblem, other: VjpProblem, mine: Tensor, theirs: Tensor) -> Tensor:
    """Where two second derivatives are the same to within tolerance and rounding (bool, M × N)."""
    w = second.outputs.unflatten(random_signs(second.outputs.size, sample.case.seed + 43))
    layout = Layout.of(second.primals)
    noise = torch.zeros(layout.size, dtype=torch.float64)
    for problem in (second, other):
        base = problem.pull_back(problem.primals, w)
        if isinstance(base, Raised):
            return torch.zeros_like(theirs, dtype=torch.bool)
        noise = noise + gradient_spread(problem, w, layout.flatten(base.value))
    size = theirs.abs()
    noise = torch.minimum(noise, ROUND_OFF * size.max())
    allowed = sample.subject.settings.rtol * (size + size.median(dim=1, keepdim=True).values)
    return (mine - theirs).abs() <= torch.maximum(allowed, SAFETY * noise[None, :])
