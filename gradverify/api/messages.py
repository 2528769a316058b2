"""Findings of a test as text: the same blocks as the command's report, without a command to repeat."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradverify.model import (
    Finding,
    InputSource,
    Severity,
    Target,
    TargetKind,
    TargetReport,
    Verdict,
    shown_path,
)
from gradverify.report.block import render_failure
from gradverify.report.console import TextStyle
from gradverify.verifier.collect.operators import operator_of

UNTITLED = "function"
"""What a callable without a name is called."""


def name_of(function: Callable[..., Any]) -> str:
    """How messages call a function: `Linear` for `Linear.apply`, `mylib::mul` for an operator."""
    operator = operator_of(function)
    if operator is not None:
        return operator.name
    if isinstance(owner := getattr(function, "__self__", None), type):
        return owner.__name__
    return getattr(function, "__qualname__", "") or UNTITLED


def target_of(function: Callable[..., Any]) -> Target:
    """The function as a target: where it is defined, as far as that is known."""
    owner = getattr(function, "__self__", None)
    operator = operator_of(function)
    python: Any = operator.implementation if operator is not None else function
    defined: Any = owner if isinstance(owner, type) else inspect.unwrap(python)
    try:
        file, line = inspect.getsourcefile(defined), inspect.getsourcelines(defined)[1]
    except (OSError, TypeError):
        file, line = None, 1
    name = name_of(function)
    return Target(name, name, TargetKind.CALLABLE, shown_path(Path(file)) if file else "<python>", line)


def finding(code: str, message: str, hint: str = "") -> Finding:
    """A finding that is no entry of a Jacobian: an error."""
    return Finding(code, Severity.ERROR, message, hint=hint)


def failure(function: Callable[..., Any], findings: tuple[Finding, ...]) -> str:
    """The text report on a function with these findings."""
    shown = tuple(replace(f, case=None) for f in findings)
    return told(TargetReport(target_of(function), Verdict.FAILED, InputSource.SPEC, findings=shown))


def told(report: TargetReport) -> str:
    """The text report on one target that is not verified."""
    quiet = report.status is not Verdict.FAILED  # which says a verdict without a block of its own
    text = render_failure(report, TextStyle(verbosity=-1 if quiet else 0))
    return text or f"{report.target.name}: {report.status}: {report.reason}"
