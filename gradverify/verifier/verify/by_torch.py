"""`--engine torch`: the verdict of `torch.autograd.gradcheck` and `gradgradcheck`; witnesses say where."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from gradverify.model import Finding, Outcome, RaisedError
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import returned_tensors, substitute
from gradverify.verifier.questions.findings import CheckResult, FirstOrder
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.results import first_order, second_order
from gradverify.verifier.questions.subject import Sample, first_line


def torch_first_order(sample: Sample) -> FirstOrder:
    """Gradcheck in slow mode; where it fails, our own comparison says where."""
    if sample.disconnected:
        return first_order(sample)
    error = _ask(torch.autograd.gradcheck, sample)
    if error is None:
        return FirstOrder(CheckResult(), proven=True)
    raised = error.type != GradcheckError.__name__
    located = None if raised else first_order(sample)
    if located is not None and located.result.outcome is Outcome.FAILED:
        return located
    found = backward_raised(sample, error) if raised else _unlocated(sample, "GV101", "gradcheck", error)
    return FirstOrder(CheckResult((found,), Outcome.FAILED))


def torch_second_order(sample: Sample) -> CheckResult:
    """Gradgradcheck in slow mode; a double backward that raises or is detached has codes of its own."""
    error = _ask(torch.autograd.gradgradcheck, sample)
    if error is None:
        return CheckResult(capability="yes")
    located = second_order(sample)
    if located.outcome in {Outcome.FAILED, Outcome.NOT_RUN} or located.capability == "no":
        return located  # not run: the draw before says it
    finding = _unlocated(sample, "GV201", "gradgradcheck", error)
    return CheckResult((finding,), Outcome.FAILED, capability="wrong")


def _ask(check: Any, sample: Sample) -> RaisedError | None:  # noqa: ANN401 - gradcheck or gradgradcheck
    settings = sample.subject.settings
    inputs = [p.detach().clone().requires_grad_() for p in sample.problem.primals]

    def function(*primals: Tensor) -> tuple[Tensor, ...]:
        sample.problem.counter.forward += 1
        sample.problem.random_states.replay()
        arguments = substitute(sample.arguments, [p.clone() for p in primals])
        returned = returned_tensors(sample.subject.call(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    result = guard.call(lambda: check(function, inputs, rtol=settings.rtol, atol=settings.atol))
    return result.error if isinstance(result, Raised) else None


def _unlocated(sample: Sample, code: str, check: str, error: RaisedError) -> Finding:
    return sample.finding(
        code,
        f"torch.autograd.{check} fails: {first_line(error.message)}",
        hint="gradverify's own comparison finds no entry that is off by more than its measured error: "
        "run without --engine torch to see its verdict.",
    )
