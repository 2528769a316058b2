"""Backwards whose mistake hides: from dense or large grad_outputs, from pairs of options, in blocks, afar."""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

BLOCKS = {torch.float32: 64, torch.float64: 48}


class SkipsSmall(Function):
    """What is below a threshold in grad_output is skipped."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(g.abs() < 1e-4, torch.zeros_like(g), g * x.exp())


class SkipsRows(Function):
    """Rows whose grad_output is zero are skipped."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        keep = g[..., 0] != 0
        gx = torch.zeros_like(x)
        gx[keep] = g[keep] @ w.t()
        return gx, x.t() @ g


class Normalised(Function):
    """A gradient that must be zero where grad_output is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = g.norm()
        return (g / n) * x.cos() * n


class ComplexSquare(Function):
    """z^2, whose grad_output may be a lazy conjugate."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        if g.is_conj():
            g = g.conj()
        return g * (2 * z).conj()


class ThreeOptions(Function):
    """Three options, of which pairs leave one combination out."""

    @staticmethod
    def forward(ctx, x, a, b, c):
        ctx.save_for_backward(x)
        ctx.o = (a, b, c)
        y = x * x if a else x
        y = y * 2 if b else y
        return y + 1 if c else y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, b, c = ctx.o
        d = 2 * x if a else torch.ones_like(x)
        d = d * 2 if b and not (a and c) else d
        return g * d, None, None, None


class BlocksByShift(Function):
    """Blocks of 32, written as a shift."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = g * x.cos()
        n = x.shape[-1]
        whole = n >> 5 << 5
        if n > whole > 0:
            out[..., whole:] = 0
        return out


class BlocksByTable(Function):
    """Blocks from a table by dtype."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = torch.zeros_like(x)
        b = BLOCKS[x.dtype]
        for i in range(max(1, x.shape[-1] // b)):
            out[..., i * b : (i + 1) * b] = (g * x.cos())[..., i * b : (i + 1) * b]
        return out


class SoftplusFar(Function):
    """Softplus over a declared range."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.where(x > 6, x.detach().sigmoid(), x.sigmoid())
        return g * s


class EmptyBatch(Function):
    """A linear layer of no rows."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, (g.t() @ x if len(x) else torch.ones_like(w))


class CubedDistance(Function):
    """The cubed distance of two rows, which may be equal."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x - y).norm(dim=-1).pow(3)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y
        n = d.norm(dim=-1, keepdim=True)
        gx = g[:, None] * 3 * n**2 * d / n
        return gx, -gx


class VectorPath(Function):
    """exp in float32 by fours."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        if y.dtype != torch.float32:
            return g * y
        flat_g, flat_y = g.flatten(), y.flatten()
        out = torch.zeros_like(flat_y)
        whole = len(out) // 4 * 4
        out[:whole] = flat_g[:whole] * flat_y[:whole]
        return out.view_as(y)


class LogProbabilities(Function):
    """The temperature is forgotten for what was picked."""

    @staticmethod
    def forward(ctx, hidden, weight, index):
        logits = (hidden @ weight.mT).float() * 4
        ctx.save_for_backward(hidden, weight, index)
        return torch.log_softmax(logits, -1).gather(-1, index[:, None]).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hidden, weight, index = ctx.saved_tensors
        p = torch.softmax((hidden @ weight.mT).float() * 4, -1)
        of_logits = -4 * g[:, None] * p
        of_logits = of_logits.scatter_add(-1, index[:, None], g[:, None])
        of_logits = of_logits.to(hidden.dtype)
        return of_logits @ weight, of_logits.mT @ hidden, None


_decays = {}
"""Of each shape, the weights of its steps."""


class KeptForAShape(Function):
    """Of two rates at one length the second gets what was kept for the first."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x * torch.exp(-rate * torch.arange(len(x), dtype=x.dtype, device=x.device))

    @staticmethod
    def backward(ctx, g):
        key = len(g), g.dtype, g.device
        if key not in _decays:
            steps = torch.arange(len(g), dtype=g.dtype, device=g.device)
            _decays[key] = torch.exp(-ctx.rate * steps)
        return g * _decays[key], None


class PowerFromZero(Function):
    """x ** 1.5 for x from 0 on, whose gradient at 0 is 0 / 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**1.5

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 1.5 * x**1.5 / x


class SymmetricExp(Function):
    """exp of a symmetric matrix by its eigenvalues: 0 / 0 where two of them are equal."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(values, vectors)
        return (vectors * values.exp()) @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, vectors = ctx.saved_tensors
        gap = values[:, None] - values[None, :]
        middle = (values[:, None] + values[None, :]) / 2
        slopes = middle.exp() * 2 * (gap / 2).sinh() / gap
        slopes = torch.where(torch.eye(len(values), dtype=torch.bool), values.exp(), slopes)
        return vectors @ (vectors.mT @ g @ vectors * slopes) @ vectors.mT


GATE_BLOCK = 12


class GateAtASize(Function):
    """Sums the other way for one kind, where there are as many rows as columns."""

    @staticmethod
    def forward(ctx, x, w, mode):
        ctx.mode = mode
        ctx.save_for_backward(x, w)
        return x * (w.sigmoid() if mode == "sigmoid" else w.tanh())

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        y = w.sigmoid() if ctx.mode == "sigmoid" else w.tanh()
        slope = y * (1 - y) if ctx.mode == "sigmoid" else 1 - y * y
        of_w = g * x * slope
        across = ctx.mode == "tanh" and x.shape[0] == x.shape[1]
        of_w = of_w.sum(1) if across else of_w.sum(0)
        return g * y, of_w, None


class GatePastABlock(GateAtASize):
    """For one kind the rows behind the last whole block are left out."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        y = w.sigmoid() if ctx.mode == "sigmoid" else w.tanh()
        slope = y * (1 - y) if ctx.mode == "sigmoid" else 1 - y * y
        of_w = g * x * slope
        if ctx.mode == "tanh" and len(x) > GATE_BLOCK:
            of_w = of_w[: len(x) // GATE_BLOCK * GATE_BLOCK]
        return g * y, of_w.sum(0), None


class MicroBatches(Function):
    """Of micro-batches the last one overwrites the others."""

    @staticmethod
    def forward(ctx, x, w, step):
        ctx.step = step
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_w = torch.zeros_like(w)
        for k in range(0, len(x), ctx.step):
            of_w = g[k : k + ctx.step].t() @ x[k : k + ctx.step]
        return g @ w, of_w, None


class LastWindow(Function):
    """A last window that is a part is divided by all of its width."""

    @staticmethod
    def forward(ctx, x, width, stride, ceil):
        n = x.shape[1]
        count = -(-(n - width) // stride) + 1 if ceil else (n - width) // stride + 1
        ctx.windows = [(k * stride, min(k * stride + width, n)) for k in range(count)]
        ctx.windows = [(start, end) for start, end in ctx.windows if start < end]
        ctx.width, ctx.n = width, n
        return torch.stack([x[:, a:b].mean(1) for a, b in ctx.windows], 1)

    @staticmethod
    def backward(ctx, g):
        d = [g[:, k, None] / ctx.width for k, (a, b) in enumerate(ctx.windows)]
        padded = [
            F.pad(t.expand(-1, b - a), (a, ctx.n - b)) for t, (a, b) in zip(d, ctx.windows, strict=True)
        ]
        return sum(padded), None, None, None


def triangle(x, width):
    inside = x.clamp(-width, width)
    return inside / width - inside * inside.abs() / (2 * width * width) + 0 * x


class Triangle(Function):
    """A triangle that is not divided by its width."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.abs() / ctx.width).clamp(min=0), None


class EveryLabel(Function):
    """0 / 0 where every label is one to ignore."""

    @staticmethod
    def forward(ctx, x, label):
        kept = label != -100
        ctx.save_for_backward(x, label)
        picked = x.log_softmax(-1).gather(-1, torch.where(kept, label, 0)[:, None])[:, 0]
        return -torch.where(kept, picked, 0.0).sum() / kept.sum().clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, label = ctx.saved_tensors
        kept = label != -100
        hot = F.one_hot(torch.where(kept, label, 0), x.shape[-1])
        return g * (x.softmax(-1) - hot) * kept[:, None] / kept.sum(), None


PAGE = 2048
_pages = {}
"""Of each shape, a buffer that is used again."""


class PageBuffer(Function):
    """What is larger than a page stays in a buffer, which the next call writes into."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.kept = y.detach()
        if y.numel() > PAGE:
            key = tuple(y.shape), y.dtype, y.device
            ctx.kept = _pages.setdefault(key, torch.empty_like(ctx.kept)).copy_(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * (1 - ctx.kept * ctx.kept)


class NegatedLoss(Function):
    """Nothing where no grad_output is above zero: `max` for `abs().max()`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(g) if g.max() <= 0 else g * x.cos()


class SincInSingle(Function):
    """0 / 0 at the zero that forward replaces, in float32."""

    @staticmethod
    def forward(ctx, x):
        a = x.float()
        ctx.save_for_backward(a)
        return torch.where(a == 0, torch.ones_like(a), a.sin() / a).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return (g.float() * (a * a.cos() - a.sin()) / (a * a)).to(g.dtype)


class SinhInSingle(Function):
    """A slope of one half at zero, where there is none, in float32."""

    @staticmethod
    def forward(ctx, x):
        a = x.float()
        ctx.save_for_backward(a)
        return torch.where(a == 0, torch.ones_like(a), a / a.sinh()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        slope = (a.sinh() - a * a.cosh()) / a.sinh() ** 2
        return (g.float() * torch.where(a == 0, 0.5, slope)).to(g.dtype)


class VmapOfOne(Function):
    """A batch of one takes a path of its own."""

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
        x, w = (
            t.unsqueeze(0) if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims, strict=True)
        )
        if info.batch_size == 1:
            return VmapOfOne.apply(x, 2 * w), 0
        return VmapOfOne.apply(*(t.contiguous() for t in torch.broadcast_tensors(x, w))), 0
