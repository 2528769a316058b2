"""Static findings beside dynamic ones: each cause once, and what was verified outranks what was read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gradverify.lint import NOTES, RULES, lint_file
from gradverify.model import LIMITING, Finding, LintFinding, Outcome, Settings, Severity, Target, TargetKind
from gradverify.session.modules import Module

TWINS: Mapping[str, frozenset[str]] = {
    "GV803": frozenset({"GV105", "GV406"}),
    "GV809": frozenset({"GV102", "GV404"}),
    "GV811": frozenset({"GV402"}),
    "GV812": frozenset({"GV102"}),
    "GV813": frozenset({"GV102"}),
    "GV814": frozenset({"GV102"}),
    "GV816": frozenset({"GV408", "GV411"}),
    "GV817": frozenset({"GV817"}),
}
"""The codes of `check` that a static rule foresees."""

_NAME = re.compile("`[^`]+`")


def static_findings(module: Module, target: Target) -> tuple[LintFinding, ...]:
    """What the source of a module says of one of its targets. Each module is read once."""
    if target.kind is not TargetKind.FUNCTION or target.file != module.shown_path:
        return ()
    if module.static is None:
        module.static = lint_file(module.path, module.shown_path, {**RULES, **NOTES}).findings
    return tuple(found for found in module.static if found.function == target.attribute)


def reported_beside(
    read: Sequence[LintFinding],
    found: Sequence[Finding],
    *,
    settings: Settings,
    ignored: Sequence[str],
    contract: Outcome,
) -> list[Finding]:
    """The static findings that the dynamic ones leave to say, as warnings: alone they fail nothing.

    `contract` is what was verified: a backward that takes every layout refutes GV809.
    """
    codes = {finding.code for finding in found}
    return [
        _as_finding(one)
        for one in read
        if not TWINS[one.code] & codes
        and not (one.code == "GV809" and contract is Outcome.PASSED)
        and not _is_said(one, found)
        and _is_wanted(one.code, settings, ignored)
    ]


def _is_wanted(code: str, settings: Settings, ignored: Sequence[str]) -> bool:
    """Whether a code is asked for; who waives what it foresees, with a reason, waives it too."""
    waived = (*settings.ignore, *ignored)
    foreseen = all(twin.startswith(waived) for twin in TWINS[code])
    return settings.selects(code) and not code.startswith(waived) and not foreseen


def _is_said(one: LintFinding, found: Sequence[Finding]) -> bool:
    """Whether what was seen under the same code names all that was read."""
    seen = " ".join(f.message for f in found if f.code == one.code)
    return bool(seen) and all(name in seen for name in _NAME.findall(one.message))


def _as_finding(one: LintFinding) -> Finding:
    severity = Severity.WARNING if one.severity is Severity.ERROR else one.severity
    limits = one.code in LIMITING
    severity = Severity.NOTE if limits else severity
    part = one.message if limits else ""
    return Finding(one.code, severity, one.message, hint=one.hint, location=one.location, part=part)
