"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite.

They may differ by the tolerance, by what rounding moves in either, and where the composite has a kink. Beside
typical values it says nothing where it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Point, Severity
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.questions.findings import (
    UNSTABLE,
    apart,
    count_of,
    gradient_of,
    number,
    output_name,
    vector_entries,
)
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import (
    Sample,
    Surrogate,
    UserCode,
    called_with,
    first_line,
    places_of,
)
from gradverify.verifier.questions.verified import gradient_at, value_at
from gradverify.verifier.questions.witnessing import first_asked, options_of
from gradverify.verifier.witnesses.claim import Map
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.kinks import BESIDE, NEARER, OF_A_SLOPE, ROOM
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import FLOAT32, Values, alone, probe

SINGLE = FLOAT32.epsilon
"""The precision of a forward whose gradient is not verified: NumPy and kernels may keep float32, unseen."""

REFERENCE = "reference"

At = Callable[[Map, Tensor], Tensor | None]
"""Outputs of a problem at a point, or gradients; None where it raises."""


def ask_reference(sample: Sample, function: UserCode, visible: float, *, gradients: bool) -> list[Finding]:
    """GV301 to GV303: values first; where they differ, gradients say nothing.

    A gradient that values have shown is right, whatever the reference has for one: `visible` is the error
    that they would have seen.
    """
    other = _composite(sample, REFERENCE, function, sample.subject.reference_arguments)
    if isinstance(other, Finding):
        return [other]
    found = list(_values(sample, other, options_of(sample).epsilon if gradients else SINGLE))
    if found or not gradients or other.outputs.size != sample.problem.outputs.size:
        return found
    found = list(_gradients(sample, other, REFERENCE, visible))
    if found or not sample.is_first_draw or not options_of(sample).twice:
        return list(map(_of_the_reference, found)) if visible else found
    return list(map(_of_the_reference, _second_derivatives(sample, other, visible)))


def ask_surrogate(sample: Sample, surrogate: Surrogate, function: UserCode) -> list[Finding]:
    """GV302 against the surrogate's gradient, GV106 for other grad_outputs; its forward is not compared."""
    other = _composite(sample, "surrogate", function, surrogate.arguments)
    if isinstance(other, Finding):
        return [other]
    found = list(_gradients(sample, other, "surrogate"))
    has_digits = options_of(sample).epsilon < SINGLE and not sample.is_native
    if not found and has_digits and sample.point is Point.TYPICAL:
        found = list(map(_unstable, _gradients(sample, other, "surrogate", rounds=False)))
    if not found and sample.is_first_draw and sample.subject.is_first_of_options:
        asked = first_asked(sample)
        found = [] if asked is None else list(wrong_with_structure(sample, asked))
    return [f for f in found if surrogate.covers(f.input)]


def _composite(
    sample: Sample, called: str, function: UserCode, names: Sequence[str]
) -> CallProblem | Finding:
    """The composite over the same inputs; GV109 where there is nothing to compare with."""
    made = reference_problem(sample, function, names)
    if isinstance(made, Raised):
        why = f"raised {made.error.type}: {first_line(made.error.message)}"
    elif not made.value.output_positions:
        why = "returned no tensor at the position of a differentiable output"
    else:
        return made.value
    return sample.finding("GV109", f"not compared with the {called}: the {called} {why}")


def _values(sample: Sample, other: CallProblem, epsilon: float) -> Iterator[Finding]:
    """Outputs of another shape, else those with other values than rounding in such a precision explains."""
    mine, positions = sample.problem, other.output_positions
    for position, theirs in zip(positions, other.outputs.blocks, strict=True):
        own, name = mine.outputs.blocks[mine.output_positions.index(position)], output_name(sample, position)
        if own.shape != theirs.shape:
            said = f"{name} has shape {list(own.shape)}, the reference's has {list(theirs.shape)}"
            hint = "Is it the reference for these inputs, called positionally with what forward gets?"
            yield sample.finding("GV301", said, hint=hint, output=position)
            return
    mine = replace(mine, output_positions=positions, outputs=other.outputs)
    for number_of, entries in _differing(sample, (mine, other), value_at, other.outputs, epsilon=epsilon):
        said = f"{output_name(sample, positions[number_of])} of forward differs from the reference"
        hint = "Forward and reference give different values: the gradients are not compared."
        yield _told(sample, "GV301", said, entries, hint=hint, output=positions[number_of])


def _gradients(
    sample: Sample, other: CallProblem, called: str, seen: float = 0.0, *, rounds: bool = True
) -> Iterator[Finding]:
    """For one random grad_output of each output alone; without what rounding explains if it `rounds`."""
    u = probe(other.outputs.size, sample.key + 29)
    for position, block in zip(other.output_positions, other.outputs.blocks, strict=True):
        at, both = partial(gradient_at, alone(u, block.span)), (sample.problem, other)
        for number_of, entries in _differing(sample, both, at, sample.inputs, seen, rounds=rounds):
            name = sample.problem.input_names[number_of]
            said = f"{gradient_of(sample, position, name)} differs from the {called}'s"
            yield _told(sample, "GV302", said, entries, called, output=position, input=name)


def _second_derivatives(sample: Sample, other: CallProblem, seen: float) -> Iterator[Finding]:
    """For one random pair of grad_outputs; that of the target is verified."""
    u = sample.problem.outputs.unflatten(probe(other.outputs.size, sample.key + 29))
    mine, theirs = VjpProblem(sample.problem, u), VjpProblem(other, u)
    at = partial(gradient_at, probe(mine.outputs.size, sample.key + 30))
    for number_of, entries in _differing(sample, (mine, theirs), at, Layout.of(mine.primals), seen):
        name = mine.input_names[number_of]
        said = f"the second derivative by `{name}` differs from the reference's"
        yield _told(sample, "GV303", said, entries, input=name)


def _told(
    sample: Sample,
    code: str,
    said: str,
    entries: Entries,
    called: str = REFERENCE,
    **where: Any,  # noqa: ANN401 - fields of Finding
) -> Finding:
    """What differs, with the place where it does most."""
    worst = entries.worst[0]
    got, wanted = apart(worst.actual, worst.expected)
    by = number(abs(worst.actual - worst.expected))
    said = f"{said} at {count_of(entries.wrong, entries.checked)}, by up to {by} ({got}, {called} {wanted})"
    return sample.finding(code, said, entries=entries, **where)


def _differing(
    sample: Sample,
    both: tuple[Map, Map],
    at: At,
    layout: Layout,
    seen: float = 0.0,
    epsilon: float | None = None,
    *,
    rounds: bool = True,
) -> Iterator[tuple[int, Entries]]:
    """Each part of a layout that differs, by number, with its entries; by less than `seen` nothing does."""
    x = Values(both[0]).x
    mine, theirs = (at(one, x) for one in both)
    if mine is None or theirs is None:
        return
    settings, known = sample.subject.settings, theirs.abs()[theirs.isfinite()]
    middle = known.median() if known.numel() else 0.0
    bar = settings.atol + max(settings.rtol, seen) * (theirs.abs() + middle)
    silent = theirs.isnan() if sample.point is not Point.TYPICAL else mine.isnan() & theirs.isnan()
    off = ~((mine - theirs).abs() <= bar) & (mine != theirs) & ~silent
    if rounds and bool(off.any()):
        precision = epsilon or options_of(sample).epsilon
        moved = [spread(partial(at, one), x, precision) for one in both]
        off &= ~((mine - theirs).abs() <= bar + sum(FACTOR * one for one in moved if one is not None))
    if bool(off.any()) and sample.point is not Point.TYPICAL:
        off &= ~_as_those_nearby(at, Values(both[1]), mine, theirs)
    for number_of, block in enumerate(layout.blocks):
        entries = vector_entries(mine, theirs, off, block, of_output=at is value_at)
        if entries.wrong:
            yield number_of, entries


def _as_those_nearby(at: At, there: Values, mine: Tensor, theirs: Tensor) -> Tensor:
    """Entries at a kink of the composite, where several gradients are right, or it has one by itself (bool).

    `sign(x) * log1p(abs(x))` has a slope at 0, where the product of its parts' derivatives is 0.
    """
    (low, high), (lowest, highest) = (_hull(at, there, share) for share in (BESIDE, BESIDE / NEARER))
    room = ROOM * torch.maximum(low.abs(), high.abs()).nan_to_num(0.0).max()
    inside = (high - low > room) & (low - room <= mine) & (mine <= high + room)
    off, alone = ((lowest - x).relu() + (x - highest).relu() for x in (mine, theirs))
    return inside | (off + highest - lowest <= OF_A_SLOPE * alone)


def _hull(at: At, there: Values, share: float) -> tuple[Tensor, Tensor]:
    """The least and the largest gradient of each entry at some points beside a point; NaN where none is."""
    ways = [probe(len(there.x), 32 + k) * sign for k in range(2) for sign in (1.0, -1.0)]
    found = [at(there.problem, there.x + share * there.scale * way) for way in ways]
    known = [one for one in found if one is not None] or [torch.full_like(there.x, torch.nan)]
    nearby = torch.stack(known)
    return nearby.amin(dim=0), nearby.amax(dim=0)


def _unstable(finding: Finding) -> Finding:
    return replace(
        finding,
        code="GV109",
        severity=Severity.WARNING,
        message=f"{finding.message}; backward is unstable, and its own rounding explains as much",
        hint=UNSTABLE,
    )


def _of_the_reference(finding: Finding) -> Finding:
    return replace(
        finding,
        severity=Severity.WARNING,
        message=f"{finding.message}; it was verified numerically, so the reference's own is not right",
        hint="Does the reference detach something, or declare a surrogate gradient?",
    )


def composite_of(sample: Sample) -> CallProblem | None:
    """The reference that the spec names, else forward as torch differentiates it; over all outputs."""
    subject, problem = sample.subject, sample.problem
    if subject.reference is not None:
        built = reference_problem(sample, subject.reference, subject.reference_arguments)
        whole = isinstance(built, Returned) and built.value.outputs == problem.outputs
        return built.value if isinstance(built, Returned) and whole else None
    values = problem.evaluate(problem.primals)
    if subject.own_forward is None or isinstance(values, Raised):
        return None
    found = derive(problem, subject.own_forward, values.value, first="eager", wide=False)
    return found.problem if isinstance(found, Derived) else None


def reference_problem(
    sample: Sample, function: UserCode, names: Sequence[str]
) -> Returned[CallProblem] | Raised:
    """The composite reference as a problem over the same inputs, its outputs matched by position.

    `names` are the arguments it is called with, in order; empty: positionally with what forward got.
    """
    if names:
        places = places_of(sample.arguments)
        function = called_with(function, [k for name in names for k in places[name]])
    mine = sample.problem
    mine.random_states.replay()
    leaves = [leaf.requires_grad_().clone() for leaf in copies(mine.primals)]
    with torch.enable_grad():
        result = guard.call(function, *substitute(sample.arguments, leaves))
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    kept = [p for p in mine.output_positions if p < len(returned) and isinstance(returned[p], Tensor)]
    outputs = Layout.of([returned[p] for p in kept])
    states = mine.random_states
    return Returned(CallProblem(function, sample.arguments, tuple(kept), outputs, states))
