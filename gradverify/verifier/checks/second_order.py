"""Second order: is the double backward right, silently detached, or refused clearly (GV201 to GV203)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Engine, Finding, Outcome, RaisedError, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.automatic_composite import Composite, NoComposite
from gradverify.verifier.checks.detached import FIRST_ORDER_ONLY, because_of, detached, partly_cut
from gradverify.verifier.checks.first_order import (
    backward_raised,
    measured_first_order,
    smallest_visible_error,
)
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import (
    NO_VALUE,
    ROUNDED_AWAY,
    CheckResult,
    FirstOrder,
    Uncovered,
    outcome_of,
)
from gradverify.verifier.checks.saved_intermediates import what_cuts
from gradverify.verifier.checks.second_pairs import SecondPair, entries_in, second_pairs, wrong_in
from gradverify.verifier.checks.sharpening import settled_second_order
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.unknown import why_unknown
from gradverify.verifier.checks.wording import (
    by_how_much,
    count_of,
    is_finite,
    map_of,
    part,
)
from gradverify.verifier.engine import run_every_node
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import hand_back
from gradverify.verifier.numerics.certificate import Certificate, certify
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.problem import Graph, VjpProblem
from gradverify.verifier.numerics.rounding import gradient_noise
from gradverify.verifier.numerics.verdict import Judged, NotJudged

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that nobody raises to refuse a double backward."""

GROSS = 1e-3
"""Relative: a branch that is missing shows by more, at values where a right formula may have few digits."""

NONE_KNOWN = NoComposite("none was asked for")


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
        hand_back(sample.inputs.size)
        through = partial(second.back_each, graph.value)
        certificate = certify(second, rtol=settings.rtol, key=sample.key, back_each=through)
    if certificate is None and first.proven:
        first = measured_first_order(sample)
    judged = certificate or judged_jacobians(
        sample, second, noise=gradient_noise(second), known=_linear_part(first)
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


def is_gross(finding: Finding) -> bool:
    """Whether a second derivative is cut, or off by more than a share of it that no rounding makes."""
    if finding.severity is not Severity.ERROR or finding.code not in {"GV201", "GV202"}:
        return False
    if finding.entries is None or not is_finite(finding.entries):
        return False
    return any(abs(e.actual - e.expected) > GROSS * abs(e.expected) for e in finding.entries.worst)


def compare_second_order(
    sample: Sample, second: VjpProblem, judged: Judged, first: FirstOrder
) -> CheckResult:
    """What a judged second-order problem says, in findings."""
    comparison = judged.comparison
    pairs = second_pairs(second, judged)
    wrong = [p for p in pairs if wrong_in(judged, p).any()]
    cut = [p for p in wrong if not part(comparison.analytical, p.output, p.source).any()]
    because = what_cuts(sample, second, judged) if wrong else None
    if wrong and not comparison.analytical.any():
        finding = because_of(detached(sample, second, judged, wrong), because)
        return CheckResult((finding,), _detached_outcome(sample), capability="wrong")
    findings = [
        because_of(
            partly_cut(sample, second, judged, p) if p in cut else _mismatch(sample, judged, p), because
        )
        for p in wrong
    ]
    return CheckResult(
        tuple(findings),
        outcome_of(findings),
        _uncovered(sample, second, judged, pairs, first),
        smallest_visible_error(comparison),
        "wrong" if findings else "yes",
        not_judged=int(comparison.not_judged.sum()),
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

    result = guard.call(run_every_node, connected, ones)
    for leaf in graph.leaves:
        leaf.grad = None
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


def _detached_outcome(sample: Sample) -> Outcome:
    return Outcome.PASSED if sample.subject.inferred else Outcome.FAILED


NOT_FINITE = (
    " Is a root, a power or a quotient taken of 0 and hidden by torch.where or a product with 0? Its "
    "derivative is infinite, and inf * 0 is NaN: mask the argument, not the result."
)
"""The usual origin of a NaN in a second derivative whose first is finite."""


def _mismatch(sample: Sample, judged: Judged, pair: SecondPair) -> Finding:
    entries = entries_in(judged, pair)
    comparison = judged.comparison
    difference = part((comparison.analytical - comparison.numerical).abs(), pair.output, pair.source)
    bound = part(comparison.bound, pair.output, pair.source)
    wrong = wrong_in(judged, pair)
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


def _uncovered(
    sample: Sample, second: VjpProblem, judged: Judged, pairs: list[SecondPair], first: FirstOrder
) -> dict[tuple[int, str], Uncovered]:
    """Second-order pairs that could not be judged, except where the first derivative itself vanishes."""
    found = {}
    for pair in pairs:
        covered = part(judged.comparison.covered, pair.output, pair.source)
        kinks = part(judged.comparison.kinks, pair.output, pair.source)
        rounded_away = part(judged.comparison.not_judged, pair.output, pair.source)
        wrong = wrong_in(judged, pair)
        mask = ~covered & ~kinks & ~wrong & ~rounded_away
        if not covered.any() and not wrong.any():
            mask |= rounded_away
        if mask.any() and not _vanishes(sample, first, pair.position):
            found[pair.position, f"second order, {pair.by}"] = _why(second, judged, pair, mask)
    return found


def _why(second: VjpProblem, judged: Judged, pair: SecondPair, mask: Tensor) -> Uncovered:
    """Why a second-order pair could not be judged."""
    if part(judged.comparison.not_judged, pair.output, pair.source)[mask].all():
        return Uncovered(mask, ROUNDED_AWAY)
    rows = slice(pair.output.start, pair.output.stop)
    if (~judged.measured.centre.isfinite())[rows][mask.any(dim=1)].all():
        return Uncovered(mask, "the gradient itself is not finite at these inputs", NO_VALUE)
    if not part(judged.measured.error, pair.output, pair.source)[mask].isfinite().all():
        places = torch.zeros_like(judged.comparison.covered)
        part(places, pair.output, pair.source)[mask] = True
        return Uncovered(mask, *why_unknown(second, judged, places, "the gradient"))
    return Uncovered(mask, "the numerical second derivative is too noisy here")


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
