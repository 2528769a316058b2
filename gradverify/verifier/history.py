"""What was verified of one target, for what comes after its cases."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradverify.events import CaseStarted, CaseVerified, Event, Found
from gradverify.model import Case, Finding, Severity
from gradverify.verifier.checks.kept import Place


@dataclass
class History:
    """Where it was judged, and what was found."""

    visited: list[Place] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    judged: bool = False
    """Some case has a gradient."""
    unverified: bool = False
    """Some case was not verified."""

    @property
    def stands(self) -> bool:
        """Whether nothing is wrong so far: then sizes that nobody listed can add something."""
        return self.judged and all(f.severity is not Severity.ERROR for f in self.findings)

    @property
    def is_verified(self) -> bool:
        """Whether every case was verified, and nothing is wrong or open."""
        return self.stands and not self.unverified and all(f.code != "GV109" for f in self.findings)

    def add(self, event: Event, case: Case) -> None:
        """Take in one event of a case."""
        match event:
            case CaseStarted():
                self.visited.append(Place(case, event.point, event.draw))
            case Found():
                self.findings.append(event.finding)
            case CaseVerified():
                self.judged |= not event.no_gradient
                self.unverified |= event.no_gradient
            case _:
                pass
