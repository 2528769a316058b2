"""Right for leaves with a gradient already there, in whatever way it gets its own there."""

import importlib

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Fused(Function):
    """Adds into main_grad where there is one, and returns no gradient then."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = (g * x).sum(0)
        if hasattr(ctx.w, "main_grad"):
            ctx.w.main_grad.add_(gw)
            gw = None
        return g * w, gw


class FusedKernel(Function):
    """The same by a kernel of a package that is not here."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if hasattr(ctx.w, "main_grad"):
            fused = importlib.import_module("a_fused_kernel_that_nobody_has_installed")

            fused.accumulate(x, g, ctx.w.main_grad)
            return g * w, None
        return g * w, (g * x).sum(0)


class ByHand(Function):
    """Adds into .grad of a leaf by hand, and returns none then."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = (g * x).sum(0)
        if ctx.w.is_leaf and ctx.w.grad is not None:
            ctx.w.grad.add_(gw)
            return g * w, None
        return g * w, gw


class CachedByVersion(Function):
    """Keeps exp(w) on the weight until the weight is written to."""

    @staticmethod
    def forward(ctx, x, w):
        if getattr(w, "_exp_of", None) != w._version:
            w._exp, w._exp_of = w.detach().exp(), w._version
        ctx.save_for_backward(x, w._exp)
        return x * w.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * e, (g * x * e).sum(0)


TABLE = torch.ones(3, dtype=torch.float64)


class CountsOnATensor(Function):
    """Keeps the number of its calls on a tensor of the module."""

    @staticmethod
    def forward(ctx, x):
        TABLE.calls = getattr(TABLE, "calls", 0) + 1
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Tiny(Function):
    """Gradients far below what lies in .grad already: their sum rounds them away."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1e-30

    @staticmethod
    def backward(ctx, g):
        return g * 1e-30


class InPlace(Function):
    """Writes into its input, which torch refuses for a leaf."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return g * 3


class RefusesLeaves(Function):
    """Says that it takes no parameters."""

    @staticmethod
    def forward(ctx, x):
        if isinstance(x, torch.nn.Parameter):
            raise TypeError("parameters are not supported")
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Lookup(Function):
    """Its gradient is sparse."""

    @staticmethod
    def forward(ctx, table, k):
        ctx.save_for_backward(k)
        ctx.shape = table.shape
        return table[k]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (k,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(k[None], g, ctx.shape), None


class Dropped(Function):
    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class Hooked(Function):
    """A hook on its input lets the gradient through."""

    @staticmethod
    def forward(ctx, x):
        if x.requires_grad:
            x.register_hook(lambda g: g.clone())
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return Fused.apply(x, self.weight)
