"""Findings of a test as text: the same blocks as the command's report, without a command to repeat.

Where a class of a notebook's cell is defined, in the words of the notebook.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradverify.api.judged import Held
from gradverify.model import (
    Case,
    Finding,
    InputSource,
    Point,
    Settings,
    Severity,
    Target,
    TargetKind,
    TargetReport,
    Verdict,
    shown_path,
)
from gradverify.report.console import TextStyle
from gradverify.report.text import render_failure
from gradverify.verifier.numerics.problem import CallProblem, Graph, VjpProblem
from gradverify.verifier.questions.findings import WITHIN_TOLERANCE, wrong_gradient, wrong_second
from gradverify.verifier.questions.orders import how_it_bends, is_cut, nonlinear, refusal
from gradverify.verifier.questions.subject import Sample, Subject, first_line
from gradverify.verifier.targets.operators import operator_of
from gradverify.verifier.witnesses.answers import Asked


def cell_of(function: type) -> str:
    """What Python calls the cell that defines a Function; empty where its source is not known."""
    code = getattr(inspect.unwrap(getattr(function, "forward", function)), "__code__", None)
    file = str(getattr(code, "co_filename", ""))
    return file if linecache.getlines(file) else ""


def name_of_cell(cell: str) -> str:
    """`In[3]` where IPython knows the cell by its number, else what Python calls it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named: Callable[[str], tuple[str, str] | None] | None = getattr(
        getattr(shell, "compile", None), "format_code_name", None
    )
    found = None if named is None else named(cell)
    return found[1] if found else Path(cell).name


def place_of(function: type) -> tuple[str, int]:
    """The cell of a class and its line there; `<python>` where no source is known."""
    cell = cell_of(function)
    if not cell:
        return "<python>", 1
    lines = linecache.getlines(cell)
    heads = (f"class {function.__name__}(", f"class {function.__name__}:")
    starts = (k for k, line in enumerate(lines, 1) if line.startswith(heads))
    return name_of_cell(cell), next(starts, 1)


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
        shown = shown_path(Path(file or "<python>"))
    except (OSError, TypeError):
        shown, line = place_of(defined)
    name = name_of(function)
    return Target(name, name, TargetKind.CALLABLE, shown, line)


def finding(code: str, message: str, hint: str = "") -> Finding:
    """A finding that is no entry of a Jacobian: an error."""
    return Finding(code, Severity.ERROR, message, hint=hint)


def failure(function: Callable[..., Any], findings: tuple[Finding, ...]) -> str:
    """The text report on a function with these findings."""
    shown = tuple(replace(f, case=None) for f in findings)
    return reported(TargetReport(target_of(function), Verdict.FAILED, InputSource.SPEC, findings=shown))


def reported(report: TargetReport) -> str:
    """The text report on one target that is not verified."""
    quiet = report.status is not Verdict.FAILED  # which says a verdict without a block of its own
    text = render_failure(report, TextStyle(verbosity=-1 if quiet else 0))
    return text or f"{report.target.name}: {report.status}: {report.reason}"


def sample_of(function: Callable[..., Any], settings: Settings, problem: CallProblem) -> Sample:
    """What the judge and its words start from, for a function without a spec."""
    returned = max(problem.output_positions, default=0) + 1
    subject = Subject(target_of(function), function, settings)
    return Sample(subject, Case("", 0), Point.TYPICAL, 0, problem.arguments, problem, returned)


def first_order_findings(sample: Sample, asked: Asked, held: Held) -> tuple[Finding, ...]:
    """A finding for every (output, input) that is off."""
    positions = sample.problem.output_positions
    found = [
        wrong_gradient(sample, positions[o], i, answer)
        for (o, i), answer in (held.wrong or held.finer).items()
    ]
    if not held.wrong:
        return tuple(map(_within_tolerance, found))
    bends = how_it_bends(asked)
    return tuple(nonlinear(f, bends) if bends and f.code == "GV101" else f for f in found)


def second_order_findings(sample: Sample, asked: Asked, graph: Graph, held: Held) -> tuple[Finding, ...]:
    """A finding for every (gradient, input or grad_output) of the second derivative that is off."""
    second = asked.problem
    assert isinstance(second, VjpProblem)  # noqa: S101 - a problem of second order is one
    refused = refusal(graph, second) if held.wrong else None
    if refused is not None:
        said = f"the second derivative raises {refused.type}: {first_line(refused.message)}"
        return (sample.finding("GV203", said, severity=Severity.ERROR, raised=refused),)
    shown = sorted((held.wrong or held.finer).items(), key=lambda item: -item[1].largest)
    cut = bool(held.wrong) and is_cut(asked)
    found = [
        wrong_second(sample, second, pair, answer, cut=cut) for pair, answer in (shown[:1] if cut else shown)
    ]
    return tuple(found) if held.wrong else tuple(map(_within_tolerance, found))


def _within_tolerance(found: Finding) -> Finding:
    """A warning for what is off by less than the tolerance."""
    message = found.message.replace(" is wrong at ", " is slightly off at ")
    return replace(found, code="GV110", severity=Severity.WARNING, message=message, hint=WITHIN_TOLERANCE)
