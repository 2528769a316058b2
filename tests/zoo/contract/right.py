"""Very different Functions, each said in a spec by what the format has for it: right ones."""

from itertools import pairwise

import torch
from torch import nn
from torch.autograd import Function


class LayerNorm(Function):
    """Arguments that are not tensors: a tuple of sizes and an eps."""

    @staticmethod
    def forward(ctx, x, normalized_shape, weight, shift, eps):
        dims = tuple(range(-len(normalized_shape), 0))
        centred = x - x.mean(dims, keepdim=True)
        rstd = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
        normalized = centred * rstd
        ctx.save_for_backward(normalized, rstd, weight)
        ctx.dims = dims
        return normalized * weight + shift

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        normalized, rstd, weight = ctx.saved_tensors
        dims = ctx.dims
        lead = tuple(range(g.dim() - len(dims)))
        inner = g * weight
        along = normalized * (inner * normalized).mean(dims, keepdim=True)
        grad_x = rstd * (inner - inner.mean(dims, keepdim=True) - along)
        return grad_x, None, (g * normalized).sum(lead), g.sum(lead), None


class Embedding(Function):
    """A padding row that never gets a gradient."""

    @staticmethod
    def forward(ctx, weight, index, padding_idx):
        ctx.save_for_backward(index)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return weight[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        kept = (index != ctx.padding_idx).unsqueeze(-1)
        grad = g.new_zeros(ctx.rows, g.shape[-1]).index_add(0, index, g * kept)
        return grad, None, None


class BoxMean(Function):
    """The mean of a feature map inside boxes, whose corners a hook draws."""

    @staticmethod
    def forward(ctx, features, boxes):
        ctx.save_for_backward(boxes)
        ctx.shape = features.shape
        return torch.stack([features[:, y0:y1, x0:x1].mean((1, 2)) for x0, y0, x1, y1 in boxes.tolist()])

    @staticmethod
    def backward(ctx, g):
        (boxes,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape)
        for row, (x0, y0, x1, y1) in zip(g, boxes.tolist(), strict=True):
            part = torch.zeros_like(grad)
            part[:, y0:y1, x0:x1] = 1.0 / ((y1 - y0) * (x1 - x0))
            grad = grad + row[:, None, None] * part
        return grad, None


def make_boxes(generator, device, dtype, r):
    features = torch.rand(2, 5, 6, generator=generator, dtype=dtype, device=device)
    low = torch.randint(0, 3, (r, 2), generator=generator, device=device)
    size = torch.randint(1, 3, (r, 2), generator=generator, device=device)
    return features.requires_grad_(), torch.cat([low, low + size], dim=1)


class SegmentSum(Function):
    """Sums over the segments that offsets cut out: variable lengths."""

    @staticmethod
    def forward(ctx, x, offsets):
        ctx.save_for_backward(offsets)
        cut = offsets.tolist()
        return torch.stack([x[a:b].sum(0) for a, b in pairwise(cut)])

    @staticmethod
    def backward(ctx, g):
        (offsets,) = ctx.saved_tensors
        return g.repeat_interleave(offsets.diff().long(), dim=0), None


class Conv2d(Function):
    """A convolution with stride and padding, through the library's own gradients."""

    @staticmethod
    def forward(ctx, x, weight, stride, padding):
        ctx.save_for_backward(x, weight)
        ctx.options = {"stride": stride, "padding": padding}
        return nn.functional.conv2d(x, weight, **ctx.options)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = nn.grad.conv2d_input(x.shape, weight, g, **ctx.options)
        return grad_x, nn.grad.conv2d_weight(x, weight.shape, g, **ctx.options), None, None


def conv2d(x, weight, stride, padding):
    return nn.functional.conv2d(x, weight, stride=stride, padding=padding)


class TopK(Function):
    """The k largest of a row; the indices carry no gradient."""

    @staticmethod
    def forward(ctx, x, k):
        values, index = x.topk(k, dim=-1)
        ctx.save_for_backward(index)
        ctx.width = x.shape[-1]
        ctx.mark_non_differentiable(index)
        return values, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return g.new_zeros(*g.shape[:-1], ctx.width).scatter(-1, index, g), None


class AddInPlace(Function):
    """Writes into its first argument and says so."""

    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, g


class SumOf(Function):
    """Any number of tensors."""

    @staticmethod
    def forward(ctx, scale, *xs):
        ctx.scale, ctx.count = scale, len(xs)
        return scale * sum(x.sum(-1) for x in xs)

    @staticmethod
    def backward(ctx, g):
        return None, *(ctx.scale * g.unsqueeze(-1).expand(*g.shape, w) for w in (3, 4)[: ctx.count])


class RoundSTE(Function):
    """Straight-through rounding: deliberately not the derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def identity(x):
    return x


class Reversal(Function):
    """Gradient reversal: no composite has this gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class LogDet(Function):
    """Of a symmetric positive definite matrix: right along the manifold."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.logdet(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(a)


class SphereHeight(Function):
    """Of unit vectors: only the tangential part of its gradient means anything."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[..., -1] ** 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        last = torch.zeros_like(x)
        last[..., -1] = 3 * x[..., -1] ** 2
        tangential = last - (last * x).sum(-1, keepdim=True) * x
        return g.unsqueeze(-1) * tangential


class Apply(Function):
    """Calls what it is given; its backward cannot be differentiated, and says so."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(ctx.function(again), again, g)
        return grad, None


class CubeFunction(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeLayer(nn.Module):
    """A module around a Function, with parameters of its own."""

    def __init__(self, features, *, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(self, x):
        y = CubeFunction.apply(x) * self.weight
        return y if self.shift is None else y + self.shift


class RunningMean(Function):
    """Keeps a running buffer that it writes into."""

    @staticmethod
    def forward(ctx, x, running):
        mean = x.mean(0)
        running.mul_(0.9).add_(0.1 * mean)
        ctx.rows = x.shape[0]
        return x - mean

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0, keepdim=True), None


class RowMax(Function):
    """The maximum of a row; ties share the gradient."""

    @staticmethod
    def forward(ctx, x):
        top = x.amax(-1)
        ctx.save_for_backward(x, top)
        return top

    @staticmethod
    def backward(ctx, g):
        x, top = ctx.saved_tensors
        share = (x == top.unsqueeze(-1)).to(x.dtype)
        return share / share.sum(-1, keepdim=True) * g.unsqueeze(-1)


class Normalize(Function):
    """A second output that is there only on request, and an input that may be None."""

    @staticmethod
    def forward(ctx, x, shift, with_norm):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm
        ctx.save_for_backward(y, norm)
        ctx.shifted, ctx.with_norm = shift is not None, with_norm
        y = y if shift is None else y + shift
        return (y, norm) if with_norm else y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_norm=None):
        y, norm = ctx.saved_tensors
        grad = (g - y * (g * y).sum(-1, keepdim=True)) / norm
        if ctx.with_norm:
            grad = grad + g_norm * y
        return grad, g.sum(0) if ctx.shifted else None, None


class LearnedStep(Function):
    """A quantiser with a learned step: x goes straight through, the step's gradient is exact."""

    @staticmethod
    def forward(ctx, x, scale):
        levels = (x / scale).round()
        ctx.save_for_backward(levels)
        return levels * scale

    @staticmethod
    def backward(ctx, g):
        (levels,) = ctx.saved_tensors
        return g, (g * levels).sum()


def straight_through(x, scale):
    return x + 0 * scale


class SortedTies(Function):
    """Sorting where equal values are valid."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(dim=-1, stable=True)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g)


class FirstOrderOnly(Function):
    """Refuses a double backward in its own words: a refusal is no failure."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        if g.requires_grad:
            raise RuntimeError("FirstOrderOnly has no double backward")
        (x,) = ctx.saved_tensors
        return g * x.exp()


class ScaledPower(Function):
    """Without `ctx` in forward torch binds the defaults itself, and backward answers for them too."""

    @staticmethod
    def forward(x, exponent=2.0, scale=1.5):
        return scale * x**exponent

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.exponent, ctx.scale = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.scale * ctx.exponent * x ** (ctx.exponent - 1), None, None


class ScaledFirstRow(Function):
    """Writes into the first row of its input, and says so."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        x[0].mul_(factor)
        return x

    @staticmethod
    def backward(ctx, g):
        first = torch.arange(g.shape[0], device=g.device) == 0
        scale = torch.where(first, ctx.factor, 1.0).to(g.dtype)
        return g * scale.reshape(-1, *[1] * (g.dim() - 1)), None


class MarkedTable(Function):
    """Backward writes into what it keeps beside the output, always the same."""

    @staticmethod
    def forward(ctx, x):
        table = torch.cat([x.exp(), torch.zeros_like(x)], -1)
        ctx.save_for_backward(table)
        return table[..., : x.shape[-1]]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (table,) = ctx.saved_tensors
        values, marks = table.detach().chunk(2, -1)
        marks.data.fill_(1.0)
        return g * values * marks
