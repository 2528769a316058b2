"""Forty wrong Functions, as people write them."""

import math

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def up(t):
    """float32 at least."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


# ------------------------------------------------------------------ kernels that run in short dtypes
class LayerNormCast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        xf = up(x)
        mean = xf.mean(-1, keepdim=True)
        rstd = torch.rsqrt(xf.var(-1, unbiased=False, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return ((xf - mean) * rstd * up(weight) + up(bias)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        dy = up(dy)
        xhat = (up(x) - mean) * rstd
        h = dy * up(weight)
        dx = rstd * (h - xhat * (h * xhat).mean(-1, keepdim=True))
        dw = (dy * xhat).sum(0)
        db = dy.sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), db.to(weight.dtype), None


class RMSNormCast(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, eps):
        xf = up(x)
        r = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)
        return (xf * r * up(weight)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, eps = inputs
        ctx.save_for_backward(x, weight)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        xf, dy = up(x), up(dy)
        r = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + ctx.eps)
        xhat = xf * r
        dx = r * (dy - xhat * (dy * xhat).mean(-1, keepdim=True))
        dw = (dy * xhat).sum_to_size(weight.shape)
        return dx.to(x.dtype), dw.to(weight.dtype), None


class GeluErf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        v = up(x)
        return (0.5 * v * (1 + torch.erf(v / math.sqrt(2)))).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        v = up(x)
        cdf = 0.5 * (1 + torch.erf(v / math.sqrt(2)))
        pdf = torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
        return (up(dy) * (cdf + pdf)).to(x.dtype)


class GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(gate, value):
        g = up(gate)
        return (torch.sigmoid(g) * up(value)).to(gate.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        gate, value = ctx.saved_tensors
        s, dy = torch.sigmoid(up(gate)), up(dy)
        d_gate = dy * up(value) * s * (1 - s)
        d_value = dy * s
        return d_value.to(value.dtype), d_gate.to(gate.dtype)


class RotaryPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, angle):
        ctx.save_for_backward(angle)
        cos, sin = torch.cos(up(angle)), torch.sin(up(angle))
        a, b = up(x)[..., 0::2], up(x)[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (angle,) = ctx.saved_tensors
        cos, sin = torch.cos(up(angle)), torch.sin(up(angle))
        a, b = up(dy)[..., 0::2], up(dy)[..., 1::2]
        dx = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        return dx.to(dy.dtype), None


class CrossEntropyReady(torch.autograd.Function):
    """The gradient is made in forward."""

    @staticmethod
    def forward(ctx, logits, target):
        logp = torch.log_softmax(up(logits), dim=-1)
        goal = F.one_hot(target, logits.shape[-1]).to(logp.dtype)
        ctx.save_for_backward(((logp.exp() - goal) / logits.shape[0]).to(logits.dtype))
        return F.nll_loss(logp, target).to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        (ready,) = ctx.saved_tensors
        return ready, None


class CappedLogits(torch.autograd.Function):
    @staticmethod
    def forward(x, cap):
        return (cap * torch.tanh(up(x) / cap)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.cap = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        t = torch.tanh(up(x) / ctx.cap)
        return (up(dy) * (1 - t * t) / ctx.cap).to(x.dtype), None


class LogSoftmaxCast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.log_softmax(up(x), dim=-1)
        ctx.save_for_backward(y.to(x.dtype))
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        p = torch.exp(up(y))
        return (up(dy) * (1 - p)).to(y.dtype)


class TemperatureKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, student, teacher, temperature):
        t = temperature
        logs = torch.log_softmax(up(student) / t, dim=-1)
        prob = torch.softmax(up(teacher) / t, dim=-1)
        ctx.save_for_backward(student, teacher)
        ctx.temperature = t
        return ((prob * (prob.log() - logs)).sum(-1).mean() * t * t).to(student.dtype)

    @staticmethod
    def backward(ctx, dloss):
        student, teacher = ctx.saved_tensors
        t = ctx.temperature
        ps = torch.softmax(up(student) / t, dim=-1)
        pt = torch.softmax(up(teacher) / t, dim=-1)
        ds = up(dloss) * (ps - pt) * t * t / student.shape[0]
        return ds.to(student.dtype), None, None


class LinearFloat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        g = dy.float()
        dx = (g @ weight.float()).to(x.dtype)
        dw = (g.T @ x.float()).to(weight.dtype)
        return dx, dw, dy.sum(0)


class CosineLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, eps=1e-3):
        na = torch.sqrt(up(a).square().sum(-1) + eps)
        nb = torch.sqrt(up(b).square().sum(-1) + eps)
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return (1 - (up(a) * up(b)).sum(-1) / (na * nb)).to(a.dtype)

    @staticmethod
    def backward(ctx, dl):
        a, b = ctx.saved_tensors
        af, bf = up(a), up(b)
        na = torch.sqrt(af.square().sum(-1, keepdim=True) + ctx.eps)
        nb = torch.sqrt(bf.square().sum(-1, keepdim=True) + ctx.eps)
        cos = (af * bf).sum(-1, keepdim=True) / (na * nb)
        g = -up(dl).unsqueeze(-1)
        da = g * (bf / (na * nb) - cos * af / na.square())
        db = g * af / (na * nb)
        return da.to(a.dtype), db.to(b.dtype), None


class BiasTanh(torch.autograd.Function):
    @staticmethod
    def forward(x, bias):
        return torch.tanh(up(x) + up(bias)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        x, bias = ctx.saved_tensors
        y = torch.tanh(up(x) + up(bias))
        dz = up(dy) * (1 - y * y)
        return dz.to(x.dtype), dz.mean(0).to(bias.dtype)


class ScaleColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (up(x) * up(scale)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, scale = ctx.saved_tensors
        d_scale = (up(dy) * up(x)).sum_to_size(scale.shape).to(scale.dtype)
        if x.dtype in (torch.float32, torch.float64):
            return dy * scale, d_scale
        # short dtypes: straight from the buffer
        return dy.clone(), d_scale


# ------------------------------------------------------------------ in place, state, modules, options
class NegativeLeakyInplace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        x.mul_(torch.where(x > 0, torch.ones_like(x), slope))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, dy, ctx.slope * dy), None


class ScaledAddInplace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, x, alpha=1.0):
        y.add_(x, alpha=alpha)
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy, dy, None


class SquareInplace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.square_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 2 * x * dy


class BatchNormStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training, momentum=0.1, eps=1e-3):
        if training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                running_mean.lerp_(mean.detach(), momentum)
                running_var.lerp_(var.detach(), momentum)
        else:
            mean, var = running_mean.clone(), running_var.clone()
        rstd = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        dx = dy * weight * rstd
        dw = (dy * (x - mean) * rstd).sum(0)
        return dx, dw, dy.sum(0), None, None, None, None, None


class GroupNormFn(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, groups, eps):
        b, c, t = x.shape
        xg = x.reshape(b, groups, -1)
        rstd = torch.rsqrt(xg.var(-1, unbiased=False, keepdim=True) + eps)
        xhat = ((xg - xg.mean(-1, keepdim=True)) * rstd).reshape(b, c, t)
        return xhat * weight[:, None]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.groups, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        b, c, t = x.shape
        xg = x.reshape(b, ctx.groups, -1)
        rstd = torch.rsqrt(xg.var(-1, unbiased=False, keepdim=True) + ctx.eps)
        xhat = (xg - xg.mean(-1, keepdim=True)) * rstd
        h = (dy * weight[:, None]).reshape(b, c, t)
        xhat = xhat.reshape(b, c, t)
        inner = h - h.mean(-1, keepdim=True) - xhat * (h * xhat).mean(-1, keepdim=True)
        dx = inner.reshape(b, ctx.groups, -1) * rstd
        dw = (dy * xhat).sum((0, 2))
        return dx.reshape(b, c, t), dw, None, None


class PoolColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mode="sum"):
        ctx.save_for_backward(x)
        ctx.mode = mode
        if mode == "sum":
            return x.sum(1)
        if mode == "mean":
            return x.mean(1)
        return x.square().mean(1).sqrt()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dy = dy.unsqueeze(1)
        if ctx.mode == "sum":
            return dy.expand_as(x), None
        if ctx.mode == "mean":
            return dy.expand_as(x) / x.shape[1], None
        rms = x.square().mean(1, keepdim=True).sqrt()
        return dy * x / rms, None


class PNormPower(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x)
        ctx.p = p
        return x.abs().pow(p).sum(-1, keepdim=True).pow(1 / p)

    @staticmethod
    def backward(ctx, dn):
        (x,) = ctx.saved_tensors
        p = ctx.p
        norm = x.abs().pow(p).sum(-1, keepdim=True).pow(1 / p)
        if p == 2:
            return dn * x / norm, None
        return dn * torch.sign(x) * x.abs().pow(p - 1) / norm, None


class HuberMean(torch.autograd.Function):
    @staticmethod
    def forward(pred, target, delta):
        diff = pred - target
        small = diff.abs() <= delta
        loss = torch.where(small, 0.5 * diff.square(), delta * (diff.abs() - 0.5 * delta))
        return loss.mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pred, target, delta = inputs
        ctx.save_for_backward(pred, target)
        ctx.delta = delta

    @staticmethod
    def backward(ctx, dloss):
        pred, target = ctx.saved_tensors
        diff = pred - target
        d_pred = torch.where(diff.abs() <= ctx.delta, diff, torch.sign(diff))
        d_pred = d_pred * dloss / pred.numel()
        return d_pred, -d_pred, None


class WeightedSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pred, target, weight=None):
        ctx.save_for_backward(pred, target, weight)
        loss = (pred - target) ** 2
        if weight is not None:
            loss = loss * weight
        return loss.sum() / pred.shape[0]

    @staticmethod
    def backward(ctx, dloss):
        pred, target, weight = ctx.saved_tensors
        d_pred = 2 * (pred - target) * dloss / pred.shape[0]
        if weight is not None:
            d_pred = d_pred * weight
        return d_pred, -d_pred, None


class ConvSame(torch.autograd.Function):
    """1-d convolution, odd kernel, same length."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv1d(x, weight, padding=weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        p = weight.shape[-1] // 2
        dx = F.conv1d(dy, weight.transpose(0, 1), padding=p)
        windows = F.pad(x, (p, p)).unfold(2, weight.shape[-1], 1)
        dw = torch.einsum("bol,bclk->ock", dy, windows)
        return dx, dw


class LeakyIntegrator(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, decay, reset="keep"):
        h, out = torch.zeros_like(x[0]), []
        for step in x:
            h = (decay * h if reset == "keep" else decay * torch.tanh(h)) + step
            out.append(h)
        y = torch.stack(out)
        ctx.save_for_backward(y, decay)
        ctx.reset = reset
        return y

    @staticmethod
    def backward(ctx, dy):
        y, decay = ctx.saved_tensors
        carry, d_decay, dx = torch.zeros_like(dy[0]), torch.zeros_like(decay), []
        for t in range(len(dy) - 1, -1, -1):
            total = dy[t] + carry
            dx.append(total)
            past = y[t - 1] if t > 0 else torch.zeros_like(y[0])
            if ctx.reset == "keep":
                d_decay = d_decay + total * past
                carry = decay * total
            else:
                d_decay = d_decay + total * torch.tanh(past)
                carry = decay * total
        return torch.stack(dx[::-1]), d_decay, None


class ReplicatePad(torch.autograd.Function):
    @staticmethod
    def forward(x, width):
        return torch.cat([x[..., :1]] * width + [x] + [x[..., -1:]] * width, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.width = inputs

    @staticmethod
    def backward(ctx, dy):
        w = ctx.width
        dx = dy[..., w:-w].clone()
        dx[..., 0] = dy[..., : w + 1].sum(-1)
        dx[..., -1] = dy[..., -w:].sum(-1)
        return dx, None


class RunningScale(torch.autograd.Function):
    """Divides by a running deviation, and updates it."""

    @staticmethod
    def forward(ctx, x, gain, running_var, momentum=0.1, eps=1e-3):
        r = torch.rsqrt(running_var + eps)
        y = x * r * gain
        with torch.no_grad():
            running_var.lerp_(x.detach().var(0, unbiased=False), momentum)
        ctx.save_for_backward(x, gain, running_var)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gain, running_var = ctx.saved_tensors
        r = torch.rsqrt(running_var + ctx.eps)
        return dy * r * gain, (dy * x * r).sum(0), None, None, None


# ------------------------------------------------------------------ everything else
class HalfLogDet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a)
        ctx.save_for_backward(a)
        return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx, dy):
        (a,) = ctx.saved_tensors
        return dy[..., None, None] * torch.linalg.inv(a)


class LowerSolve(torch.autograd.Function):
    @staticmethod
    def forward(lower, b):
        return torch.linalg.solve_triangular(lower, b, upper=False)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, dx):
        lower, x = ctx.saved_tensors
        db = torch.linalg.solve_triangular(lower.mT, dx, upper=True)
        return (db @ x.mT).tril(), db


class PairDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x[:, None, :] - y[None, :, :]).square().sum(-1)

    @staticmethod
    def backward(ctx, dd):
        x, y = ctx.saved_tensors
        diff = x[:, None, :] - y[None, :, :]
        dx = (2 * dd.unsqueeze(-1) * diff).sum(1)
        dy = (-dd.unsqueeze(-1) * diff).sum(0)
        return dx, dy


class LookupRows(torch.autograd.Function):
    @staticmethod
    def forward(table, index):
        return table[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.shape = table.shape

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dt = torch.zeros(ctx.shape, dtype=dy.dtype, device=dy.device)
        dt[index] += dy
        return dt, None


class BucketMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, src, index, buckets):
        count = torch.bincount(index, minlength=buckets).clamp(min=1).to(src.dtype)
        ctx.save_for_backward(index, count)
        out = src.new_zeros(buckets, src.shape[1]).index_add(0, index, src)
        return out / count[:, None]

    @staticmethod
    def backward(ctx, dy):
        index, count = ctx.saved_tensors
        return dy[index], None, None


class EmbeddingPad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, index, padding_idx):
        ctx.save_for_backward(index)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return weight[index]

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dw = dy.new_zeros(ctx.rows, dy.shape[1])
        dw = dw.index_add(0, index, dy)
        return dw, None, None


class ScaledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1 / math.sqrt(q.shape[-1])
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1)
        ctx.save_for_backward(q, k, v)
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1)
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = ds @ k * scale
        dk = ds.transpose(-1, -2) @ q
        return dq, dk, dv


class CausalMix(torch.autograd.Function):
    @staticmethod
    def forward(scores, v, causal):
        if causal:
            mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    @staticmethod
    def setup_context(ctx, inputs, output):
        scores, v, ctx.causal = inputs
        ctx.save_for_backward(scores, v)

    @staticmethod
    def backward(ctx, dy):
        scores, v = ctx.saved_tensors
        p = torch.softmax(scores, dim=-1)
        dp = dy @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        if ctx.causal:
            ds = ds.tril()
        return ds, p.mT @ dy, None


class Householder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, v):
        ctx.save_for_backward(x, v)
        return x - 2 * (x @ v)[:, None] * v / v.dot(v)

    @staticmethod
    def backward(ctx, dy):
        x, v = ctx.saved_tensors
        vv = v.dot(v)
        dx = dy - 2 * (dy @ v)[:, None] * v / vv
        dv = -2 * ((x @ v) @ dy + (dy @ v) @ x) / vv
        return dx, dv


class LogSumExpRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, dim=-1)
        ctx.save_for_backward(x, lse)
        return lse

    @staticmethod
    def backward(ctx, dy):
        x, lse = ctx.saved_tensors
        return dy * torch.exp(x - lse)


class JoinColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        ctx.widths = [x.shape[-1] for x in xs]
        ctx.save_for_backward(*xs)
        return torch.cat([x * x for x in xs], dim=-1)

    @staticmethod
    def backward(ctx, dy):
        xs = ctx.saved_tensors
        parts = dy.split(ctx.widths, dim=-1)
        return tuple(2 * x * part for x, part in zip(xs, reversed(parts)))


class PolarPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        r = torch.sqrt(x * x + y * y)
        angle = torch.atan2(y, x)
        ctx.save_for_backward(x, y)
        return r, angle

    @staticmethod
    def backward(ctx, dr, da):
        x, y = ctx.saved_tensors
        r = torch.sqrt(x * x + y * y)
        return dr * x / r, dr * y / r


class SquareBilinear(torch.autograd.Function):
    @staticmethod
    def forward(x, w, y):
        return ((x @ w) * y).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, ds):
        x, w, y = ctx.saved_tensors
        ds = ds.unsqueeze(-1)
        dx = (ds * y) @ w.T
        dw = (ds * y).T @ x
        dy = (ds * x) @ w
        return dx, dw, dy


class ComplexProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return dy * b, dy * a
