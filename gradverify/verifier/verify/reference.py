"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Outcome, Point
from gradverify.rules import Family
from gradverify.verifier.checks.composite import reference_problem
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import apart, count_of, number, output_name, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout
from gradverify.verifier.verify.state import CaseState
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import Options, against
from gradverify.verifier.witnesses.claim import Claim
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
    sample: Sample, graph: Graph, state: CaseState, known: Options, visible: float
) -> Iterator[Finding]:
    """GV301, GV302: values first; where they differ, gradients say nothing."""
    built = reference_problem(sample, sample.subject.reference, sample.subject.reference_arguments)  # type: ignore[arg-type]
    if isinstance(built, Raised):
        said = f"the reference raised {built.error.type}: {first_line(built.error.message)}"
        yield _refused(sample, said, state)
        return
    other = built.value
    if not other.output_positions:
        said = "the reference returned no tensor at the position of a differentiable output"
        yield _refused(sample, said, state)
        return
    beside = Beside(sample, graph, other, "reference", known.epsilon, visible)
    found = list(_shapes(beside))
    found = found or (list(_values(beside)) if _has_all_outputs(beside) else [])
    found = found or (list(_gradients(beside)) if _has_all_outputs(beside) else [])
    state.worsen(Family.REFERENCE, Outcome.FAILED if found else Outcome.PASSED)
    yield from found


def ask_surrogate(sample: Sample, graph: Graph, state: CaseState, known: Options) -> Iterator[Finding]:
    """GV302 against the surrogate's gradient; its forward is not compared."""
    surrogate = sample.subject.surrogate
    if surrogate is None or surrogate.function is None:
        return
    built = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(built, Raised):
        said = f"the surrogate raised {built.error.type}: {first_line(built.error.message)}"
        yield _refused(sample, said, state)
        return
    found = list(_gradients(Beside(sample, graph, built.value, "surrogate", known.epsilon)))
    if (
        not found
        and sample.point is Point.TYPICAL
        and sample.draw == 0
        and sample.subject.is_first_of_options
    ):
        found = list(wrong_with_structure(sample, against(sample, graph, built.value, known)))
    found = [f for f in found if surrogate.covers(f.input)]
    state.worsen(Family.REFERENCE, Outcome.FAILED if found else Outcome.PASSED)
    yield from found


def _refused(sample: Sample, reason: str, state: CaseState) -> Finding:
    state.worsen(Family.REFERENCE, Outcome.INCONCLUSIVE)
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
        off = _beyond(beside, mine, theirs, _rounding(beside, None))
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
    rows = [alone(u, s) for s in other.outputs.slices]
    if not rows:
        return
    claims = (Claim(sample.problem, beside.graph), Claim(other))
    mine, theirs = (one.rows(torch.stack(rows)) for one in claims)
    if isinstance(mine, Raised) or isinstance(theirs, Raised):
        return
    nothing = torch.zeros_like(mine[0])
    for k, position in enumerate(other.output_positions[: len(rows)]):
        off = _beyond(beside, mine[k], theirs[k], nothing)
        if bool(off.any()):
            off &= _beyond(beside, mine[k], theirs[k], _rounding(beside, rows[k]))
        if bool(off.any()) and sample.point is not Point.TYPICAL:
            off &= ~_between_those_nearby(beside, rows[k], mine[k])
        for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True):
            part = slice(block.start, block.stop)
            entries = vector_entries(mine[k][part], theirs[k][part], nothing[part], off[part], block)
            if entries.wrong:
                of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
                yield sample.finding(
                    "GV302",
                    f"the gradient{of_output} with respect to `{name}` differs from the {beside.called}'s at "
                    f"{_where(entries, beside.called)}",
                    output=position,
                    input=name,
                    entries=entries,
                )


def _where(entries: Entries, called: str) -> str:
    worst = entries.worst[0]
    got, wanted = apart(worst.actual, worst.expected)
    by = number(abs(worst.actual - worst.expected))
    return f"{count_of(entries.wrong, entries.checked)}, by up to {by} ({got}, {called} {wanted})"


def _rounding(beside: Beside, u: Tensor | None) -> Tensor:
    """How far the rounding of both moves outputs, or the gradients for `u`."""
    inputs = beside.sample.inputs
    total: Tensor | float = 0.0
    for problem in (beside.sample.problem, beside.other):
        call = partial(_moved, problem, inputs, u)
        found = spread(call, inputs.flatten(problem.primals), beside.epsilon)
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


def _moved(problem: CallProblem, inputs: Layout, u: Tensor | None, x: Tensor) -> Tensor | None:
    primals = inputs.unflatten(x)
    if u is None:
        made = problem.evaluate(primals)
        return None if isinstance(made, Raised) else problem.outputs.flatten(made.value)
    back = problem.pull_back(primals, problem.outputs.unflatten(u))
    return None if isinstance(back, Raised) else inputs.flatten(back.value)
