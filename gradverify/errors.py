"""Exceptions for misuse. A wrong gradient is a value (`gradverify.model.Finding`), never one of these."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.model import Mistake


class UsageError(Exception):
    """The command line asks for something that does not exist or contradicts itself: exit code 2."""


class SpecError(Exception):
    """One or more spec files are wrong: exit code 2, and nothing is verified."""

    def __init__(self, problems: Sequence[Mistake]) -> None:
        """Keep every problem of a stage: a user mends them all at once."""
        super().__init__(f"{len(problems)} spec errors")
        self.problems = tuple(problems)


class ConfigError(SpecError):
    """A configuration file is wrong: told as mistakes in specs are."""
