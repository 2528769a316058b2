"""What a wrong gradient raises in a test."""

from __future__ import annotations

import warnings

from torch.autograd.gradcheck import GradcheckError

from gradverify.api.messages import reported
from gradverify.api.shown import shown_target
from gradverify.model import Finding, Severity, TargetReport, Verdict

CALLER = 2
"""Stack frames from `verify` to the test that called it."""


class GradientError(GradcheckError):
    """A gradient is wrong, or could not be verified; its message is the text report.

    A subclass of torch's own error, so that code which expects that one goes on working.
    """

    def __init__(self, text: str, findings: tuple[Finding, ...] = ()) -> None:
        """Keep the findings beside the text."""
        super().__init__(text)
        self.findings = findings


def passed(report: TargetReport) -> TargetReport:
    """The report of a pass, its warnings issued; raises `GradientError` for everything else."""
    __tracebackhide__ = True
    if report.status is not Verdict.PASSED:
        raise GradientError(reported(report), report.findings)
    for found in report.findings:
        if found.severity is Severity.WARNING:
            warnings.warn(f"{report.target.name}: {found.code} {found.message}", stacklevel=CALLER + 1)
    return shown_target(report)
