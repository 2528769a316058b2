"""What a wrong gradient raises in a test."""

from __future__ import annotations

from torch.autograd.gradcheck import GradcheckError

from gradverify.model import Finding


class GradientError(GradcheckError):
    """A gradient is wrong, or could not be verified; its message is the text report.

    A subclass of torch's own error, so that code which expects that one goes on working.
    """

    def __init__(self, text: str, findings: tuple[Finding, ...] = ()) -> None:
        """Keep the findings beside the text."""
        super().__init__(text)
        self.findings = findings
