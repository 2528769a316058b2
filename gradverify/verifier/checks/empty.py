"""Size 0 (GV412): nothing can be measured, but forward and backward must run and give the right shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, RaisedError, Severity, indexed
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.flat import Layout


def refused_empty(sample: Sample) -> FirstOrder | None:
    """Run one backward where the Jacobian has no entries; None where it is right, or there is no need.

    The shapes of what backward returns are read while it runs, and judged with the contract. Inputs on which
    nothing depends get a gradient of zeros; but where no input is empty, the result is made so, and may be
    there for its backward alone.
    """
    problem = sample.problem
    inputs = Layout.of(problem.primals)
    if inputs.size and problem.outputs.size:
        return None
    cotangent = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    with filled_memory(fill=True):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        return FirstOrder(CheckResult((_backward_raised(sample, result.error),), Outcome.FAILED))
    gradient = inputs.flatten(result.value)
    wrong = gradient != 0
    if not wrong.any() or not _is_given_nothing(sample):
        return None
    return FirstOrder(CheckResult((_of_nothing(sample, inputs, gradient, wrong),), Outcome.FAILED))


def _is_given_nothing(sample: Sample) -> bool:
    """Whether some argument is empty, from which an empty result follows."""
    return any(isinstance(a.value, Tensor) and not a.value.numel() for a in sample.arguments)


def _of_nothing(sample: Sample, inputs: Layout, gradient: Tensor, wrong: Tensor) -> Finding:
    worst = int(wrong.int().argmax())
    number_of = inputs.block_of(worst)
    name = sample.problem.input_names[number_of]
    place = indexed(name, inputs.blocks[number_of].index(worst))
    read = ": uninitialised memory, or a division by the size" if gradient[worst].isnan() else ""
    return sample.finding(
        "GV412",
        f"what forward returns is empty, and the gradient of {place} is {number(gradient[worst].item())}, "
        f"not 0{read}",
        hint="Nothing depends on it there: allocate gradients with zeros, and look for what is left out or "
        "divided by where the batch is empty.",
        input=name,
        severity=Severity.ERROR,
    )


def _backward_raised(sample: Sample, error: RaisedError) -> Finding:
    return sample.finding(
        "GV412",
        f"backward raised {error.type} for an empty input: {first_line(error.message)}",
        hint="An empty batch is an ordinary input: return gradients of the inputs' shapes. If size 0 is not "
        "valid, leave it out of the spec.",
        severity=Severity.ERROR,
        raised=error,
    )
