"""Functions that helper functions prepare inputs for, that take objects, and whose integers go together."""

import enum
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SegmentSum(Function):
    """Where segments begin and end: no integers that are drawn by themselves are right."""

    @staticmethod
    def forward(ctx, values, starts, ends, longest):
        ctx.save_for_backward(starts, ends)
        ctx.shape = values.shape
        assert int((ends - starts).max()) <= longest
        parts = [values[s:e].sum(0) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, g):
        starts, ends = ctx.saved_tensors
        return g.repeat_interleave(ends - starts, 0), None, None, None


def segment_sum(values, lengths):
    ends = lengths.cumsum(0)
    if int(ends[-1]) != values.shape[0]:
        raise ValueError("lengths must add up to the number of rows")
    return SegmentSum.apply(values, ends - lengths, ends, int(lengths.max()))


class SortedSum(Function):
    """An order and its inverse."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(order, inverse)
        return x[order].cumsum(0)[inverse]

    @staticmethod
    def backward(ctx, g):
        order, inverse = ctx.saved_tensors
        return g[order].flip(0).cumsum(0).flip(0)[inverse], None, None


class SortedSumForwards(Function):
    """Wrong: summed from the same end as in forward."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(order, inverse)
        return x[order].cumsum(0)[inverse]

    @staticmethod
    def backward(ctx, g):
        order, inverse = ctx.saved_tensors
        return g[order].cumsum(0)[inverse], None, None


def sorted_sum(x, keys, forwards=False):
    order = torch.argsort(keys)
    return SortedSum.apply(x, order, torch.argsort(order))


def sorted_sum_forwards(x, keys):
    order = torch.argsort(keys)
    return SortedSumForwards.apply(x, order, torch.argsort(order))


class SoftTarget(Function):
    """Right for targets that add up to one."""

    @staticmethod
    def forward(ctx, logits, target, gamma):
        ctx.save_for_backward(logits, target)
        ctx.gamma = gamma
        return -(target * logits.log_softmax(-1)).sum(-1) * gamma

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return ctx.gamma * g.unsqueeze(-1) * (logits.softmax(-1) - target), None, None


class SoftTargetUnscaled(Function):
    """Wrong: the factor is forgotten."""

    @staticmethod
    def forward(ctx, logits, target, gamma):
        ctx.save_for_backward(logits, target)
        return -(target * logits.log_softmax(-1)).sum(-1) * gamma

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return g.unsqueeze(-1) * (logits.softmax(-1) - target), None, None


def _smoothed(logits, labels, smoothing):
    target = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
    return target * (1 - smoothing) + smoothing / logits.shape[-1]


def soft_target(logits, labels, smoothing=0.1, gamma=1.5):
    return SoftTarget.apply(logits, _smoothed(logits, labels, smoothing), gamma)


def soft_target_unscaled(logits, labels, smoothing=0.1, gamma=1.5):
    return SoftTargetUnscaled.apply(logits, _smoothed(logits, labels, smoothing), gamma)


class FilterBank(Function):
    """Filters of the shape that a convolution takes, and a mode that a table gives."""

    @staticmethod
    def forward(ctx, x, low, high, mode):
        ctx.save_for_backward(low, high)
        ctx.shape = x.shape
        if mode != 1:
            raise ValueError("only zero padding")
        filters = torch.cat([low, high] * x.shape[1], 0)
        return F.conv2d(x, filters, padding=(0, low.shape[-1] - 1), stride=(1, 2), groups=x.shape[1])

    @staticmethod
    def backward(ctx, g):
        low, high = ctx.saved_tensors
        filters = torch.cat([low, high] * ctx.shape[1], 0)
        grad = torch.nn.grad.conv2d_input(
            ctx.shape, filters, g, stride=(1, 2), padding=(0, low.shape[-1] - 1), groups=ctx.shape[1]
        )
        return grad, None, None, None


MODES = {"zero": 1, "symmetric": 2}


def analysis(x, wave=(0.48, 0.83, 0.22, -0.12, 0.05), mode="zero"):
    low = x.new_tensor(wave).view(1, 1, 1, -1)
    return FilterBank.apply(x, low, low.flip(-1), MODES[mode])


class Geometry(NamedTuple):
    scale: float
    offset: float


class Mapped(Function):
    @staticmethod
    def forward(ctx, x, geometry: Geometry):
        ctx.scale = geometry.scale
        return geometry.scale * x + geometry.offset

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None


class Norm(enum.Enum):
    L1 = "l1"
    L2 = "l2"


class Length(Function):
    @staticmethod
    def forward(ctx, x, kind):
        ctx.kind = kind
        ctx.save_for_backward(x)
        if kind is Norm.L1:
            return x.abs().sum(-1)
        if kind is Norm.L2:
            return (x * x).sum(-1)
        raise ValueError(f"unknown kind {kind}")

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * (x.sign() if ctx.kind is Norm.L1 else 2 * x), None


class Nearest(Function):
    """Points in space, as a number in backward alone says."""

    @staticmethod
    def forward(ctx, a, b):
        distances = (a[:, :, None] - b[:, None]).pow(2).sum(-1)
        nearest, at = distances.min(2)
        ctx.save_for_backward(a, b, at)
        return nearest

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, at = ctx.saved_tensors
        moved = 2 * g[..., None] * (a - torch.stack([y[i] for y, i in zip(b, at, strict=True)]))
        of_b = torch.stack(
            [torch.zeros_like(y).index_add(0, i, -m) for y, i, m in zip(b, at, moved, strict=True)]
        )
        return moved.view(-1, a.shape[1], 3), of_b.view(-1, b.shape[1], 3)


class NearestHalved(Function):
    """Wrong by a factor."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b).pow(2).sum(-1)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        moved = (g[..., None] * (a - b)).view(-1, 3)
        return moved.view(a.shape), -moved.view(b.shape)


class Sparse(Function):
    @staticmethod
    def forward(ctx, num_cols, row_ptr, col_ind, values, v):
        assert values.ndim == 2 and v.shape == (values.shape[0], num_cols)
        assert col_ind.shape[0] == values.shape[1]
        rows = torch.repeat_interleave(torch.arange(len(row_ptr) - 1), row_ptr[1:] - row_ptr[:-1])
        ctx.save_for_backward(rows, col_ind, values, v)
        out = v.new_zeros(v.shape[0], len(row_ptr) - 1)
        return out.index_add(1, rows, values * v[:, col_ind])

    @staticmethod
    def backward(ctx, g):
        rows, columns, values, v = ctx.saved_tensors
        of_v = torch.zeros_like(v).index_add(1, columns, g[:, rows] * values)
        return None, None, None, g[:, rows] * v[:, columns], of_v


class OfSparse(Function):
    @staticmethod
    def forward(ctx, adjacency, x):
        assert adjacency.is_sparse
        ctx.save_for_backward(adjacency)
        return torch.sparse.mm(adjacency, x)

    @staticmethod
    def backward(ctx, g):
        (adjacency,) = ctx.saved_tensors
        return None, torch.sparse.mm(adjacency.t(), g)


class OfSparseUntransposed(Function):
    """Wrong: right for symmetric matrices."""

    @staticmethod
    def forward(ctx, adjacency, x):
        assert adjacency.is_sparse and adjacency.shape[0] == adjacency.shape[1]
        ctx.save_for_backward(adjacency)
        return torch.sparse.mm(adjacency, x)

    @staticmethod
    def backward(ctx, g):
        (adjacency,) = ctx.saved_tensors
        return None, torch.sparse.mm(adjacency, g)


class OfArrays(Function):
    """An operator and its adjoint, on arrays."""

    @staticmethod
    def forward(ctx, x, operator, adjoint):
        ctx.adjoint = adjoint
        return torch.from_numpy(operator(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.from_numpy(ctx.adjoint(g.numpy())), None, None


class Converged(Function):
    """Not finite where a mask leaves something out."""

    @staticmethod
    def forward(ctx, solution, converged):
        ctx.save_for_backward(converged)
        return torch.where(converged, solution, torch.nan)

    @staticmethod
    def backward(ctx, g):
        (converged,) = ctx.saved_tensors
        return torch.where(converged, g, torch.nan), None


class Protected(Function):
    """Its derivative is off by an epsilon, which shows at values that nobody has declared."""

    @staticmethod
    def forward(ctx, x):
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        return g * 0.5 / (root + 1e-8)


class Kept(Function):
    """Backward writes into a constant that the module keeps for it."""

    @staticmethod
    def forward(ctx, x, space):
        ctx.space = space
        ctx.save_for_backward(x)
        return x.pow(3).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ctx.space.resize_as_(x).copy_(3 * x**2)
        return g[..., None] * ctx.space, None


class Cube(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("space", torch.empty(0))

    def forward(self, x):
        return Kept.apply(x, self.space)


class Uneven(Function):
    @staticmethod
    def forward(ctx, dim, *xs):
        ctx.dim, ctx.sizes = dim, [x.shape[dim] for x in xs]
        return torch.cat(xs, dim) * 2

    @staticmethod
    def backward(ctx, g):
        return (None, *(2 * s for s in g.split(ctx.sizes, ctx.dim)))


def join(a, b, c):
    return Uneven.apply(1, a, b.repeat(1, 2), c)


class Ckpt(Function):
    @staticmethod
    def forward(ctx, run, length, *args):
        ctx.run, ctx.inputs, ctx.params = run, list(args[:length]), list(args[length:])
        with torch.no_grad():
            return ctx.run(*ctx.inputs, *ctx.params)

    @staticmethod
    def backward(ctx, *g):
        inputs = [x.detach().requires_grad_(True) for x in ctx.inputs + ctx.params]
        with torch.enable_grad():
            out = ctx.run(*inputs)
        return (None, None) + torch.autograd.grad(out, inputs, g, allow_unused=True)


def affine(x, w, b):
    return torch.tanh(x @ w.t() + b)


class OfOneLayer(torch.nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n_out, n_in))
        self.bias = torch.nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return Ckpt.apply(affine, 1, x, self.weight, self.bias)
