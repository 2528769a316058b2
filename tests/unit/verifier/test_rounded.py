"""A backward that rounds to float32 where its Jacobian has only ones and zeros."""

import pytest
import torch
from torch.autograd import Function

import gradverify


class RoundedSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        return g.float().double().expand(3, 2)


def test_the_cast_is_found_by_grad_outputs_with_more_digits():
    x = torch.arange(6, dtype=torch.float64).reshape(3, 2) + 0.3
    with pytest.raises(gradverify.GradientError, match=r"GV110.*has float32 precision only"):
        gradverify.verify(RoundedSum, x)
