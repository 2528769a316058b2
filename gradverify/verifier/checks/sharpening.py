"""What a confirmed composite adds: a finer first order, and verdicts where the numbers are noisy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, Severity
from gradverify.verifier.checks.automatic_composite import (
    Composite,
    NoComposite,
    confirmed_composite,
    gradients_of,
    held_columns,
    median_size,
    one_output_each,
)
from gradverify.verifier.checks.gradient_spread import ROUND_OFF_SAFETY, gradient_spread
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import FirstOrder, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import WORST_ENTRIES, blocks, count_of, number, part
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.along import slope_along
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.jacobian import SAFETY
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.rounding import ROUND_OFF
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


@dataclass(frozen=True)
class _Gradients:
    """The two sides' gradients for one grad_output, N entries each."""

    u: tuple[Tensor | None, ...]
    mine: Tensor
    theirs: Tensor
    off: Tensor
    """bool: where they differ by more than rounding explains."""


def sharpened(sample: Sample, first: FirstOrder) -> tuple[FirstOrder, Composite | NoComposite]:
    """The first order, with a GV110 for what only a composite sees; and the composite, where there is one."""
    composite = confirmed_composite(sample, first)
    if isinstance(composite, NoComposite):
        return first, composite
    first = _settled_first_order(sample, composite, first)
    known = {(f.output, f.input) for f in first.result.findings}
    findings = []
    for u in one_output_each(sample):
        pair = _differing(sample, composite, u)
        if pair is None or not _numbers_side_with_composite(sample, pair):
            continue
        position = next(
            p for p, t in zip(sample.problem.output_positions, pair.u, strict=True) if t is not None
        )
        made = (
            _imprecise(sample, composite, pair, position, name, block)
            for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True)
            if pair.off[block.start : block.stop].any() and (position, name) not in known
        )
        findings += list(made)
    if not findings:
        return first, composite
    return replace(
        first, result=replace(first.result, findings=(*first.result.findings, *findings))
    ), composite


def _settled_first_order(sample: Sample, composite: Composite, first: FirstOrder) -> FirstOrder:
    """The first order without the pairs of which a part was too noisy, where a composite settles that part.

    Its Jacobian must be the measured one wherever that is known, in a pair that is known in part. A jump or
    a kink is no noise: there nobody knows.
    """
    comparison, measured = first.comparison, first.measured
    if not first.result.uncovered or comparison is None or measured is None:
        return first
    if comparison.analytical.shape != (sample.problem.outputs.size, sample.inputs.size):
        return first  # rows of a Jacobian too large to build
    claimed = analytical_jacobian(composite.problem)
    if isinstance(claimed, Raised):
        return first
    theirs, mine = claimed.value, comparison.analytical
    known = comparison.covered & ~comparison.kinks & ~comparison.wrong
    near = (theirs - comparison.numerical).abs() <= comparison.bound + NEAR * theirs.abs()
    noisy = measured.error.isfinite() & ~comparison.kinks
    scale = theirs.abs() + theirs.abs().median(dim=1, keepdim=True).values
    agree = noisy & ((mine - theirs).abs() <= sample.subject.settings.rtol * scale)
    if not near[known].all():
        return first
    left = dict(first.result.uncovered)
    positions, names = sample.problem.output_positions, sample.problem.input_names
    for o, output, i, source in blocks(sample.problem.outputs, sample.inputs):
        key = (positions[o], names[i])
        in_part = (part(known, output, source) & (part(theirs, output, source) != 0)).any()
        if key in left and in_part and (part(agree, output, source) | ~left[key].mask).all():
            del left[key]
    return replace(first, result=replace(first.result, uncovered=left))


def _differing(sample: Sample, composite: Composite, u: tuple[Tensor | None, ...]) -> _Gradients | None:
    pair = gradients_of(sample, composite, u)
    if pair is None:
        return None
    mine, theirs, noise = pair
    careful = CAREFUL * (theirs.abs() + median_size(theirs))
    off = (mine - theirs).abs() > torch.maximum(careful, ROUND_OFF_SAFETY * noise)
    return _Gradients(u, mine, theirs, off) if off.any() else None


def _numbers_side_with_composite(sample: Sample, pair: _Gradients) -> bool:
    """Measure forward along the difference itself, where the two claims are furthest apart.

    An unrolled iteration, whose own derivative lags behind its value, loses here: so it accuses nobody.
    """
    direction = torch.where(pair.off & ~held_columns(sample), pair.mine - pair.theirs, 0.0)
    if not direction.any():
        return False
    claimed, expected = (pair.mine @ direction).item(), (pair.theirs @ direction).item()
    for share in STEPS:
        slope = slope_along(sample.problem, pair.u, direction, share)
        if abs(slope.value - expected) + SAFETY * slope.error > CLEARLY * abs(claimed - expected):
            return False
    return True


def _imprecise(
    sample: Sample, composite: Composite, pair: _Gradients, position: int, name: str, block: Block
) -> Finding:
    columns = slice(block.start, block.stop)
    entries = _entries(pair.mine[columns], pair.theirs[columns], pair.off[columns], block)
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    worst = max(
        abs(e.actual - e.expected) / max(abs(e.expected), torch.finfo(torch.float64).tiny)
        for e in entries.worst
    )
    return sample.finding(
        "GV110",
        f"the gradient{of_output} with respect to `{name}` is slightly off at "
        f"{count_of(entries.wrong, entries.checked)}: by up to {number(worst)} of its value, more than "
        f"rounding explains; {composite.source}, differentiated by torch, is as measured",
        hint="A truncated constant or a lower precision inside backward; within the tolerance, so no "
        "failure.",
        output=position,
        input=name,
        entries=entries,
        severity=Severity.WARNING,
    )


def _entries(mine: Tensor, theirs: Tensor, off: Tensor, block: Block) -> Entries:
    difference = (mine - theirs).abs()
    places = sorted(off.nonzero().flatten().tolist(), key=lambda k: (-difference[k].item(), k))
    worst = tuple(
        Entry((), block.index(block.start + k), mine[k].item(), theirs[k].item(), 0.0)
        for k in places[:WORST_ENTRIES]
    )
    return Entries(len(places), off.numel(), worst, compared_with="reference")


def settled_second_order(
    sample: Sample,
    composite: Composite | NoComposite,
    second: VjpProblem,
    judged: Judged,
    uncovered: dict[tuple[int, str], Uncovered],
) -> dict[tuple[int, str], Uncovered]:
    """The pairs that stay unknown: not those on which backward and a composite agree.

    The composite's second derivative must be the measured one wherever that is known, and it must be known
    somewhere.
    """
    if not uncovered or isinstance(composite, NoComposite):
        return uncovered
    if judged.comparison.analytical.shape != (second.outputs.size, Layout.of(second.primals).size):
        return uncovered  # rows of a Jacobian too large to build
    other = VjpProblem(composite.problem, second.cotangents)
    theirs = analytical_jacobian(other)
    if isinstance(theirs, Raised) or not _is_measured(theirs.value, judged, second):
        return uncovered
    agree = _agreeing(sample, second, other, judged.comparison.analytical, theirs.value)
    left = {}
    for output, source, key in _keys(second):
        if key in uncovered and not (part(agree, output, source) | ~uncovered[key].mask).all():
            left[key] = uncovered[key]
    return left


def _keys(second: VjpProblem) -> list[tuple[Block, Block, tuple[int, str]]]:
    names = second.input_names
    return [
        (output, source, (o, f"second order, {names[i]}"))
        for o, output, i, source in blocks(second.outputs, Layout.of(second.primals))
    ]


def _is_measured(theirs: Tensor, judged: Judged, second: VjpProblem) -> bool:
    """Whether a Jacobian is the measured one at every covered entry, some of which are not in `u` alone."""
    comparison = judged.comparison
    known = comparison.covered & ~comparison.kinks & ~comparison.wrong
    by_inputs = Layout.of(second.first_order.primals).size
    near = (theirs - comparison.numerical).abs() <= comparison.bound + NEAR * theirs.abs()
    return bool(known[:, :by_inputs].any()) and bool(near[known].all())


def _agreeing(sample: Sample, second: VjpProblem, other: VjpProblem, mine: Tensor, theirs: Tensor) -> Tensor:
    """Where two second derivatives are the same to within tolerance and rounding (bool, M × N)."""
    rtol = sample.subject.settings.rtol
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
    allowed = rtol * (size + size.median(dim=1, keepdim=True).values)
    return (mine - theirs).abs() <= torch.maximum(allowed, ROUND_OFF_SAFETY * noise[None, :])
