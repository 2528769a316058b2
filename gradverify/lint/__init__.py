"""Static rules: what the source of a Function says before anything is run.

`ast` alone: no import of the user's module, no torch, milliseconds for a file. A rule speaks only where the
source leaves no doubt; helper calls, starred tuples and code out of sight keep it silent.
"""

from __future__ import annotations

from gradverify.lint.reading import Linted, lint_file, lint_source

__all__ = ["Linted", "lint_file", "lint_source"]
