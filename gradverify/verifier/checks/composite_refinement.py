"""What a confirmed composite adds: errors far below the tolerance."""

from __future__ import annotations

from dataclasses import replace

import torch

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
from gradverify.verifier.checks.result import FirstOrder
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import count_of, number, vector_entries
from gradverify.verifier.numerics.directional_derivative import slope_along
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.tolerance import SAFETY

CAREFUL = 1e-11
"""Relative error that careful float64 code stays below: a constant written with ten digits is beyond it."""

STEPS = (1.0, 0.37)
"""Shares of the longest step at which a difference must show itself: no multiples of each other."""

CLEARLY = 0.25
"""The numbers side with the composite when they are this share of the difference away from it, or nearer,
their own error included."""


def refined(sample: Sample, first: FirstOrder) -> tuple[FirstOrder, Composite | NoComposite]:
    """The first order, with a GV110 for what only a composite sees; and the composite, where there is one."""
    composite = confirmed_composite(sample, first)
    if isinstance(composite, NoComposite):
        return first, composite
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

    An unrolled iteration, whose own derivative lags behind its value, loses here: so it accuses nobody.
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
