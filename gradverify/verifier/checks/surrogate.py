"""A declared surrogate: a gradient that is deliberately not the derivative, compared with a composite's.

Straight-through rounding, gradient reversal, spiking units. For the inputs it covers, the checks against the
exact derivative are replaced by GV302 against the surrogate's gradient; the others stay exact.
"""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Outcome
from gradverify.verifier.checks.reference import compare_gradients, refused
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import Sample, Surrogate, first_line, reference_problem
from gradverify.verifier.guard import Raised

REPLACED = frozenset({"GV101", "GV106", "GV107"})
"""Codes that a surrogate stands in for."""

ALSO_REPLACED_WITHOUT_COMPOSITE = frozenset({"GV108", "GV110"})
"""Codes that nothing can judge where only a reason is declared."""


def without_exact(first: FirstOrder, surrogate: Surrogate) -> FirstOrder:
    """The first order without what the surrogate replaces."""
    codes = REPLACED if surrogate.function is not None else REPLACED | ALSO_REPLACED_WITHOUT_COMPOSITE
    findings = tuple(f for f in first.result.findings if f.code not in codes or not surrogate.covers(f.input))
    uncovered = {k: v for k, v in first.result.uncovered.items() if not surrogate.covers(k[1])}
    exact_inputs = bool(surrogate.inputs)
    result = replace(
        first.result,
        findings=findings,
        uncovered=uncovered,
        outcome=outcome_of(findings) if exact_inputs or findings else Outcome.NOT_RUN,
        smallest_visible_error=first.result.smallest_visible_error if exact_inputs else None,
    )
    return replace(first, result=result)


def surrogate_gradient(sample: Sample, surrogate: Surrogate) -> CheckResult:
    """GV302: backward against the gradient of the surrogate; its forward is not compared."""
    if surrogate.function is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    built = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(built, Raised):
        return refused(sample, f"the surrogate raised {built.error.type}: {first_line(built.error.message)}")
    findings = tuple(
        f for f in compare_gradients(sample, sample.problem, built.value, None) if surrogate.covers(f.input)
    )
    return CheckResult(findings, outcome_of(findings))
