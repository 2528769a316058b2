"""The checks: each looks at one sample (a target at one point of one case) and gives a `CheckResult`.

To add one, write it in its family's module and list it in `CHECKS`; a check that builds on another's
result finds it in `Results`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradverify.model import Engine, Outcome, Point, Severity
from gradverify.rules import Family
from gradverify.verifier.checks.contract import contract, stops_judgement
from gradverify.verifier.checks.first_order import first_order
from gradverify.verifier.checks.reference import reference
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.second_order import second_order
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.surrogate import surrogate_gradient, without_exact
from gradverify.verifier.checks.torch_engine import torch_first_order, torch_second_order


@dataclass
class Results:
    """What the checks before found at this sample."""

    first: FirstOrder
    contract: CheckResult
    second: CheckResult | None = None
    not_judged: str = ""
    """Why a check that builds on the first order could not run."""


def _run_second_order(sample: Sample, results: Results) -> CheckResult:
    if sample.point is not Point.TYPICAL or sample.subject.surrogate is not None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    if not results.first.verified or stops_judgement(results.contract):
        results.not_judged = "second order was not judged: the first derivative is not verified"
        return CheckResult(outcome=Outcome.NOT_RUN)
    by_torch = sample.subject.settings.engine is Engine.TORCH
    run = torch_second_order if by_torch else second_order
    results.second = run(sample, results.first)
    return results.second


def _run_reference(sample: Sample, results: Results) -> CheckResult:
    if sample.subject.surrogate is not None:
        return surrogate_gradient(sample, sample.subject.surrogate)
    return reference(sample, results.first, results.second)


CHECKS: tuple[tuple[Family, Callable[[Sample, Results], CheckResult]], ...] = (
    (Family.GRADGRADCHECK, _run_second_order),
    (Family.REFERENCE, _run_reference),
)
"""The families that follow once the first order and the contract are measured, in order."""


def run_checks(sample: Sample, wanted: frozenset[Family]) -> tuple[dict[Family, CheckResult], str]:
    """Run the wanted families on one sample; the first order always runs, since all others build on it.

    Returns the results and, where a wanted family could not run, the reason.
    """
    reader = sample.subject.reader
    if reader is not None:
        reader.reset()
    by_torch = sample.subject.settings.engine is Engine.TORCH
    first = (torch_first_order if by_torch else first_order)(sample)
    kept = contract(sample, first)
    if stops_judgement(kept):
        first = FirstOrder(CheckResult(outcome=Outcome.NOT_RUN))
    first = _without_repetitions(first, kept)
    if sample.subject.surrogate is not None:
        first = without_exact(first, sample.subject.surrogate)
    results = Results(first, kept)
    found = {Family.GRADCHECK: first.result, Family.CONTRACT: kept}
    for family, run in CHECKS:
        found[family] = run(sample, results) if family in wanted else CheckResult(outcome=Outcome.NOT_RUN)
    return found, results.not_judged


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
