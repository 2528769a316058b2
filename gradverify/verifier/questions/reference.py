"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite.

They may differ by the tolerance, by what rounding moves in either, and where the composite has a kink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Point, Severity
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.questions.composite import reference_problem
from gradverify.verifier.questions.jacobians import first_asked
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.verified import value_at
from gradverify.verifier.questions.witnessing import witnesses_of
from gradverify.verifier.questions.wording import (
    apart,
    count_of,
    gradient_of,
    number,
    output_name,
    vector_entries,
)
from gradverify.verifier.witnesses.claim import Map, rows_at
from gradverify.verifier.witnesses.kinks import BESIDE, ROOM
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import Values, alone, probe

At = Callable[[Map, Tensor], Tensor | None]
"""Outputs of a problem at a point, or gradients; None where it raises."""


def ask_reference(sample: Sample, visible: float, *, gradients: bool = True) -> Sequence[Finding]:
    """GV301 to GV303: values first; where they differ, gradients say nothing.

    A gradient that values have shown is right, whatever the reference has for one: `visible` is the error
    that they would have seen.
    """
    other = _composite(sample, "reference", sample.subject.reference, sample.subject.reference_arguments)
    if isinstance(other, Finding):
        return (other,)
    found = tuple(_values(sample, other))
    if found or not gradients or other.outputs.size != sample.problem.outputs.size:
        return found
    found = tuple(_gradients(sample, other, "reference", visible))
    if found or not sample.is_first_draw or not witnesses_of(sample).of(sample).twice:
        return tuple(map(_of_the_reference, found)) if visible else found
    return tuple(map(_of_the_reference, _second_derivatives(sample, other, visible)))


def ask_surrogate(sample: Sample) -> Iterator[Finding]:
    """GV302 against the surrogate's gradient; its forward is not compared."""
    surrogate = sample.subject.surrogate
    if surrogate is None:
        return
    other = _composite(sample, "surrogate", surrogate.function, surrogate.arguments)
    if isinstance(other, Finding):
        yield other
        return
    found = list(_gradients(sample, other, "surrogate"))
    if not found and sample.is_first_draw and sample.subject.is_first_of_options:
        asked = first_asked(sample)
        found = [] if asked is None else list(wrong_with_structure(sample, asked))
    yield from (f for f in found if surrogate.covers(f.input))


def _composite(
    sample: Sample, called: str, function: Callable[..., Any] | None, names: Sequence[str]
) -> CallProblem | Finding:
    """The composite over the same inputs; GV109 where there is nothing to compare with."""
    assert function is not None  # noqa: S101 - whoever asks has one
    made = reference_problem(sample, function, names)
    if isinstance(made, Raised):
        why = f"the {called} raised {made.error.type}: {first_line(made.error.message)}"
    elif not made.value.output_positions:
        why = f"the {called} returned no tensor at the position of a differentiable output"
    else:
        return made.value
    return sample.finding("GV109", f"not compared with the {called}: {why}")


def _values(sample: Sample, other: CallProblem) -> Iterator[Finding]:
    """Outputs of another shape, else those with other values."""
    positions = other.output_positions
    blocks = [sample.problem.outputs.blocks[sample.problem.output_positions.index(p)] for p in positions]
    for position, a, b in zip(positions, blocks, other.outputs.blocks, strict=True):
        if a.shape != b.shape:
            name = output_name(position, sample.outputs_returned)
            said = f"{name} has shape {list(a.shape)}, the reference's has {list(b.shape)}"
            hint = "Is it the reference for these inputs, called positionally with what forward gets?"
            yield sample.finding("GV301", said, hint=hint, output=position)
            return
    mine = replace(sample.problem, output_positions=positions, outputs=other.outputs)
    for number_of, entries in _differing(sample, (mine, other), value_at, other.outputs):
        name = output_name(positions[number_of], sample.outputs_returned)
        said = f"{name} of forward differs from the reference at {_where(entries, 'reference')}"
        hint = "Forward and reference give different values: the gradients are not compared."
        yield sample.finding("GV301", said, hint=hint, output=positions[number_of], entries=entries)


def _gradients(sample: Sample, other: CallProblem, called: str, seen: float = 0.0) -> Iterator[Finding]:
    """For one random grad_output of each output alone."""
    u = probe(other.outputs.size, sample.key + 29)
    for position, block in zip(other.output_positions, other.outputs.blocks, strict=True):
        at = partial(_row_at, alone(u, block.span))
        for number_of, entries in _differing(sample, (sample.problem, other), at, sample.inputs, seen):
            name = sample.problem.input_names[number_of]
            said = f"{gradient_of(sample, position, name)} differs from the {called}'s"
            said = f"{said} at {_where(entries, called)}"
            yield sample.finding("GV302", said, output=position, input=name, entries=entries)


def _second_derivatives(sample: Sample, other: CallProblem, seen: float) -> Iterator[Finding]:
    """For one random pair of grad_outputs; that of the target is verified."""
    u = sample.problem.outputs.unflatten(probe(other.outputs.size, sample.key + 29))
    mine, theirs = VjpProblem(sample.problem, u), VjpProblem(other, u)
    at = partial(_row_at, probe(mine.outputs.size, sample.key + 30))
    for number_of, entries in _differing(sample, (mine, theirs), at, Layout.of(mine.primals), seen):
        name = mine.input_names[number_of]
        said = f"the second derivative by `{name}` differs from the reference's"
        said = f"{said} at {_where(entries, 'reference')}"
        yield sample.finding("GV303", said, input=name, entries=entries)


def _row_at(u: Tensor, problem: Map, x: Tensor) -> Tensor | None:
    """The gradients for one grad_output (M) at a point (N)."""
    rows = rows_at(problem, x, u[None])
    return None if rows is None else rows[0]


def _differing(
    sample: Sample, both: tuple[Map, Map], at: At, layout: Layout, seen: float = 0.0
) -> Iterator[tuple[int, Entries]]:
    """Each part of a layout that differs, by number, with its entries; by less than `seen` nothing does."""
    x = Values(both[0]).x
    mine, theirs = (at(one, x) for one in both)
    if mine is None or theirs is None:
        return
    settings, known = sample.subject.settings, theirs.abs()[theirs.isfinite()]
    middle = known.median() if known.numel() else 0.0
    bar = settings.atol + max(settings.rtol, seen) * (theirs.abs() + middle)
    off = ~((mine - theirs).abs() <= bar) & (mine != theirs) & ~(mine.isnan() & theirs.isnan())
    if bool(off.any()):
        epsilon = witnesses_of(sample).of(sample).epsilon
        moved = [spread(partial(at, one), x, epsilon) for one in both]
        off &= ~((mine - theirs).abs() <= bar + sum(FACTOR * one for one in moved if one is not None))
    if bool(off.any()) and sample.point is not Point.TYPICAL:
        off &= ~_between_those_nearby(partial(at, both[1]), Values(both[1]), mine)
    for number_of, block in enumerate(layout.blocks):
        own, of_output = block.span, at is value_at
        nothing = torch.zeros_like(mine[own])
        entries = vector_entries(mine[own], theirs[own], nothing, off[own], block, of_output=of_output)
        if entries.wrong:
            yield number_of, entries


def _between_those_nearby(at: Callable[[Tensor], Tensor | None], there: Values, mine: Tensor) -> Tensor:
    """Entries at a kink of the composite, where several gradients are right (bool)."""
    ways = [probe(len(there.x), 32 + k) * sign for k in range(2) for sign in (1.0, -1.0)]
    found = [at(there.x + BESIDE * there.scale * way) for way in ways]
    nearby = [one for one in found if one is not None]
    if not nearby:
        return torch.zeros_like(mine, dtype=torch.bool)
    low, high = torch.stack(nearby).amin(dim=0), torch.stack(nearby).amax(dim=0)
    room = ROOM * torch.maximum(low.abs(), high.abs()).max()
    return (high - low > room) & (low - room <= mine) & (mine <= high + room)


def _of_the_reference(finding: Finding) -> Finding:
    return replace(
        finding,
        severity=Severity.WARNING,
        message=f"{finding.message}; it was verified numerically, so the reference's own is not right",
        hint="Does the reference detach something, or declare a surrogate gradient?",
    )


def _where(entries: Entries, called: str) -> str:
    worst = entries.worst[0]
    got, wanted = apart(worst.actual, worst.expected)
    by = number(abs(worst.actual - worst.expected))
    return f"{count_of(entries.wrong, entries.checked)}, by up to {by} ({got}, {called} {wanted})"
