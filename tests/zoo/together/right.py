"""Right in every combination of layouts, requires_grad sets and undefined grad_outputs, or refused."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Contiguous(Function):
    """Makes everything contiguous, and leaves out what nobody needs."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        needs = ctx.needs_input_grad
        g = g.contiguous()
        return (
            g * w if needs[0] else None,
            (g * x).sum(0) if needs[1] else None,
            g.sum(0) if needs[2] else None,
        )


class RefusesFrozen(Function):
    """Refuses a frozen weight beside an input that is not contiguous."""

    @staticmethod
    def forward(ctx, x, w):
        if not x.is_contiguous() and not ctx.needs_input_grad[1]:
            raise NotImplementedError("a frozen weight is not supported for strided inputs")
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class ChannelsLast(Function):
    """A path of its own for channels-last, which asks how both lie."""

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return x * s[:, None, None]

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        if x.is_contiguous(memory_format=torch.channels_last):
            g = g.contiguous(memory_format=torch.channels_last)
            gx = (g.permute(0, 2, 3, 1) * s).permute(0, 3, 1, 2)
            return gx, (g * x).sum((0, 2, 3))
        return g * s[:, None, None], (g * x).sum((0, 2, 3))


class Undefined(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return x * w, x + w * w

    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        gx = gw = None
        if g is not None:
            gx, gw = g * w, g * x
        if h is not None:
            gx = h if gx is None else gx + h
            gw = 2 * h * w if gw is None else gw + 2 * h * w
        return gx if ctx.needs_input_grad[0] else None, gw if ctx.needs_input_grad[1] else None


class InPlace(Function):
    """Writes into its input, and says so."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.mark_dirty(x)
        ctx.save_for_backward(w)
        return x.add_(w * w)

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g, (2 * g * w).sum(0)


class BothOrNone(Function):
    """Only x and w together have a double backward; the author says so."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if torch.is_grad_enabled() and not all(ctx.needs_input_grad):
            raise NotImplementedError("a double backward needs both inputs")
        return 2 * x * g * w, (g * x * x).sum(0)


class Rounding(Function):
    """Sums in another order for every layout."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if g.is_contiguous():
            return g @ w.T, x.T @ g
        return (w @ g.T).T, (g.T @ x).T


class Noisy(Function):
    """Drops entries at random."""

    @staticmethod
    def forward(ctx, x, w):
        mask = (torch.rand(x.shape, dtype=x.dtype) > 0.5) * 2.0
        ctx.save_for_backward(x, w, mask)
        return x * w * mask

    @staticmethod
    def backward(ctx, g):
        x, w, mask = ctx.saved_tensors
        return g * w * mask, (g * x * mask).sum(0)


class Layer(torch.nn.Module):
    """A module with a weight that may be frozen."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return Contiguous.apply(x, self.weight, self.bias)


class PenaltyInPlace(Function):
    """Writes into what it makes where nobody differentiates it again, whatever requires grad."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return x * x * w, x + w

    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        g = torch.zeros_like(x) if g is None else g
        h = torch.zeros_like(x) if h is None else h
        slope = 2 * x * w if torch.is_grad_enabled() else (x * w).mul_(2)
        return g * slope + h, g * x * x + h if ctx.needs_input_grad[1] else None
