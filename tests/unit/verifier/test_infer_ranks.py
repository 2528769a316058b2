"""The dimensions that a source states are kept while inputs are searched for, though fewer run as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.cases.inputs import TensorSpec
from gradverify.deduced import Deduced
from gradverify.model import Target, TargetKind
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.targets.discover import parameters_of


class FixedPoint(Function):
    """`w` and `u` are matrices: their transposes are taken. A vector `w` runs in forward, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype)
        for _ in range(3):
            z = torch.tanh(z @ w.t() + x @ u.t() + b)
        ctx.save_for_backward(x, w, u, z)
        return z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, u, z = ctx.saved_tensors
        slope = 1 - z * z
        eye = torch.eye(w.shape[0], dtype=z.dtype)
        v = torch.linalg.solve((eye - slope.unsqueeze(2) * w).mT, g.unsqueeze(2)).squeeze(2) * slope
        return v @ u, v.t() @ z, v.t() @ x, v.sum(0)


def test_a_matrix_stays_one() -> None:
    target = Target("F", "F", TargetKind.FUNCTION, __file__, 1, parameters=parameters_of(FixedPoint))
    deduced = deduce(FixedPoint, target, None)
    assert isinstance(deduced, Deduced), deduced
    ranks = {one.name: len(one.shape) for one in deduced.inputs if isinstance(one, TensorSpec)}
    assert ranks["w"] == ranks["u"] == 2
