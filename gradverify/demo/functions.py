"""Eight short Functions for `gradverify demo`: three are right, five are wrong on purpose.

The wrong ones hold the mistakes people really make, each marked with a comment. Copy this file and its
spec, `functions.gradverify.yaml`, to try things out.
"""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Linear(Function):
    """Right: y = input weightᵀ + bias, and the bias may be absent."""

    @staticmethod
    def forward(ctx, input, weight, bias=None):  # noqa: A002 - torch calls it that
        ctx.save_for_backward(input, weight, bias)
        output = input @ weight.t()
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors  # noqa: A001
        grad_bias = None if bias is None else grad_output.sum(0)
        return grad_output @ weight, grad_output.t() @ input, grad_bias


class GELU(Function):
    """Right: x Φ(x), where Φ is the normal distribution function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return grad_output * (cdf + x * pdf)


class LogSumExp(Function):
    """Right: it saves what forward has computed anyway, and says that it can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(dim=-1, keepdim=True)
        ctx.save_for_backward((x - y).exp())
        return y.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (softmax,) = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * softmax


class SoftmaxUncoupled(Function):
    """Wrong: every entry of a row depends on all of them, not only on itself."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        # The coupling is missing: y times the sum of (grad_output * y) over the row, to be subtracted
        return grad_output * y


class LinearTransposed(Function):
    """Wrong: the gradient of `weight` comes out transposed."""

    @staticmethod
    def forward(ctx, input, weight):  # noqa: A002
        ctx.save_for_backward(input, weight)
        return input @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors  # noqa: A001
        # Should be: grad_output.t() @ input
        return grad_output @ weight, input.t() @ grad_output


class SquaredErrorOnes(Function):
    """Wrong: as if grad_output were always one. It is not, as soon as the loss is weighted."""

    @staticmethod
    def forward(ctx, prediction, target):
        ctx.save_for_backward(prediction, target)
        return (prediction - target).square().sum()

    @staticmethod
    def backward(ctx, grad_output):
        prediction, target = ctx.saved_tensors
        # Missing: grad_output *
        grad_prediction = 2 * (prediction - target)
        return grad_prediction, -grad_prediction


class LeakyReLUOneSided(Function):
    """Wrong where x is negative: the slope there was forgotten."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        # Should be: torch.where(x > 0, grad_output, slope * grad_output)
        return torch.where(x > 0, grad_output, 0.0), None


class SigmoidDetached(Function):
    """Wrong in second order only: autograd cannot see that the slope depends on x."""

    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        # Should be: ctx.save_for_backward(y), and y * (1 - y) in backward
        ctx.slope = y * (1 - y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope
