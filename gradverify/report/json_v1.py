"""The JSON report, version 1. Its shape is a contract apart from the model: a reader must not break.

Numbers that JSON cannot hold are null, with their name in a second key: `"analytical": null,
"analytical_nonfinite": "nan"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gradverify.model import (
    CasePoint,
    Entries,
    Entry,
    Finding,
    Mistake,
    Outcome,
    Precision,
    RaisedError,
    Report,
    Scalar,
    Severity,
    TargetReport,
    Verdict,
)
from gradverify.report.fixes import are_one_fix, is_safe, patches_of, unified_diff
from gradverify.report.words import DIGITS
from gradverify.rules import rule

Json = Scalar | list["Json"] | dict[str, "Json"]

SCHEMA = "gradverify-report/1"
"""Changes when a reader of the previous version would break."""


def render_json(report: Report) -> str:
    """Return the report as JSON."""
    counts = dict(report.summary)
    document: Json = {
        "schema": SCHEMA,
        "gradverify": report.gradverify_version,
        "torch": report.torch_version,
        "seed": report.settings.seed,
        "exit_code": report.exit_code,
        "settings": {
            "rtol": report.settings.rtol,
            "atol": report.settings.atol,
            "effort": report.settings.effort,
            "engine": report.settings.engine,
            "device": "all" if report.settings.every_device else report.settings.device,
            "select": [*sorted(report.settings.select)],
            "ignore": [*sorted(report.settings.ignore)],
            **({"strict": True} if report.settings.strict else {}),
        },
        "summary": {name: counts.get(name, 0) for name in ("targets", *Verdict, "first_order_only")},
        "targets": [*sorted(map(_target, report.targets), key=_target_place)],
        "errors": [*sorted(map(_mistake, report.errors), key=_mistake_place)],
        **({"not_named": unnamed} if (unnamed := _not_named(report)) else {}),
    }
    return document_text(document)


def _not_named(report: Report) -> list[Json]:
    """What modules hold that is not checked, because a spec was the target and does not name it."""
    return [
        {"file": module.file, "spec": module.spec, "targets": [passed.name for passed in module.not_named]}
        for module in sorted(report.modules, key=lambda module: module.file)
        if module.unnamed
    ]


def document_text(document: Json) -> str:
    """Return a document as JSON that a CI service may show as a log: `##[` would be a command for it."""
    return json.dumps(document, indent=2, allow_nan=False).replace("##[", "\\u0023#[") + "\n"


def _target_place(target: Mapping[str, Any]) -> tuple[str, int, str]:
    """Order targets of a document by where they are."""
    return target["file"], target["line"], target["name"]


def _mistake_place(mistake: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """Order mistakes of a document by where they are; those without a place come first."""
    return mistake["file"] or "", mistake["line"] or 0, mistake["column"] or 0, mistake["message"]


def _finding_order(found: Finding) -> tuple[int, str, int, str]:
    output = -1 if found.output is None else found.output
    return list(Severity).index(found.severity), found.code, output, found.input or ""


def _target(report: TargetReport) -> dict[str, Json]:
    target = report.target
    shape: dict[str, Json] = {
        "target": target.id,
        "name": target.name,
        "kind": target.kind,
        "file": target.file,
        "line": target.line,
        "status": report.status,
        "inputs": report.inputs,
        "witnesses": [*report.witnesses],
        "cases": report.cases,
        "infeasible": report.infeasible,
        "evaluations": {"forward": report.evaluations.forward, "backward": report.evaluations.backward},
        **_number("smallest_visible_error", report.smallest_visible_error),
        "not_judged": report.not_judged,
        "domain": [*report.domain.phrases],
        "swept": _swept(report),
        "checks": dict(report.checks),
        "capabilities": dict(report.capabilities),
    }
    if report.duration_s is not None:
        shape["duration_s"] = report.duration_s
    ignored: list[Json] = [{"code": code, "reason": reason} for code, reason in sorted(report.ignored)]
    shape |= _some(reason=report.reason, ignored=ignored, left_out=[*report.left_out])
    shape |= _some(precision=[_precision(one) for one in report.swept.precision])
    shape["findings"] = [_finding(found, report) for found in sorted(report.findings, key=_finding_order)]
    return shape


def _swept(report: TargetReport) -> Json:
    return {
        "sizes": report.sizes_swept,
        "points": report.points,
        "layouts": len(report.swept.layouts),
        "requires_grad": len(report.swept.requires_grad),
        "calls": len(report.swept.calls),
        **({"unlisted_sizes": [*report.swept.sizes]} if report.swept.sizes else {}),
        "past": [*report.swept.past],
        "not_past": [*report.swept.not_past],
        **({"interpreted": True} if report.swept.interpreted else {}),
        "dtypes": _dtypes(report),
        "devices": [*sorted(report.devices)],
    }


def _precision(one: Precision) -> Json:
    return {
        "dtype": one.dtype,
        "value": one.value or None,
        "closeness": one.closeness,
        **_number("worst", one.worst),
        **(_number("hides", one.hides) if one.hides is not None else {"hides": None}),
        "reason": one.reason or None,
    }


def _dtypes(report: TargetReport) -> list[Json]:
    """Return what it was judged in: float64, where it has such a path, and native dtypes."""
    alone = dict(report.checks).get("gradcheck") is not Outcome.PASSED and bool(report.swept.native)
    return [*([] if alone else ["float64"]), *report.swept.dtypes]


def _finding(found: Finding, target: TargetReport) -> Json:
    shape: dict[str, Json] = {
        "code": found.code,
        "name": rule(found.code).name,
        "severity": found.severity,
        "expected": found.expected,
        "message": found.message,
        "hint": found.hint or None,
        "cause": found.cause or None,
        **_number("factor", found.factor),
        "case": _case(found.case) if found.case else None,
        "output": found.output,
        "input": found.input,
        "cases_affected": found.cases_affected,
        "entries": _entries(found.entries) if found.entries else None,
    }
    changes: list[Json] = [
        {"file": c.file, "line": c.line, "before": c.before, "after": c.after} for c in found.changes
    ]
    shape |= _some(changes=changes, fix=_fix(found, target))
    shape |= _some(raised=_raised(found.raised), captured=found.captured)
    return {**shape, "reproduce": found.reproduce or None}


def _fix(found: Finding, target: TargetReport) -> Json:
    patches = patches_of([found])
    if not are_one_fix(patches):
        return None
    points = max(p.points for p in patches)
    return {"diff": unified_diff(patches), "safe": is_safe(target), "verified_at": points}


def _case(case: CasePoint) -> Json:
    """Return the inputs that a finding was made on. Options are as given, not rounded."""
    options: dict[str, Json] = {}
    for name, value in case.options:
        options |= _exact(name, value)
    there = case.shrunk
    shrunk: Json = None
    if there is not None:
        shrunk = {"sizes": dict(there.sizes), "point": there.point, "draw": there.draw}
    return {
        "id": case.id,
        "sizes": dict(case.sizes),
        "options": options,
        "point": case.point,
        "draw": case.draw,
        **_some(shrunk=shrunk),
    }


def _entries(entries: Entries) -> Json:
    keys = ("value", "reference") if entries.compared_with == "reference" else ("analytical", "numerical")
    worst: list[Json] = [_entry(entry, keys) for entry in entries.worst]
    return {"wrong": entries.wrong, "checked": entries.checked, "worst": worst}


def _entry(entry: Entry, keys: tuple[str, str]) -> Json:
    return {
        "output": [*entry.output],
        "input": None if entry.input is None else [*entry.input],
        **_number(keys[0], entry.actual),
        **_number(keys[1], entry.expected),
        **_number("error_bound", entry.error_bound),
    }


def _raised(error: RaisedError | None) -> Json:
    if error is None:
        return None
    frames: list[Json] = [
        {"file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source}
        for frame in error.frames
    ]
    shape: dict[str, Json] = {"type": error.type, "message": error.message, "frames": frames}
    return shape | _some(after=error.after)


def _mistake(mistake: Mistake) -> dict[str, Json]:
    where = mistake.location
    return {
        "kind": mistake.kind,
        "message": mistake.message,
        "file": where.file if where else None,
        "line": where.line if where else None,
        "column": where.column if where else None,
        **_some(raised=_raised(mistake.raised), captured=mistake.captured),
    }


def _some(**shape: Json) -> dict[str, Json]:
    """Return the keys that hold something: the others are left out."""
    return {key: value for key, value in shape.items() if value}


def _number(key: str, value: float | None) -> Mapping[str, Json]:
    """Return a key with a number of 4 significant digits."""
    if value is not None and math.isfinite(value):
        return {key: float(f"{value:.{DIGITS}g}")}
    return _exact(key, value)


def _exact(key: str, value: Scalar) -> Mapping[str, Json]:
    """Return a key with a value as it is, or null and its name where JSON has no such number."""
    if isinstance(value, float) and not math.isfinite(value):
        return {key: None, f"{key}_nonfinite": str(value)}
    return {key: value}
