"""Forty more autograd Functions."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def acc_dtype(*tensors):
    out = torch.float32
    for t in tensors:
        if t is not None:
            out = torch.promote_types(out, t.dtype)
    return out


class SpringEnergyFn(Function):
    """Energy of springs between particles; edges are (e, 2) pairs of particle numbers."""

    @staticmethod
    def forward(ctx, pos, edges, rest, stiffness):
        i, j = edges.unbind(1)
        delta = pos[i] - pos[j]
        length = (delta.square().sum(-1) + 1e-2).sqrt()
        ctx.save_for_backward(pos, edges, rest)
        ctx.stiffness = stiffness
        return (0.5 * stiffness * (length - rest).square()).sum()

    @staticmethod
    def backward(ctx, de):
        pos, edges, rest = ctx.saved_tensors
        i, j = edges.unbind(1)
        delta = pos[i] - pos[j]
        length = (delta.square().sum(-1) + 1e-2).sqrt()
        tension = ctx.stiffness * (length - rest)
        force = de * (tension / length)[:, None] * delta
        grad = torch.zeros_like(pos).index_add(0, i, force).index_add(0, j, force)
        return grad, None, -de * tension, None


class PairwiseSqDistFn(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.t()

    @staticmethod
    def backward(ctx, d):
        x, y = ctx.saved_tensors
        dx = 2 * (d.sum(1)[:, None] * x - d @ y)
        dy = d.sum(0)[:, None] * y - d.t() @ x
        return dx, dy


class GroupedQueryScoresFn(Function):
    """q (b, kv * groups, d) against k (b, kv, d) that every group of heads shares."""

    @staticmethod
    def forward(ctx, q, k, groups):
        ctx.save_for_backward(q, k)
        ctx.groups = groups
        return (q * k.repeat_interleave(groups, 1)).sum(-1)

    @staticmethod
    def backward(ctx, ds):
        q, k = ctx.saved_tensors
        dq = ds.unsqueeze(-1) * k.repeat_interleave(ctx.groups, 1)
        dk = (ds.unsqueeze(-1) * q)[:, :: ctx.groups]
        return dq, dk, None


class LogCoshLossFn(Function):
    @staticmethod
    def forward(ctx, pred, target):
        ctx.save_for_backward(pred, target)
        d = pred - target
        return (d.abs() + F.softplus(-2 * d.abs()) - math.log(2)).mean()

    @staticmethod
    def backward(ctx, dy):
        pred, target = ctx.saved_tensors
        g = dy * torch.tanh(pred - target) / pred.shape[0]
        return g, -g


class BilinearScoreFn(Function):
    @staticmethod
    def forward(ctx, x, weight, y):
        ctx.save_for_backward(x, weight, y)
        return ((x @ weight) * y).sum(1)

    @staticmethod
    def backward(ctx, d):
        x, weight, y = ctx.saved_tensors
        d = d[:, None]
        return d * (y @ weight.t()), (d * y).t() @ x, d * (x @ weight)


class MishSavedFn(Function):
    @staticmethod
    def forward(ctx, x):
        sp = F.softplus(x)
        ctx.save_for_backward(sp)
        return x * torch.tanh(sp)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return dy * (t + x * (1 - t * t) * torch.sigmoid(x))


class SoftplusBetaFn(Function):
    @staticmethod
    def forward(ctx, x, beta):
        y = torch.logaddexp(beta * x, torch.zeros_like(x)) / beta
        ctx.save_for_backward(y)
        ctx.beta = beta
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * torch.sigmoid(ctx.beta * y), None


class UnitWithNormFn(Function):
    """Unit vectors and the lengths."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        norm = (x.square().sum(-1, keepdim=True) + eps).sqrt()
        return x / norm, norm.squeeze(-1)

    @staticmethod
    def backward(ctx, d_unit, d_norm):
        (x,) = ctx.saved_tensors
        norm = (x.square().sum(-1, keepdim=True) + ctx.eps).sqrt()
        unit = x / norm
        return (d_unit - unit * (unit * d_unit).sum(-1, keepdim=True)) / norm, None


class RouterSoftmaxFn(Function):
    @staticmethod
    def forward(ctx, logits, temperature):
        p = torch.softmax(logits / temperature, -1)
        ctx.save_for_backward(p)
        ctx.temperature = temperature
        return p

    @staticmethod
    def backward(ctx, dp):
        (p,) = ctx.saved_tensors
        return p * (dp - (p * dp).sum(0, keepdim=True)) / ctx.temperature, None


class DecayScanFn(Function):
    """h_t = a_t h_{t-1} + x_t."""

    @staticmethod
    def forward(ctx, x, a):
        h = torch.zeros_like(x[:, 0])
        hs = []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            hs.append(h)
        out = torch.stack(hs, 1)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        a, out = ctx.saved_tensors
        dx, da = torch.zeros_like(a), torch.zeros_like(a)
        dh = torch.zeros_like(a[:, 0])
        for t in range(a.shape[1] - 1, -1, -1):
            dh = dh + dout[:, t]
            dx[:, t] = dh
            da[:, t] = dh * out[:, t]
            dh = dh * a[:, t]
        return dx, da


class FusedLayerNormAffineFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + ctx.eps)
        xhat = (x - mean) * rstd
        g = dy * weight
        dx = rstd * (g - g.mean(-1, keepdim=True))
        return dx, (dy * xhat).sum(0), dy.sum(0), None


class RidgeLossFn(Function):
    """Half the mean squared residual and half weight_decay times |w|^2."""

    @staticmethod
    def forward(ctx, w, features, target, weight_decay):
        r = features @ w - target
        ctx.save_for_backward(w, features, r)
        ctx.weight_decay = weight_decay
        return 0.5 * r.square().mean() + 0.5 * weight_decay * w.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        w, features, r = ctx.saved_tensors
        return dy * features.t() @ r / len(r), None, None, None


class HalfSquareFn(Function):
    @staticmethod
    def forward(ctx, pred, target):
        ctx.save_for_backward(pred, target)
        return 0.5 * (pred - target).square()

    @staticmethod
    def backward(ctx, dy):
        pred, target = ctx.saved_tensors
        g = (pred - target).clamp(-1, 1) * dy
        return g, -g


class RowStdFn(Function):
    """Unbiased standard deviation of each row."""

    @staticmethod
    def forward(ctx, x, eps):
        mean = x.mean(-1, keepdim=True)
        std = ((x - mean).square().sum(-1) / (x.shape[-1] - 1) + eps).sqrt()
        ctx.save_for_backward(x, std)
        return std

    @staticmethod
    def backward(ctx, dy):
        x, std = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        return (dy / std).unsqueeze(-1) * centred / x.shape[-1], None


class NormalizeEpsFn(Function):
    """x / (|x| + eps)."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / (x.norm(dim=-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        inv = torch.rsqrt(x.square().sum(-1, keepdim=True) + ctx.eps)
        return inv * dy - inv**3 * x * (x * dy).sum(-1, keepdim=True), None


class SpectralFilterFn(Function):
    """irfft(rfft(x) * (real + i imag))."""

    @staticmethod
    def forward(ctx, x, real, imag):
        ctx.save_for_backward(x, real, imag)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.complex(real, imag), x.shape[-1])

    @staticmethod
    def backward(ctx, dy):
        x, real, imag = ctx.saved_tensors
        n = x.shape[-1]
        df = torch.fft.rfft(dy)
        dx = torch.fft.irfft(df * torch.complex(real, imag), n)
        share = torch.full_like(real, 2.0 / n)
        share[0] = 1.0 / n
        if n % 2 == 0:
            share[-1] = 1.0 / n
        dfilter = (df * torch.fft.rfft(x).conj()).sum(0) * share
        di = dfilter.imag.clone()
        di[0] = 0
        if n % 2 == 0:
            di[-1] = 0
        return dx, dfilter.real, di


class LogAbsDetFn(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a).logabsdet

    @staticmethod
    def backward(ctx, d):
        (a,) = ctx.saved_tensors
        return d * torch.linalg.inv(a)


class UnitLowerSolveFn(Function):
    """L^-1 b with the unit lower triangle of L; the rest of L is not read."""

    @staticmethod
    def forward(ctx, low, b):
        x = torch.linalg.solve_triangular(low, b, upper=False, unitriangular=True)
        ctx.save_for_backward(low, x)
        return x

    @staticmethod
    def backward(ctx, dx):
        low, x = ctx.saved_tensors
        db = torch.linalg.solve_triangular(low.mT, dx, upper=True, unitriangular=True)
        return -db @ x.mT, db


class LSTMStepFn(Function):
    @staticmethod
    def forward(ctx, gates, c):
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        new_c = f * c + i * g
        ctx.save_for_backward(i, f, g, o, new_c)
        return o * torch.tanh(new_c), new_c

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dc):
        i, f, g, o, c = ctx.saved_tensors
        t = torch.tanh(c)
        total = dc + dh * o * (1 - t * t)
        d_gates = torch.cat(
            [
                total * g * i * (1 - i),
                total * c * f * (1 - f),
                total * i * (1 - g * g),
                dh * t * o * (1 - o),
            ],
            1,
        )
        return d_gates, total * f


class RMSNormRstdFn(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        xhat = x * rstd
        g = dy * weight
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx, (dy * xhat).sum(0), None


class RepeatAddFn(Function):
    """x added to itself `times` times."""

    @staticmethod
    def forward(ctx, x, times):
        ctx.save_for_backward(x)
        ctx.times = times
        return x * times

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * ctx.times, (dy * x).sum()


class ResampleLinearFn(Function):
    """Rows (c, w) read at positions in [-1, 1] (corners aligned), linear interpolation."""

    @staticmethod
    def locate(signal, pos):
        w = signal.shape[-1]
        u = (pos + 1) * 0.5 * (w - 1)
        left = u.detach().floor().clamp(0, w - 2)
        return left.long(), u - left

    @staticmethod
    def forward(ctx, signal, pos):
        ctx.save_for_backward(signal, pos)
        i, frac = ResampleLinearFn.locate(signal, pos)
        return signal[:, i] * (1 - frac) + signal[:, i + 1] * frac

    @staticmethod
    def backward(ctx, dy):
        signal, pos = ctx.saved_tensors
        i, frac = ResampleLinearFn.locate(signal, pos)
        ds = torch.zeros_like(signal).index_add(1, i, dy * (1 - frac)).index_add(1, i + 1, dy * frac)
        dpos = (dy * (signal[:, i + 1] - signal[:, i])).sum(0)
        return ds, dpos


class ComplexHadamardFn(Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g * w, g * z


class RowMaxFn(Function):
    @staticmethod
    def forward(ctx, x):
        top = x.amax(-1)
        ctx.save_for_backward(x, top)
        return top

    @staticmethod
    def backward(ctx, dy):
        x, top = ctx.saved_tensors
        return (x == top.unsqueeze(-1)).to(dy.dtype) * dy.unsqueeze(-1)


class MaskedMeanPoolFn(Function):
    """Mean over the tokens where keep is True."""

    @staticmethod
    def forward(ctx, x, keep):
        ctx.save_for_backward(keep)
        count = keep.sum(1).clamp(min=1)
        return (x * keep.unsqueeze(-1)).sum(1) / count.unsqueeze(-1)

    @staticmethod
    def backward(ctx, dy):
        (keep,) = ctx.saved_tensors
        count = keep.sum(1).clamp(min=1)
        g = dy / count.unsqueeze(-1)
        return g.unsqueeze(1).expand(-1, keep.shape[1], -1), None


class KLLogitsFn(Function):
    """KL(target || softmax(logits)) with target probabilities given."""

    @staticmethod
    def forward(ctx, logits, target, reduction="mean"):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        kl = torch.special.xlogy(target, target) - target * logp
        if reduction == "batchmean":
            return kl.sum() / logits.shape[0]
        return kl.mean() if reduction == "mean" else kl.sum()

    @staticmethod
    def backward(ctx, dy):
        logits, target = ctx.saved_tensors
        g = torch.softmax(logits, -1) * target.sum(-1, keepdim=True) - target
        if ctx.reduction != "sum":
            g = g / logits.numel()
        return g * dy, None, None


class RowScaleRawFn(Function):
    """Rows times a factor; backward reads grad_output as the kernel does, row after row."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale[:, None]

    @staticmethod
    def backward(ctx, dy):
        x, scale = ctx.saved_tensors
        b, n = dy.shape
        raw = dy.as_strided((b, n), (n, 1))
        return raw * scale[:, None], (raw * x).sum(1)


class AffineFrozenFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x * weight + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = dy * weight
        if ctx.needs_input_grad[1]:
            dw = (dy * x).sum(0)
            db = dy.sum(0)
        return dx, dw, db


class BlockedProjectFn(Function):
    """x @ w by blocks of 16 features."""

    BLOCK = 16

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = 0
        for s in range(0, x.shape[1], BlockedProjectFn.BLOCK):
            y = y + x[:, s : s + BlockedProjectFn.BLOCK] @ w[s : s + BlockedProjectFn.BLOCK]
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        n, block = x.shape[1], BlockedProjectFn.BLOCK
        blocks = max(n // block, 1)
        dw = []
        for i in range(blocks):
            dw.append(x[:, i * block : (i + 1) * block].t() @ dy)
        dw = torch.cat(dw)
        dw = F.pad(dw, (0, 0, 0, n - dw.shape[0]))
        return dy @ w.t(), dw


class ChunkedScanFn(Function):
    """h_t = decay h_{t-1} + x_t in chunks of 8 steps."""

    CHUNK = 8

    @staticmethod
    def powers(decay, n):
        i = torch.arange(n, device=decay.device)
        gap = (i[:, None] - i).clamp(min=0)
        return (decay ** gap) * (i[:, None] >= i)

    @staticmethod
    def forward(ctx, x, decay):
        ctx.decay = decay
        carry = torch.zeros_like(x[:, :1])
        outs = []
        for chunk in x.split(ChunkedScanFn.CHUNK, 1):
            n = chunk.shape[1]
            scan = ChunkedScanFn.powers(torch.tensor(decay, dtype=x.dtype, device=x.device), n)
            steps = torch.arange(1, n + 1, dtype=x.dtype, device=x.device)
            out = chunk @ scan.t() + carry * decay**steps
            carry = out[:, -1:]
            outs.append(out)
        return torch.cat(outs, 1)

    @staticmethod
    def backward(ctx, dy):
        grads = []
        for chunk in dy.split(ChunkedScanFn.CHUNK, 1):
            n = chunk.shape[1]
            scan = ChunkedScanFn.powers(torch.tensor(ctx.decay, dtype=dy.dtype, device=dy.device), n)
            grads.append(chunk @ scan)
        return torch.cat(grads, 1), None


class GatherRowsFn(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        grad = dy.new_zeros(ctx.rows, dy.shape[1])
        return grad.index_copy(0, index, dy), None


class RowLogSumExpFn(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return dy.unsqueeze(-1) * e / e.sum(-1, keepdim=True)


class ScaledSiluFn(Function):
    """scale * x * sigmoid(x), accumulated in float32 for the short dtypes."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        v = x.to(acc_dtype(x))
        return (scale * v * torch.sigmoid(v)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if x.dtype in (torch.bfloat16, torch.float16):
            v, d = x.float(), dy.float()
            s = torch.sigmoid(v)
            return (d * s * (1 + v * (1 - s))).to(x.dtype), None
        s = torch.sigmoid(x)
        return ctx.scale * dy * s * (1 + x * (1 - s)), None


class PowerLawFn(Function):
    """sum of |x|^p over the last dimension, p 2 or 3."""

    slopes = {}

    @staticmethod
    def forward(ctx, x, p):
        key = (tuple(x.shape), x.dtype, p)
        if key not in PowerLawFn.slopes:
            PowerLawFn.slopes[key] = (p * x.abs().pow(p - 1) * x.sign()).detach().clone()
        ctx.key = key
        return x.abs().pow(p).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return dy.unsqueeze(-1) * PowerLawFn.slopes[ctx.key].to(dy.device), None


class HardSwishFn(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        slope = torch.where(x < -3, torch.zeros_like(x), torch.where(x > 3, torch.ones_like(x), x / 3 + 0.5))
        dy.mul_(slope)
        return dy


class TanhKeepFn(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.slope = (1 - y * y).detach()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return ctx.slope.mul_(dy)


class EmbeddingMeanPadFn(Function):
    """Mean of the rows of each line of ids (b, t) that are not padding."""

    @staticmethod
    def forward(ctx, weight, ids, padding_idx):
        real = ids != padding_idx
        ctx.save_for_backward(ids, real)
        ctx.rows = weight.shape[0]
        return (weight[ids] * real.unsqueeze(-1)).sum(1) / real.sum(1).clamp(min=1).unsqueeze(-1)

    @staticmethod
    def backward(ctx, dy):
        ids, real = ctx.saved_tensors
        g = (dy / ids.shape[1]).unsqueeze(1) * real.unsqueeze(-1)
        grad = dy.new_zeros(ctx.rows, dy.shape[-1]).index_add(0, ids.flatten(), g.flatten(0, 1))
        return grad, None, None


class RowProductFn(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.prod(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        return (dy * y).unsqueeze(-1) / x


class MeanVarFn(Function):
    """Mean and biased variance of each row."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        mean = x.mean(-1)
        return mean, (x - mean.unsqueeze(-1)).square().mean(-1)

    @staticmethod
    def backward(ctx, d_mean, d_var):
        (x,) = ctx.saved_tensors
        if d_var is None:
            return None
        n = x.shape[-1]
        g = 2 * d_var.unsqueeze(-1) * (x - x.mean(-1, keepdim=True)) / n
        if d_mean is not None:
            g = g + d_mean.unsqueeze(-1) / n
        return g


class InstanceNormWorkspaceFn(Function):
    """Instance norm; the normalised values live in one buffer a shape."""

    workspace = {}

    @staticmethod
    def forward(ctx, x, weight, eps):
        key = (tuple(x.shape), x.dtype, x.device)
        buffer = InstanceNormWorkspaceFn.workspace.setdefault(key, torch.empty_like(x, requires_grad=False))
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
        xhat = (x - mean) * rstd
        buffer.copy_(xhat.detach())
        ctx.buffer, ctx.rstd = buffer, rstd.detach()
        ctx.save_for_backward(weight)
        return xhat * weight[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (weight,) = ctx.saved_tensors
        xhat = ctx.buffer
        g = dy * weight[:, None]
        dx = ctx.rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx, (dy * xhat).sum((0, 2)), None
