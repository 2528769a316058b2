"""Right Functions whose calls leave traces: what one call writes must reach no other, and no truth."""

from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ScaledInPlace(Function):
    """Writes what it returns into grad_output by default; computes in float32."""

    @staticmethod
    def forward(ctx, x, w, inplace=True):
        ctx.save_for_backward(x, w)
        ctx.inplace = inplace
        return (x.float().sigmoid() * w.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = x.float().sigmoid()
        of_w = (g.float() * s).to(w.dtype)
        of_x = (g.float() * w.float() * s * (1 - s)).to(x.dtype)
        return (g.copy_(of_x) if ctx.inplace else of_x), of_w, None


class ByMode(Function):
    """Writes into grad_output in one of its modes, with a reference."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.save_for_backward(x)
        ctx.mode = mode
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 1 - x.tanh() ** 2
        return (g.mul_(slope) if ctx.mode == "reuse" else g * slope), None


def tanh(x, mode):
    return x.tanh()
