"""The output formats."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """Output formats."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"
    MARKDOWN = "markdown"
    HTML = "html"


class LintFormat(StrEnum):
    """Output formats of `lint`."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"


MACHINES = frozenset({Format.JSON, Format.JUNIT, Format.SARIF, Format.GITHUB, Format.MARKDOWN, Format.HTML})
"""Formats that hold a run's mistakes too; with the others these go to stderr."""
