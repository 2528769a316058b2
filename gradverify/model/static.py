"""What the source alone says."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model.place import Location
from gradverify.model.report import Mistake
from gradverify.model.words import Severity


@dataclass(frozen=True)
class LintFinding:
    """One thing that a static rule says of one place in a file."""

    code: str
    severity: Severity
    location: Location
    function: str
    """The class it is about."""
    message: str
    """One sentence without a final full stop, beginning in the user's own names."""
    hint: str = ""
    source_line: str = ""
    length: int = 1
    """How many characters of the line the place covers, from its column on."""


@dataclass(frozen=True)
class LintReport:
    """Everything that `lint` found out."""

    findings: tuple[LintFinding, ...] = ()
    """In the order of the files, then by line and column."""
    errors: tuple[Mistake, ...] = ()
    """Files that cannot be read as Python."""
    files: int = 0
    functions: int = 0
    """How many Functions were looked at."""
    waived: int = 0
    """Findings with a `# noqa` on their line."""
    gradverify_version: str = ""
    exit_code: int = 0
