"""Right Functions in the style of layers, losses and kernels' wrappers, to plant bugs in."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Conv2dFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None, stride=1, padding=0):
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        ctx.padding = padding
        ctx.has_bias = bias is not None
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.nn.grad.conv2d_input(x.shape, weight, grad_output, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            grad_w = torch.nn.grad.conv2d_weight(x, weight.shape, grad_output, ctx.stride, ctx.padding)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = grad_output.sum((0, 2, 3))
        return grad_x, grad_w, grad_b, None, None


class MaxPool2x2(Function):
    @staticmethod
    def forward(ctx, x):
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        ctx.save_for_backward(indices)
        ctx.input_shape = x.shape
        return y

    @staticmethod
    def backward(ctx, dy):
        (indices,) = ctx.saved_tensors
        n, c, h, w = ctx.input_shape
        dx = dy.new_zeros(n, c, h * w)
        dx = dx.scatter_add(2, indices.reshape(n, c, -1), dy.reshape(n, c, -1))
        return dx.view(n, c, h, w)


class Upsample2x(Function):
    """Linear interpolation along the last dimension, align_corners=False."""

    @staticmethod
    def forward(ctx, x):
        length = x.shape[-1]
        position = ((torch.arange(2 * length, dtype=x.dtype) + 0.5) / 2 - 0.5).clamp(min=0)
        low = position.floor().long()
        high = (low + 1).clamp(max=length - 1)
        frac = position - low
        ctx.save_for_backward(low, high, frac)
        ctx.length = length
        return x[..., low] * (1 - frac) + x[..., high] * frac

    @staticmethod
    def backward(ctx, grad):
        low, high, frac = ctx.saved_tensors
        dx = grad.new_zeros(*grad.shape[:-1], ctx.length)
        dx = dx.index_add(-1, low, grad * (1 - frac))
        return dx.index_add(-1, high, grad * frac)


class GridSample1d(Function):
    @staticmethod
    def forward(ctx, signal, grid):
        n, length = signal.shape
        where = (grid + 1) / 2 * (length - 1)
        left = where.floor().clamp(0, length - 2).long()
        frac = where - left
        a, b = signal.gather(1, left), signal.gather(1, left + 1)
        ctx.save_for_backward(a, b, left, frac)
        ctx.length = length
        return a + (b - a) * frac

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, left, frac = ctx.saved_tensors
        d_signal = torch.zeros(g.shape[0], ctx.length, dtype=g.dtype)
        d_signal.scatter_add_(1, left, g * (1 - frac))
        d_signal.scatter_add_(1, left + 1, g * frac)
        d_grid = g * (b - a) * (ctx.length - 1) / 2
        return d_signal, d_grid


class MaskedAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask=None, dropout_p=0.0):
        scale = 1.0 / math.sqrt(q.size(-1))
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        attn = scores.softmax(dim=-1)
        if dropout_p > 0:
            keep = torch.rand_like(attn) >= dropout_p
            dropped = attn * keep / (1 - dropout_p)
        else:
            keep, dropped = None, attn
        ctx.save_for_backward(q, k, v, attn, keep)
        ctx.scale, ctx.dropout_p = scale, dropout_p
        return torch.matmul(dropped, v)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out):
        q, k, v, attn, keep = ctx.saved_tensors
        d_attn = torch.matmul(d_out, v.transpose(-2, -1))
        dropped = attn
        if keep is not None:
            d_attn = d_attn * keep / (1 - ctx.dropout_p)
            dropped = attn * keep / (1 - ctx.dropout_p)
        d_v = torch.matmul(dropped.transpose(-2, -1), d_out)
        d_scores = attn * (d_attn - (d_attn * attn).sum(dim=-1, keepdim=True))
        d_scores = d_scores * ctx.scale
        d_q = torch.matmul(d_scores, k)
        d_k = torch.matmul(d_scores.transpose(-2, -1), q)
        return d_q, d_k, d_v, None, None


def banded(generator, device, dtype, shape):
    """Which keys each query sees: itself and those before it."""
    return torch.ones(shape, dtype=torch.bool).tril()


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target, weight=None, ignore_index=-100, reduction="mean", smoothing=0.0):
        logp = logits.log_softmax(-1)
        valid = target != ignore_index
        safe = target.masked_fill(~valid, 0)
        w = torch.ones_like(logits[0]) if weight is None else weight
        row_w = w[safe] * valid
        nll = -logp.gather(1, safe[:, None]).squeeze(1) * row_w
        smooth = -(logp * w).sum(-1) * valid
        loss = (1 - smoothing) * nll + smoothing / logits.shape[1] * smooth
        ctx.save_for_backward(logp, safe, valid, w, row_w)
        ctx.reduction, ctx.smoothing = reduction, smoothing
        if reduction == "mean":
            return loss.sum() / row_w.sum()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        logp, safe, valid, w, row_w = ctx.saved_tensors
        p = logp.exp()
        classes = logp.shape[1]
        if ctx.reduction == "mean":
            grad = grad / row_w.sum()
        if ctx.reduction != "none":
            grad = grad.expand(logp.shape[0])
        one_hot = F.one_hot(safe, classes).to(p.dtype)
        hard = (p - one_hot) * row_w[:, None]
        soft = (p * w.sum() - w) * valid[:, None]
        d = (1 - ctx.smoothing) * hard + ctx.smoothing / classes * soft
        return d * grad[:, None], None, None, None, None, None


class BCEWithLogits(Function):
    @staticmethod
    def forward(ctx, x, y, pos_weight=None, reduction="mean"):
        ctx.save_for_backward(x, y, pos_weight)
        ctx.reduction = reduction
        log_weight = 1 if pos_weight is None else (pos_weight - 1) * y + 1
        loss = (1 - y) * x + log_weight * F.softplus(-x)
        if reduction == "mean":
            return loss.mean()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    def backward(ctx, g):
        x, y, pos_weight = ctx.saved_tensors
        log_weight = 1 if pos_weight is None else (pos_weight - 1) * y + 1
        d = (1 - y) - log_weight * torch.sigmoid(-x)
        if ctx.reduction == "mean":
            d = d / x.numel()
        return g * d, None, None, None


class SmoothL1(Function):
    @staticmethod
    def forward(ctx, pred, target, beta=1.0, reduction="none"):
        diff = pred - target
        ctx.save_for_backward(pred, target)
        ctx.beta = beta
        ctx.reduction = reduction
        a = diff.abs()
        loss = torch.where(a < beta, 0.5 * diff * diff / beta, a - 0.5 * beta)
        return {"none": lambda t: t, "sum": torch.sum, "mean": torch.mean}[reduction](loss)

    @staticmethod
    def backward(ctx, g):
        pred, target = ctx.saved_tensors
        diff = pred - target
        slope = torch.where(diff.abs() < ctx.beta, diff / ctx.beta, diff.sign())
        if ctx.reduction == "mean":
            slope = slope / diff.numel()
        d = slope * g
        return d, -d, None, None


class CosineSimilarity(Function):
    @staticmethod
    def forward(ctx, a, b):
        na = a.norm(dim=-1, keepdim=True)
        nb = b.norm(dim=-1, keepdim=True)
        cos = (a * b).sum(-1, keepdim=True) / (na * nb)
        ctx.save_for_backward(a, b, na, nb, cos)
        return cos.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, na, nb, cos = ctx.saved_tensors
        g = g.unsqueeze(-1)
        da = g * (b / (na * nb) - cos * a / na**2)
        db = g * (a / (na * nb) - cos * b / nb**2)
        return da, db


class DiceLoss(Function):
    @staticmethod
    def forward(ctx, logits, target, smooth=1.0):
        p = logits.sigmoid()
        dims = tuple(range(1, logits.dim()))
        inter = (p * target).sum(dims)
        total = p.sum(dims) + target.sum(dims)
        ctx.save_for_backward(p, target, inter, total)
        ctx.smooth = smooth
        return (1 - (2 * inter + smooth) / (total + smooth)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, target, inter, total = ctx.saved_tensors
        shape = (-1,) + (1,) * (p.dim() - 1)
        num = (2 * inter + ctx.smooth).view(shape)
        den = (total + ctx.smooth).view(shape)
        dp = -(2 * target * den - num) / den**2
        return g / p.shape[0] * dp * p * (1 - p), None, None


class GRUCell(Function):
    @staticmethod
    def forward(ctx, gi, gh, h):
        i_r, i_z, i_n = gi.chunk(3, 1)
        h_r, h_z, h_n = gh.chunk(3, 1)
        r = torch.sigmoid(i_r + h_r)
        z = torch.sigmoid(i_z + h_z)
        n = torch.tanh(i_n + r * h_n)
        ctx.save_for_backward(r, z, n, h_n, h)
        return n + z * (h - n)

    @staticmethod
    @once_differentiable
    def backward(ctx, gy):
        r, z, n, h_n, h = ctx.saved_tensors
        dn = gy * (1 - z) * (1 - n * n)
        dz = gy * (h - n) * z * (1 - z)
        dr = dn * h_n * r * (1 - r)
        return torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1), gy * z


class LSTMCell(Function):
    @staticmethod
    def forward(ctx, gates, c):
        i, f, g, o = gates.chunk(4, dim=1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new_c = f * c + i * g
        tc = new_c.tanh()
        ctx.save_for_backward(i, f, g, o, c, tc)
        return o * tc, new_c

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dc):
        i, f, g, o, c, tc = ctx.saved_tensors
        dc = dc + dh * o * (1 - tc * tc)
        di = dc * g * i * (1 - i)
        df = dc * c * f * (1 - f)
        dg = dc * i * (1 - g * g)
        do = dh * tc * o * (1 - o)
        return torch.cat((di, df, dg, do), 1), dc * f


class LinearScan(Function):
    """h[t] = a[t] h[t-1] + x[t], along the last dimension."""

    @staticmethod
    def forward(ctx, a, x, h0=None):
        h = torch.zeros_like(x[..., 0]) if h0 is None else h0
        states = []
        for t in range(x.shape[-1]):
            h = a[..., t] * h + x[..., t]
            states.append(h)
        out = torch.stack(states, -1)
        ctx.save_for_backward(a, out, h0)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, out, h0 = ctx.saved_tensors
        da, dx = torch.zeros_like(a), torch.empty_like(out)
        carry = torch.zeros_like(g[..., 0])
        for t in reversed(range(out.shape[-1])):
            carry = carry + g[..., t]
            dx[..., t] = carry
            if t > 0:
                da[..., t] = carry * out[..., t - 1]
            elif h0 is not None:
                da[..., t] = carry * h0
            carry = carry * a[..., t]
        return da, dx, carry if h0 is not None else None


class GroupNormFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups=2, eps=1e-5):
        n, c = x.shape[:2]
        grouped = x.reshape(n, groups, -1)
        mean = grouped.mean(-1, keepdim=True)
        rstd = (grouped.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        xhat = ((grouped - mean) * rstd).view(x.shape)
        ctx.save_for_backward(xhat, rstd, weight)
        ctx.groups = groups
        shape = (1, c) + (1,) * (x.dim() - 2)
        return xhat * weight.view(shape) + bias.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        xhat, rstd, weight = ctx.saved_tensors
        n, c = xhat.shape[:2]
        dims = [0, *range(2, xhat.dim())]
        dw = (dy * xhat).sum(dims)
        db = dy.sum(dims)
        dxhat = dy * weight.view((1, c) + (1,) * (xhat.dim() - 2))
        d = dxhat.reshape(n, ctx.groups, -1)
        h = xhat.reshape(n, ctx.groups, -1)
        dx = rstd * (d - d.mean(-1, keepdim=True) - h * (d * h).mean(-1, keepdim=True))
        return dx.view(xhat.shape), dw, db, None, None


class BatchNorm1dFn(Function):
    @staticmethod
    def forward(ctx, x, weight, running_mean, running_var, training=True, momentum=0.1, eps=1e-5):
        if training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            running_var.mul_(1 - momentum).add_(var, alpha=momentum)
        else:
            mean, var = running_mean.clone(), running_var.clone()
        invstd = 1 / torch.sqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.training = training
        return (x - mean) * invstd * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, mean, invstd = ctx.saved_tensors
        xhat = (x - mean) * invstd
        dweight = (g * xhat).sum(0)
        if ctx.training:
            dx = weight * invstd * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        else:
            dx = g * weight * invstd
        return dx, dweight, None, None, None, None, None


class AddRMSNorm(Function):
    """Residual added, then normalised; both are returned."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-6):
        total = x + residual
        rms = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, rms, weight)
        return total * rms * weight, total

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dtotal):
        total, rms, weight = ctx.saved_tensors
        wdy = dy * weight
        d = rms * wdy - total * rms**3 * (wdy * total).mean(-1, keepdim=True) + dtotal
        dw = (dy * total * rms).reshape(-1, weight.shape[0]).sum(0)
        return d, d, dw, None


class BiasGELU(Function):
    @staticmethod
    def forward(x, bias):
        return F.gelu(x + bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, bias = inputs
        ctx.save_for_backward(x, bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, bias = ctx.saved_tensors
        u = x + bias
        cdf = 0.5 * (1 + torch.erf(u / math.sqrt(2)))
        pdf = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
        dx = grad_output * (cdf + u * pdf)
        return dx, dx.sum(0)


class BiasSwiGLU(Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        gate, up = (x + bias).chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, g):
        x, bias = ctx.saved_tensors
        gate, up = (x + bias).chunk(2, -1)
        s = torch.sigmoid(gate)
        dgate = g * up * (s + gate * s * (1 - s))
        dup = g * gate * s
        dx = torch.cat([dgate, dup], -1)
        return dx, dx.flatten(0, -2).sum(0)


class PReLUPerChannel(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, slope[:, None] * x)

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        positive = x > 0
        dx = torch.where(positive, g, slope[:, None] * g)
        dslope = torch.where(positive, torch.zeros_like(g), g * x).sum((0, 2))
        return dx, dslope


class ScatterMean(Function):
    @staticmethod
    def forward(ctx, src, index, dim_size):
        count = torch.zeros(dim_size, dtype=src.dtype).index_add_(0, index, torch.ones_like(src[:, 0]))
        count = count.clamp(min=1)
        out = src.new_zeros(dim_size, src.shape[1]).index_add_(0, index, src)
        ctx.save_for_backward(index, count)
        return out / count[:, None]

    @staticmethod
    def backward(ctx, g):
        index, count = ctx.saved_tensors
        return (g / count[:, None]).index_select(0, index), None, None


class SegmentSoftmax(Function):
    @staticmethod
    def forward(ctx, x, segment, segments):
        highest = x.new_full((segments,), -math.inf).scatter_reduce(0, segment, x, "amax")
        e = (x - highest[segment]).exp()
        total = x.new_zeros(segments).index_add(0, segment, e)
        y = e / total[segment]
        ctx.save_for_backward(y, segment)
        ctx.segments = segments
        return y

    @staticmethod
    def backward(ctx, g):
        y, segment = ctx.saved_tensors
        gy = g * y
        dot = gy.new_zeros(ctx.segments).index_add(0, segment, gy)
        return gy - y * dot[segment], None, None


class EmbeddingBag(Function):
    @staticmethod
    def forward(ctx, weight, index, mode="sum", padding_idx=-1):
        keep = (index != padding_idx)[..., None]
        rows = weight[index] * keep
        count = keep.sum(1).clamp(min=1)
        ctx.save_for_backward(index, keep, count)
        ctx.mode, ctx.rows = mode, weight.shape[0]
        return rows.sum(1) if mode == "sum" else rows.sum(1) / count

    @staticmethod
    def backward(ctx, g):
        index, keep, count = ctx.saved_tensors
        if ctx.mode == "mean":
            g = g / count
        rows = g[:, None, :] * keep
        dw = g.new_zeros(ctx.rows, g.shape[-1])
        return dw.index_add(0, index.flatten(), rows.flatten(0, 1)), None, None, None


class SparseMM(Function):
    """COO values at (row, col) times a dense matrix."""

    @staticmethod
    def forward(ctx, values, dense, row, col, rows):
        ctx.save_for_backward(values, dense, row, col)
        out = dense.new_zeros(rows, dense.shape[1])
        return out.index_add(0, row, values[:, None] * dense[col])

    @staticmethod
    def backward(ctx, g):
        values, dense, row, col = ctx.saved_tensors
        dvalues = ddense = None
        if ctx.needs_input_grad[0]:
            dvalues = (g[row] * dense[col]).sum(1)
        if ctx.needs_input_grad[1]:
            ddense = torch.zeros_like(dense).index_add(0, col, values[:, None] * g[row])
        return dvalues, ddense, None, None, None


class FFTConv(Function):
    @staticmethod
    def forward(ctx, x, k):
        size = x.shape[-1] + k.shape[-1] - 1
        xf, kf = torch.fft.rfft(x, n=size), torch.fft.rfft(k, n=size)
        ctx.save_for_backward(x, k)
        return torch.fft.irfft(xf * kf, n=size)[..., : x.shape[-1]]

    @staticmethod
    def backward(ctx, g):
        x, k = ctx.saved_tensors
        size = x.shape[-1] + k.shape[-1] - 1
        gf = torch.fft.rfft(g, n=size)
        dx = torch.fft.irfft(gf * torch.fft.rfft(k, n=size).conj(), n=size)[..., : x.shape[-1]]
        dk = torch.fft.irfft(gf * torch.fft.rfft(x, n=size).conj(), n=size)[..., : k.shape[-1]]
        return dx, dk.sum(0)


class Modulus(Function):
    @staticmethod
    def forward(ctx, z):
        r = z.abs()
        ctx.save_for_backward(z, r)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, r = ctx.saved_tensors
        return g * z / r


class ComplexLinear(Function):
    @staticmethod
    def forward(ctx, z, w, b=None):
        ctx.save_for_backward(z, w)
        y = z @ w.t()
        return y if b is None else y + b

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        dz = g @ w.conj()
        dw = g.t() @ z.conj()
        return dz, dw, g.sum(0) if ctx.needs_input_grad[2] else None


class LogDet(Function):
    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a)
        ctx.save_for_backward(a)
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(a).mT


class Solve(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        db = torch.linalg.solve(a.mT, g)
        return -db @ x.mT, db


class EighValues(Function):
    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (vectors,) = ctx.saved_tensors
        return (vectors * g[..., None, :]) @ vectors.mT


class PairwiseDistance(Function):
    @staticmethod
    def forward(ctx, x, y):
        diff = x[:, None, :] - y[None, :, :]
        dist = diff.square().sum(-1).sqrt()
        ctx.save_for_backward(x, y, dist)
        return dist

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, dist = ctx.saved_tensors
        ratio = g / dist
        dx = x * ratio.sum(1, keepdim=True) - ratio @ y
        dy = y * ratio.sum(0)[:, None] - ratio.t() @ x
        return dx, dy


class TopK(Function):
    @staticmethod
    def forward(ctx, x, k):
        values, indices = x.topk(k, dim=-1)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter(-1, indices, g), None


class Quantile(Function):
    @staticmethod
    def forward(ctx, x, q):
        ordered, order = x.sort(-1)
        position = q * (x.shape[-1] - 1)
        low = math.floor(position)
        high = min(low + 1, x.shape[-1] - 1)
        t = position - low
        ctx.save_for_backward(order)
        ctx.low, ctx.high, ctx.t = low, high, t
        return ordered[..., low] * (1 - t) + ordered[..., high] * t

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        dx = torch.zeros(order.shape, dtype=g.dtype)
        dx = dx.scatter_add(-1, order[..., ctx.low : ctx.low + 1], (g * (1 - ctx.t)).unsqueeze(-1))
        dx = dx.scatter_add(-1, order[..., ctx.high : ctx.high + 1], (g * ctx.t).unsqueeze(-1))
        return dx, None


class LogCumSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.logcumsumexp(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        tail = (g * (-y).exp()).flip(-1).cumsum(-1).flip(-1)
        return x.exp() * tail


class ClampInPlace(Function):
    @staticmethod
    def forward(ctx, x, low=-1.0, high=1.0):
        inside = (x >= low) & (x <= high)
        ctx.save_for_backward(inside)
        ctx.mark_dirty(x)
        return x.clamp_(low, high)

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside, None, None


class AxpyInPlace(Function):
    @staticmethod
    def forward(ctx, y, x, alpha):
        ctx.alpha = alpha
        ctx.mark_dirty(y)
        return y.add_(x, alpha=alpha)

    @staticmethod
    def backward(ctx, g):
        return g.clone(), ctx.alpha * g, None


class SplitHeads(Function):
    @staticmethod
    def forward(ctx, x, heads):
        b, t, d = x.shape
        ctx.heads = heads
        return x.reshape(b, t, heads, d // heads).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx, g):
        b, h, t, d = g.shape
        return g.transpose(1, 2).reshape(b, t, h * d), None


class MishGrad(Function):
    """The gradient of mish, with a gradient of its own."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        t, s = torch.tanh(F.softplus(x)), torch.sigmoid(x)
        return g * (t + x * s * (1 - t * t))

    @staticmethod
    @once_differentiable
    def backward(ctx, gg):
        g, x = ctx.saved_tensors
        t, s = torch.tanh(F.softplus(x)), torch.sigmoid(x)
        dt = s * (1 - t * t)
        slope = t + x * dt
        ddt = s * (1 - s) * (1 - t * t) - 2 * s * t * dt
        return gg * slope, gg * g * (2 * dt + x * ddt)


class Mish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.mish(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return MishGrad.apply(g, x)


class PixelShuffle(Function):
    @staticmethod
    def forward(ctx, x, r):
        n, c, h, w = x.shape
        ctx.r = r
        y = x.reshape(n, c // r**2, r, r, h, w).permute(0, 1, 4, 2, 5, 3)
        return y.reshape(n, c // r**2, h * r, w * r)

    @staticmethod
    def backward(ctx, g):
        r = ctx.r
        n, c, h, w = g.shape
        d = g.reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4)
        return d.reshape(n, c * r * r, h // r, w // r), None


class Bilinear(Function):
    @staticmethod
    def forward(ctx, x, y, w, bias=None):
        ctx.save_for_backward(x, y, w)
        out = torch.einsum("bi,oij,bj->bo", x, w, y)
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, g):
        x, y, w = ctx.saved_tensors
        dx = torch.einsum("bo,oij,bj->bi", g, w, y)
        dy = torch.einsum("bo,oij,bi->bj", g, w, x)
        dw = torch.einsum("bo,bi,bj->oij", g, x, y)
        db = g.sum(0) if ctx.needs_input_grad[3] else None
        return dx, dy, dw, db


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Rotary(Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        return dq * cos - rotate_half(dq * sin), dk * cos - rotate_half(dk * sin), None, None


class NumpyLogistic(Function):
    """As a wrapper of a compiled solver: NumPy inside."""

    @staticmethod
    def forward(ctx, x, gain):
        y = 1 / (1 + (-gain * x.detach()).exp())
        ctx.y = y.numpy()
        ctx.gain = gain
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y = ctx.y
        d = g.detach().numpy() * ctx.gain * y * (1 - y)
        return torch.from_numpy(d), None
