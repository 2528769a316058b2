"""First order: is backward the derivative of forward (GV003, GV101, GV102, GV106 to GV110).

Size 0 (GV412): nothing can be measured, but forward and backward must run and give the right shapes.

Whether a gradient is wrong for nothing but random numbers that backward draws for itself.

A mask that is drawn again in backward is forward's only where the generator is where it was then. That
is so in no training step, and not here either: backward starts from random states of its own.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, RaisedError, Severity, indexed
from gradverify.verifier.guard import Raised, lacking
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.guard.raised_errors import fails_to_import
from gradverify.verifier.numerics.problem import Layout
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
    read = ", as uninitialised memory or a division by the size gives" if gradient[worst].isnan() else ""
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


OF_NUMBERS = frozenset({"GV101", "GV107"})
"""Codes of gradients that are no derivative."""

DRAW_IN_FORWARD = (
    "Backward draws random numbers of its own: with those that forward drew, the gradient is right (tried "
    "here). Draw in forward and save what was drawn (ctx.save_for_backward). To draw it again, keep the "
    "random state in forward, and set it in backward inside torch.random.fork_rng()."
)


RETURN_NONE = (
    "After ctx.set_materialize_grads(False) a grad_output may be None: return None for it, or leave out "
    "set_materialize_grads."
)
"""The remedy of GV407."""


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
    hint = ""
    if error.frames and _UNPACKS.fullmatch(error.frames[-1].source) and "unpack" in error.message:
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
            hint = (
                "In this call forward saved nothing: hand the tensors that backward unpacks to "
                "ctx.save_for_backward."
            )
        else:
            hint = "Save as many tensors in forward as backward unpacks, in the same order."
    return sample.finding("GV102", said, hint=hint, raised=error)


def disconnected(sample: Sample) -> FirstOrder:
    """GV003."""
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
    finding = sample.finding(
        "GV003",
        f"{names} has no gradient: nothing connects it to the inputs",
        hint="Something detaches it (no_grad, .data, .detach(), a call that autograd does not know).",
        output=sample.disconnected[0],
    )
    return FirstOrder(CheckResult((finding,), Outcome.FAILED))
