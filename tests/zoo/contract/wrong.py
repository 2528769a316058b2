"""Wrong twins of the Functions of right.py, each with one mistake that somebody could make."""

from itertools import pairwise

import torch
from torch import nn
from torch.autograd import Function


class LayerNorm(Function):
    """The coupling through the variance is dropped."""

    @staticmethod
    def forward(ctx, x, normalized_shape, weight, shift, eps):
        dims = tuple(range(-len(normalized_shape), 0))
        centred = x - x.mean(dims, keepdim=True)
        rstd = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(centred * rstd, rstd, weight)
        ctx.dims = dims
        return centred * rstd * weight + shift

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        normalized, rstd, weight = ctx.saved_tensors
        lead = tuple(range(g.dim() - len(ctx.dims)))
        inner = g * weight
        grad_x = rstd * (inner - inner.mean(ctx.dims, keepdim=True))
        return grad_x, None, (g * normalized).sum(lead), g.sum(lead), None


class Embedding(Function):
    """The padding row gets a gradient like any other."""

    @staticmethod
    def forward(ctx, weight, index, padding_idx):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.rows, g.shape[-1]).index_add(0, index, g), None, None


class BoxMean(Function):
    """Boxes that overlap overwrite each other."""

    @staticmethod
    def forward(ctx, features, boxes):
        ctx.save_for_backward(boxes)
        ctx.shape = features.shape
        return torch.stack([features[:, y0:y1, x0:x1].mean((1, 2)) for x0, y0, x1, y1 in boxes.tolist()])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (boxes,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape)
        for row, (x0, y0, x1, y1) in zip(g, boxes.tolist(), strict=True):
            grad[:, y0:y1, x0:x1] += row[:, None, None]  # not divided by the area
        return grad, None


def make_boxes(generator, device, dtype, r):
    features = torch.rand(2, 5, 6, generator=generator, dtype=dtype, device=device)
    low = torch.randint(0, 3, (r, 2), generator=generator, device=device)
    return features.requires_grad_(), torch.cat([low, low + 2], dim=1)


class SegmentSum(Function):
    """The last segment is forgotten."""

    @staticmethod
    def forward(ctx, x, offsets):
        ctx.save_for_backward(offsets)
        cut = offsets.tolist()
        return torch.stack([x[a:b].sum(0) for a, b in pairwise(cut)])

    @staticmethod
    def backward(ctx, g):
        (offsets,) = ctx.saved_tensors
        kept = torch.ones_like(g)
        kept[-1] = 0
        return (g * kept).repeat_interleave(offsets.diff().long(), dim=0), None


class Conv2d(Function):
    """The weight's gradient is right only without padding."""

    @staticmethod
    def forward(ctx, x, weight, stride, padding):
        ctx.save_for_backward(x, weight)
        ctx.options = {"stride": stride, "padding": padding}
        return nn.functional.conv2d(x, weight, **ctx.options)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = nn.grad.conv2d_input(x.shape, weight, g, **ctx.options)
        grad_weight = nn.grad.conv2d_weight(x, weight.shape, g, **ctx.options)
        return grad_x, grad_weight if ctx.options["padding"] == 0 else grad_weight.flip(-1), None, None


class TopK(Function):
    """Gradients go to the first k places."""

    @staticmethod
    def forward(ctx, x, k):
        values, index = x.topk(k, dim=-1)
        ctx.width = x.shape[-1]
        ctx.mark_non_differentiable(index)
        return values, index

    @staticmethod
    def backward(ctx, g, _):
        return nn.functional.pad(g, (0, ctx.width - g.shape[-1])), None


class SumOf(Function):
    """The second tensor of the list gets no factor."""

    @staticmethod
    def forward(ctx, scale, *xs):
        ctx.scale = scale
        return scale * sum(x.sum(-1) for x in xs)

    @staticmethod
    def backward(ctx, g):
        return None, ctx.scale * g.unsqueeze(-1).expand(*g.shape, 3), g.unsqueeze(-1).expand(*g.shape, 4)


class RoundSTE(Function):
    """Not the straight-through gradient that is declared."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def identity(x):
    return x


class LogDet(Function):
    """Half the gradient."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.logdet(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(a) / 2


class SphereHeight(Function):
    """The tangential gradient of another power."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[..., -1] ** 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        last = torch.zeros_like(x)
        last[..., -1] = 2 * x[..., -1]
        return g.unsqueeze(-1) * (last - (last * x).sum(-1, keepdim=True) * x)


class CubeFunction(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * x


class CubeLayer(nn.Module):
    """A module around a wrong Function."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return CubeFunction.apply(x) * self.weight


class RunningMean(Function):
    """The mean is treated as a constant."""

    @staticmethod
    def forward(ctx, x, running):
        running.mul_(0.9).add_(0.1 * x.mean(0))
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g, None


class Normalize(Function):
    """The norm's own gradient is forgotten: wrong only where it is asked for."""

    @staticmethod
    def forward(ctx, x, shift, with_norm):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm
        ctx.save_for_backward(y, norm)
        ctx.shifted = shift is not None
        shifted = y if shift is None else y + shift
        return (shifted, norm) if with_norm else shifted

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_norm=None):
        y, norm = ctx.saved_tensors
        grad = (g - y * (g * y).sum(-1, keepdim=True)) / norm
        return grad, g.sum(0) if ctx.shifted else None, None


class LearnedStep(Function):
    """The straight-through part is right, the exact one is not."""

    @staticmethod
    def forward(ctx, x, scale):
        levels = (x / scale).round()
        ctx.save_for_backward(levels)
        return levels * scale

    @staticmethod
    def backward(ctx, g):
        (levels,) = ctx.saved_tensors
        return g, g.sum() / levels.numel()


def straight_through(x, scale):
    return x + 0 * scale


class AddInPlace(Function):
    """The second gradient is forgotten."""

    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class WrongSinglePrecisionSine(Function):
    """Computes in float32 whatever it is given, and is wrong by far more than that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g.float() * x.float().cos()


class SinglePrecisionSine(Function):
    """Right, as far as float32 goes: it is judged in float32, by its own operations in float64."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.float() * x.float().cos()


class NeverAsked(Function):
    """Wrong, and its spec asks for no gradient at all: nothing was verified."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g


class MarkedTable(Function):
    """Backward adds to what it keeps: another gradient the second time."""

    @staticmethod
    def forward(ctx, x):
        table = torch.cat([x.exp(), torch.zeros_like(x)], -1)
        ctx.save_for_backward(table)
        return table[..., : x.shape[-1]].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (table,) = ctx.saved_tensors
        values, marks = table.detach().chunk(2, -1)
        marks.data.add_(1.0)
        return g * values * marks
