"""Which findings a cause is looked for: known without what looks for one."""

from __future__ import annotations

from gradverify.model import Finding, Severity

DIAGNOSED = {"GV101": 1, "GV107": 1, "GV201": 2}
"""Codes of findings that a measured Jacobian contradicts entry by entry, and the order of the derivative."""

CHANGED = frozenset({"GV102", "GV103", "GV106", "GV401", "GV406"})
"""Codes that say what is wrong themselves: only the change of backward that makes it right is looked for."""


LOST_GRAPH = "detached"
"""The cause of a second derivative of which something is a constant."""


def wants_a_change(finding: Finding) -> bool:
    """Whether a change of backward is looked for, and no cause."""
    is_asked = finding.code in CHANGED or finding.cause == LOST_GRAPH
    return finding.severity is Severity.ERROR and is_asked and finding.case is not None


def is_diagnosed(finding: Finding) -> bool:
    """Whether a cause can be looked for."""
    failed = finding.severity is Severity.ERROR and finding.code in DIAGNOSED
    return failed and not finding.cause and finding.case is not None
