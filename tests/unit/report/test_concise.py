"""One line a finding."""

import json
import re
from dataclasses import replace

import pytest

from gradverify.model import CasePoint, Entries, Entry, Finding, RaisedError, Severity, Verdict
from gradverify.report.concise import render_concise
from gradverify.report.console import TextStyle
from gradverify.report.json_v1 import render_json
from gradverify.report.text import render_text, slowest_lines

PLACE = re.compile(r"[\w/]+\.\w+:\d+: ")


def wrong(**more):
    entries = Entries(18, 36, (Entry((0, 2), (0, 2), 0.7925, 0.1645, 1e-8),))
    plain = Finding(
        "GV101", Severity.ERROR, "wrong", output=0, input="x", case=CasePoint("b=3,d=5"), entries=entries
    )
    return replace(plain, **more)


def rendered(samples, *findings, status=Verdict.FAILED, verbosity=0):
    report = samples.report(samples.target_report("softmax", status, findings=findings))
    return render_concise(report, TextStyle(verbosity=verbosity)).splitlines()


def test_a_wrong_entry(samples):
    line, summary = rendered(samples, wrong())
    where = PLACE.match(line)[0]
    assert line == f"{where}GV101 softmax[b=3,d=5] y[0,2]/x[0,2]: 0.7925, expected 0.1645 (18/36 wrong)"
    assert summary == "1 function: 1 failed   GV101 x1"


def test_other_findings(samples):
    base = CasePoint("base")
    lines = rendered(
        samples,
        wrong(code="GV110", severity=Severity.WARNING, case=base),
        wrong(code="GV102", message="backward raised\nOdd: \x1b[2J", entries=None, case=base),
        wrong(code="GV203", severity=Severity.NOTE),
        wrong(expected=True),
    )
    assert [line[PLACE.match(line).end() :] for line in lines[:-1]] == [
        "GV110 warning softmax y[0,2]/x[0,2]: 0.7925, expected 0.1645 (18/36 wrong)",
        r"GV102 softmax: backward raised\nOdd: \x1b[2J",
    ]
    assert len(rendered(samples, wrong(code="GV203", severity=Severity.NOTE), verbosity=1)) == 2


def test_everything(samples):
    """Each line begins with a place, but for the summary; whatever is not green has a line."""
    *lines, summary = render_concise(samples.EVERYTHING, TextStyle()).splitlines()
    assert all(PLACE.match(line) for line in lines)
    assert "1 module could not be imported" in summary
    red = (Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.UNCHECKED)
    for target in samples.EVERYTHING.targets:
        assert any(target.target.name in line for line in lines) or target.status not in red
    assert render_concise(samples.NOTHING, TextStyle()) == "nothing was checked\n"


@pytest.mark.parametrize(
    ("slowest", "names"), [(None, []), (1, ["b"]), (2, ["b", "c"]), (0, ["b", "c", "a"])]
)
def test_durations(samples, slowest, names):
    timed = [
        replace(samples.target_report(name, Verdict.PASSED), duration_s=seconds)
        for name, seconds in (("a", 0.5), ("b", 12.25), ("c", 1.0))
    ]
    report = replace(samples.report(*timed), slowest=slowest)
    assert [line.rpartition("::")[2] for line in slowest_lines(report)] == names
    text = render_text(report, TextStyle())
    assert ("12.25 s  " in text) is bool(names)
    assert json.loads(render_json(report))["targets"][0]["duration_s"] == 0.5


def test_strict(samples):
    warned = samples.target_report(
        "f", Verdict.FAILED, findings=(wrong(code="GV110", severity=Severity.WARNING),)
    )
    report = samples.report(warned)
    text = render_text(replace(report, settings=replace(report.settings, strict=True)), TextStyle())
    assert "failed: GV110 (below)" in text
    assert "warnings fail" in text.splitlines()[0]
    assert text.endswith("GV110 x1   1 failed by warnings alone (--strict)\n")


def test_full_tracebacks(samples):
    raised = RaisedError("OSError", "gone", traceback="Traceback (most recent call last):\n  torch's frame\n")
    finding = wrong(raised=raised, entries=None)
    report = samples.report(samples.target_report("f", Verdict.FAILED, findings=(finding,)))
    assert "torch's frame" not in render_text(report, TextStyle(verbosity=1))
    assert "torch's frame" in render_text(report, TextStyle(verbosity=2))
