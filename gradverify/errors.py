"""Exceptions for misuse. A wrong gradient is a value (`gradverify.model.Finding`), never one of these."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradverify.model import Mistake, Report


class UsageError(Exception):
    """The command line asks for something that does not exist or contradicts itself: exit code 2."""


class SpecError(Exception):
    """One or more spec files are wrong: exit code 2, and nothing is verified."""

    def __init__(self, problems: Sequence[Mistake]) -> None:
        """Keep every problem of a stage: a user fixes them all at once."""
        super().__init__(f"{len(problems)} spec errors")
        self.problems = tuple(problems)


class InterruptedRunError(KeyboardInterrupt):
    """Ctrl-C ended a run in which some targets were judged already: exit code 130, and they are reported."""

    def __init__(self, report: Report) -> None:
        """Keep what is known."""
        super().__init__("interrupted")
        self.report = report


class ConfigError(SpecError):
    """A configuration file is wrong: reported as mistakes in specs are."""


def did_you_mean(name: str, candidates: Collection[str]) -> str:
    """`; did you mean ...?`, or nothing where no candidate is near."""
    near = difflib.get_close_matches(name, list(candidates), 1, 0.5)
    return f"; did you mean `{near[0]}`?" if near else ""
