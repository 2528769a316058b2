"""A target passes only with a result for every planned case, a check of its gradient, and every pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradverify.events import CaseVerified
from gradverify.model import (
    Case,
    Companion,
    Evaluations,
    InputSource,
    Outcome,
    Settings,
    Target,
    TargetKind,
    TargetPlan,
    Verdict,
)
from gradverify.rules import CHECK_FAMILIES
from gradverify.session.aggregate import TargetState

TARGET = Target("F", "F", TargetKind.FUNCTION, "m.py", 1)


def result(case_id: str, **outcomes: Outcome) -> CaseVerified:
    checks = {f.value: Outcome.NOT_RUN for f in CHECK_FAMILIES} | {"gradcheck": Outcome.PASSED} | outcomes
    return CaseVerified(case_id, tuple(checks.items()), Evaluations(1, 1), 1, None)


def report_on(*results: CaseVerified, **plan):
    planned = TargetPlan("F", "F", InputSource.SPEC, (Case("n=2", 1), Case("n=3", 2)), **plan)
    state = TargetState(TARGET, planned, Settings(), Path("m.py"))
    for one in results:
        state.add(one, str)
    return state.report()


def verdict_on(*results: CaseVerified, **plan) -> tuple[Verdict, str]:
    found = report_on(*results, **plan)
    return found.status, found.reason


WHOLE = result("n=2")


def test_every_case_reported() -> None:
    assert verdict_on(WHOLE, result("n=3")) == (Verdict.PASSED, "")


@pytest.mark.parametrize("results", [(), (WHOLE,), (WHOLE, WHOLE), (WHOLE, result("another"))])
def test_a_case_without_an_answer(results) -> None:
    status, reason = verdict_on(*results)
    assert status is Verdict.UNCHECKED
    assert reason.endswith("it was not verified to its end")


def test_a_case_whose_gradient_was_compared_with_nothing() -> None:
    of_contract = result("n=3", gradcheck=Outcome.NOT_RUN, contract=Outcome.PASSED)
    wanted = (Verdict.UNCHECKED, "of case n=3: its gradient was compared with nothing")
    assert verdict_on(WHOLE, of_contract) == wanted
    declared = Companion(reason="gradient reversal")
    assert verdict_on(WHOLE, of_contract, surrogate=declared) == (Verdict.PASSED, "")


def test_a_pair_without_a_result() -> None:
    status, reason = verdict_on(WHOLE, replace(result("n=3"), unjudged=((0, "x"),)))
    assert status is Verdict.UNCHECKED
    assert reason == "of case n=3: there is no result for the gradient of output 0 with respect to `x`"


def test_no_gradient_is_declared_by_every_case_or_by_none() -> None:
    none = replace(WHOLE, no_gradient=True)
    assert verdict_on(none)[0] is Verdict.UNCHECKED
    assert verdict_on(none, replace(none, case_id="n=3"))[0] is Verdict.SKIPPED


def test_its_cases_say_the_same() -> None:
    found = report_on(WHOLE, result("n=3", gradcheck=Outcome.NOT_RUN))
    assert [c.status for c in found.case_reports] == [Verdict.PASSED, Verdict.UNCHECKED]
