"""Functions that take float32 alone, or what they refuse to take otherwise."""

import torch
from torch.autograd import Function


class Unready:
    """A proxy that knows nothing of itself before it is set up."""

    def __getattr__(self, name):
        raise RuntimeError(f"set up first, then read `{name}`")

    def __call__(self, *values):
        return values[0]


UNREADY = Unready()


class F32Only(Function):
    @staticmethod
    def forward(ctx, x, w):
        assert x.dtype == torch.float32, "float32 only"
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x


class F32Round(Function):
    """Straight-through in float32 alone: never a failure, never a pass."""

    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class F32Doubled(Function):
    """Wrong in float32 alone."""

    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.cos()


class Shares(Function):
    """Right for what it does not refuse."""

    @staticmethod
    def forward(ctx, p, temperature):
        if p.min() < 0:
            raise ValueError("p should be non-negative")
        ctx.save_for_backward(p)
        ctx.temperature = temperature.item()
        return p.sqrt() * ctx.temperature

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g * ctx.temperature / (2 * p.sqrt()), None


class Prepared(Function):
    """Calls, before anything else, what is not set up."""

    @staticmethod
    def forward(ctx, x):
        x = UNREADY(x)
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()
