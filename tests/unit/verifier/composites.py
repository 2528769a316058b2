"""Functions whose forward, differentiated by torch, is or is not a composite to be believed."""

import math

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class BisectedSquareRoot(Function):
    """The square root by bisection: torch finds no derivative in it, or a wrong one."""

    @staticmethod
    def forward(ctx, x):
        low, high = torch.zeros_like(x), x + 1
        for _ in range(60):
            middle = (low + high) / 2
            above = middle * middle > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        root = (low + high) / 2
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, grad_output):
        (root,) = ctx.saved_tensors
        return grad_output / (2 * root)


class NewtonCubeRoot(Function):
    """The cube root by Newton's method, stopped where values stand; derivatives of the steps lag behind."""

    @staticmethod
    def forward(ctx, x):
        root = torch.ones_like(x)
        for _ in range(9):
            root = root - (root**3 - x) / (3 * root**2)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (root,) = ctx.saved_tensors
        return grad_output / (3 * root**2)


class DetachedPeak(Function):
    """Stable log-sum-exp; the peak is detached on purpose, and it does not matter."""

    @staticmethod
    def forward(ctx, x):
        peak = x.detach().amax(-1, keepdim=True)
        y = (x - peak).exp().sum(-1).log() + peak.squeeze(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp()


class DetachedNorm(Function):
    """Forward detaches what backward takes care of: torch would lose a term."""

    @staticmethod
    def forward(ctx, x):
        norm = x.detach().norm()
        ctx.save_for_backward(x)
        return x / norm

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        norm = x.norm()
        return grad_output / norm - x * (grad_output * x).sum() / norm**3


class WithoutGraph(Function):
    """Forward computes on `.data` under `no_grad`."""

    @staticmethod
    def forward(ctx, x):
        with torch.no_grad():
            y = x.data.sin() * x.data
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.cos() * x + x.sin())


class InPlaceOnSaved(Function):
    """Overwrites what torch would need to differentiate the forward."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y.clone())
        z = y * y
        y.zero_()
        z[:, :1] = 0
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        grad = 2 * grad_output * y * y
        grad[:, :1] = 0
        return grad


class ByNumPy(Function):
    """Nothing for torch to see."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


class HalfByNumPy(Function):
    """Torch would see one of two terms."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + torch.from_numpy(np.tanh(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (2 * x + 1 - x.tanh() ** 2)


class RoundStraightThrough(Function):
    """A straight-through estimator in forward itself, whose backward is declared a surrogate."""

    @staticmethod
    def forward(ctx, x):
        return x + (x.round() - x).detach()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def identity(x):
    return x


class Dropped(Function):
    """Random, and the same whenever the random state is replayed."""

    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.3).to(x.dtype) / 0.7
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask


class AsksWhatIsNeeded(Function):
    """Saves only what backward will need, and keeps numbers and shapes on its ctx."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.scale = a.shape, 2.0
        ctx.save_for_backward(b if ctx.needs_input_grad[0] else None, a if ctx.needs_input_grad[1] else None)
        return ctx.scale * a * b

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return None, None
        b, a = ctx.saved_tensors
        grad_a = 2 * grad_output * b if ctx.needs_input_grad[0] else None
        grad_b = 2 * grad_output * a if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class BranchOnData(Function):
    """Another formula where the sum is positive."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.positive = bool(x.sum() > 0)
        return x.sin() if ctx.positive else x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.cos() if ctx.positive else x.exp())


class TruncatedConstant(Function):
    """GELU with 1/sqrt(2 pi) to eleven digits: right to 1e-10, which no entry of the Jacobian shows alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return grad_output * (cdf + x * torch.exp(-0.5 * x**2) * 0.39894228042)


class OffByAHair(Function):
    """Log-sum-exp, 4e-11 too large: less than the measured error of any entry of the Jacobian."""

    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp() * 1.00000000004
