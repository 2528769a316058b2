"""The families of checks for a target without a float64 path: its own dtype, and what must not change it."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Closeness, Outcome, Point
from gradverify.rules import CHECK_FAMILIES, Family
from gradverify.verifier.checks.contract import contract, stops_judgement
from gradverify.verifier.checks.first_order import NO_FLOAT64_PATH
from gradverify.verifier.checks.float32_inside import is_given_short
from gradverify.verifier.checks.precision.alone import judged_alone, no_float64_path
from gradverify.verifier.checks.precision.autocast import autocast
from gradverify.verifier.checks.precision.decided import FLOAT32_INSIDE, native_dtype
from gradverify.verifier.checks.precision.second_natively import second_order_natively
from gradverify.verifier.checks.precision.truth import FromNative
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Native, Sample
from gradverify.verifier.variations.sweep import early_gradient, sweep

ONLY_NATIVE = "transforms and the reference in float64 were not judged: there is no float64 path"

BRIEF = (
    "; a call launches many interpreted programs, so further layouts and requires_grad sets were left out "
    "(--effort thorough runs them)"
)

NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)


def is_swept(sample: Sample) -> bool:
    """Whether the variations run at this point: the first typical one of each case.

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
    judged = judged_alone(sample, in_full=True)
    if sample.draw == 0 and sample.point is Point.TYPICAL:
        judged = replace(judged, findings=(no_float64_path(sample), *judged.findings))
    first = FirstOrder(judged, single_precision=True, proven=True)
    # A slope that agrees passes nobody, and is enough to hold the same call in another layout against.
    # Of inferred inputs what is wrong is no failure, and no gradient to build on.
    wrong = any(row.closeness is Closeness.WRONG for row in judged.swept.precision)
    has_gradient = judged.outcome is not Outcome.FAILED and not wrong and bool(judged.swept.native)
    if Family.CONTRACT in wanted:
        found[Family.CONTRACT] = contract(sample, first)
        if is_swept(sample) and has_gradient and not stops_judgement(found[Family.CONTRACT]):
            found[Family.CONTRACT] = found[Family.CONTRACT].beside(sweep(sample, early))
    if Family.GRADGRADCHECK in wanted and is_swept(sample) and has_gradient:
        found[Family.GRADGRADCHECK] = second_order_natively(sample)
    if judged.swept.native and is_swept(sample):
        judged = judged.beside(autocast(sample, FromNative(sample.subject)))
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
    if left_out or in_float64.outcome is Outcome.FAILED:
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
