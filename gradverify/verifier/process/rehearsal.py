"""A first verification before anybody waits for one: what torch loads only then is loaded already.

Forward mode and the function transforms load some hundred modules of torch's at their first use. For the
template process of `--watch`, a fork of it verifies two Functions of our own, and says what was loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradverify.events import Verify
from gradverify.model import Case, InputSource, Settings, Target, TargetKind, TargetPlan, TensorInput
from gradverify.verifier.guard.global_state import GlobalState
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.process.run import verify
from gradverify.verifier.verify.verification import Live

_SHAPE = (2, 3)
"""Any would do: two sizes that differ."""


class Product(torch.autograd.Function):
    """A right Function."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # noqa: ANN401 - torch's own context
        """Multiply."""
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return both gradients."""
        a, b = ctx.saved_tensors
        return grad * b, grad * a


class Doubled(torch.autograd.Function):
    """A wrong one, of an operation that is written out to be judged: both take other ways."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # noqa: ANN401 - torch's own context
        """Multiply by weights that sum to one."""
        weights = a.softmax(-1)
        ctx.save_for_backward(weights, b)
        return weights * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return both gradients, the second of them twice too large."""
        weights, b = ctx.saved_tensors
        share = weights * grad * b
        return share - weights * share.sum(-1, keepdim=True), 2 * weights * grad


def rehearse() -> None:
    """Verify the Functions of this module, and forget what came of it."""
    before = GlobalState.take()
    for value in (Product, Doubled):
        name = value.__name__
        target = Target(name, name, TargetKind.FUNCTION, __file__, 1)
        case = Case("base", 0, inputs=(TensorInput("a", _SHAPE), TensorInput("b", _SHAPE)))
        plan = TargetPlan(name, name, InputSource.SPEC, cases=(case,))
        for _ in verify(Verify(target, plan, Settings()), Live(value)):
            pass
        deduce(value, target, None)
        before.restore()
