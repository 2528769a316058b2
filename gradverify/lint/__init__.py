"""Static rules: what the source of a Function says before anything is run.

`ast` alone: no import of the user's module, no torch, milliseconds for a file.
"""

from __future__ import annotations

from gradverify.lint.notes import NOTES
from gradverify.lint.reading import Linted, lint_file, lint_source
from gradverify.lint.rules import RULES

__all__ = ["NOTES", "RULES", "Linted", "lint_file", "lint_source"]
