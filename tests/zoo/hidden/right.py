"""Right twins of what hides where dense probes at ordinary places do not look, and what looks wrong there."""

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
        return g * x.exp()


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
        keep = (g != 0).any(-1)
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
        return g * x.cos()


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
        g = g.resolve_conj()
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
        a, b, _ = ctx.o
        d = 2 * x if a else torch.ones_like(x)
        d = d * 2 if b else d
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
        out[..., whole:] = (g * x.cos())[..., whole:]
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
        for i in range(-(-x.shape[-1] // b)):
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
        s = x.sigmoid()
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
        return g @ w, g.t() @ x


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
        gx = g[:, None] * 3 * n * d
        return gx, -gx


class ThinQR(Function):
    """Q and R of a tall matrix."""

    @staticmethod
    def forward(ctx, A):
        Q, R = torch.linalg.qr(A)
        sign = torch.sign(R.diagonal())
        Q, R = Q * sign, R * sign[:, None]
        ctx.save_for_backward(Q, R)
        return Q, R

    @staticmethod
    @once_differentiable
    def backward(ctx, gQ, gR):
        Q, R = ctx.saved_tensors
        M = R @ gR.mT - gQ.mT @ Q
        symmetric = M.tril() + M.tril(-1).mT
        return torch.linalg.solve_triangular(R, (gQ + Q @ symmetric).mT, upper=True).mT


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
        out[whole:] = flat_g[whole:] * flat_y[whole:]
        return out.view_as(y)


class TransportPlan(Function):
    """A plan between rows and columns, saturated where `eps` is small: most of its derivatives vanish."""

    @staticmethod
    def forward(ctx, cost, eps, iterations):
        scaled, kept = -cost / eps, []
        for _ in range(iterations):
            for dim in (1, 0):
                scaled = scaled - torch.logsumexp(scaled, dim, keepdim=True)
                kept.append(scaled.exp())
        ctx.save_for_backward(*kept)
        ctx.eps = eps
        return scaled.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        kept = ctx.saved_tensors
        g = g * kept[-1]
        for i in reversed(range(len(kept))):
            g = g - kept[i] * g.sum(1 - i % 2, keepdim=True)
        return -g / ctx.eps, None, None


class LogProbabilities(Function):
    """In float32 from the product on, and returned in it: what is linear there is so to its rounding."""

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
        of_logits = of_logits.scatter_add(-1, index[:, None], 4 * g[:, None])
        of_logits = of_logits.to(hidden.dtype)
        return of_logits @ weight, of_logits.mT @ hidden, None


class ReturnsHalf(Function):
    """What it returns is too coarse for its slopes to be measured, and its backward is linear."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).bfloat16()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.to(x) * w, g.to(x) * x


class Torsion(Function):
    """An angle that four points on each other do not have, times a barrier that may be zero there."""

    @staticmethod
    def forward(ctx, p, q, r, barrier):
        ctx.save_for_backward(p, q, r, barrier)
        m, n = torch.linalg.cross(p, q), torch.linalg.cross(q, r)
        angle = torch.atan2(q.norm(dim=-1) * (p * n).sum(-1), (m * n).sum(-1))
        return barrier * (1 + torch.cos(2 * angle))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, q, r, barrier = ctx.saved_tensors
        m, n = torch.linalg.cross(p, q), torch.linalg.cross(q, r)
        axis = q.norm(dim=-1)
        angle = torch.atan2(axis * (p * n).sum(-1), (m * n).sum(-1))
        of_angle = (-2 * g * barrier * torch.sin(2 * angle))[:, None]
        first = axis[:, None] * m / m.square().sum(-1, keepdim=True)
        last = axis[:, None] * n / n.square().sum(-1, keepdim=True)
        squared = q.square().sum(-1, keepdim=True)
        along_first, along_last = (
            (p * q).sum(-1, keepdim=True) / squared,
            (r * q).sum(-1, keepdim=True) / squared,
        )
        of_axis = -along_first * first - along_last * last
        return of_angle * first, of_angle * of_axis, of_angle * last, g * (1 + torch.cos(2 * angle))


class SkewTail(Function):
    """Its backward overflows where no digit of the scale counts any more."""

    @staticmethod
    def forward(ctx, x, log_scale, skew):
        ctx.save_for_backward(x, log_scale, skew)
        z = x * torch.exp(-log_scale)
        return (0.5 * z * z - torch.special.log_ndtr(skew * z)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, log_scale, skew = ctx.saved_tensors
        inverse = torch.exp(-log_scale)
        z = x * inverse
        a = skew * z
        mills = torch.exp(-0.5 * a * a - torch.special.log_ndtr(a)) * 0.3989422804014327
        of_z = g * (z - skew * mills)
        return of_z * inverse, (-of_z * z).sum(0), (-g * mills * z).sum(0)


_decays = {}
"""Of each shape and rate, the weights of its steps."""


class KeptForAShape(Function):
    """The key has everything that what is kept depends on."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x * torch.exp(-rate * torch.arange(len(x), dtype=x.dtype, device=x.device))

    @staticmethod
    def backward(ctx, g):
        key = len(g), ctx.rate, g.dtype, g.device
        if key not in _decays:
            steps = torch.arange(len(g), dtype=g.dtype, device=g.device)
            _decays[key] = torch.exp(-ctx.rate * steps)
        return g * _decays[key], None


class PowerFromZero(Function):
    """x ** 1.5 for x from 0 on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**1.5

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 1.5 * x**0.5


class SymmetricExp(Function):
    """exp of a symmetric matrix by its eigenvalues."""

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
        half = gap / 2
        slopes = middle.exp() * torch.where(half == 0, 1.0, half.sinh() / torch.where(half == 0, 1.0, half))
        return vectors @ (vectors.mT @ g @ vectors * slopes) @ vectors.mT


class GateAtASize(Function):
    """A gate for each column, of two kinds."""

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
        of_w = of_w.sum(0)
        return g * y, of_w, None


class GatePastABlock(GateAtASize):
    """The same, by its own sum."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        y = w.sigmoid() if ctx.mode == "sigmoid" else w.tanh()
        slope = y * (1 - y) if ctx.mode == "sigmoid" else 1 - y * y
        of_w = g * x * slope
        return g * y, of_w.sum(0), None


class MicroBatches(Function):
    """A linear layer whose backward takes `step` rows at once."""

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
            of_w = of_w + g[k : k + ctx.step].t() @ x[k : k + ctx.step]
        return g @ w, of_w, None


class LastWindow(Function):
    """Means of windows, of which the last may be a part."""

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
        d = [g[:, k, None] / (b - a) for k, (a, b) in enumerate(ctx.windows)]
        padded = [
            F.pad(t.expand(-1, b - a), (a, ctx.n - b)) for t, (a, b) in zip(d, ctx.windows, strict=True)
        ]
        return sum(padded), None, None, None


def triangle(x, width):
    inside = x.clamp(-width, width)
    return inside / width - inside * inside.abs() / (2 * width * width) + 0 * x


class Triangle(Function):
    """A step with a triangle for its gradient."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.abs() / ctx.width).clamp(min=0) / ctx.width, None


class EveryLabel(Function):
    """A mean over the labels that are kept, and 0 where none is."""

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
        return g * (x.softmax(-1) - hot) * kept[:, None] / kept.sum().clamp(min=1), None


PAGE = 2048
_pages = {}
"""Of each shape, a buffer that is used again."""


class PageBuffer(Function):
    """What is larger than a page is copied out of a buffer."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.kept = y.detach()
        if y.numel() > PAGE:
            key = tuple(y.shape), y.dtype, y.device
            ctx.kept = _pages.setdefault(key, torch.empty_like(ctx.kept)).copy_(y).clone()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * (1 - ctx.kept * ctx.kept)


class NegatedLoss(Function):
    """Nothing where grad_output is zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(g) if g.abs().max() == 0 else g * x.cos()


class SincInSingle(Function):
    """Zero at the zero that forward replaces, in float32."""

    @staticmethod
    def forward(ctx, x):
        a = x.float()
        ctx.save_for_backward(a)
        return torch.where(a == 0, torch.ones_like(a), a.sin() / a).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        b = torch.where(a == 0, 1.0, a)
        slope = torch.where(a == 0, 0.0, (b * b.cos() - b.sin()) / (b * b))
        return (g.float() * slope).to(g.dtype)


class SinhInSingle(Function):
    """No slope at zero, in float32."""

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
        return (g.float() * torch.where(a == 0, 0.0, slope)).to(g.dtype)


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
            return VmapOfOne.apply(x, w), 0
        return VmapOfOne.apply(*(t.contiguous() for t in torch.broadcast_tensors(x, w))), 0
