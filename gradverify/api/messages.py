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

from torch import Tensor

from gradverify.model import (
    Case,
    Finding,
    InputSource,
    Outcome,
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
from gradverify.verifier.checks.grad_output import nonlinearity
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.second_order import compare_second_order, refusal
from gradverify.verifier.checks.second_order_messages import SecondPair, second_pairs
from gradverify.verifier.checks.subject import Sample, Subject, first_line
from gradverify.verifier.checks.wording import blocks, by_how_much, count_of, describe_block
from gradverify.verifier.collect.operators import operator_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Layout, Problem, VjpProblem
from gradverify.verifier.numerics.verdict import Judged


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


def first_order_findings(
    function: Callable[..., Any], settings: Settings, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong (output, input) block."""
    assert isinstance(problem, CallProblem)  # noqa: S101 - a problem of first order is one
    sample = _sample_of(function, settings, problem)
    if judged.inputs.size == sample.inputs.size and judged.comparison.wrong.any():
        nonlinear = nonlinearity(sample, judged.comparison.analytical, judged.measured)
        if nonlinear is not None:
            return (nonlinear,)
    names, positions = problem.input_names, problem.output_positions
    found = (
        describe_block(sample, judged.comparison, positions[o], output, names[i], source)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
    )
    return tuple(f for f in found if f is not None)


def _sample_of(function: Callable[..., Any], settings: Settings, problem: CallProblem) -> Sample:
    """What the checks of the command start from, for a function without a spec."""
    returned = max(problem.output_positions, default=0) + 1
    subject = Subject(target_of(function), function, settings)
    return Sample(subject, Case("", 0), Point.TYPICAL, 0, problem.arguments, problem, returned)


def second_order_findings(
    function: Callable[..., Any], settings: Settings, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong block of the second derivative."""
    assert isinstance(problem, VjpProblem)  # noqa: S101 - a problem of second order is one
    sample = _sample_of(function, settings, problem.first_order)
    graph = problem.graph(problem.primals)
    refused = None if isinstance(graph, Raised) else refusal(graph.value)
    if refused is not None:
        said = f"the second derivative raises {refused.type}: {first_line(refused.message)}"
        return (sample.finding("GV203", said, severity=Severity.ERROR, raised=refused),)
    if judged.comparison.wrong.any() or judged.comparison.nonfinite.any():
        passed = FirstOrder(CheckResult(outcome=Outcome.PASSED))
        return compare_second_order(sample, problem, judged, passed).findings
    slightly = replace(judged, comparison=replace(judged.comparison, wrong=judged.comparison.imprecise))
    return tuple(_slightly_off(sample, p) for p in second_pairs(problem, slightly) if p.wrong.any())


def _slightly_off(sample: Sample, pair: SecondPair) -> Finding:
    """A warning for a block that is off by less than the tolerance, and more than rounding explains."""
    entries = pair.entries()
    said = (
        f"the second derivative (gradient of `{pair.gradient_of}` by `{pair.by}`) is slightly off at "
        f"{count_of(entries.wrong, entries.checked)}, {by_how_much(entries)}: within the tolerance, but more "
        "than rounding explains"
    )
    return sample.finding(
        "GV110", said, input=pair.by, output=pair.position, entries=entries, severity=Severity.WARNING
    )


def places(problem: CallProblem | VjpProblem, judged: Judged, missing: Tensor) -> str:
    """Where entries (bool, of what was judged) are not verified, in words."""
    names, positions = problem.input_names, problem.output_positions
    rows, columns = problem.outputs.lengths, Layout.of(problem.primals).lengths
    found = []
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        here = missing[output.start : output.stop, source.start : source.stop]
        if here.any():
            entries = rows[o] * columns[i]
            found.append(f"{int(here.sum())} of {entries} entries of output {positions[o]} by {names[i]}")
    return f"{'; '.join(found)} (a kink, a jump, or too noisy there)"
