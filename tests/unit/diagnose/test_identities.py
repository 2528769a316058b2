"""What is the same number by an identity is no cause: nobody wrote it."""

import torch
from torch.autograd import Function

from .diagnosing import findings_on


class Gated(Function):
    """The slope of the gate lacks the part of its own factor: s (1 - s) = s - exp(a) s (1 - s)."""

    @staticmethod
    def forward(ctx, x, gate, up):
        a, u = x @ gate.mT, x @ up.mT
        ctx.save_for_backward(x, gate, up, a, u)
        return a * torch.sigmoid(a) * u

    @staticmethod
    def backward(ctx, g):
        x, gate, up, a, u = ctx.saved_tensors
        s = torch.sigmoid(a)
        grad_u = g * a * s
        grad_a = g * u * s * (1 - s)
        return grad_a @ gate + grad_u @ up, grad_a.mT @ x, grad_u.mT @ x


def test_a_function_of_an_operand_with_a_coefficient_is_not_reported():
    for found in findings_on(Gated, {"x": "bk", "gate": "nk", "up": "nk"}):
        assert "exp(" not in found.hint, found.hint
