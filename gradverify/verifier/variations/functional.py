"""GV505: torch.func must give the verified gradient of a Function with `setup_context`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Tensors, copies, returned_tensors, substitute, with_zeros
from gradverify.verifier.variations.variation import NOT_RUN, UNSUPPORTED, Answer, Variant, refusal, wrong
from gradverify.verifier.variations.verified import Verified

FUNC = Variant(
    "GV505",
    "under torch.func.vjp",
    "Keep tensors with ctx.save_for_backward alone and compute in forward and backward from what they are "
    "given: under torch.func a tensor kept elsewhere belongs to another level.",
)


def functional(base: Verified) -> Answer:
    """Hold `torch.func.vjp` against the verified gradient; a forward that takes ctx is refused by torch.

    So is the Function that torch makes of a custom op.
    """
    subject, problem = base.sample.subject, base.sample.problem
    generated = subject.operator is not None and subject.operator.definition is not None
    if subject.function_class is None and not generated:
        return NOT_RUN
    if not subject.binds_defaults:
        return UNSUPPORTED
    problem.counter.forward += 1
    problem.counter.backward += 1
    problem.random_states.replay()
    result = guard.call(_vjp, base, copies(problem.primals), base.grad_outputs())
    if isinstance(result, Raised):
        return Answer("no", (refusal(base, FUNC.code, "torch.func.vjp", result.error),))
    finding = FUNC.both(base, *result.value)
    return Answer("yes") if finding is None else wrong(finding)


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
