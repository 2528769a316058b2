"""Functions that say their sizes by what they reshape to, and by the sizes that they take."""

import torch
from torch.autograd import Function


class UpperTriangles(Function):
    """Of square matrices: both sizes are one, and the reshape alone says so."""

    @staticmethod
    def forward(ctx, x):
        count, d = x.shape[0], x.shape[1]
        index = torch.ones(d, d).triu().reshape(d * d).nonzero()[:, 0]
        ctx.save_for_backward(x, index)
        return x.reshape(count, d * d)[:, index] ** 2

    @staticmethod
    def backward(ctx, g):
        x, index = ctx.saved_tensors
        flat = torch.zeros(x.shape[0], x.shape[1] * x.shape[1], dtype=g.dtype)
        flat[:, index] = 2 * g
        return flat.reshape(x.shape) * x


class UpperTrianglesUnscaled(UpperTriangles):
    @staticmethod
    def backward(ctx, g):
        return UpperTriangles.backward(ctx, g / 2)


class Diagonals(Function):
    """The same where all dimensions before are one."""

    @staticmethod
    def forward(ctx, x):
        d = x.size(-1)
        ctx.d = d
        return x.reshape(-1, d * d)[:, :: d + 1]

    @staticmethod
    def backward(ctx, g):
        grad = torch.zeros(g.shape[0], ctx.d * ctx.d, dtype=g.dtype)
        grad[:, :: ctx.d + 1] = g
        return grad.reshape(-1, ctx.d, ctx.d)


class Lattice(Function):
    """Three dimensions of one size."""

    @staticmethod
    def forward(ctx, field):
        n = field.shape[0]
        flat = field.view(n * n * n)
        ctx.save_for_backward(field)
        return (flat.roll(1) - flat).pow(2)

    @staticmethod
    def backward(ctx, g):
        (field,) = ctx.saved_tensors
        flat = field.reshape(-1)
        slope = 2 * g * (flat.roll(1) - flat)
        return (slope.roll(-1) - slope).view(field.shape)


class Rotation(Function):
    """Of so many numbers or of so many, and of no others."""

    @staticmethod
    def forward(ctx, x):
        kind = x.shape[1]
        ctx.save_for_backward(x)
        if kind == 4:
            return x * x[:, :1]
        elif kind == 6:
            return x * x[:, -1:]
        else:
            raise NotImplementedError

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        at = 0 if x.shape[1] == 4 else 5
        grad = g * x[:, at : at + 1]
        grad[:, at] += (g * x).sum(1)
        return grad


class RotationUnsummed(Rotation):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        at = 0 if x.shape[1] == 4 else 5
        return g * x[:, at : at + 1]


def turned(points):
    n = points.size(-1)
    if n == 2:
        return points.flip(-1)
    if n == 8:
        return points.roll(4, -1)
    raise ValueError("no such points")


class Turned(Function):
    """A helper takes them, and raises after all cases."""

    @staticmethod
    def forward(ctx, points):
        return turned(points)

    @staticmethod
    def backward(ctx, g):
        return turned(g)


class Norms(Function):
    """What has no case has no value."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        channels = x.shape[-1]
        if channels == 2:
            out = x[..., 0] * x[..., 1]
        elif channels == 8:
            out = x[..., 0] * x[..., 7]
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        last = x.shape[-1] - 1
        grad = torch.zeros_like(x)
        grad[..., 0], grad[..., last] = g * x[..., last], g * x[..., 0]
        return grad


class LeastSquares(Function):
    """More rows than unknowns, for the reshape alone; the triangle that is solved by is a factor of it."""

    @staticmethod
    def forward(ctx, a, b):
        batch, rows, unknowns = a.shape
        q, r = torch.linalg.qr(a, mode="reduced")
        x = torch.linalg.solve_triangular(r, (b[:, None] @ q).view(batch, unknowns, 1), upper=True)
        ctx.save_for_backward(a, b, x, r)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        a, b, x, r = ctx.saved_tensors
        w = torch.linalg.solve_triangular(r.mT, g, upper=False)
        w = torch.linalg.solve_triangular(r, w, upper=True)
        off = b[..., None] - a @ x
        return off @ w.mT - a @ w @ x.mT, (a @ w)[..., 0]


class LeastSquaresUnsolved(LeastSquares):
    """Wrong: what the residual alone tells."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        a, b, x, r = ctx.saved_tensors
        w = torch.linalg.solve_triangular(r.mT, g, upper=False)
        w = torch.linalg.solve_triangular(r, w, upper=True)
        return (b[..., None] - a @ x) @ w.mT, (a @ w)[..., 0]
