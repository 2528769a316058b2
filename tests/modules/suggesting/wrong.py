"""Functions whose backward is wrong, and forwards from which the right one can, or cannot, be derived."""

import numpy as np
import torch
from torch.autograd import Function
from torch.nn import functional


class Linear(Function):
    """The transpose is missing, and the bias may be."""

    @staticmethod
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight, bias)
        output = input @ weight.t()
        if bias is not None:
            output = output + bias
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output


class Softmax(Function):
    """No coupling term; forward is written out, the reference is torch's."""

    @staticmethod
    def forward(ctx, x):
        shifted = (x - x.amax(-1, keepdim=True)).exp()
        y = shifted / shifted.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


class LayerNorm(Function):
    """Only the last factor; keeps intermediate values."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        inverse_std = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normalised = centred * inverse_std
        ctx.save_for_backward(normalised, inverse_std, weight)
        return normalised * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        normalised, inverse_std, weight = ctx.saved_tensors
        return grad_output * weight * inverse_std, grad_output, grad_output, None


def softmax(x):
    return x.softmax(-1)


def layer_norm(x, weight, bias, eps):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


class Attention(Function):
    """A scale that belongs to the size of an input."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return (q @ k.t() / q.shape[-1] ** 0.5).softmax(-1) @ v

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output, grad_output


class Power(Function):
    """A number that forward does not keep."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x)
        return x**p

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x, None


class ComplexMultiply(Function):
    """Without the conjugates."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class MaskedExp(Function):
    """Saves nothing that backward needs; overwrites in place."""

    @staticmethod
    def forward(ctx, x, columns):
        y = x.exp()
        y[:, :columns] = 0
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class Lookup(Function):
    """Repeated rows are overwritten."""

    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.shape = weight.shape
        return functional.embedding(index, weight)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.shape)
        grad[index] = grad_output
        return grad, None


class ByNumPy(Function):
    """Nothing to derive from."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.exp(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Bisected(Function):
    """A bisection: torch would derive a backward from each of its steps."""

    @staticmethod
    def forward(ctx, x):
        low, high = torch.zeros_like(x), x + 1
        for _ in range(60):
            middle = (low + high) / 2
            above = middle * middle > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Noise(Function):
    """Backward would need what forward drew and did not save."""

    @staticmethod
    def forward(ctx, x):
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
