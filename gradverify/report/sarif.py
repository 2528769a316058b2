"""SARIF 2.1.0, for code scanning: findings as results, what could not be verified as notifications."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby
from urllib.parse import quote

from gradverify.model import Finding, LinePatch, Location, Mistake, Report, Severity, TargetReport, Verdict
from gradverify.report.finding import DECIDING
from gradverify.report.fixes import are_one_fix, fix_words, patches_of
from gradverify.report.json_v1 import Json, document_text
from gradverify.report.targets import because
from gradverify.report.words import HOME, NOT_VERIFIED, clean, help_uri, in_order, mistakes_in_order
from gradverify.rules import RULES, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "gradverifyTargetAndCode/v1"
"""The name of the fingerprint: the target and the code, never a line or a number."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_INDEX = {rule.code: number for number, rule in enumerate(RULES)}


def render_sarif(report: Report) -> str:
    """Return the report as SARIF."""
    failed = bool(report.errors)
    invocation: dict[str, Json] = {"executionSuccessful": not failed, "exitCode": report.exit_code}
    notifications: list[Json] = [
        _notification(f"{target.target.name}: {because(target.status, target)}", _place(target))
        for target in in_order(report)
        if target.status in NOT_VERIFIED and not target.findings
    ]
    notifications += [_mistake(mistake) for mistake in mistakes_in_order(report)]
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    results: list[Json] = [_result(target, found) for target in in_order(report) for found in target.findings]
    run: dict[str, Json] = {
        "tool": {"driver": _driver(report)},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    document: Json = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return document_text(document)


def _driver(report: Report) -> Json:
    named: dict[str, Json] = {"name": "gradverify", "version": report.gradverify_version}
    return {**named, "informationUri": HOME, "rules": [_rule(rule) for rule in RULES]}


def _rule(rule: Rule) -> Json:
    page = rule.page
    words = f"{page.checks}\n\n{page.matters}\n\nRemedy: {page.remedy}"
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": page.checks},
        "help": {"text": words, "markdown": page.markdown},
        "helpUri": help_uri(rule.code),
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(target: TargetReport, found: Finding) -> Json:
    decides = found.code in DECIDING and target.status in (Verdict.INCONCLUSIVE, Verdict.UNCHECKED)
    case = f" [{found.case.id}]" if found.case is not None and found.case.id != "base" else ""
    said = [f"{target.target.name}{case}: {found.message}.", found.hint]
    said += [f"Reproduce: {found.reproduce}"] if found.reproduce else []
    said += fix_words(found)
    result: dict[str, Json] = {
        "ruleId": found.code,
        "ruleIndex": _INDEX[found.code],
        "level": "error" if decides else _LEVELS[found.severity],
        "message": {"text": "\n".join(clean(part) for part in said if part)},
        "locations": [_location(_place(target), target.target.id)],
        "partialFingerprints": {FINGERPRINT: _fingerprint(target, found)},
    }
    if found.location is not None and found.location != _place(target):
        result["relatedLocations"] = [_location(found.location, "")]
    if are_one_fix(patches := patches_of([found])):
        result["fixes"] = [_fix(patches)]
    if found.expected:
        why = {"justification": clean(target.reason)} if target.reason else {}
        result["suppressions"] = [{"kind": "external", **why}]
    return result


def _fix(patches: Sequence[LinePatch]) -> Json:
    changes: list[Json] = []
    for path, group in groupby(patches, lambda p: p.path):
        replacements: list[Json] = [_replacement(patch) for patch in group]
        changes.append({"artifactLocation": _artifact(path), "replacements": replacements})
    return {"description": {"text": "the change that makes the gradient right"}, "artifactChanges": changes}


def _replacement(patch: LinePatch) -> Json:
    """Return whole lines and what takes their place: up to the end of the last one, whose newline stays."""
    last, end = patch.line + len(patch.removed) - 1, len(patch.removed[-1]) + 1
    region: dict[str, Json] = {"startLine": patch.line, "startColumn": 1, "endLine": last, "endColumn": end}
    return {"deletedRegion": region, "insertedContent": {"text": "\n".join(patch.added)}}


def _fingerprint(target: TargetReport, found: Finding) -> str:
    key = f"{target.target.id}\0{found.code}\0{found.input or ''}\0{found.output or 0}"
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()


def _place(target: TargetReport) -> Location:
    return Location(target.target.file, target.target.line)


def _location(where: Location, name: str) -> Json:
    region: dict[str, Json] = {"startLine": max(1, where.line)}
    if where.column > 0:
        region["startColumn"] = where.column
    shape: dict[str, Json] = {
        "physicalLocation": {"artifactLocation": _artifact(where.file), "region": region}
    }
    if name:
        shape["logicalLocations"] = [{"fullyQualifiedName": clean(name), "kind": "type"}]
    return shape


def _artifact(file: str) -> Json:
    """Return a file as a relative URI, or an absolute one where it lies outside of the current folder."""
    uri = quote(clean(file))
    return {"uri": f"file://{uri}"} if file.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}


def _mistake(mistake: Mistake) -> Json:
    return _notification(f"{mistake.kind} error: {mistake.message}", mistake.location)


def _notification(message: str, where: Location | None) -> Json:
    shape: dict[str, Json] = {"level": "error", "message": {"text": clean(message)}}
    if where is not None:
        shape["locations"] = [_location(where, "")]
    return shape
