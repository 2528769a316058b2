"""Where no Jacobian can be measured: backward raises (GV102), nothing connects (GV003), size 0 (GV412).

At size 0 forward and backward must run and give the right shapes all the same.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, indexed
from gradverify.verifier.guard import Raised, lacking
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.guard.raised_errors import fails_to_import
from gradverify.verifier.questions.result import CheckResult, FirstOrder
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.wording import (
    number,
    output_name,
)


def refused_empty(sample: Sample) -> FirstOrder | None:
    """Run one backward where the Jacobian has no entries; None where it is right, or there is no need.

    The shapes of what backward returns are read while it runs, and judged with the contract. Inputs on which
    nothing depends get a gradient of zeros; but where no input is empty, the result is made so, and may be
    there for its backward alone.
    """
    problem, inputs = sample.problem, sample.inputs
    if inputs.size and problem.outputs.size:
        return None
    cotangent = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    with filled_memory(fill=True):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        error = result.error
        said = f"backward raised {error.type} for an empty input: {first_line(error.message)}"
        found = sample.finding("GV412", said, hint=EMPTY, severity=Severity.ERROR, raised=error)
        return FirstOrder(CheckResult.of(found))
    gradient = inputs.flatten(result.value)
    is_given_nothing = any(isinstance(a.value, Tensor) and not a.value.numel() for a in sample.arguments)
    if not (gradient != 0).any() or not is_given_nothing:
        return None
    worst = int((gradient != 0).int().argmax())
    number_of = inputs.block_of(worst)
    name = problem.input_names[number_of]
    place, value = indexed(name, inputs.blocks[number_of].index(worst)), number(gradient[worst].item())
    said = f"what forward returns is empty, and the gradient of {place} is {value}, not 0"
    found = sample.finding("GV412", said, hint=OF_NOTHING, input=name, severity=Severity.ERROR)
    return FirstOrder(CheckResult.of(found))


EMPTY = (
    "An empty batch is an ordinary input: return gradients of the inputs' shapes. If size 0 is not valid, "
    "leave it out of the spec."
)

OF_NOTHING = (
    "Nothing depends on it there: allocate gradients with zeros (torch.empty reads memory that was never "
    "written), and look for what is left out or divided by where the batch is empty."
)

_UNPACKS = re.compile(r"[^=#]+=\s*[\w.()\[\]]+\.saved_(tensors|variables)\s*(#.*)?")
"""`a, b = ctx.saved_tensors`, as a line: what it unpacks is what forward saved."""


def backward_raised(sample: Sample, error: RaisedError, when: str = "") -> Finding:
    """GV102, with the commonest accident put into words: nothing was saved for backward.

    GV109 where it tells of this machine alone, GV001 where a package is missing.
    """
    said = f"backward raised {error.type}{when}: {first_line(error.message)}"
    missing = lacking(error, sample.subject.settings.device)
    if missing:
        code = "GV001" if fails_to_import(error) else "GV109"
        return sample.finding(code, said, hint=missing, raised=error)
    hint, unpacks = "", error.frames and _UNPACKS.fullmatch(error.frames[-1].source)
    if unpacks and "unpack" in error.message:
        hint = "Hand as many tensors to ctx.save_for_backward as backward unpacks, in the same order."
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
    return sample.finding("GV102", said, hint=hint, raised=error)


def disconnected(sample: Sample) -> FirstOrder:
    """GV003."""
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
    said = f"{names} has no gradient: nothing connects it to the inputs"
    hint = "Something detaches it (no_grad, .data, .detach(), a call that autograd does not know)."
    return FirstOrder(CheckResult.of(sample.finding("GV003", said, hint=hint, output=sample.disconnected[0])))
