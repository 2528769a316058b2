"""Second order: is the double backward right, silently detached, or refused clearly (GV201 to GV203)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Engine, Entries, Finding, Outcome, RaisedError, Severity, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.automatic_composite import Composite, NoComposite
from gradverify.verifier.checks.first_order import (
    backward_raised,
    measured_first_order,
    smallest_visible_error,
)
from gradverify.verifier.checks.linearity import random_signs
from gradverify.verifier.checks.result import CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.saved_intermediates import Cut, what_cuts
from gradverify.verifier.checks.sharpening import settled_second_order
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import (
    blocks,
    by_how_much,
    count_of,
    entries_of,
    is_finite,
    map_of,
    number,
    part,
)
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.certificate import Certificate, certify
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.problem import Graph, VjpProblem
from gradverify.verifier.numerics.rounding import gradient_noise
from gradverify.verifier.numerics.verdict import Judged, NotJudged

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that nobody raises to refuse a double backward."""

NONE_KNOWN = NoComposite("none was asked for")

FIRST_ORDER_ONLY = (
    "If no second derivative is meant, say so: @torch.autograd.function.once_differentiable above backward."
)


@dataclass(frozen=True)
class _Pair:
    """One block of the second-order Jacobian: the gradient of one input by another input or grad_output."""

    gradient_of: str
    by: str
    output: Block
    source: Block
    position: int


def second_order_problem(sample: Sample) -> VjpProblem:
    """The backward of a sample as a map of its own, at one grad_output of random signs."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed + 17))
    return VjpProblem(problem, u)


def second_order(
    sample: Sample, first: FirstOrder, composite: Composite | NoComposite = NONE_KNOWN
) -> CheckResult:
    """Verify the backward of backward at one grad_output, in the inputs and in grad_output.

    Where the numbers are too noisy, a composite that was confirmed by them elsewhere may settle it.
    """
    second = second_order_problem(sample)
    graph = second.graph(second.primals)
    if isinstance(graph, Raised):
        return _raised(sample, graph.error, "under create_graph=True")
    refused = refusal(graph.value)
    if refused is not None:
        return _raised(sample, refused, "at the second differentiation")
    settings = sample.subject.settings
    certificate = None
    if settings.engine is not Engine.JACOBIAN:
        through = partial(second.back_each, graph.value)
        certificate = certify(second, rtol=settings.rtol, key=sample.key, back_each=through)
    if certificate is None and first.proven:
        first = measured_first_order(sample)
    judged = certificate or judge_any_size(
        second,
        rtol=settings.rtol,
        atol=settings.atol,
        noise=gradient_noise(second),
        known=_linear_part(first),
    )
    match judged:
        case Certificate():
            return CheckResult(smallest_visible_error=judged.visible, capability="yes")
        case Raised():
            return _raised(sample, judged.error, "at the second differentiation")
        case NotJudged():
            return CheckResult((), Outcome.INCONCLUSIVE, _all_uncovered(sample, judged.reason))
        case Judged():
            result = compare_second_order(sample, second, judged, first)
            settled = settled_second_order(sample, composite, second, judged, result.uncovered)
            return replace(result, uncovered=settled)


def compare_second_order(
    sample: Sample, second: VjpProblem, judged: Judged, first: FirstOrder
) -> CheckResult:
    """What a judged second-order problem says, in findings."""
    comparison = judged.comparison
    pairs = _pairs(second, judged)
    wrong = [p for p in pairs if _wrong(judged, p).any()]
    cut = [p for p in wrong if not part(comparison.analytical, p.output, p.source).any()]
    because = what_cuts(sample, second, judged) if wrong else None
    if wrong and not comparison.analytical.any():
        finding = _because_of(_detached(sample, judged, wrong), because)
        return CheckResult((finding,), _detached_outcome(sample), capability="wrong")
    findings = [
        _because_of(_partly_cut(sample, judged, p) if p in cut else _mismatch(sample, judged, p), because)
        for p in wrong
    ]
    return CheckResult(
        tuple(findings),
        outcome_of(findings),
        _uncovered(sample, judged, pairs, first),
        smallest_visible_error(comparison),
        "wrong" if findings else "yes",
    )


def _linear_part(first: FirstOrder) -> KnownColumns | None:
    """The derivative of A(x)ᵀu by u is Aᵀ, whose rows the first order has computed already.

    Aᵀ as backward computes it, not as it should be: whether it is right was the first order's question.
    """
    if first.comparison is None or first.measured is None:
        return None
    rows, error = first.comparison.analytical.mT, first.measured.error.mT.nan_to_num(0.0, 0.0, 0.0)
    return KnownColumns(rows, torch.where(rows.isfinite(), error, torch.inf))


def refusal(graph: Graph) -> RaisedError | None:
    """What differentiating the gradients raises, None if it does not.

    `once_differentiable` raises only when the whole graph runs: `torch.autograd.grad` skips nodes that lead
    to no wanted input and returns None in silence.
    """
    connected = [g for g in graph.outputs if g.requires_grad]
    if not connected:
        return None
    ones = [torch.ones_like(g) for g in connected]

    def run_all() -> None:
        torch.autograd.backward(connected, ones, retain_graph=True)

    result = guard.call(run_all)
    return result.error if isinstance(result, Raised) else None


def _raised(sample: Sample, error: RaisedError, when: str) -> CheckResult:
    if error.type in ACCIDENTS and not error.deliberate:
        finding = backward_raised(sample, error, f" {when}")
        return CheckResult((finding,), Outcome.FAILED, capability="no")
    finding = sample.finding(
        "GV203",
        f"the double backward raises clearly {when}: {first_line(error.message)}",
        raised=None if "once_differentiable" in error.message else error,
    )
    return CheckResult((finding,), Outcome.PASSED, capability="no")


def _pairs(second: VjpProblem, judged: Judged) -> list[_Pair]:
    names = second.input_names
    return [
        _Pair(names[o], names[i], output, source, o)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
    ]


def _wrong(judged: Judged, pair: _Pair) -> Tensor:
    return part(judged.comparison.wrong | judged.comparison.nonfinite, pair.output, pair.source)


def _worst_place(judged: Judged, pair: _Pair) -> tuple[str, float]:
    values = part(judged.comparison.numerical, pair.output, pair.source)
    row, column = divmod(int(values.abs().argmax()), values.shape[1])
    index_out, index_in = (
        pair.output.index(pair.output.start + row),
        pair.source.index(pair.source.start + column),
    )
    place = f"d grad of {indexed(pair.gradient_of, index_out)} / d {indexed(pair.by, index_in)}"
    return place, values[row, column].item()


def _detached(sample: Sample, judged: Judged, wrong: list[_Pair]) -> Finding:
    worst = max(wrong, key=lambda p: abs(_worst_place(judged, p)[1]))
    place, value = _worst_place(judged, worst)
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut: for autograd the gradient of `{worst.gradient_of}` depends "
        f"on nothing, but {place} is {number(value)}",
        hint="Mark backward with @torch.autograd.function.once_differentiable, so that a double backward "
        "raises instead of losing a term; or build it from differentiable operations. To accept it: "
        'ignore: {GV2: "first order only"}.',
        input=worst.by,
        output=worst.position,
        severity=Severity.WARNING if sample.subject.inferred else Severity.ERROR,
        cause="detached",
    )


def _detached_outcome(sample: Sample) -> Outcome:
    return Outcome.PASSED if sample.subject.inferred else Outcome.FAILED


def _partly_cut(sample: Sample, judged: Judged, pair: _Pair) -> Finding:
    place, value = _worst_place(judged, pair)
    return sample.finding(
        "GV202",
        f"part of the second derivative is silently cut: the gradient of `{pair.gradient_of}` does not "
        f"depend on `{pair.by}` for autograd, but {place} is {number(value)}",
        hint="Something that backward uses is detached (an intermediate kept on ctx instead of saved as an "
        "input or output, .detach(), .data, no_grad), or a Function that backward calls returns None or "
        f"zeros for it. Recompute it in backward from saved inputs. {FIRST_ORDER_ONLY}",
        input=pair.by,
        output=pair.position,
        entries=_entries(judged, pair),
        cause="detached",
    )


def _because_of(finding: Finding, cut: Cut | None) -> Finding:
    """The finding with its cause, where a value without its graph is all that is wrong."""
    if cut is None:
        return finding
    hint = _of_calls(cut.calls) if cut.calls else _of_kept(cut.kept)
    return replace(finding, hint=f"{hint} {FIRST_ORDER_ONLY}", cause="detached")


def _of_calls(calls: Sequence[str]) -> str:
    what = " and ".join(calls)
    cuts, it = ("cut", "them") if len(calls) > 1 else ("cuts", "it")
    return f"{what} {cuts} the graph: without {it} the second derivative is right (tried here)."


def _of_kept(kept: Sequence[str]) -> str:
    names = " and ".join(f"`{name}`" for name in kept)
    are, them, its, depend = (
        ("are neither inputs nor outputs", "them", "their", "they depend")
        if len(kept) > 1
        else ("is neither an input nor an output", "it", "its", "it depends")
    )
    return (
        f"{names}, which forward keeps, {are}: in backward, {depend} on nothing for autograd. "
        f"With {its} graph the second derivative is right (tried here). Compute {them} in backward from "
        "saved inputs and outputs."
    )


NOT_FINITE = (
    " Is a root, a power or a quotient taken of 0 and hidden by torch.where or a product with 0? Its "
    "derivative is infinite, and inf * 0 is NaN: mask the argument, not the result."
)
"""The usual origin of a NaN in a second derivative whose first is finite."""


def _mismatch(sample: Sample, judged: Judged, pair: _Pair) -> Finding:
    entries = _entries(judged, pair)
    comparison = judged.comparison
    difference = part((comparison.analytical - comparison.numerical).abs(), pair.output, pair.source)
    bound = part(comparison.bound, pair.output, pair.source)
    wrong = _wrong(judged, pair)
    return sample.finding(
        "GV201",
        f"the second derivative (gradient of `{pair.gradient_of}` by `{pair.by}`) is wrong at "
        f"{count_of(entries.wrong, entries.checked)}, {by_how_much(entries)}",
        hint="The first derivative is right. What backward computes must itself be differentiable in its "
        f"inputs and in grad_output. {FIRST_ORDER_ONLY}" + ("" if is_finite(entries) else NOT_FINITE),
        input=pair.by,
        output=pair.position,
        entries=entries,
        map=map_of(
            (
                part(comparison.analytical, pair.output, pair.source),
                part(comparison.numerical, pair.output, pair.source),
            ),
            wrong,
            bound.isfinite(),
            pair.output,
            pair.source,
            (f"g_{pair.gradient_of}", pair.by),
        ),
        badness=(difference[wrong].max() / bound[wrong].max().clamp_min(1e-300)).nan_to_num(1e300).item(),
    )


def _entries(judged: Judged, pair: _Pair) -> Entries:
    comparison = judged.comparison
    return entries_of(
        part(comparison.analytical, pair.output, pair.source),
        part(comparison.numerical, pair.output, pair.source),
        part(comparison.bound, pair.output, pair.source),
        _wrong(judged, pair),
        pair.output,
        pair.source,
    )


def _uncovered(
    sample: Sample, judged: Judged, pairs: list[_Pair], first: FirstOrder
) -> dict[tuple[int, str], Uncovered]:
    """Second-order pairs that could not be judged, except where the first derivative itself vanishes."""
    found = {}
    for pair in pairs:
        covered = part(judged.comparison.covered, pair.output, pair.source)
        kinks = part(judged.comparison.kinks, pair.output, pair.source)
        mask = ~covered & ~kinks & ~_wrong(judged, pair)
        if mask.any() and not _vanishes(sample, first, pair.position):
            reason = "the numerical second derivative is too noisy here"
            found[pair.position, f"second order, {pair.by}"] = Uncovered(mask, reason)
    return found


def _vanishes(sample: Sample, first: FirstOrder, position: int) -> bool:
    """Whether the first derivative by an input is zero to within its measured error."""
    if first.comparison is None:
        return False
    source = sample.inputs.blocks[position]
    columns = slice(source.start, source.stop)
    values, bounds = first.comparison.numerical[:, columns].abs(), first.comparison.bound[:, columns]
    return bool((values <= bounds).all())


def _all_uncovered(sample: Sample, reason: str) -> dict[tuple[int, str], Uncovered]:
    return {
        (i, "second order"): Uncovered(torch.ones(1, 1, dtype=torch.bool), reason)
        for i in range(len(sample.problem.primals))
    }
