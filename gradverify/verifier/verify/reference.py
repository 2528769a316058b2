"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Point, Severity
from gradverify.verifier.checks.composite import reference_problem
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import apart, count_of, number, output_name, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout, VjpProblem
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import Options, against
from gradverify.verifier.witnesses.claim import Claim, Map
from gradverify.verifier.witnesses.kinks import BESIDE, ROOM
from gradverify.verifier.witnesses.proof import alone
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import Values, probe


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
    sample: Sample,
    graph: Graph,
    known: Options,
    visible: float,
    *,
    gradients: bool = True,
) -> Iterator[Finding]:
    """GV301 to GV303: values first; where they differ, gradients say nothing.

    A gradient that values have shown is right, whatever the reference has for one.
    """
    built = reference_problem(sample, sample.subject.reference, sample.subject.reference_arguments)  # type: ignore[arg-type]
    if isinstance(built, Raised):
        said = f"the reference raised {built.error.type}: {first_line(built.error.message)}"
        yield _refused(sample, said)
        return
    other = built.value
    if not other.output_positions:
        said = "the reference returned no tensor at the position of a differentiable output"
        yield _refused(sample, said)
        return
    beside = Beside(sample, graph, other, "reference", known.epsilon, visible)
    found = list(_shapes(beside))
    found = found or (list(_values(beside)) if _has_all_outputs(beside) else [])
    if gradients:
        found = found or (list(_gradients(beside)) if _has_all_outputs(beside) else [])
    if gradients and not found and known.twice and (sample.point, sample.draw) == (Point.TYPICAL, 0):
        found = list(_second_derivatives(beside)) if _has_all_outputs(beside) else []
    yield from found


def ask_surrogate(sample: Sample, graph: Graph, known: Options) -> Iterator[Finding]:
    """GV302 against the surrogate's gradient; its forward is not compared."""
    surrogate = sample.subject.surrogate
    if surrogate is None or surrogate.function is None:
        return
    built = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(built, Raised):
        said = f"the surrogate raised {built.error.type}: {first_line(built.error.message)}"
        yield _refused(sample, said)
        return
    found = list(_gradients(Beside(sample, graph, built.value, "surrogate", known.epsilon)))
    if (
        not found
        and sample.point is Point.TYPICAL
        and sample.draw == 0
        and sample.subject.is_first_of_options
    ):
        found = list(wrong_with_structure(sample, against(sample, graph, built.value, known)))
    yield from (f for f in found if surrogate.covers(f.input))


def _refused(sample: Sample, reason: str) -> Finding:
    return sample.finding("GV109", f"not compared with the reference: {reason}")


def _has_all_outputs(beside: Beside) -> bool:
    return beside.other.outputs.size == beside.sample.problem.outputs.size


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


def _beyond(beside: Beside, mine: Tensor, theirs: Tensor, noise: Tensor) -> Tensor:
    settings = beside.sample.subject.settings
    known = theirs.abs()[theirs.isfinite()]
    middle = known.median() if known.numel() else torch.zeros(())
    rtol = max(settings.rtol, beside.visible)
    allowed = settings.atol + rtol * (theirs.abs() + middle) + noise
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    return ~((mine - theirs).abs() <= allowed) & ~same


def _values(beside: Beside) -> Iterator[Finding]:
    sample, other = beside.sample, beside.other
    made = other.evaluate(other.primals)
    if isinstance(made, Raised):
        return
    mine, theirs = other.outputs.flatten(beside.graph.outputs), other.outputs.flatten(made.value)
    nothing = torch.zeros_like(mine)
    off = _beyond(beside, mine, theirs, nothing)
    if bool(off.any()):
        off = _beyond(beside, mine, theirs, _rounding((sample.problem, other), None, beside.epsilon))
    for position, block in zip(other.output_positions, other.outputs.blocks, strict=True):
        part = slice(block.start, block.stop)
        entries = vector_entries(mine[part], theirs[part], nothing[part], off[part], block, of_output=True)
        if entries.wrong:
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
    claims = (Claim(sample.problem, beside.graph), Claim(other))
    for position, one in zip(other.output_positions, other.outputs.slices, strict=True):
        of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
        for name, entries in _apart(beside, claims, alone(u, one)):
            said = (
                f"the gradient{of_output} with respect to `{name}` differs from the {beside.called}'s at "
                f"{_where(entries, beside.called)}"
            )
            found = sample.finding("GV302", said, output=position, input=name, entries=entries)
            yield _of_the_reference(found) if beside.visible else found


def _second_derivatives(beside: Beside) -> Iterator[Finding]:
    """For one random pair of grad_outputs; that of the target is verified."""
    u = beside.sample.problem.outputs.unflatten(probe(beside.other.outputs.size, beside.key))
    claims = tuple(Claim(VjpProblem(one, u)) for one in (beside.sample.problem, beside.other))
    for name, entries in _apart(beside, claims, probe(claims[0].problem.outputs.size, beside.key + 1)):
        where = _where(entries, beside.called)
        said = f"the second derivative by `{name}` differs from the reference's at {where}"
        yield _of_the_reference(beside.sample.finding("GV303", said, input=name, entries=entries))


def _apart(beside: Beside, claims: tuple[Claim, ...], u: Tensor) -> Iterator[tuple[str, Entries]]:
    """The entries of each input at which the gradients for `u` (M) differ."""
    rows = [one.rows(u[None]) for one in claims]
    problems = [one.problem for one in claims]
    mine, theirs = (None if isinstance(one, Raised) else one[0] for one in rows)
    if mine is None or theirs is None:
        return
    nothing = torch.zeros_like(mine)
    off = _beyond(beside, mine, theirs, nothing)
    if bool(off.any()):
        off &= _beyond(beside, mine, theirs, _rounding(problems, u, beside.epsilon))
    if bool(off.any()) and beside.sample.point is not Point.TYPICAL:
        off &= ~_between_those_nearby(beside, u, mine)
    for name, block in zip(problems[0].input_names, Layout.of(problems[0].primals).blocks, strict=True):
        part = slice(block.start, block.stop)
        entries = vector_entries(mine[part], theirs[part], nothing[part], off[part], block)
        if entries.wrong:
            yield name, entries


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


def _rounding(problems: Sequence[Map], u: Tensor | None, epsilon: float) -> Tensor:
    """How far the rounding of both moves outputs, or the gradients for `u`."""
    total: Tensor | float = 0.0
    for problem in problems:
        inputs = Layout.of(problem.primals)
        found = spread(partial(_moved, problem, inputs, u), inputs.flatten(problem.primals), epsilon)
        total = total + (FACTOR * found if found is not None else 0.0)
    return total if isinstance(total, Tensor) else torch.zeros(())


def _between_those_nearby(beside: Beside, u: Tensor, mine: Tensor) -> Tensor:
    """Entries at a kink of the reference, where several gradients are right (bool, N)."""
    there = Values(beside.other)
    ways = [probe(len(there.x), beside.key + 3 + k) * sign for k in range(2) for sign in (1.0, -1.0)]
    found = [_moved(beside.other, beside.sample.inputs, u, there.x + BESIDE * there.scale * w) for w in ways]
    nearby = [one for one in found if one is not None]
    if not nearby:
        return torch.zeros_like(mine, dtype=torch.bool)
    low, high = torch.stack(nearby).amin(dim=0), torch.stack(nearby).amax(dim=0)
    room = ROOM * torch.maximum(low.abs(), high.abs()).max()
    return (high - low > room) & (low - room <= mine) & (mine <= high + room)


def _moved(problem: Map, inputs: Layout, u: Tensor | None, x: Tensor) -> Tensor | None:
    primals = inputs.unflatten(x)
    if u is None:
        made = problem.evaluate(primals)
        return None if isinstance(made, Raised) else problem.outputs.flatten(made.value)
    back = problem.pull_back(primals, problem.outputs.unflatten(u))
    return None if isinstance(back, Raised) else inputs.flatten(back.value)
