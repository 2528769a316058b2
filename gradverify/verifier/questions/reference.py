"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Point, Severity
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout, VjpProblem
from gradverify.verifier.questions.composite import reference_problem
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.witnessing import Options, against
from gradverify.verifier.questions.wording import (
    apart,
    count_of,
    gradient_of,
    number,
    output_name,
    vector_entries,
)
from gradverify.verifier.witnesses.claim import Claim, Map, rows_at
from gradverify.verifier.witnesses.kinks import BESIDE, ROOM
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import Values, alone, probe


@dataclass(frozen=True)
class Beside:
    """A sample beside a composite over the same inputs."""

    sample: Sample
    graph: Graph
    other: CallProblem
    called: str
    """What reports call it: `reference` or `surrogate`."""
    epsilon: float
    """Forward's precision."""
    visible: float = 0.0
    """Where values have shown the gradient, the error that they would have seen."""

    @property
    def key(self) -> int:
        """Chooses grad_outputs."""
        return self.sample.key % 4096 + 29


def ask_reference(
    sample: Sample, graph: Graph, known: Options, visible: float, *, gradients: bool = True
) -> Sequence[Finding]:
    """GV301 to GV303: values first; where they differ, gradients say nothing.

    A gradient that values have shown is right, whatever the reference has for one.
    """
    other = reference_problem(sample, sample.subject.reference, sample.subject.reference_arguments)  # type: ignore[arg-type]
    if isinstance(other, Raised):
        return _refused(sample, f"the reference raised {other.error.type}: {first_line(other.error.message)}")
    if not other.value.output_positions:
        return _refused(sample, "the reference returned no tensor at the position of a differentiable output")
    beside = Beside(sample, graph, other.value, "reference", known.epsilon, visible)
    asked = [_shapes]
    if other.value.outputs.size == sample.problem.outputs.size:
        twice = gradients and known.twice and (sample.point, sample.draw) == (Point.TYPICAL, 0)
        asked += [_values, *[_gradients] * gradients, *[_second_derivatives] * twice]
    return next(filter(None, (tuple(ask(beside)) for ask in asked)), ())


def ask_surrogate(sample: Sample, graph: Graph, known: Options) -> Iterator[Finding]:
    """GV302 against the surrogate's gradient; its forward is not compared."""
    surrogate = sample.subject.surrogate
    if surrogate is None or surrogate.function is None:
        return
    other = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(other, Raised):
        yield from _refused(
            sample, f"the surrogate raised {other.error.type}: {first_line(other.error.message)}"
        )
        return
    found = list(_gradients(Beside(sample, graph, other.value, "surrogate", known.epsilon)))
    once = (sample.point, sample.draw) == (Point.TYPICAL, 0) and sample.subject.is_first_of_options
    if not found and once:
        found = list(wrong_with_structure(sample, against(sample, graph, other.value, known)))
    yield from (f for f in found if surrogate.covers(f.input))


def _refused(sample: Sample, reason: str) -> tuple[Finding]:
    return (sample.finding("GV109", f"not compared with the reference: {reason}"),)


def _shapes(beside: Beside) -> Iterator[Finding]:
    sample, other = beside.sample, beside.other
    for position, b in zip(other.output_positions, other.outputs.blocks, strict=True):
        a = sample.problem.outputs.blocks[sample.problem.output_positions.index(position)]
        if a.shape != b.shape:
            yield sample.finding(
                "GV301",
                f"{output_name(position, sample.outputs_returned)} has shape {list(a.shape)}, "
                f"the reference's has {list(b.shape)}",
                hint="Is it the reference for these inputs, called positionally with what forward gets?",
                output=position,
            )
            return


def _values(beside: Beside) -> Iterator[Finding]:
    sample, other = beside.sample, beside.other
    made = other.evaluate(other.primals)
    if isinstance(made, Raised):
        return
    both = other.outputs.flatten(beside.graph.outputs), other.outputs.flatten(made.value)
    for number_of, entries in _differing(beside, (sample.problem, other), both):
        position = other.output_positions[number_of]
        yield sample.finding(
            "GV301",
            f"{output_name(position, sample.outputs_returned)} of forward differs from the reference at "
            f"{_where(entries, 'reference')}",
            hint="Forward and reference give different values: the gradients are not compared.",
            output=position,
            entries=entries,
        )


def _gradients(beside: Beside) -> Iterator[Finding]:
    """For one random grad_output of each output alone."""
    sample, other = beside.sample, beside.other
    u = probe(other.outputs.size, beside.key)
    claims = Claim(sample.problem, beside.graph), Claim(other)
    for position, one in zip(other.output_positions, other.outputs.slices, strict=True):
        said = partial(gradient_of, sample, position)
        for finding in _of_each_input(beside, claims, alone(u, one), "GV302", said):
            yield replace(finding, output=position)


def _second_derivatives(beside: Beside) -> Iterator[Finding]:
    """For one random pair of grad_outputs; that of the target is verified."""
    u = beside.sample.problem.outputs.unflatten(probe(beside.other.outputs.size, beside.key))
    mine, theirs = (Claim(VjpProblem(one, u)) for one in (beside.sample.problem, beside.other))
    weights = probe(mine.problem.outputs.size, beside.key + 1)
    return _of_each_input(beside, (mine, theirs), weights, "GV303", "the second derivative by `{}`".format)


def _of_each_input(
    beside: Beside, claims: tuple[Claim, Claim], u: Tensor, code: str, said: Callable[[str], str]
) -> Iterator[Finding]:
    """A finding for each input whose gradients for `u` (M) differ."""
    mine, theirs = (one.row(u) for one in claims)
    if isinstance(mine, Raised) or isinstance(theirs, Raised):
        return
    problems = claims[0].problem, claims[1].problem
    for number_of, entries in _differing(beside, problems, (mine, theirs), u):
        name = problems[0].input_names[number_of]
        differs = f"{said(name)} differs from the {beside.called}'s at {_where(entries, beside.called)}"
        found = beside.sample.finding(code, differs, input=name, entries=entries)
        yield _of_the_reference(found) if beside.visible or code == "GV303" else found


def _differing(
    beside: Beside, problems: tuple[Map, Map], both: tuple[Tensor, Tensor], u: Tensor | None = None
) -> Iterator[tuple[int, Entries]]:
    """Each output that differs, or input whose gradient for `u` does, by number, with the entries."""
    mine, theirs = both
    settings, nothing = beside.sample.subject.settings, torch.zeros_like(mine)
    known = theirs.abs()[theirs.isfinite()]
    middle = known.median() if known.numel() else 0.0
    bar = settings.atol + max(settings.rtol, beside.visible) * (theirs.abs() + middle)
    off = ~((mine - theirs).abs() <= bar) & (mine != theirs) & ~(mine.isnan() & theirs.isnan())
    if bool(off.any()):
        off &= ~((mine - theirs).abs() <= bar + _rounding(problems, u, beside.epsilon))
    if u is not None and bool(off.any()) and beside.sample.point is not Point.TYPICAL:
        off &= ~_between_those_nearby(beside, u, mine)
    layout = beside.other.outputs if u is None else Layout.of(problems[0].primals)
    for number_of, block in enumerate(layout.blocks):
        own = slice(block.start, block.stop)
        entries = vector_entries(mine[own], theirs[own], nothing[own], off[own], block, of_output=u is None)
        if entries.wrong:
            yield number_of, entries


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


def _rounding(problems: Sequence[Map], u: Tensor | None, epsilon: float) -> Tensor | float:
    """How far the rounding of both moves outputs, or the gradients for `u`."""
    found = [spread(partial(_at, one, u), Values(one).x, epsilon) for one in problems]
    return sum(FACTOR * one for one in found if one is not None)


def _between_those_nearby(beside: Beside, u: Tensor, mine: Tensor) -> Tensor:
    """Entries at a kink of the reference, where several gradients are right (bool, N)."""
    there = Values(beside.other)
    ways = [probe(len(there.x), beside.key + 3 + k) * sign for k in range(2) for sign in (1.0, -1.0)]
    found = [_at(beside.other, u, there.x + BESIDE * there.scale * way) for way in ways]
    nearby = [one for one in found if one is not None]
    if not nearby:
        return torch.zeros_like(mine, dtype=torch.bool)
    low, high = torch.stack(nearby).amin(dim=0), torch.stack(nearby).amax(dim=0)
    room = ROOM * torch.maximum(low.abs(), high.abs()).max()
    return (high - low > room) & (low - room <= mine) & (mine <= high + room)


def _at(problem: Map, u: Tensor | None, x: Tensor) -> Tensor | None:
    """The outputs at a point, or the gradients for `u`; None where it raises."""
    if u is None:
        made = problem.evaluate(Layout.of(problem.primals).unflatten(x))
        return None if isinstance(made, Raised) else problem.outputs.flatten(made.value)
    rows = rows_at(problem, x, u[None])
    return None if rows is None else rows[0]
