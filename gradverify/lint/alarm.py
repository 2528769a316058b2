"""What a static rule says of one place, and the source it is said of."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from gradverify.model import Severity


@dataclass(frozen=True)
class Source:
    """What the rules may know of the module around a Function."""

    imported: Mapping[str, str]
    """What each imported name stands for."""
    helpers: Mapping[str, ast.FunctionDef]
    """The functions at its top level, by name."""


@dataclass(frozen=True)
class Alarm:
    """One place that a rule complains about."""

    code: str
    node: ast.AST
    message: str
    hint: str
    severity: Severity | None = None
    """None for the severity of the rule."""
