"""The reference that a spec names, and the surrogate: forward and gradients beside those of a composite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, Point
from gradverify.rules import Family
from gradverify.verifier.checks.composite import reference_problem
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import apart, count_of, number, output_name, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout
from gradverify.verifier.verify.state import CaseState
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import against
from gradverify.verifier.witnesses.claim import Claim
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import EPSILON, probe


def ask_reference(sample: Sample, graph: Graph, state: CaseState, visible: float) -> Iterator[Finding]:
    """GV301, GV302: values first; where they differ, gradients say nothing.

    Where values have shown the gradient, `visible` is the error that they would have seen.
    """
    built = reference_problem(sample, sample.subject.reference, sample.subject.reference_arguments)  # type: ignore[arg-type]
    if isinstance(built, Raised):
        yield _refused(
            sample, f"the reference raised {built.error.type}: {first_line(built.error.message)}", state
        )
        return
    other = built.value
    if other.outputs.blocks != sample.problem.outputs.blocks:
        if not other.output_positions:
            yield _refused(
                sample, "the reference returned no tensor at the position of a differentiable output", state
            )
            return
        yield from _other_shapes(sample, other, state)
        return
    values = other.evaluate(other.primals)
    if isinstance(values, Raised):
        return
    mine, theirs = other.outputs.flatten(graph.outputs), other.outputs.flatten(values.value)
    found = list(_values(sample, mine, theirs, other, visible))
    found = found or list(_gradients(sample, graph, other, "reference", visible))
    state.worsen(Family.REFERENCE, Outcome.FAILED if found else Outcome.PASSED)
    yield from found


def ask_surrogate(sample: Sample, graph: Graph, state: CaseState) -> Iterator[Finding]:
    """GV302 against the surrogate's gradient; its forward is not compared."""
    surrogate = sample.subject.surrogate
    if surrogate is None or surrogate.function is None:
        return
    built = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(built, Raised):
        yield _refused(
            sample, f"the surrogate raised {built.error.type}: {first_line(built.error.message)}", state
        )
        return
    found = list(_gradients(sample, graph, built.value, "surrogate", 0.0))
    if (
        not found
        and sample.point is Point.TYPICAL
        and sample.draw == 0
        and sample.subject.is_first_of_options
    ):
        found = list(wrong_with_structure(sample, against(sample, graph, built.value)))
    found = [f for f in found if surrogate.covers(f.input)]
    state.worsen(Family.REFERENCE, Outcome.FAILED if found else Outcome.PASSED)
    yield from found


def _refused(sample: Sample, reason: str, state: CaseState) -> Finding:
    state.worsen(Family.REFERENCE, Outcome.INCONCLUSIVE)
    return sample.finding("GV109", f"not compared with the reference: {reason}")


def _other_shapes(sample: Sample, other: CallProblem, state: CaseState) -> Iterator[Finding]:
    for position, b in zip(other.output_positions, other.outputs.blocks, strict=True):
        a = sample.problem.outputs.blocks[sample.problem.output_positions.index(position)]
        if a.shape != b.shape:
            state.worsen(Family.REFERENCE, Outcome.FAILED)
            yield sample.finding(
                "GV301",
                f"{output_name(position, sample.outputs_returned)} has shape {list(a.shape)}, "
                f"the reference's has {list(b.shape)}",
                hint="Is it the reference for these inputs, called positionally with what forward gets?",
                output=position,
            )
            return


def _beyond(sample: Sample, mine: Tensor, theirs: Tensor, noise: Tensor, visible: float) -> Tensor:
    settings = sample.subject.settings
    known = theirs.abs()[theirs.isfinite()]
    middle = known.median() if known.numel() else torch.zeros(())
    allowed = settings.atol + max(settings.rtol, visible) * (theirs.abs() + middle) + noise
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    return ~((mine - theirs).abs() <= allowed) & ~same


def _values(
    sample: Sample, mine: Tensor, theirs: Tensor, other: CallProblem, visible: float
) -> Iterator[Finding]:
    nothing = torch.zeros_like(mine)
    off = _beyond(sample, mine, theirs, nothing, visible)
    if bool(off.any()):
        off = _beyond(sample, mine, theirs, _rounding(sample, [sample.problem, other], None), visible)
    for position, block in zip(other.output_positions, other.outputs.blocks, strict=True):
        part = slice(block.start, block.stop)
        entries = vector_entries(mine[part], theirs[part], nothing[part], off[part], block, of_output=True)
        if entries.wrong:
            got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
            by = number(abs(entries.worst[0].actual - entries.worst[0].expected))
            yield sample.finding(
                "GV301",
                f"{output_name(position, sample.outputs_returned)} of forward differs from the reference at "
                f"{count_of(entries.wrong, entries.checked)}, by up to {by} ({got}, reference {wanted})",
                hint="Forward and reference give different values: the gradients are not compared.",
                output=position,
                entries=entries,
            )


def _gradients(
    sample: Sample, graph: Graph, other: CallProblem, called: str, visible: float
) -> Iterator[Finding]:
    """For one random grad_output of each output alone."""
    u = probe(other.outputs.size, sample.key % 4096 + 29)
    rows = [torch.where(_within(len(u), s), u, 0.0) for s in other.outputs.slices]
    if not rows:
        return
    mine, theirs = (Claim(p, g).rows(torch.stack(rows)) for p, g in ((sample.problem, graph), (other, None)))
    if isinstance(mine, Raised) or isinstance(theirs, Raised):
        return
    for k, position in enumerate(other.output_positions[: len(rows)]):
        off = _beyond(sample, mine[k], theirs[k], torch.zeros_like(u[:1]), visible)
        if bool(off.any()):
            off &= _beyond(
                sample, mine[k], theirs[k], _rounding(sample, [sample.problem, other], rows[k]), visible
            )
        for name, block in zip(sample.problem.input_names, Layout.of(other.primals).blocks, strict=True):
            part = slice(block.start, block.stop)
            entries = vector_entries(
                mine[k][part], theirs[k][part], torch.zeros_like(off[part]).double(), off[part], block
            )
            if entries.wrong:
                got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
                of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
                by = number(abs(entries.worst[0].actual - entries.worst[0].expected))
                yield sample.finding(
                    "GV302",
                    f"the gradient{of_output} with respect to `{name}` differs from the {called}'s at "
                    f"{count_of(entries.wrong, entries.checked)}, by up to {by} ({got}, {called} {wanted})",
                    output=position,
                    input=name,
                    entries=entries,
                )


def _within(size: int, rows: slice) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[rows] = True
    return mask


def _rounding(sample: Sample, problems: Sequence[CallProblem], u: Tensor | None) -> Tensor:
    """How far the rounding of both moves outputs, or the gradients for `u`."""
    total: Tensor | float = 0.0
    inputs = sample.inputs
    for problem in problems:

        def call(x: Tensor, problem: CallProblem = problem) -> Tensor | None:
            primals = inputs.unflatten(x)
            if u is None:
                made = problem.evaluate(primals)
                return None if isinstance(made, Raised) else problem.outputs.flatten(made.value)
            back = problem.pull_back(primals, problem.outputs.unflatten(u))
            return None if isinstance(back, Raised) else inputs.flatten(back.value)

        found = spread(call, inputs.flatten(problem.primals), EPSILON)
        total = total + (FACTOR * found if found is not None else 0.0)
    return total if isinstance(total, Tensor) else torch.zeros(())
