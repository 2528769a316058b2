"""GV505: torch.func must give the verified gradient of a Function with `setup_context`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.checks.transforms.answer import NOT_RUN, UNSUPPORTED, Answer, refused, wrong
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Tensors, copies, returned_tensors, substitute, with_zeros

CODE = "GV505"

HINT = (
    "Keep tensors with ctx.save_for_backward alone and compute in forward and backward from what they are "
    "given: under torch.func a tensor kept elsewhere belongs to another level."
)


def functional(base: Verified) -> Answer:
    """Hold `torch.func.vjp` against the verified gradient; a forward that takes ctx is refused by torch.

    So is the Function that torch makes of a custom op.
    """
    sample = base.sample
    subject = sample.subject
    generated = subject.operator is not None and subject.operator.definition is not None
    if subject.function_class is None and not generated:
        return NOT_RUN
    if not subject.binds_defaults:
        return UNSUPPORTED
    problem = sample.problem
    problem.counter.forward += 1
    problem.counter.backward += 1
    problem.random_states.replay()
    result = guard.call(_vjp, base, copies(problem.primals), base.grad_outputs())
    if isinstance(result, Raised):
        return refused(base, CODE, "torch.func.vjp", result.error)
    outputs, gradients = result.value
    moved = base.forward_difference(outputs)
    if moved is not None:
        said = f"forward gives another result under torch.func: {moved.place} is {moved.values}"
        return wrong(base.finding(CODE, said, hint=HINT))
    difference = base.difference(gradients)
    if difference is None:
        return Answer("yes")
    said = (
        f"the gradient of `{difference.name}` is wrong under torch.func.vjp: {difference.place} is "
        f"{difference.values}"
    )
    return wrong(base.finding(CODE, said, hint=HINT, input=difference.name))


def _vjp(base: Verified, primals: Sequence[Tensor], grad_outputs: Tensors) -> tuple[Tensors, Tensors]:
    """Pull back inside the transform's own level, which is what `torch.func.vjp`'s second value does later.

    That value loads torch's compiler when it is called (1.2 s, torch 2.13), to ask whether it is
    being compiled.
    """
    sample = base.sample

    def call(*leaves: Tensor) -> tuple[Tensors, Tensors]:
        # Copies, as in an ordinary call: `mark_dirty` refuses the tensor itself.
        given = substitute(sample.arguments, [leaf.clone() for leaf in leaves])
        returned = returned_tensors(sample.subject.function(*given))
        outputs = tuple(returned[p] for p in sample.problem.output_positions)
        return outputs, with_zeros(vjp(outputs, leaves, grad_outputs, create=True), leaves)

    pulled: Any = torch.func.vjp(call, *primals, has_aux=True)
    outputs, _, gradients = pulled
    return outputs, gradients
