"""Size 0 (GV412): nothing can be measured, but forward and backward must run and give the right shapes."""

from __future__ import annotations

import torch

from gradverify.model import Finding, Outcome, RaisedError, Severity
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout


def refused_empty(sample: Sample) -> FirstOrder | None:
    """Run one backward where the Jacobian has no entries; None where it runs, or there is no need.

    The shapes of what backward returns are read while it runs, and judged with the contract.
    """
    problem = sample.problem
    if Layout.of(problem.primals).size and problem.outputs.size:
        return None
    cotangent = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    result = problem.pull_back(problem.primals, cotangent)
    if not isinstance(result, Raised):
        return None
    return FirstOrder(CheckResult((_backward_raised(sample, result.error),), Outcome.FAILED))


def _backward_raised(sample: Sample, error: RaisedError) -> Finding:
    return sample.finding(
        "GV412",
        f"backward raised {error.type} for an empty input: {first_line(error.message)}",
        hint="An empty batch is an ordinary input: return gradients of the inputs' shapes. If size 0 is not "
        "valid, leave it out of the spec.",
        severity=Severity.ERROR,
        raised=error,
    )
