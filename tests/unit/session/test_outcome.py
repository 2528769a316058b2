"""Verdicts from findings."""

from dataclasses import replace

import pytest

from gradverify.model import Finding, Severity, Verdict
from gradverify.session.outcome import merge_findings, status_of

WARNING = Finding("GV110", Severity.WARNING, "off")


@pytest.mark.parametrize(
    ("finding", "verdict", "strictly"),
    [
        (WARNING, Verdict.PASSED, Verdict.FAILED),
        (Finding("GV110", Severity.WARNING, "off", expected=True), Verdict.XFAILED, Verdict.XFAILED),
        (Finding("GV203", Severity.NOTE, "no"), Verdict.PASSED, Verdict.PASSED),
        (Finding("GV109", Severity.WARNING, "no"), Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
        (Finding("GV902", Severity.WARNING, "no"), Verdict.UNCHECKED, Verdict.UNCHECKED),
        (Finding("GV101", Severity.ERROR, "no"), Verdict.FAILED, Verdict.FAILED),
    ],
)
def test_strict(finding, verdict, strictly):
    assert status_of([finding], unchecked=False) is verdict
    assert status_of([finding], unchecked=False, strict=True) is strictly


def test_what_is_suspected_in_one_case_and_certain_in_another_is_reported_once():
    certain = Finding("GV101", Severity.ERROR, "wrong", input="x", output=0)
    suspected = Finding("GV109", Severity.WARNING, "guessed", input="x", output=0, suspected="GV101")
    assert merge_findings([suspected, certain]) == (certain,)
    others = [
        replace(suspected, input="y"),
        replace(suspected, output=1),
        replace(suspected, suspected="GV201"),
        replace(suspected, suspected=""),
    ]
    for other in others:
        assert {f.code for f in merge_findings([other, certain])} == {"GV101", "GV109"}
    assert merge_findings([suspected]) == (suspected,)


def test_what_is_suspected_to_be_wrong_comes_before_what_could_not_be_seen():
    unseen = Finding("GV109", Severity.WARNING, "no output depends on any input", suspected="GV109")
    unmeasured = Finding("GV109", Severity.WARNING, "could not be verified", output=0, input="a")
    suspected = Finding("GV109", Severity.WARNING, "is wrong", suspected="GV101", output=1, input="x")
    assert merge_findings([unseen, unmeasured, suspected])[0] == suspected
