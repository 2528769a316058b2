"""Which findings a cause is looked for: known without what looks for one."""

from __future__ import annotations

from gradverify.model import Finding, Severity

DIAGNOSED = {"GV101": 1, "GV107": 1, "GV201": 2}
"""Codes of findings that a measured Jacobian contradicts entry by entry, and the order of the derivative."""

CHANGED = frozenset({"GV102", "GV103", "GV106", "GV401"})
"""Codes that say what is wrong themselves: only the change of backward that makes it right is looked for."""


def is_changed(finding: Finding) -> bool:
    """Whether a change of backward is looked for, and no cause."""
    return finding.severity is Severity.ERROR and finding.code in CHANGED and finding.case is not None


def is_diagnosed(finding: Finding) -> bool:
    """Whether a cause can be looked for."""
    failed = finding.severity is Severity.ERROR and finding.code in DIAGNOSED
    return failed and not finding.cause and finding.case is not None
