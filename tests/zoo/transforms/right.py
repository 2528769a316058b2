"""Right under torch's transforms, each in a way that a careless comparison would take for a mistake."""

import torch
from torch.autograd import Function


class Product(Function):
    """Everything that torch's transforms ask for."""

    generate_vmap_rule = True

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

    @staticmethod
    def jvp(ctx, dx, dw):
        x, w = ctx.saved_tensors
        return dx * w + x * dw


class SinCos(Function):
    """Two outputs, a forward that takes ctx, tangents by attribute."""

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
        return dx * x.cos(), -dx * x.sin()


class MatMul(Function):
    """Rectangular, so that a transposed tangent cannot pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        return a @ b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g

    @staticmethod
    def jvp(ctx, da, db):
        a, b = ctx.saved_tensors
        return da @ b + a @ db


class Weighted(Function):
    """A vmap rule of its own: any batch dimension, and inputs that have none."""

    @staticmethod
    def forward(x, w, power):
        return (x**power * w).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.power = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        p, g = ctx.power, g.unsqueeze(-1)
        return _as(p * x ** (p - 1) * w * g, x), _as(x**p * g, w), None

    @staticmethod
    def vmap(info, in_dims, x, w, power):
        x, w = (
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, w), in_dims, strict=False)
        )
        return Weighted.apply(x, w, power), 0


def _as(gradient, like):
    return gradient.sum_to_size(like.shape)


class OnlyFirst(Function):
    """Its vmap rule refuses what it cannot do, in a sentence."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y

    @staticmethod
    def vmap(info, in_dims, x):
        if in_dims[0] != 0:
            raise ValueError("the batch must be the first dimension")
        return OnlyFirst.apply(x), 0


class JvpRefuses(Function):
    """A jvp that says that there is none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx, dx):
        raise NotImplementedError("no forward mode")


class Threshold(Function):
    """A kink, where forward and reverse may choose different derivatives."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x >= 0)

    @staticmethod
    def jvp(ctx, dx):
        (x,) = ctx.saved_tensors
        return dx * (x > 0)


class Rotate(Function):
    """Complex: the derivative is linear over the reals, and backward has the conjugate."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z, w):
        return z * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g * w.conj(), g * z.conj()

    @staticmethod
    def jvp(ctx, dz, dw):
        z, w = ctx.saved_tensors
        return dz * w + z * dw


class Whitened(Function):
    """A symmetric matrix: only tangents along the symmetric ones mean anything."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a):
        return a.inverse()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -(y @ g @ y).mT

    @staticmethod
    def jvp(ctx, da):
        (y,) = ctx.saved_tensors
        return -(y @ da @ y)


class Counting(Function):
    """vmap is refused by torch: forward looks at a value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * (2 if x.sum().item() > 0 else 3) / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = 2 if inputs[0].sum().item() > 0 else 3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale / 2


class Gate(Function):
    """The gate does not depend on `y`: where `y` alone is batched, torch's rule miscounts its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        gate = torch.sigmoid(x)
        return gate * y, gate

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1], inputs[1])

    @staticmethod
    def backward(ctx, g, dgate):
        gate, y = ctx.saved_tensors
        return (g * y + dgate) * gate * (1 - gate), g * gate


class Dropout(Function):
    """Another mask for each call, the same for both modes of one."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = (torch.rand_like(x.detach()) > 0.5).to(x.dtype)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask

    @staticmethod
    def jvp(ctx, dx):
        return dx * ctx.mask


class Gather(Function):
    """An index among the batched tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, index):
        return x.gather(0, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, index = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter_add(0, index, g), None

    @staticmethod
    def jvp(ctx, dx, _):
        (index,) = ctx.saved_tensors
        return dx.gather(0, index)


def swish(x):
    """A callable: torch derives its forward mode."""
    return x * torch.sigmoid(x)


class OneDimension(Function):
    """Its vmap rule takes one batch dimension for all inputs, and says so of others."""

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
        if None in in_dims or in_dims[0] != in_dims[1]:
            raise NotImplementedError("both inputs must be batched over the same dimension")
        return OneDimension.apply(x, w), in_dims[0]


class Affine(Function):
    """Tangents that are undefined are left out."""

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
        parts = [None if dx is None else dx * w, None if dw is None else x * dw, db]
        known = [p for p in parts if p is not None]
        return sum(known[1:], known[0])

    @staticmethod
    def vmap(info, in_dims, *inputs):
        batched = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(inputs, in_dims, strict=True)
        ]
        return Affine.apply(*batched), 0


class GeneratedForData(Function):
    """torch's rule is asked for where forward writes into what may not be batched."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        y = torch.zeros_like(x)
        y += x * w
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
