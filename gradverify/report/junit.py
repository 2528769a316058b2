"""JUnit XML: a test case for each case of a target. What was not verified is a failure or an error."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from gradverify.model import CaseReport, Mistake, Report, TargetReport, Verdict
from gradverify.report.console import without_commands
from gradverify.report.words import clean, clean_lines, in_order, mistakes_in_order

_ELEMENTS = {
    Verdict.FAILED: "failure",
    Verdict.INCONCLUSIVE: "failure",
    Verdict.UNCHECKED: "error",
    Verdict.SKIPPED: "skipped",
    Verdict.XFAILED: "skipped",
}
"""What each verdict is in JUnit's words; a pass is no element."""

_CRASHES = frozenset({"GV002", "GV102", "GV901"})
"""Failures that are an exception or a crash of the user's code: JUnit calls these errors."""


def render_junit(report: Report) -> str:
    """Return the report as JUnit XML, without times: no two runs agree on them."""
    suites = [_target(target) for target in in_order(report)]
    if report.errors:
        suites.append(_mistakes(mistakes_in_order(report)))
    root = ET.Element("testsuites", {"name": "gradverify", **_counts([c for s in suites for c in s])})
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _target(report: TargetReport) -> ET.Element:
    cases = [_case(report, case) for case in report.case_reports or (_whole(report),)]
    suite = ET.Element("testsuite", {"name": _text(report.target.id), **_counts(cases)})
    suite.extend(cases)
    printed = [line for found in report.findings for line in clean_lines(found.captured)]
    if printed:
        ET.SubElement(suite, "system-out").text = "\n".join(
            _text(f"| {line}") for line in dict.fromkeys(printed)
        )
    return suite


def _whole(report: TargetReport) -> CaseReport:
    """Stand for a target of which no case is known."""
    said = tuple((found.code, found.message) for found in report.findings)
    return CaseReport("", report.status, said, report.reason)


def _case(report: TargetReport, case: CaseReport) -> ET.Element:
    target = report.target
    name = f"{target.name}[{case.id}]" if case.id not in {"", "base"} else target.name
    element = ET.Element(
        "testcase",
        {
            "classname": _text(target.file.removesuffix(".py").replace("/", ".")),
            "name": _text(name),
            "file": _text(target.file),
            "line": str(target.line),
        },
    )
    if case.status is not Verdict.PASSED:
        codes = [code for code, _ in case.findings]
        kind = _ELEMENTS[case.status]
        if case.status is Verdict.FAILED and codes and codes[0] in _CRASHES:
            kind = "error"
        lines = [f"{code}: {message}" for code, message in case.findings]
        reason = case.reason or (report.reason if kind == "skipped" else "")
        first = reason or (lines[0] if lines else str(case.status))
        words = {"type": codes[0] if codes else str(case.status), "message": _text(f"{case.status}: {first}")}
        said = ET.SubElement(element, kind, words)
        said.text = "\n".join(map(_text, [*lines, *_reproduce(report, codes)])) or None
    return element


def _reproduce(report: TargetReport, codes: list[str]) -> list[str]:
    return [found.reproduce for found in report.findings if found.reproduce and found.code in codes]


def _mistakes(mistakes: list[Mistake]) -> ET.Element:
    cases = []
    for mistake in mistakes:
        where = mistake.location.file if mistake.location else mistake.kind
        case = ET.Element("testcase", {"classname": _text(where), "name": f"{mistake.kind} error"})
        element = ET.SubElement(case, "error", {"type": mistake.kind, "message": _text(mistake.message)})
        if mistake.location:
            element.text = _text(f"{mistake.location.file}:{mistake.location.line}: {mistake.message}")
        cases.append(case)
    suite = ET.Element("testsuite", {"name": "errors", **_counts(cases)})
    suite.extend(cases)
    return suite


def _counts(cases: list[ET.Element]) -> dict[str, str]:
    def count(name: str) -> str:
        return str(sum(case.find(name) is not None for case in cases if case.tag == "testcase"))

    tests = sum(case.tag == "testcase" for case in cases)
    counted = {"failures": count("failure"), "errors": count("error"), "skipped": count("skipped")}
    return {"tests": str(tests), **counted}


def _text(text: str) -> str:
    """Text that XML can hold and no CI service obeys."""
    return without_commands(clean(text))
