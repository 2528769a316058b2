"""Expected failures are strict: what no longer fails as it says is reported."""

from __future__ import annotations

from datetime import date

import pytest

from gradverify.model import CasePoint, ExpectedFailure, Finding, Settings, Severity
from gradverify.rules import Family
from gradverify.session.completeness import mark_expected

TODAY = date(2026, 11, 21)
MISMATCH = Finding("GV101", Severity.ERROR, "wrong", input="x", case=CasePoint("b=3,mode=sum"))


def marked(*expected, findings=(MISMATCH,), whole=True, not_judged=(), settings=None):
    return mark_expected(
        findings,
        expected,
        settings=settings or Settings(),
        spec_file="s.yaml",
        whole=whole,
        not_judged=not_judged,
        today=TODAY,
    )


def codes(findings):
    return [(f.code, f.expected) for f in findings]


def test_a_covered_finding_is_expected():
    assert codes(marked(ExpectedFailure(("GV101",), "known"))) == [("GV101", True)]


@pytest.mark.parametrize(
    "narrowed",
    [
        {"input": "w"},
        {"cases": ("b=4",)},
        {"cases": ("mode=mean",)},
    ],
)
def test_what_it_does_not_cover_fails_still(narrowed):
    found = codes(marked(ExpectedFailure(("GV101",), "known", **narrowed)))
    assert found == [("GV101", False), ("GV004", False)]


@pytest.mark.parametrize("narrowed", [{"input": "x"}, {"cases": ("b=3",)}, {"cases": ("mode=sum,b=3",)}])
def test_narrowed_to_what_it_covers(narrowed):
    assert codes(marked(ExpectedFailure(("GV101",), "known", **narrowed))) == [("GV101", True)]


def test_every_listed_code_must_occur():
    (_, reported) = marked(ExpectedFailure(("GV101", "GV301"), "known", line=7))
    assert (reported.code, reported.location.line) == ("GV004", 7)
    assert "GV301 no longer occurs" in reported.message


@pytest.mark.parametrize(("until", "expected"), [("2026-11-22", True), ("2026-11-21", False)])
def test_the_end_is_exclusive(until, expected):
    found = marked(ExpectedFailure(("GV101",), "known", until=until))
    assert found[0].expected is expected
    assert [f.code for f in found[1:]] == ([] if expected else ["GV004"])


def test_nothing_is_missed_that_was_not_looked_for():
    missing = ExpectedFailure(("GV201",), "known")
    assert codes(marked(missing, whole=False)) == [("GV101", False)]
    assert codes(marked(missing, not_judged=[Family.GRADGRADCHECK])) == [("GV101", False)]
    assert codes(marked(missing, settings=Settings(select=("GV1",)))) == [("GV101", False)]
    assert codes(marked(missing)) == [("GV101", False), ("GV004", False)]
