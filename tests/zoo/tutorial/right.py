"""The Functions people copy from tutorials, written without a mistake.

Each has a twin in `wrong.py`; `expected.py` says what a verifier must answer.
"""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def power_reference(x, p):
    return x**p


def abs_product_reference(u, v):
    return (u * v).abs()


def rnn_cell_reference(x, h, wx, wh, b):
    return torch.tanh(x @ wx + h @ wh + b)


class Linear(Function):
    """The first example of every tutorial: y = input weightᵀ + bias, the bias optional."""

    @staticmethod
    def forward(ctx, input, weight, bias=None):  # noqa: A002 - the tutorial's name
        ctx.save_for_backward(input, weight, bias)
        output = input @ weight.t()
        if bias is not None:
            output = output + bias
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors  # noqa: A001
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t() @ input
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class LinearOnce(Function):
    """The same, and honest about going no further than first derivatives."""

    @staticmethod
    def forward(ctx, input, weight, bias=None):  # noqa: A002
        ctx.save_for_backward(input, weight, bias)
        output = input @ weight.t()
        if bias is not None:
            output = output + bias
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors  # noqa: A001
        grad_bias = None if bias is None else grad_output.sum(0)
        return grad_output @ weight, grad_output.t() @ input, grad_bias


class PerSampleLinear(Function):
    """Gradients of weight and bias for each sample; the autograd engine sums over the batch itself."""

    @staticmethod
    def forward(ctx, input, weight, bias):  # noqa: A002
        ctx.save_for_backward(input, weight)
        return input @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors  # noqa: A001
        per_sample_weight = grad_output.unsqueeze(2) * input.unsqueeze(1)
        return grad_output @ weight, per_sample_weight, grad_output


class Product(Function):
    """Elementwise product, new style."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class OldStyleProduct(Function):
    """Elementwise product as it was written before 2018: no `@staticmethod`."""

    def forward(self, a, b):
        self.save_for_backward(a, b)
        return a * b

    def backward(self, grad_output):
        a, b = self.saved_tensors
        return grad_output * b, grad_output * a


class ReLU(Function):
    """max(x, 0), with the gradient 1 at the kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_x = grad_output.clone()
        grad_x[x < 0] = 0
        return grad_x


class RNNCell(Function):
    """h' = tanh(x wx + h wh + b)."""

    @staticmethod
    def forward(ctx, x, h, wx, wh, b):
        h_next = torch.tanh(x @ wx + h @ wh + b)
        ctx.save_for_backward(x, h, wx, wh, h_next)
        return h_next

    @staticmethod
    def backward(ctx, grad_h_next):
        x, h, wx, wh, h_next = ctx.saved_tensors
        grad_inner = grad_h_next * (1 - h_next**2)
        return (
            grad_inner @ wx.t(),
            grad_inner @ wh.t(),
            x.t() @ grad_inner,
            h.t() @ grad_inner,
            grad_inner.sum(0),
        )


class Power(Function):
    """x**p, where p is a number and not a tensor."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x)
        ctx.p = p
        return x**p

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.p * x ** (ctx.p - 1), None


class Cube(Function):
    """x**3, with a method that looks important but that autograd never calls."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2

    @staticmethod
    def double_backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 6 * x + 1


class DoubleOrHalve(Function):
    """2x where the sum of x is positive, x/2 otherwise: the branch is part of what is saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0 if x.sum() > 0 else 0.5
        return x * ctx.factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor


class ZeroFirstColumns(Function):
    """Set the first n columns to zero; nothing flows back through them."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        y = x.clone()
        y[:, :n] = 0
        return y

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = grad_output.clone()
        grad_x[:, : ctx.n] = 0
        return grad_x, None


class AbsProduct(Function):
    """|u v|, elementwise: a kink wherever one of the two is zero."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        return (u * v).abs()

    @staticmethod
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        grad_product = grad_output * torch.sign(u * v)
        return grad_product * v, grad_product * u


class MulConstant(Function):
    """x times a number. Undefined gradients stay None instead of becoming tensors of zeros."""

    @staticmethod
    def forward(ctx, x, constant):
        ctx.set_materialize_grads(False)
        ctx.constant = constant
        return x * constant

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return None, None
        return grad_output * ctx.constant, None


class NumPyExp(Function):
    """exp by NumPy. Its spec says that only first derivatives are wanted."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.detach().numpy() * y.detach().numpy())


class NumPyExpOnce(Function):
    """exp by NumPy, which says in code that only first derivatives are to be had."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.numpy() * y.numpy())


class FFTMagnitude(Function):
    """|fft(x)| of each row, by NumPy. The discrete Fourier transform is its own transpose."""

    @staticmethod
    def forward(ctx, x):
        ctx.spectrum = np.fft.fft(x.detach().numpy())
        return torch.from_numpy(np.abs(ctx.spectrum))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        phase = ctx.spectrum / np.abs(ctx.spectrum)
        return torch.from_numpy(np.fft.fft(grad_output.numpy() * phase.conj()).real.copy())


class Sort(Function):
    """Sorted rows and where each entry came from; the second output is made of integers."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(dim=1)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, grad_values, _grad_indices):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad_values).scatter(1, indices, grad_values)


class Transpose(Function):
    """xᵀ, returned as a view of x."""

    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.t()


class SquareInPlace(Function):
    """x**2 written into x. What backward needs is copied before it is overwritten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.pow_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class NearestCode(Function):
    """For each row of x the index of the nearest code: integers only, so there is no gradient."""

    @staticmethod
    def forward(ctx, x, codes):
        nearest = torch.cdist(x, codes).argmin(dim=1)
        ctx.mark_non_differentiable(nearest)
        return nearest

    @staticmethod
    def backward(ctx, _grad_nearest):
        return None, None
