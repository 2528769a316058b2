"""The Functions people copy from tutorials, each with the mistake that people make in it.

Every class bears the name of its right twin in `right.py`, or that name and what went wrong.
"""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Linear(Function):
    """The gradient of `weight` lands in the variable of `input`."""

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
            grad_input = grad_output.t() @ input  # grad_weight was meant
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class LinearOnceAveraged(Function):
    """The batch mean of the gradient where its sum belongs."""

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
        grad_weight = grad_output.t() @ input / input.shape[0]
        return grad_output @ weight, grad_weight, grad_bias


class ProductSwapped(Function):
    """Each factor gets its own value as gradient instead of the other's."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * a, grad_output * b


class OldStyleProductSwapped(Function):
    """The same, before `@staticmethod` was asked for."""

    def forward(self, a, b):
        self.save_for_backward(a, b)
        return a * b

    def backward(self, grad_output):
        a, b = self.saved_tensors
        return grad_output * a, grad_output * b


class ReLU(Function):
    """forward forgets `ctx.save_for_backward(x)`."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_x = grad_output.clone()
        grad_x[x < 0] = 0
        return grad_x


class RNNCell(Function):
    """backward forgets the derivative of tanh, so that no gradient is right."""

    @staticmethod
    def forward(ctx, x, h, wx, wh, b):
        ctx.save_for_backward(x, h, wx, wh)
        return torch.tanh(x @ wx + h @ wh + b)

    @staticmethod
    def backward(ctx, grad_h_next):
        x, h, wx, wh = ctx.saved_tensors
        return (
            grad_h_next @ wx.t(),
            grad_h_next @ wh.t(),
            x.t() @ grad_h_next,
            h.t() @ grad_h_next,
            grad_h_next.sum(0),
        )


class PowerForgetsToSave(Function):
    """backward speaks of an `x` that nobody handed to it: a NameError."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        return x**p

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.p * x ** (ctx.p - 1), None  # noqa: F821 - the mistake


class CubeInDoubleBackward(Function):
    """The right derivative is in a method that autograd never calls."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x**2

    @staticmethod
    def double_backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2


class DoubleOrHalve(Function):
    """Right where the sum is positive; the other branch was never tried."""

    @staticmethod
    def forward(ctx, x):
        factor = 2.0 if x.sum() > 0 else 0.5
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2.0


class ZeroFirstColumns(Function):
    """backward lets the gradient through the columns that forward has set to zero."""

    @staticmethod
    def forward(ctx, x, n):
        y = x.clone()
        y[:, :n] = 0
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class AbsProduct(Function):
    """The sign of `v` is forgotten: wrong wherever v is negative, at both inputs."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        return (u * v).abs()

    @staticmethod
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        grad_product = grad_output * torch.sign(u)
        return grad_product * v, grad_product * u


class MulConstant(Function):
    """Asks for None in place of zeros, and then does not expect it."""

    @staticmethod
    def forward(ctx, x, constant):
        ctx.set_materialize_grads(False)
        ctx.constant = constant
        return x * constant

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.constant, None


class NumPyExp(Function):
    """First derivatives are right; second ones come out as if the gradient were a constant."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.detach().numpy() * y.detach().numpy())


class FFTMagnitude(Function):
    """The inverse transform where the transpose belongs: a factor of 1/n, and frequencies reversed."""

    @staticmethod
    def forward(ctx, x):
        ctx.spectrum = np.fft.fft(x.detach().numpy())
        return torch.from_numpy(np.abs(ctx.spectrum))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        phase = ctx.spectrum / np.abs(ctx.spectrum)
        return torch.from_numpy(np.fft.ifft(grad_output.numpy() * phase).real.copy())


class Sort(Function):
    """The gradient stays in sorted order instead of going back to where each entry came from."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(dim=1)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, grad_values, _grad_indices):
        return grad_values


class Transpose(Function):
    """A reshape has the right shape and the wrong order."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.t()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.reshape(ctx.shape)


class SquareInPlace(Function):
    """Saves x after writing x**2 into it, so that backward multiplies by 2x**2."""

    @staticmethod
    def forward(ctx, x):
        x.pow_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class NearestCodeLookup(Function):
    """The nearest code itself, a float output, and still no gradient for the codes."""

    @staticmethod
    def forward(ctx, x, codes):
        nearest = torch.cdist(x, codes).argmin(dim=1)
        return codes[nearest]

    @staticmethod
    def backward(ctx, _grad_nearest):
        return None, None
