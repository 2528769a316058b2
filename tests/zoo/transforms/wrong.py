"""One mistake each in what torch's transforms call; every backward is right."""

import torch
from torch.autograd import Function


class Product:
    """What the next ones have in common: all right."""

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x


class ForgottenTerm(Product, Function):
    """The tangent of w is forgotten."""

    @staticmethod
    def jvp(ctx, dx, dw):
        _, w = ctx.saved_tensors
        return dx * w


class Doubled(Product, Function):
    """Twice the derivative."""

    @staticmethod
    def jvp(ctx, dx, dw):
        x, w = ctx.saved_tensors
        return 2 * (dx * w + x * dw)


class Misspelt(Product, Function):
    """A name that does not exist."""

    @staticmethod
    def jvp(ctx, dx, dw):
        x, w = ctx.saved_tensors
        return dx * w + x * dv  # noqa: F821


class SavedForBackwardAlone(Function):
    """jvp finds nothing saved: that takes save_for_forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx, dx):
        (x,) = ctx.saved_tensors
        return dx * x.cos()


class SecondOutput(Function):
    """The tangent of the second output has the wrong sign."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos() - h * x.sin()

    @staticmethod
    def jvp(ctx, dx):
        (x,) = ctx.saved_tensors
        return dx * x.cos(), dx * x.sin()


class Conjugated(Function):
    """jvp conjugates as backward does."""

    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        ctx.save_for_forward(z, w)
        return z * w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g * w.conj(), g * z.conj()

    @staticmethod
    def jvp(ctx, dz, dw):
        z, w = ctx.saved_tensors
        return dz * w.conj() + z.conj() * dw


class IgnoresInDims(Function):
    """The sum over the last dimension, wherever the batch lies."""

    @staticmethod
    def forward(x):
        return x.exp().cumsum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.flip(-1).cumsum(-1).flip(-1) * x.exp()

    @staticmethod
    def vmap(info, in_dims, x):
        return IgnoresInDims.apply(x), in_dims[0]


class SumsTheBatch(Function):
    """The mean of everything: under vmap, of all the batch."""

    @staticmethod
    def forward(x):
        return x - x.mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g - g.mean()

    @staticmethod
    def vmap(info, in_dims, x):
        return SumsTheBatch.apply(x.movedim(in_dims[0], 0)), 0


class DetachesUnderVmap(Function):
    """Right values, and a gradient that is that of another element."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return DetachesUnderVmap.apply(x.flip(0)).flip(0).detach() + 0 * x, 0


class NoneInDims(Function):
    """Nobody thought of an input that is not batched."""

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x

    @staticmethod
    def vmap(info, in_dims, x, w):
        return NoneInDims.apply(x.movedim(in_dims[0], 0), w.movedim(in_dims[1], 0)), 0


class Fallback(Function):
    """A kernel that reads memory, and beside it a careless formula for tensors that have none."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        try:
            x.data_ptr()
        except RuntimeError:
            return g * x.cos() * 2
        return g * x.cos()


class Traced(Function):
    """Another derivative while it is traced."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return g * x.cos() * 2
        return g * x.cos()


class DropsTangents(Product, Function):
    """jvp returns nothing at all."""

    @staticmethod
    def jvp(ctx, dx, dw):
        return None
