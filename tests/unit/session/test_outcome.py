"""Verdicts from findings."""

import pytest

from gradverify.model import Finding, Severity, Verdict
from gradverify.session.outcome import status_of

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
