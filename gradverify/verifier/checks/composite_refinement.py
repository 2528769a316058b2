"""What a confirmed composite adds: a finer first order, and verdicts where the numbers are noisy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.composite import (
    Composite,
    NoComposite,
    TwoGradients,
    confirmed_composite,
    gradients_of,
    held_columns,
    one_output_each,
)
from gradverify.verifier.checks.mismatch import WITHIN_TOLERANCE
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import FirstOrder, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import blocks, count_of, number, part, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.directional_derivative import slope_along
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.round_off import ROUND_OFF, gradient_spread
from gradverify.verifier.numerics.tolerance import SAFETY
from gradverify.verifier.numerics.verdict import Judged

CAREFUL = 1e-11
"""Relative error that careful float64 code stays below: a constant written with ten digits is beyond it."""

NEAR = 1e-9
"""Relative room for a composite beside the measured bounds: far below any tolerance, far above rounding."""

STEPS = (1.0, 0.37)
"""Shares of the longest step at which a difference must show itself: no multiples of each other."""

CLEARLY = 0.25
"""The numbers side with the composite when they are this share of the difference away from it, or nearer,
their own error included."""

_Unknown = dict[tuple[int, str], Uncovered]


def refined(sample: Sample, first: FirstOrder) -> tuple[FirstOrder, Composite | NoComposite]:
    """The first order, with a GV110 for what only a composite sees; and the composite, where there is one."""
    composite = confirmed_composite(sample, first)
    if isinstance(composite, NoComposite):
        return first, composite
    first = settled_first_order(sample, composite, first)
    known = {(f.output, f.input) for f in first.result.findings}
    findings = []
    for position, u in zip(sample.problem.output_positions, one_output_each(sample), strict=True):
        pair = gradients_of(sample, composite, u)
        if pair is None or not _numbers_side_with_composite(sample, pair):
            continue
        findings += [
            _imprecise(sample, composite, pair, position, name, block)
            for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True)
            if pair.off_by(CAREFUL)[block.start : block.stop].any() and (position, name) not in known
        ]
    result = replace(first.result, findings=(*first.result.findings, *findings))
    return replace(first, result=result), composite


def _numbers_side_with_composite(sample: Sample, pair: TwoGradients) -> bool:
    """Measure forward along the difference itself, where the two claims are furthest apart.

    An unrolled iteration, whose own derivative lags behind its value, loses here: it causes no failure.
    """
    direction = torch.where(pair.off_by(CAREFUL) & ~held_columns(sample), pair.mine - pair.theirs, 0.0)
    if not direction.any():
        return False
    claimed, expected = (pair.mine @ direction).item(), (pair.theirs @ direction).item()
    for share in STEPS:
        slope = slope_along(sample.problem, pair.u, direction, share)
        if abs(slope.value - expected) + SAFETY * slope.error > CLEARLY * abs(claimed - expected):
            return False
    return True


def _imprecise(
    sample: Sample, composite: Composite, pair: TwoGradients, position: int, name: str, block: Block
) -> Finding:
    mine, theirs, off = (t[block.start : block.stop] for t in (pair.mine, pair.theirs, pair.off_by(CAREFUL)))
    entries = vector_entries(mine, theirs, torch.zeros_like(mine), off, block)
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    tiny = torch.finfo(torch.float64).tiny
    worst = max(abs(e.actual - e.expected) / max(abs(e.expected), tiny) for e in entries.worst)
    return sample.finding(
        "GV110",
        f"the gradient{of_output} with respect to `{name}` is slightly off at "
        f"{count_of(entries.wrong, entries.checked)}: by up to {number(worst)} of its value, more than "
        f"rounding explains; {composite.source}, differentiated by torch, is as measured",
        hint=WITHIN_TOLERANCE,
        output=position,
        input=name,
        entries=entries,
        severity=Severity.WARNING,
    )


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
