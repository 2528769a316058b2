"""What a gradient is asked at one sample: a table, in order, each row building on what those before found.

To ask something else, write a function of what is known and list it in `ROWS`. A target without a float64
path is asked the same rows; what its first derivative gives belongs to native dtypes then. With
`--engine torch` both orders are asked of `torch.autograd.gradcheck` and `gradgradcheck`; witnesses say where.
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
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.numerics.problem import returned_tensors, substitute
from gradverify.verifier.questions.again import unrepeatable, written
from gradverify.verifier.questions.contract import contract, stops_judgement
from gradverify.verifier.questions.dtypes.asked import autocast, beside_float64, not_judged
from gradverify.verifier.questions.findings import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.results import (
    first_order,
    judged_alone,
    no_float64_path,
    reference,
    second_order,
    second_order_natively,
    surrogate,
)
from gradverify.verifier.questions.subject import Sample, Surrogate, first_line, is_given_short
from gradverify.verifier.questions.table import SWEPT_CODES, UNREPEATABLE, asked, on_other_devices
from gradverify.verifier.questions.transforms import TRANSFORM_CODES, transforms
from gradverify.verifier.questions.verified import known

Results = dict[Family, CheckResult]

NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)

REPLACED = frozenset({"GV101", "GV106", "GV107"})
"""Codes that a surrogate stands in for."""

VALUES = REPLACED | {"GV108", "GV110"}
"""Codes that say little where the gradient is another each time. A surrogate stands in for all of them where
only a reason is declared: nothing can judge the last two then."""

EXPLAINED = {"GV103": "GV107", "GV104": "GV110"}
"""Codes of the contract, and those of numbers that they explain: a refused shape is a zero gradient only
because it was replaced; a float32 return is imprecise by itself."""

ON_PURPOSE = "its gradient is deliberately not the derivative"

NO_OTHER_DEVICE = "GV701 was not run: it needs --device all, and a second device that torch sees"
NOT_SWEPT = "layouts, requires_grad and repeated calls were not swept: the gradient is not verified"
NO_TRANSFORMS = "the transforms were not judged: the gradient is not verified, or none applies"
NO_SECOND_ORDER = "second order was not judged: the first derivative is not verified"
NO_DTYPES = "native dtypes were not judged: the gradient is not verified"
ONLY_NATIVE = "transforms and the reference in float64 were not judged: there is no float64 path"
BRIEF = (
    "; a call launches many interpreted programs, so further layouts and requires_grad sets were left out "
    "(--effort thorough runs them)"
)


@dataclass
class Known:
    """What the rows before found at this sample."""

    sample: Sample
    first: FirstOrder
    contract: CheckResult
    results: Results
    left_out: str = ""
    """Why a row that builds on the first order could not run."""
    is_other_each_time: bool = False
    """Another gradient comes each time, or it hangs on memory that was never written."""

    @property
    def has_gradient(self) -> bool:
        """Whether there is a right gradient to hold another call against.

        Slopes that agree are no proof, but a gradient to compare the same call in another layout with. Of
        inferred inputs what is wrong is no failure, and no gradient to build on.
        """
        sample, result = self.sample, self.first.result
        if stops_judgement(self.contract) or sample.disconnected:
            return False
        if sample.is_native:
            wrong = any(row.closeness is Closeness.WRONG for row in result.swept.precision)
            return result.outcome is not Outcome.FAILED and not wrong and bool(result.swept.native)
        if sample.subject.surrogate is None:
            return self.first.verified
        outcomes = {result.outcome, self.results[Family.REFERENCE].outcome}
        return outcomes <= {Outcome.PASSED, Outcome.NOT_RUN}


def is_swept(sample: Sample) -> bool:
    """Whether what is asked once for each case is asked here: at its first typical draw.

    Across ranks, at those of the smallest world above 1.
    """
    across = sample.subject.across
    return sample.is_first_draw and (across is None or across.is_swept)


def ask(sample: Sample, wanted: frozenset[Family]) -> tuple[Results, str]:
    """What the wanted families find at a sample, and why one of them could not run.

    The first order is always asked: all others build on it.
    """
    if sample.subject.reader is not None:
        sample.subject.reader.reset()
    if Family.CONTRACT in wanted and is_swept(sample):
        known(sample)  # the first backward of all, which later ones must repeat
    first = _first_order(sample)
    kept = contract(sample, first)
    if stops_judgement(kept):
        first = FirstOrder(NOT_RUN)
    first = _without_what_explains(first, kept)
    results = dict.fromkeys(CHECK_FAMILIES, NOT_RUN) | {sample.family: first.result, Family.CONTRACT: kept}
    here = Known(sample, first, kept, results)
    for family, row in ROWS:
        if family in wanted:
            hand_back(sample.inputs.size)
            results[family] = row(here)
    if sample.is_native:
        second = results[Family.GRADGRADCHECK]
        unknown = is_swept(sample) and second.outcome is Outcome.NOT_RUN and not second.capability
        here.left_out = ("second order, " if unknown else "") + ONLY_NATIVE
        here.left_out += BRIEF if sample.subject.brief else ""
    return results, here.left_out


def _first_order(sample: Sample) -> FirstOrder:
    """By its witnesses, by torch where that is asked for, or in native dtypes alone."""
    subject = sample.subject
    if sample.is_native:
        found = judged_alone(sample)
        told = (no_float64_path(sample),) if sample.is_first_draw else ()
        return replace(found, result=replace(found.result, findings=(*told, *found.result.findings)))
    found = torch_first_order(sample) if subject.settings.engine is Engine.TORCH else first_order(sample)
    return found if subject.surrogate is None else _without_exact(found, subject.surrogate)


def _second_order(known: Known) -> CheckResult:
    sample = known.sample
    if sample.subject.surrogate is not None:
        return NOT_RUN
    if sample.is_native:
        return second_order_natively(sample) if is_swept(sample) and known.has_gradient else NOT_RUN
    typical = sample.point is Point.TYPICAL
    if not known.first.verified or stops_judgement(known.contract):
        known.left_out = NO_SECOND_ORDER if typical else known.left_out
        return NOT_RUN
    if sample.subject.settings.engine is Engine.TORCH:
        return torch_second_order(sample) if typical else NOT_RUN
    return second_order(sample)


def _reference(known: Known) -> CheckResult:
    """In fewer digits the reference is what native dtypes are held against."""
    sample = known.sample
    if sample.is_native:
        return NOT_RUN
    if sample.subject.surrogate is not None:
        return surrogate(sample)
    judged = not known.first.single_precision or is_given_short(sample)
    return reference(sample, known.first) if judged else NOT_RUN


def _questions(known: Known) -> CheckResult:
    """The contract with what questions find; not run where they alone are selected, and none was asked."""
    sample, kept, codes = known.sample, known.contract, _selected(known.sample)
    alone = bool(codes) and codes <= SWEPT_CODES | TRANSFORM_CODES
    silent = replace(kept, outcome=Outcome.NOT_RUN) if alone else kept
    if not is_swept(sample):
        # What one draw leaves alone, a branch say, another takes.
        there = sample.point is Point.TYPICAL and sample.subject.other_devices and known.has_gradient
        return silent.beside(on_other_devices(sample)) if there else silent
    if codes == {"GV701"} and not sample.subject.other_devices:
        known.left_out = NO_OTHER_DEVICE
        return silent
    kept = kept.beside(_asked(known))
    known.is_other_each_time |= any(f.code == "GV410" for f in kept.findings)
    answered = bool(kept.swept.calls)
    if codes <= TRANSFORM_CODES:
        answered = any(answer != "not-run" for _, answer in kept.capabilities)
    if alone and not answered and outcome_of(kept.findings) is not Outcome.FAILED:
        known.left_out = NO_TRANSFORMS if codes <= TRANSFORM_CODES else NOT_SWEPT
        return replace(kept, outcome=Outcome.NOT_RUN)
    return kept


def _asked(known: Known) -> CheckResult:
    """What the questions find, or why a gradient that is wrong is another each time."""
    sample, first = known.sample, known.first.result
    if not known.has_gradient:
        if sample.is_native or not (first.uncovered or VALUES & {f.code for f in first.findings}):
            return CheckResult()
        findings = unrepeatable(sample)
        known.is_other_each_time = bool(findings)
        return CheckResult.of(*(findings or written(sample)))
    found = asked(sample)
    if sample.is_native or UNREPEATABLE & {f.code for f in (*known.contract.findings, *found.findings)}:
        return found
    return found.beside(transforms(sample, known.first))


def _selected(sample: Sample) -> set[str]:
    """Codes of the contract that `--select` names."""
    chosen = {r for prefix in sample.subject.settings.select for r in matching(prefix)}
    return {r.code for r in chosen if r.family is Family.CONTRACT}


def _native_dtypes(known: Known) -> CheckResult:
    """What the first typical draw of each case gives in native dtypes."""
    sample, subject, first = known.sample, known.sample.subject, known.first
    if sample.is_native:
        judged = first.result.swept.native and is_swept(sample)
        return first.result.beside(autocast(sample)) if judged else first.result
    if not is_swept(sample) or known.is_other_each_time:
        return NOT_RUN
    if subject.surrogate is not None:
        return not_judged(sample, ON_PURPOSE)
    if not first.verified or stops_judgement(known.contract):
        known.left_out = known.left_out or NO_DTYPES
        return NOT_RUN
    found = beside_float64(sample)
    if subject.short and found.outcome is Outcome.NOT_RUN:
        known.left_out = f"what {subject.short} rounds inside was not judged"
        found = replace(found, outcome=Outcome.INCONCLUSIVE)
    return found.beside(autocast(sample))


ROWS: tuple[tuple[Family, Callable[[Known], CheckResult]], ...] = (
    (Family.GRADGRADCHECK, _second_order),
    (Family.REFERENCE, _reference),
    (Family.CONTRACT, _questions),
    (Family.PRECISION, _native_dtypes),
)
"""What follows once the first order and the contract are known, in order."""


def _without_exact(first: FirstOrder, surrogate: Surrogate) -> FirstOrder:
    """The first order without what the surrogate replaces."""
    codes = REPLACED if surrogate.function is not None else VALUES
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


def _without_what_explains(first: FirstOrder, kept: CheckResult) -> FirstOrder:
    """The first order without numbers that an error of the contract explains."""
    errors = [f for f in kept.findings if f.code in EXPLAINED and f.severity is Severity.ERROR]
    explained = {(EXPLAINED[f.code], f.input) for f in errors}
    findings = tuple(f for f in first.result.findings if (f.code, f.input) not in explained)
    return replace(first, result=replace(first.result, findings=findings))


def torch_first_order(sample: Sample) -> FirstOrder:
    """Gradcheck in slow mode; where it fails, our own comparison says where."""
    if sample.disconnected:
        return first_order(sample)
    error = _ask(torch.autograd.gradcheck, sample)
    if error is None:
        return FirstOrder(CheckResult(), proven=True)
    raised = error.type != GradcheckError.__name__
    located = None if raised else first_order(sample)
    if located is not None and located.result.outcome is Outcome.FAILED:
        return located
    found = backward_raised(sample, error) if raised else _unlocated(sample, "GV101", "gradcheck", error)
    return FirstOrder(CheckResult((found,), Outcome.FAILED))


def torch_second_order(sample: Sample) -> CheckResult:
    """Gradgradcheck in slow mode; a double backward that raises or is detached has codes of its own."""
    error = _ask(torch.autograd.gradgradcheck, sample)
    if error is None:
        return CheckResult(capability="yes")
    located = second_order(sample)
    if located.outcome in {Outcome.FAILED, Outcome.NOT_RUN} or located.capability == "no":
        return located  # not run: the draw before says it
    finding = _unlocated(sample, "GV201", "gradgradcheck", error)
    return CheckResult((finding,), Outcome.FAILED, capability="wrong")


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
