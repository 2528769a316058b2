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


def times_rule(rule):
    """A product of two tensors with a vmap rule, wrong for some in_dims."""

    class Times(Function):
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
            return rule(Times, info.batch_size, in_dims, x, w)

    return Times


def _one_dim_for_both(function, count, in_dims, x, w):
    if None in in_dims:
        x, w = (
            t.expand(count, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, w), in_dims, strict=True)
        )
        return function.apply(x, w), 0
    return function.apply(x, w), in_dims[0]


def _unbatched_is_first(function, count, in_dims, x, w):
    if in_dims[1] is None:
        return function.apply(x, w.expand_as(x)), 0
    x = x.expand(count, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    return function.apply(x, w.movedim(in_dims[1], 0)), 0


class OneDimForBoth(times_rule(_one_dim_for_both)):
    """The batch dimension of the first input is taken for that of the second."""


class UnbatchedIsFirst(times_rule(_unbatched_is_first)):
    """Where the second input is not batched, the first is taken to be batched over its first dimension."""


class TwoOfThree(Function):
    """The derivative is right for each tangent alone and for all, not for the first two."""

    @staticmethod
    def forward(x, w, b):
        return x * w + b

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (None, None, None) if g is None else (g * w, g * x, g)

    @staticmethod
    def jvp(ctx, dx, dw, db):
        x, w = ctx.saved_tensors
        if db is None and dx is not None:
            return dx * w
        parts = [p for p in (dx is not None and dx * w, dw is not None and x * dw, db) if p is not None]
        return sum(p for p in parts if isinstance(p, torch.Tensor))


class PowerOfTwo(Function):
    """The derivative in a direction is right for the first value of the option alone."""

    @staticmethod
    def forward(x, power):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.power = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.power * x ** (ctx.power - 1), None

    @staticmethod
    def jvp(ctx, dx, _):
        (x,) = ctx.saved_tensors
        return 2 * x * dx


class AlongLast(Function):
    """The rule does not count the batch among the dimensions."""

    @staticmethod
    def forward(x, dim):
        return x.cumsum(dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None

    @staticmethod
    def vmap(info, in_dims, x, dim):
        return AlongLast.apply(x.movedim(in_dims[0], 0), dim), 0
