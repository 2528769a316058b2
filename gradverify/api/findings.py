"""What to say of derivatives that are wrong, first order and second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradverify.api.messages import target_of
from gradverify.api.options import Options
from gradverify.model import Case, Finding, Outcome, Point, Settings, Severity
from gradverify.verifier.checks.grad_output import nonlinearity
from gradverify.verifier.checks.mismatch import describe_block
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.second_order import compare_second_order, refusal
from gradverify.verifier.checks.subject import Sample, Subject, first_line
from gradverify.verifier.checks.wording import blocks, count_of, entries_of, number, part
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.noise import TINIEST
from gradverify.verifier.numerics.problem import CallProblem, Problem, VjpProblem
from gradverify.verifier.numerics.verdict import Judged


def first_order_findings(
    function: Callable[..., Any], options: Options, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong (output, input) block."""
    assert isinstance(problem, CallProblem)  # noqa: S101 - a problem of first order is one
    sample = _sample_of(function, options, problem)
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


def _sample_of(function: Callable[..., Any], options: Options, problem: CallProblem) -> Sample:
    """What the checks of the command start from, for a function without a spec."""
    settings = Settings(rtol=options.rtol, atol=options.atol)
    returned = max(problem.output_positions, default=0) + 1
    subject = Subject(target_of(function), function, settings)
    return Sample(subject, Case("", 0), Point.TYPICAL, 0, problem.arguments, problem, returned)


def second_order_findings(
    function: Callable[..., Any], options: Options, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong block of the second derivative."""
    if not isinstance(problem, VjpProblem):
        return first_order_findings(function, options, problem, judged)
    sample = _sample_of(function, options, problem.first_order)
    graph = problem.graph(problem.primals)
    refused = None if isinstance(graph, Raised) else refusal(graph.value)
    if refused is not None:
        said = f"the second derivative raises {refused.type}: {first_line(refused.message)}"
        return (sample.finding("GV203", said, severity=Severity.ERROR, raised=refused),)
    nothing = FirstOrder(CheckResult(outcome=Outcome.PASSED))
    if judged.comparison.wrong.any() or judged.comparison.nonfinite.any():
        return compare_second_order(sample, problem, judged, nothing).findings
    return _slightly_off(sample, problem, judged)


def _slightly_off(sample: Sample, second: VjpProblem, judged: Judged) -> tuple[Finding, ...]:
    """A warning for every block that is off by less than the tolerance, and more than rounding explains."""
    names, comparison, found = second.input_names, judged.comparison, []
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        mask = part(comparison.imprecise, output, source)
        if not mask.any():
            continue
        actual, expected, bound = (
            part(m, output, source) for m in (comparison.analytical, comparison.numerical, comparison.bound)
        )
        entries = entries_of(actual, expected, bound, mask, output, source)
        relative = (actual - expected).abs() / expected.abs().clamp_min(TINIEST)
        said = (
            f"the second derivative (gradient of `{names[o]}` by `{names[i]}`) is slightly off at "
            f"{count_of(entries.wrong, entries.checked)}: by up to {number(relative[mask].max().item())} of "
            "its value, within the tolerance, but more than rounding explains"
        )
        warning = Severity.WARNING
        found.append(
            sample.finding("GV110", said, input=names[i], output=o, entries=entries, severity=warning)
        )
    return tuple(found)
