"""The findings of `lint` as JSON, version 1."""

from __future__ import annotations

from collections import Counter

from gradverify.model import LintFinding, LintReport, Mistake, Severity
from gradverify.report.json_v1 import Json, document_text
from gradverify.rules import rule

SCHEMA = "gradverify-lint/1"
"""Changes when a reader of the previous version would break."""


def render_lint_json(report: LintReport) -> str:
    """Return the report as JSON."""
    counts = Counter(found.severity for found in report.findings)
    document: Json = {
        "schema": SCHEMA,
        "gradverify": report.gradverify_version,
        "exit_code": int(report.exit_code),
        "summary": {
            "files": report.files,
            "functions": report.functions,
            **{f"{severity.value}s": counts[severity] for severity in Severity},
            "waived": report.waived,
        },
        "findings": [_finding(found) for found in report.findings],
        "errors": [_error(mistake) for mistake in report.errors],
    }
    return document_text(document)


def _finding(found: LintFinding) -> Json:
    return {
        "code": found.code,
        "name": rule(found.code).name,
        "severity": found.severity.value,
        "file": found.location.file,
        "line": found.location.line,
        "column": found.location.column,
        "function": found.function,
        "message": found.message,
        "hint": found.hint,
    }


def _error(mistake: Mistake) -> Json:
    where = mistake.location
    return {
        "file": where.file if where else "",
        "line": where.line if where else 0,
        "column": where.column if where else 0,
        "message": mistake.message,
    }
