"""Hand-written backwards."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _acc(t):
    return t if t.dtype == torch.float64 else t.float()


# ---------------------------------------------------------------- normalisation


class RMSNormBF16(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        xf = _acc(x)
        rstd = torch.rsqrt((xf * xf).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (xf * rstd * _acc(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        xf, g = _acc(x), _acc(dy)
        xhat = xf * rstd
        gw = g * _acc(weight)
        dx = rstd * (gw - xhat * (gw * xhat).mean(-1, keepdim=True))
        dweight = torch.zeros_like(weight)
        for row in (dy * xhat.to(dy.dtype)).flatten(0, -2):
            dweight += row
        return dx.to(x.dtype), dweight, None


class _BN2dFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, eps):
        shape = (1, -1, 1, 1)
        inv = torch.rsqrt(var + eps)
        xhat = (x - mean.view(shape)) * inv.view(shape)
        ctx.save_for_backward(xhat, weight, inv)
        return xhat * weight.view(shape) + bias.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, weight, inv = ctx.saved_tensors
        n = g.numel() / g.shape[1]
        shape = (1, -1, 1, 1)
        db = g.sum((0, 2, 3))
        dw = (g * xhat).sum((0, 2, 3))
        dx = (weight * inv).view(shape) * (g - db.view(shape) / n - xhat * dw.view(shape) / n)
        return dx, dw, db, None, None, None


class CustomBatchNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            with torch.no_grad():
                mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
                self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
                self.running_var.mul_(1 - self.momentum).add_(var, alpha=self.momentum)
        return _BN2dFn.apply(x, self.weight, self.bias, mean, var, self.eps)


# ---------------------------------------------------------------- losses


class WeightedNLL(Function):
    @staticmethod
    def forward(ctx, logits, target, weight, reduction):
        logp = torch.log_softmax(logits, 1)
        w = logits.new_ones(logits.shape[1]) if weight is None else weight
        wt = w[target]
        loss = -wt * logp.gather(1, target[:, None]).squeeze(1)
        ctx.save_for_backward(logp, target, wt)
        ctx.reduction = reduction
        if reduction == "mean":
            return loss.sum() / wt.sum()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logp, target, wt = ctx.saved_tensors
        d = logp.exp()
        d[torch.arange(d.shape[0]), target] -= 1
        d = d * wt[:, None]
        if ctx.reduction == "mean":
            d = d / d.shape[0] * g
        else:
            d = d * (g if ctx.reduction == "sum" else g[:, None])
        return d, None, None, None


class VocabCrossEntropy(Function):
    """In the manner of Megatron: softmax kept, gradient by subtracting one at the target."""

    @staticmethod
    def forward(ctx, logits, labels, ignore_index):
        lf = _acc(logits)
        lf = lf - lf.max(-1, keepdim=True).values
        e = lf.exp()
        z = e.sum(-1, keepdim=True)
        valid = labels != ignore_index
        safe = labels.clamp(min=0)
        loss = (z.log() - lf.gather(-1, safe[:, None])).squeeze(-1)
        ctx.save_for_backward(e / z, safe, valid)
        ctx.dtype = logits.dtype
        return torch.where(valid, loss, torch.zeros_like(loss))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, safe, valid = ctx.saved_tensors
        d = p.clone()
        rows = torch.arange(p.shape[0])
        d[rows, safe] -= valid.to(d.dtype)
        return (d * _acc(g)[:, None]).to(ctx.dtype), None, None


class PinballHuber(Function):
    """Quantile Huber loss of distributional RL."""

    @staticmethod
    def forward(ctx, pred, target, tau, kappa):
        u = target - pred
        huber = torch.where(u.abs() <= kappa, 0.5 * u * u, kappa * (u.abs() - 0.5 * kappa))
        weight = (tau - (u < 0).to(u.dtype)).abs()
        ctx.save_for_backward(u, weight)
        ctx.kappa = kappa
        return weight * huber / kappa

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, weight = ctx.saved_tensors
        d = torch.where(u.abs() <= ctx.kappa, u, ctx.kappa * u.sign())
        return -g * weight * d, g * weight * d, None, None


class BoxIoULoss(Function):
    """1 - IoU of boxes (x1, y1, x2, y2), elementwise."""

    @staticmethod
    def forward(ctx, a, b):
        lt, rb = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[:, 0] * wh[:, 1]
        area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])  # noqa: E731
        union = area(a) + area(b) - inter
        ctx.save_for_backward(a, b, wh, inter, union)
        return 1 - inter / union

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, wh, inter, union = ctx.saved_tensors
        d_inter = -g / union
        d_union = g * inter / union**2
        live = (wh[:, :1] > 0) & (wh[:, 1:] > 0)
        dwh = torch.stack([wh[:, 1], wh[:, 0]], 1) * d_inter[:, None] * live
        da = torch.zeros_like(a)
        da[:, :2] -= dwh * (a[:, :2] > b[:, :2])
        da[:, 2:] += dwh * (a[:, 2:] < b[:, 2:])
        w, h = a[:, 2] - a[:, 0], a[:, 3] - a[:, 1]
        da += torch.stack([-h, -w, h, w], 1) * d_union[:, None]
        return da, None


# ---------------------------------------------------------------- attention and its parts


class SoftcapAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v, softcap):
        s = _acc(q) @ _acc(k).mT * q.shape[-1] ** -0.5
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        ctx.save_for_backward(q, k, v, torch.logsumexp(s, -1))
        ctx.softcap = softcap
        return (torch.softmax(s, -1) @ _acc(v)).to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, lse = ctx.saved_tensors
        qf, kf, vf, do = _acc(q), _acc(k), _acc(v), _acc(do)
        scale = q.shape[-1] ** -0.5
        s = qf @ kf.mT * scale
        if ctx.softcap is not None:
            s = ctx.softcap * torch.tanh(s / ctx.softcap)
        p = (s - lse[..., None]).exp()
        dp = do @ vf.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
        return (ds @ kf).to(q.dtype), (ds.mT @ qf).to(k.dtype), (p.mT @ do).to(v.dtype), None


class BiasedSoftmax(Function):
    """softmax(scores + bias); the bias has a batch dimension of its own or of 1."""

    @staticmethod
    def forward(ctx, scores, bias):
        p = torch.softmax(_acc(scores) + _acc(bias), -1)
        ctx.save_for_backward(p)
        ctx.bias_shape = bias.shape
        return p.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        gf = _acc(g)
        ds = p * (gf - (gf * p).sum(-1, keepdim=True))
        dbias = None
        if ctx.needs_input_grad[1]:
            dbias = ds.sum(0, keepdim=True).expand(ctx.bias_shape).to(g.dtype)
        return ds.to(g.dtype), dbias


class WorkspaceTanhGate(Function):
    """tanh(x) * w; the tanh is kept in a workspace, so that training does not allocate."""

    _workspace = {}

    @staticmethod
    def forward(ctx, x, w):
        xf = _acc(x)
        key = tuple(x.shape), xf.dtype
        t = WorkspaceTanhGate._workspace.setdefault(key, torch.empty_like(xf))
        torch.tanh(xf, out=t)
        ctx.key = key
        ctx.save_for_backward(w)
        return (t * _acc(w)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        t = WorkspaceTanhGate._workspace[ctx.key]
        gf = _acc(g)
        return (gf * _acc(w) * (1 - t * t)).to(g.dtype), (gf * t).sum(0).to(w.dtype)


class BlockedSoftmax(Function):
    BLOCK = 16

    @staticmethod
    def forward(ctx, x):
        xf = _acc(x)
        y = (xf - torch.logsumexp(xf, -1, keepdim=True)).exp()
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        n, block = y.shape[-1], BlockedSoftmax.BLOCK
        gf = _acc(g)
        dot = torch.zeros_like(y[..., :1])
        for i in range(max(1, n // block)):
            s = slice(i * block, (i + 1) * block)
            dot += (gf[..., s] * y[..., s]).sum(-1, keepdim=True)
        return (y * (gf - dot)).to(g.dtype)


class GeluTanh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(_acc(x), approximate="tanh").to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        k = math.sqrt(2 / math.pi)
        if x.dtype in (torch.float16, torch.bfloat16):
            # fused half path
            v = x.float()
            t = torch.tanh(k * v * (1 + 0.044715 * v * v))
            d = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * k * (1 + 0.044715 * v * v)
            return (d * g.float()).to(x.dtype)
        t = torch.tanh(k * (x + 0.044715 * x**3))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x**2))


class CubedReLU(Function):
    """relu(x)^3 / 256 for float16 activations."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float16:
            raise TypeError("CubedReLU is a float16 kernel")
        ctx.save_for_backward(x)
        r = x.float().clamp_min(0)
        return (r * r * r / 256).half()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        r = x.clamp_min(0)
        return g * (3 * (r * r) / 256)


def make_boxes(generator, device, dtype, *, n):
    def boxes():
        corner = 2 * torch.rand(n, 2, generator=generator, device=device, dtype=dtype)
        extent = 2.5 + torch.rand(n, 2, generator=generator, device=device, dtype=dtype)
        return torch.cat([corner, corner + extent], 1)

    return boxes().requires_grad_(), boxes()


class LogSumExpDim(Function):
    @staticmethod
    def forward(ctx, x, dim, keepdim):
        out = torch.logsumexp(x, dim, keepdim=True)
        ctx.save_for_backward(x, out)
        ctx.dim, ctx.keepdim = dim, keepdim
        return out if keepdim else out.squeeze(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * (x - out).exp(), None, None


class LogSoftmaxStable(Function):
    @staticmethod
    def forward(ctx, x):
        m = x.max(-1, keepdim=True).values
        x -= m
        y = x - x.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y.exp() * g.sum(-1, keepdim=True)


# ---------------------------------------------------------------- pooling, embedding, sparse


class AvgPool1dPadded(Function):
    @staticmethod
    def forward(ctx, x, k, stride, padding, count_include_pad):
        ctx.args = x.shape, k, stride, padding
        return F.avg_pool1d(x, k, stride, padding, count_include_pad=count_include_pad)

    @staticmethod
    def backward(ctx, g):
        shape, k, stride, padding = ctx.args
        n = shape[-1]
        dx = g.new_zeros(*shape[:-1], n + 2 * padding)
        position = torch.arange(g.shape[-1]) * stride
        for j in range(k):
            dx = dx.index_add(-1, position + j, g / k)
        return dx[..., padding : padding + n], None, None, None, None


class MaxPool1dWindows(Function):
    @staticmethod
    def forward(ctx, x, k, stride):
        windows = x.unfold(-1, k, stride)
        value, arg = windows.max(-1)
        index = arg + torch.arange(windows.shape[-2]) * stride
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return value

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, index, g), None, None


class EmbeddingLookup(Function):
    @staticmethod
    def forward(ctx, weight, ids, scale):
        ctx.save_for_backward(ids)
        ctx.shape, ctx.scale = weight.shape, scale
        return weight[ids] * scale

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape)
        grad[ids] += g * ctx.scale
        return grad, None, None


class CSRMatmul(Function):
    """A C-like kernel: rows by pointer, dense operands row-major."""

    @staticmethod
    def forward(ctx, crow, col, val, dense):
        lengths = (crow[1:] - crow[:-1]).long()
        row = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
        ctx.save_for_backward(row, col, val, dense)
        return dense.new_zeros(lengths.numel(), dense.shape[1]).index_add_(0, row, val[:, None] * dense[col])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        row, col, val, dense = ctx.saved_tensors
        m, k = g.shape
        rows = g.as_strided((m, k), (k, 1))[row]
        dval = (rows * dense[col]).sum(1)
        ddense = torch.zeros_like(dense).index_add_(0, col, val[:, None] * rows)
        return None, None, dval, ddense


class SegmentSoftmax(Function):
    """softmax within ragged segments"""

    @staticmethod
    def forward(ctx, x, offsets):
        y = torch.empty_like(x)
        bounds = offsets.tolist()
        for s, e in zip(bounds[:-1], bounds[1:]):
            y[s:e] = torch.softmax(x[s:e], 0)
        ctx.save_for_backward(y)
        ctx.bounds = bounds
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        gx = torch.zeros_like(y)
        for i in range(len(ctx.bounds) - 2):
            s, e = ctx.bounds[i], ctx.bounds[i + 1]
            gx[s:e] = y[s:e] * (g[s:e] - (g[s:e] * y[s:e]).sum(0))
        return gx, None


# ---------------------------------------------------------------- recurrences


class GatedScan(Function):
    """h[t] = f[t] h[t-1] + (1 - f[t]) x[t]"""

    @staticmethod
    def forward(ctx, f, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = f[:, t] * h + (1 - f[:, t]) * x[:, t]
            out.append(h)
        out = torch.stack(out, 1)
        ctx.save_for_backward(f, x, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        f, x, h = ctx.saved_tensors
        df, dx = torch.empty_like(f), torch.empty_like(x)
        carry = torch.zeros_like(g[:, 0])
        for t in range(x.shape[1] - 1, -1, -1):
            dh = g[:, t] + carry
            df[:, t] = dh * (h[:, t] - x[:, t])
            dx[:, t] = dh * (1 - f[:, t])
            carry = dh * f[:, t]
        return df, dx


class CumProd(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.cumprod(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        safe = torch.where(x == 0, torch.full_like(x, 1e-12), x)
        return (g * y).flip(-1).cumsum(-1).flip(-1) / safe


class LeapfrogPendulum(Function):
    @staticmethod
    def forward(ctx, q, p, dt, steps):
        q, p = q.clone(), p.clone()
        ctx.dt, ctx.path = dt, []
        for _ in range(steps):
            p.sub_(0.5 * dt * torch.sin(q))
            ctx.path.append(q)
            q.add_(dt * p)
            p.sub_(0.5 * dt * torch.sin(q))
        ctx.last = q.clone()
        return q.clone(), p

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        dt, after = ctx.dt, ctx.last
        for before in reversed(ctx.path):
            gq = gq - 0.5 * dt * torch.cos(after) * gp
            gp = gp + dt * gq
            gq = gq - 0.5 * dt * torch.cos(before) * gp
            after = before
        return gq, gp, None, None


# ---------------------------------------------------------------- quantisation


class PerChannelFakeQuant(Function):
    @staticmethod
    def forward(ctx, x, scale, qmin, qmax):
        q = torch.round(x / scale[:, None]).clamp(qmin, qmax)
        ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return q * scale[:, None]

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None, None, None


def clipped_identity(x, scale, qmin, qmax):
    s = scale[:, None]
    return torch.clamp(x / s, qmin, qmax) * s


# ---------------------------------------------------------------- complex, matrices, geometry


class ComplexGain(Function):
    @staticmethod
    def forward(ctx, z, gain):
        ctx.save_for_backward(z, gain)
        return z * gain

    @staticmethod
    def backward(ctx, g):
        z, gain = ctx.saved_tensors
        return g * gain.conj(), (g * z).sum(0)


class TriangularSolve(Function):
    @staticmethod
    def forward(ctx, a, b, unitriangular):
        x = torch.linalg.solve_triangular(a, b, upper=False, unitriangular=unitriangular)
        ctx.save_for_backward(a, x)
        ctx.unitriangular = unitriangular
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        db = torch.linalg.solve_triangular(a.mT, g, upper=True, unitriangular=ctx.unitriangular)
        return -(db @ x.mT).tril(), db, None


class SymmetricExp(Function):
    @staticmethod
    def forward(ctx, a):
        lam, v = torch.linalg.eigh(a)
        e = lam.exp()
        ctx.save_for_backward(lam, v, e)
        return (v * e) @ v.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lam, v, e = ctx.saved_tensors
        gap = lam[:, None] - lam
        gap.fill_diagonal_(float("inf"))
        divided = (e[:, None] - e) / gap
        inner = v.mT @ (0.5 * (g + g.mT)) @ v
        return v @ (inner * divided) @ v.mT


class RBFKernel(Function):
    @staticmethod
    def forward(ctx, x, y, gamma):
        ctx.save_for_backward(x, y)
        ctx.gamma = gamma
        return torch.exp(-gamma * (x[:, None] - y[None]).pow(2).sum(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = (t.detach().numpy().astype(np.float32) for t in ctx.saved_tensors)
        d2 = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
        w = -2 * ctx.gamma * np.exp(-ctx.gamma * d2) * g.detach().numpy()
        dx = w.sum(1)[:, None] * x - w @ y
        dy = w.sum(0)[:, None] * y - w.T @ x
        return torch.from_numpy(dx).to(g.dtype), torch.from_numpy(dy).to(g.dtype), None


class QuaternionMul(Function):
    """Hamilton's product in float32, as pytorch3d has it."""

    @staticmethod
    def _mul(a, b):
        aw, ax, ay, az = a.unbind(-1)
        bw, bx, by, bz = b.unbind(-1)
        return torch.stack(
            [
                aw * bw - ax * bx - ay * by - az * bz,
                aw * bx + ax * bw + ay * bz - az * by,
                aw * by - ax * bz + ay * bw + az * bx,
                aw * bz + ax * by - ay * bx + az * bw,
            ],
            -1,
        )

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return QuaternionMul._mul(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        flip = torch.tensor([1, -1, -1, -1], dtype=g.dtype)
        return QuaternionMul._mul(g, b * flip), QuaternionMul._mul(g, a * flip)


# ---------------------------------------------------------------- signals, sampling


class SincKernel(Function):
    @staticmethod
    def forward(ctx, x, cutoff):
        ctx.save_for_backward(x)
        ctx.w = math.pi * cutoff
        a = ctx.w * x
        return torch.where(x == 0, torch.ones_like(x), torch.sin(a) / torch.where(x == 0, torch.ones_like(a), a))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = ctx.w * x
        return g * (torch.cos(a) / x - torch.sin(a) / (a * x)), None


class SpectralGain(Function):
    """irfft(gain * rfft(x)) with a real gain for each frequency"""

    @staticmethod
    def forward(ctx, x, gain):
        n = x.shape[-1]
        spectrum = torch.fft.rfft(x)
        ctx.save_for_backward(spectrum, gain)
        ctx.n = n
        return torch.fft.irfft(spectrum * gain, n)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        spectrum, gain = ctx.saved_tensors
        gs = torch.fft.rfft(g)
        dx = torch.fft.irfft(gs * gain, ctx.n)
        dgain = (spectrum.conj() * gs).real.sum(0) / ctx.n
        return dx, dgain


class GridLerp1d(Function):
    """grid_sample in one dimension, grid in [-1, 1], border padding"""

    @staticmethod
    def _position(grid, n, align_corners):
        return (grid + 1) / 2 * (n - 1) if align_corners else ((grid + 1) * n - 1) / 2

    @staticmethod
    def forward(ctx, x, grid, align_corners):
        n = x.shape[-1]
        raw = GridLerp1d._position(grid, n, align_corners)
        pos = raw.clamp(0, n - 1)
        lo = pos.floor().clamp(0, n - 2).long()
        w = pos - lo
        left, right = x.gather(1, lo), x.gather(1, lo + 1)
        ctx.save_for_backward(x, lo, w, (raw >= 0) & (raw <= n - 1))
        return left * (1 - w) + right * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, lo, w, inside = ctx.saved_tensors
        dx = torch.zeros_like(x).scatter_add_(1, lo, g * (1 - w)).scatter_add_(1, lo + 1, g * w)
        slope = x.gather(1, lo + 1) - x.gather(1, lo)
        return dx, g * slope * inside * (x.shape[-1] - 1) / 2, None


# ---------------------------------------------------------------- state


class InplaceELU(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.x, ctx.alpha = x, alpha
        neg = alpha * torch.expm1(x)
        x.copy_(torch.where(x > 0, x, neg))
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.where(ctx.x > 0, g, g * ctx.alpha * torch.exp(ctx.x)), None


class MaskedGrad(Function):
    """Fills with a value where mask is set."""

    @staticmethod
    def forward(ctx, x, mask, value):
        ctx.save_for_backward(mask)
        return x.masked_fill(mask, value)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g.masked_fill_(mask, 0.0), None, None


class MemoryEfficientSwish(Function):
    @staticmethod
    def forward(x):
        sig = torch.sigmoid(x)
        return x * sig, sig

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, g, _):
        x, sig = ctx.saved_tensors
        return g * sig * (1 + x * (1 - sig))


class StatsPooling(Function):
    """mean and standard deviation over time, as in x-vectors"""

    @staticmethod
    def forward(ctx, x, eps):
        mean = x.mean(-1)
        centred = x - mean[..., None]
        std = (centred.square().mean(-1) + eps).sqrt()
        ctx.save_for_backward(centred, std)
        return mean, std

    @staticmethod
    @once_differentiable
    def backward(ctx, gmean, gstd):
        centred, std = ctx.saved_tensors
        return (gmean[..., None] / centred.shape[-1]).expand_as(centred), None


class NormalizeWithNorm(Function):
    """x / |x|, and |x|"""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        norm = x.norm(dim=-1, keepdim=True)
        u = x / norm
        ctx.save_for_backward(u, norm)
        return u, norm.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gnorm):
        u, norm = ctx.saved_tensors
        if gu is None:
            return None
        dx = (gu - u * (u * gu).sum(-1, keepdim=True)) / norm
        if gnorm is not None:
            dx = dx + gnorm[..., None] * u
        return dx


class SeededDropout(Function):
    """The mask is drawn again in backward, instead of being kept."""

    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        generator = torch.Generator(device=x.device).manual_seed(seed)
        keep = torch.rand(x.shape, generator=generator, device=x.device) >= p
        return x * keep / (1 - p)

    @staticmethod
    def backward(ctx, g):
        keep = torch.rand(g.shape, device=g.device) >= ctx.p
        return g * keep / (1 - ctx.p), None, None


class LinearFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        y = x @ weight.t()
        return y + bias if ctx.has_bias else y

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g @ weight
        if ctx.needs_input_grad[1]:
            dw = g.t() @ x
            if ctx.has_bias:
                db = g.sum(0)
        return dx, dw, db


class _PReLUFn(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        xf = _acc(x)
        return torch.where(xf > 0, xf, _acc(slope).view(1, -1, 1) * xf).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        xf, gf = _acc(x), _acc(g)
        positive = xf > 0
        dx = torch.where(positive, gf, gf * _acc(slope).view(1, -1, 1))
        dslope = torch.where(positive, torch.zeros_like(gf), gf * xf)
        dslope = dslope.sum() if slope.numel() == 1 else dslope.sum((0, 2))
        return dx.to(x.dtype), dslope.to(slope.dtype)


class ChannelPReLU(nn.Module):
    def __init__(self, num_parameters, init=0.25):
        super().__init__()
        self.slope = nn.Parameter(torch.full((num_parameters,), init))

    def forward(self, x):
        return _PReLUFn.apply(x, self.slope)


class _SigmoidGateGrad(Function):
    @staticmethod
    def forward(ctx, g, x, w):
        ctx.save_for_backward(g, x, w)
        s = torch.sigmoid(x)
        return g * w * s * (1 - s), (g * s).sum(0)

    @staticmethod
    def backward(ctx, hx, hw):
        g, x, w = ctx.saved_tensors
        s = torch.sigmoid(x)
        ds = s * (1 - s)
        gg = hx * w * ds + hw * s
        gx = hx * g * w * ds * (1 - 2 * s)
        gw = (hx * g * ds).sum(0)
        return gg, gx, gw


class SigmoidGate(Function):
    """sigmoid(x) * w, with a double backward of its own (for gradient penalties)"""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sigmoid(x) * w

    @staticmethod
    def backward(ctx, g):
        return _SigmoidGateGrad.apply(g, *ctx.saved_tensors)


def cumprod_reference(x):
    """Products of prefixes, one by one."""
    out = [x[..., 0]]
    for i in range(1, x.shape[-1]):
        out.append(out[-1] * x[..., i])
    return torch.stack(out, -1)
