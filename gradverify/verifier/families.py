"""The families of checks: each looks at one sample (a target at one point of one case).

To add one, write it in its family's module and list it in `CHECKS`; a check that builds on another's
result finds it in `Results`.

The families of checks for a target without a float64 path: its own dtype, and what must not change it.

`--engine torch`: the verdict of `torch.autograd.gradcheck` and `gradgradcheck`; ours only locates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from gradverify.model import Closeness, Engine, Finding, Outcome, Point, RaisedError, Severity
from gradverify.rules import CHECK_FAMILIES, Family, matching
from gradverify.verifier import guard
from gradverify.verifier.checks.contract import contract, stops_judgement
from gradverify.verifier.checks.dtypes.asked import OWN, beside_float64, in_float64_of, not_judged
from gradverify.verifier.checks.dtypes.autocast import autocast, autocast_not_judged
from gradverify.verifier.checks.dtypes.deciding import FLOAT32_INSIDE, native_dtype
from gradverify.verifier.checks.first_order import NO_FLOAT64_PATH, backward_raised
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.samples import is_given_short, prepare
from gradverify.verifier.checks.subject import Native, Sample, Surrogate, first_line
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import hand_back
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.numerics.problem import returned_tensors, substitute
from gradverify.verifier.questions.again import early_gradient, unrepeatable
from gradverify.verifier.questions.table import SWEPT_CODES, UNREPEATABLE, asked, on_other_devices
from gradverify.verifier.questions.transforms import TRANSFORM_CODES, transforms
from gradverify.verifier.questions.writes import written
from gradverify.verifier.verify.natively import (
    judged_alone,
    no_float64_path,
    second_order_natively,
)
from gradverify.verifier.verify.results import (
    first_order,
    reference,
    second_order,
    surrogate,
)


def torch_first_order(sample: Sample) -> FirstOrder:
    """Gradcheck in slow mode; where it fails, our Jacobians say where."""
    if sample.disconnected:
        return first_order(sample)
    error = _ask(torch.autograd.gradcheck, sample)
    if error is None:
        return FirstOrder(CheckResult(outcome=Outcome.PASSED), proven=True)
    if error.type != GradcheckError.__name__:
        return FirstOrder(CheckResult((backward_raised(sample, error),), Outcome.FAILED))
    located = first_order(sample)
    if located.result.outcome is Outcome.FAILED:
        return located
    return FirstOrder(CheckResult((_unlocated(sample, "GV101", "gradcheck", error),), Outcome.FAILED))


def torch_second_order(sample: Sample) -> CheckResult:
    """Gradgradcheck in slow mode; a double backward that raises or is detached has codes of its own."""
    error = _ask(torch.autograd.gradgradcheck, sample)
    if error is None:
        return CheckResult(outcome=Outcome.PASSED, capability="yes")
    located = second_order(sample)
    if located.outcome in {Outcome.FAILED, Outcome.NOT_RUN} or located.capability == "no":
        return located  # not run: the draw before says it
    return CheckResult(
        (_unlocated(sample, "GV201", "gradgradcheck", error),), Outcome.FAILED, capability="wrong"
    )


def _ask(check: Any, sample: Sample) -> RaisedError | None:  # noqa: ANN401 - gradcheck or gradgradcheck
    settings = sample.subject.settings
    inputs = [p.detach().clone().requires_grad_() for p in sample.problem.primals]

    def function(*primals: Tensor) -> tuple[Tensor, ...]:
        sample.problem.counter.forward += 1
        sample.problem.random_states.replay()
        arguments = substitute(sample.arguments, [p.clone() for p in primals])
        returned = returned_tensors(sample.subject.call(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    result = guard.call(lambda: check(function, inputs, rtol=settings.rtol, atol=settings.atol))
    return result.error if isinstance(result, Raised) else None


def _unlocated(sample: Sample, code: str, check: str, error: RaisedError) -> Finding:
    return sample.finding(
        code,
        f"torch.autograd.{check} fails: {first_line(error.message)}",
        hint="gradverify's own comparison finds no entry that is off by more than its measured error: "
        "run without --engine torch to see its verdict.",
    )


ONLY_NATIVE = "transforms and the reference in float64 were not judged: there is no float64 path"

BRIEF = (
    "; a call launches many interpreted programs, so further layouts and requires_grad sets were left out "
    "(--effort thorough runs them)"
)

NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)


def is_swept(sample: Sample) -> bool:
    """Whether the questions are asked at this point: the first typical one of each case.

    Across ranks, of those of the smallest world above 1.
    """
    across = sample.subject.across
    return sample.point is Point.TYPICAL and sample.draw == 0 and (across is None or across.is_swept)


def not_judged_natively(sample: Sample, found: dict[Family, CheckResult]) -> str:
    """What is left out of a native sample, in words."""
    second = found[Family.GRADGRADCHECK]
    unknown = is_swept(sample) and second.outcome is Outcome.NOT_RUN and not second.capability
    return ("second order, " if unknown else "") + ONLY_NATIVE + (BRIEF if sample.subject.brief else "")


def run_natively(sample: Sample, wanted: frozenset[Family]) -> dict[Family, CheckResult]:
    """What can be said of a target without a float64 path: its values, then what must not change them."""
    found = dict.fromkeys(CHECK_FAMILIES, NOT_RUN)
    early = early_gradient(sample) if Family.CONTRACT in wanted and is_swept(sample) else None
    first = judged_alone(sample)
    judged = first.result
    if sample.draw == 0 and sample.point is Point.TYPICAL:
        judged = replace(judged, findings=(no_float64_path(sample), *judged.findings))
    # Slopes that agree are no proof, but a gradient to compare the same call in another layout with.
    # Of inferred inputs what is wrong is no failure, and no gradient to build on.
    wrong = any(row.closeness is Closeness.WRONG for row in judged.swept.precision)
    has_gradient = judged.outcome is not Outcome.FAILED and not wrong and bool(judged.swept.native)
    if Family.CONTRACT in wanted:
        found[Family.CONTRACT] = contract(sample, first)
        if is_swept(sample) and has_gradient and not stops_judgement(found[Family.CONTRACT]):
            found[Family.CONTRACT] = found[Family.CONTRACT].beside(asked(sample, early))
    is_derivative = sample.subject.surrogate is None
    if Family.GRADGRADCHECK in wanted and is_swept(sample) and has_gradient and is_derivative:
        found[Family.GRADGRADCHECK] = second_order_natively(sample)
    if judged.swept.native and is_swept(sample):
        judged = judged.beside(autocast(sample, in_float64_of(sample.subject)))
    return found | {Family.PRECISION: judged}


def beside_float32(
    sample: Sample, first: FirstOrder, found: dict[Family, CheckResult], wanted: frozenset[Family]
) -> dict[Family, CheckResult]:
    """Native dtypes judge what float64 could not: forward accepts it and computes in float32.

    Float64 has shown large mistakes alone; where it has, they say more than rounded numbers.
    """
    if not first.single_precision:
        return {}
    in_float64 = found[Family.GRADCHECK]
    left_out = not is_swept(sample) or is_given_short(sample) or sample.subject.surrogate is not None
    if left_out or in_float64.outcome in {Outcome.FAILED, Outcome.PASSED}:
        return {}
    dtype = native_dtype(sample.subject, sample.case)
    native = replace(sample.subject, precision=Native(dtype, FLOAT32_INSIDE))
    again = prepare(native, sample.case, sample.point, sample.draw)
    if not dtype or not isinstance(again, Sample):
        return {}
    natively = run_natively(again, wanted)
    sample.problem.counter.forward += again.problem.counter.forward
    sample.problem.counter.backward += again.problem.counter.backward
    judged = natively[Family.PRECISION]
    if judged.swept.native:
        left = {k: u for k, u in in_float64.uncovered.items() if u.reason != NO_FLOAT64_PATH}
        in_float64 = replace(in_float64, uncovered=left)
    kept = found[Family.CONTRACT].beside(natively[Family.CONTRACT])
    return {Family.GRADCHECK: in_float64, Family.CONTRACT: kept, Family.PRECISION: judged}


REPLACED = frozenset({"GV101", "GV106", "GV107"})
"""Codes that a surrogate stands in for."""

ALSO_REPLACED_WITHOUT_COMPOSITE = frozenset({"GV108", "GV110"})
"""Codes that nothing can judge where only a reason is declared."""

VALUES = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110"})
"""Codes that say little where the gradient is another each time."""

NO_OTHER_DEVICE = "GV701 was not run: it needs --device all, and a second device that torch sees"
NOT_SWEPT = "layouts, requires_grad and repeated calls were not swept: the gradient is not verified"


@dataclass
class Results:
    """What the checks before found at this sample."""

    first: FirstOrder
    contract: CheckResult
    second: CheckResult | None = None
    reference: CheckResult | None = None
    not_judged: str = ""
    """Why a check that builds on the first order could not run."""
    early: Gradients | None = None
    """The gradient of the first backward of all at this point."""
    unrepeatable: tuple[Finding, ...] = ()
    """Why what is wrong with the first order says little: another gradient comes each time."""
    unwritten: bool = False
    """It hangs on memory that was never written: in another dtype that is other garbage."""


def _run_second_order(sample: Sample, results: Results) -> CheckResult:
    if sample.subject.surrogate is not None:
        return NOT_RUN
    typical = sample.point is Point.TYPICAL
    if not results.first.verified or stops_judgement(results.contract):
        if typical:
            results.not_judged = "second order was not judged: the first derivative is not verified"
        return NOT_RUN
    if sample.subject.settings.engine is Engine.TORCH:
        results.second = torch_second_order(sample) if typical else NOT_RUN
    else:
        results.second = second_order(sample)
    return results.second


def _run_reference(sample: Sample, results: Results) -> CheckResult:
    if sample.subject.surrogate is not None:
        results.reference = surrogate(sample)
    else:
        # In fewer digits the reference is what native dtypes are held against.
        judged = not results.first.single_precision or is_given_short(sample)
        results.reference = reference(sample, results.first) if judged else NOT_RUN
    return results.reference


def _run_questions(sample: Sample, results: Results) -> CheckResult:
    """What the contract has said already, and the sweep of the first typical point once it is verified."""
    kept, codes = results.contract, _asked_codes(sample)
    only_swept = bool(codes) and codes <= SWEPT_CODES | TRANSFORM_CODES
    silent = replace(kept, outcome=Outcome.NOT_RUN)
    has_gradient = _has_a_gradient_to_hold_to(sample, results)
    if not is_swept(sample):
        # What one draw leaves alone, a branch say, another takes.
        there = sample.point is Point.TYPICAL and sample.subject.other_devices and has_gradient
        kept = silent if only_swept else kept
        return kept.beside(on_other_devices(sample)) if there else kept
    if codes == {"GV701"} and not sample.subject.other_devices:
        results.not_judged = NO_OTHER_DEVICE
        return silent
    if not only_swept or not codes <= TRANSFORM_CODES:
        kept = _swept(sample, results, has_gradient=has_gradient)
        if only_swept and not kept.swept.calls and outcome_of(kept.findings) is not Outcome.FAILED:
            results.not_judged = NOT_SWEPT
            return silent
    if has_gradient and not UNREPEATABLE & {f.code for f in kept.findings}:
        kept = kept.beside(transforms(sample, results.first))
    if only_swept and codes <= TRANSFORM_CODES and all(a == "not-run" for _, a in kept.capabilities):
        results.not_judged = "the transforms were not judged: the gradient is not verified, or none applies"
        return replace(kept, outcome=Outcome.NOT_RUN)
    return kept


def _swept(sample: Sample, results: Results, *, has_gradient: bool) -> CheckResult:
    """The contract with what the questions find, or why a gradient that is wrong is another each time."""
    first = results.first.result
    found = CheckResult()
    if has_gradient:
        found = asked(sample, results.early)
    elif first.uncovered or VALUES & {f.code for f in first.findings}:
        results.unrepeatable = unrepeatable(sample)
        findings = results.unrepeatable or written(sample)
        found = CheckResult(findings, outcome_of(findings))
    kept = results.contract.beside(found)
    results.unwritten = any(f.code == "GV410" for f in kept.findings)
    return kept


def _has_a_gradient_to_hold_to(sample: Sample, results: Results) -> bool:
    if stops_judgement(results.contract) or sample.disconnected:
        return False
    if sample.subject.surrogate is None:
        return results.first.verified
    outcomes = [results.first.result.outcome]
    if results.reference is not None:
        outcomes.append(results.reference.outcome)
    return all(outcome in {Outcome.PASSED, Outcome.NOT_RUN} for outcome in outcomes)


def _asked_codes(sample: Sample) -> set[str]:
    """Codes of the contract that `--select` names."""
    chosen = {r for prefix in sample.subject.settings.select for r in matching(prefix)}
    return {r.code for r in chosen if r.family is Family.CONTRACT}


def _run_precision(sample: Sample, results: Results) -> CheckResult:
    """What the first typical point of each case gives in native dtypes."""
    if not is_swept(sample) or results.unrepeatable or results.unwritten:
        return CheckResult(outcome=Outcome.NOT_RUN)
    if sample.subject.surrogate is not None:
        reason = "its gradient is deliberately not the derivative"
        return not_judged(sample, reason).beside(autocast_not_judged(sample.subject, reason))
    if not results.first.verified or stops_judgement(results.contract):
        results.not_judged = (
            results.not_judged or "native dtypes were not judged: the gradient is not verified"
        )
        return CheckResult(outcome=Outcome.NOT_RUN)
    found = beside_float64(sample)
    if sample.subject.short and found.outcome is Outcome.NOT_RUN:
        results.not_judged = f"what {sample.subject.short} rounds inside was not judged"
        found = replace(found, outcome=Outcome.INCONCLUSIVE)
    return found.beside(autocast(sample, OWN))


CHECKS: tuple[tuple[Family, Callable[[Sample, Results], CheckResult]], ...] = (
    (Family.GRADGRADCHECK, _run_second_order),
    (Family.REFERENCE, _run_reference),
    (Family.CONTRACT, _run_questions),
    (Family.PRECISION, _run_precision),
)
"""What follows once the first order and the contract are measured, in order."""


def run_checks(sample: Sample, wanted: frozenset[Family]) -> tuple[dict[Family, CheckResult], str]:
    """Run the wanted families on one sample; the first order always runs, since all others build on it.

    Returns the results and, where a wanted family could not run, the reason.
    """
    reader = sample.subject.reader
    if reader is not None:
        reader.reset()
    if sample.is_native:
        natively = run_natively(sample, wanted)
        return natively, not_judged_natively(sample, natively)
    early = early_gradient(sample) if Family.CONTRACT in wanted and is_swept(sample) else None
    by_torch = sample.subject.settings.engine is Engine.TORCH
    first = (torch_first_order if by_torch else first_order)(sample)
    kept = contract(sample, first)
    if stops_judgement(kept):
        first = FirstOrder(CheckResult(outcome=Outcome.NOT_RUN))
    first = _without_repetitions(first, kept)
    if sample.subject.surrogate is not None:
        meant = sample.subject.surrogate
        first = _without_exact(first, meant)
    elif not by_torch:
        hand_back(sample.inputs.size)
    results = Results(first, kept, early=early)
    found = {family: CheckResult(outcome=Outcome.NOT_RUN) for family, _ in CHECKS}
    found |= {Family.GRADCHECK: first.result, Family.CONTRACT: kept}
    for family, run in CHECKS:
        if family in wanted:
            hand_back(sample.inputs.size)
            found[family] = run(sample, results)
    if Family.PRECISION in wanted:
        found |= beside_float32(sample, first, found, wanted)
    if results.unrepeatable:
        found[Family.GRADCHECK] = _of_no_one_gradient(first.result, results.unrepeatable[0].code)
    return found, results.not_judged


def _without_exact(first: FirstOrder, surrogate: Surrogate) -> FirstOrder:
    """The first order without what the surrogate replaces."""
    codes = REPLACED if surrogate.function is not None else REPLACED | ALSO_REPLACED_WITHOUT_COMPOSITE
    findings = tuple(f for f in first.result.findings if f.code not in codes or not surrogate.covers(f.input))
    exact_inputs = bool(surrogate.inputs)
    result = replace(
        first.result,
        findings=findings,
        uncovered={k: v for k, v in first.result.uncovered.items() if not surrogate.covers(k[1])},
        outcome=outcome_of(findings) if exact_inputs or findings else Outcome.NOT_RUN,
        smallest_visible_error=first.result.smallest_visible_error if exact_inputs else None,
    )
    return replace(first, result=result)


def _of_no_one_gradient(result: CheckResult, code: str) -> CheckResult:
    """Findings on numbers that another call would not give: their hints lead astray."""
    hint = f"The same call gives another gradient each time: see {code} first."
    return replace(result, findings=tuple(replace(f, hint=hint) for f in result.findings))


def _without_repetitions(first: FirstOrder, kept: CheckResult) -> FirstOrder:
    """Drop numerical findings that a contract finding already explains.

    A refused shape is a zero gradient only because it was replaced; a float32 return is imprecise by itself.
    """
    repeats = {"GV103": "GV107", "GV104": "GV110"}
    explained = {
        (repeats[f.code], f.input)
        for f in kept.findings
        if f.code in repeats and f.severity is Severity.ERROR
    }
    findings = tuple(f for f in first.result.findings if (f.code, f.input) not in explained)
    if len(findings) == len(first.result.findings):
        return first
    return replace(first, result=replace(first.result, findings=findings))
