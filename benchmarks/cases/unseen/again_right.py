"""Forty autograd Functions (second set) and two modules that call them."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def acc_dtype(*tensors):
    """Accumulation dtype: float32 at least, float64 stays."""
    out = torch.float32
    for t in tensors:
        if t is not None:
            out = torch.promote_types(out, t.dtype)
    return out


# --------------------------------------------------------------------------------------
# kernels with short dtype paths
# --------------------------------------------------------------------------------------
class GeGLUExactFn(Function):
    """gelu(gate) * up, with erfc so that the left tail keeps its digits."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        acc = acc_dtype(gate, up)
        g = gate.to(acc)
        cdf = 0.5 * torch.special.erfc(-g * math.sqrt(0.5))
        return (g * cdf * up.to(acc)).to(gate.dtype)

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        acc = acc_dtype(gate, up)
        g, u, d = gate.to(acc), up.to(acc), dy.to(acc)
        cdf = 0.5 * torch.special.erfc(-g * math.sqrt(0.5))
        pdf = torch.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
        return (d * u * (cdf + g * pdf)).to(gate.dtype), (d * g * cdf).to(up.dtype)


class RMSNormSiluGateFn(Function):
    """norm(x) * weight * silu(z), as in gated linear attention."""

    @staticmethod
    def forward(ctx, x, z, weight, eps):
        acc = acc_dtype(x, z, weight)
        xa, za, wa = x.to(acc), z.to(acc), weight.to(acc)
        rstd = torch.rsqrt(xa.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, z, weight, rstd)
        return (xa * rstd * wa * za * torch.sigmoid(za)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, z, weight, rstd = ctx.saved_tensors
        acc = rstd.dtype
        xa, za, wa, d = x.to(acc), z.to(acc), weight.to(acc), dy.to(acc)
        sig = torch.sigmoid(za)
        xhat = xa * rstd
        g = d * wa * za * sig
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        dz = d * xhat * wa * sig * (1 + za * torch.sigmoid(-za))
        dw = (d * xhat * za * sig).reshape(-1, x.shape[-1]).sum(0)
        return dx.to(x.dtype), dz.to(z.dtype), dw.to(weight.dtype), None


class GroupNormSavedFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        b, c = x.shape[:2]
        acc = acc_dtype(x, weight, bias)
        v = x.to(acc).reshape(b, groups, -1)
        mean = v.mean(-1, keepdim=True)
        rstd = torch.rsqrt((v - mean).pow(2).mean(-1, keepdim=True) + eps)
        y = ((v - mean) * rstd).reshape(b, c, -1)
        if weight is not None:
            y = y * weight.to(acc)[:, None]
        if bias is not None:
            y = y + bias.to(acc)[:, None]
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.groups = groups
        return y.reshape(x.shape).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        b, c = x.shape[:2]
        acc = mean.dtype
        xhat = (x.to(acc).reshape(b, ctx.groups, -1) - mean) * rstd
        d = dy.to(acc).reshape(b, c, -1)
        dw = db = None
        if weight is not None:
            dw = (d * xhat.reshape(b, c, -1)).sum((0, 2)).to(weight.dtype)
        if bias is not None:
            db = d.sum((0, 2)).to(bias.dtype)
        g = d if weight is None else d * weight.to(acc)[:, None]
        g = g.reshape(b, ctx.groups, -1)
        dx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx.reshape(x.shape).to(x.dtype), dw, db, None, None


class FusedLinearCEFn(Function):
    """Linear layer and cross entropy by row chunks; the gradients are formed in forward."""

    @staticmethod
    def forward(ctx, x, weight, target, bias=None, ignore_index=-100, chunk=2):
        acc = acc_dtype(x, weight, bias)
        w = weight.to(acc)
        dx = torch.zeros(x.shape, dtype=acc, device=x.device)
        dw = torch.zeros(weight.shape, dtype=acc, device=x.device)
        db = None if bias is None else torch.zeros(bias.shape, dtype=acc, device=x.device)
        count = max((target != ignore_index).sum().item(), 1)
        total = torch.zeros((), dtype=acc, device=x.device)
        for start in range(0, x.shape[0], chunk):
            rows = slice(start, start + chunk)
            xc, tc = x[rows].to(acc), target[rows]
            keep = tc != ignore_index
            safe = torch.where(keep, tc, torch.zeros_like(tc))
            logits = xc @ w.t()
            if bias is not None:
                logits = logits + bias.to(acc)
            logp = torch.log_softmax(logits, -1)
            picked = logp.gather(1, safe[:, None])[:, 0]
            total = total - torch.where(keep, picked, torch.zeros_like(picked)).sum()
            dlogits = logp.detach().exp()
            dlogits[torch.arange(len(tc), device=x.device), safe] -= 1
            dlogits = dlogits * keep[:, None] / count
            dx[rows] = dlogits @ w.detach()
            dw += dlogits.t() @ xc.detach()
            if db is not None:
                db += dlogits.sum(0)
        ctx.save_for_backward(dx, dw, db)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        dx, dw, db = ctx.saved_tensors
        xd, wd, bd = ctx.dtypes
        return (
            (dx * dloss).to(xd),
            (dw * dloss).to(wd),
            None,
            None if db is None else (db * dloss).to(bd),
            None,
            None,
        )


class GeneralizedJSDFn(Function):
    """beta * KL(teacher || mix) + (1 - beta) * KL(student || mix), mean over rows."""

    @staticmethod
    def forward(ctx, student, teacher, beta=0.5):
        ctx.save_for_backward(student, teacher)
        ctx.beta = beta
        acc = acc_dtype(student, teacher)
        ls = torch.log_softmax(student.to(acc), -1)
        lt = torch.log_softmax(teacher.to(acc), -1)
        lm = torch.logaddexp(math.log(beta) + lt, math.log1p(-beta) + ls)
        loss = beta * lt.exp() * (lt - lm) + (1 - beta) * ls.exp() * (ls - lm)
        return loss.sum() / student.shape[0]

    @staticmethod
    def backward(ctx, dloss):
        student, teacher = ctx.saved_tensors
        beta = ctx.beta
        acc = acc_dtype(student, teacher)
        ls = torch.log_softmax(student.to(acc), -1)
        lt = torch.log_softmax(teacher.to(acc), -1)
        lm = torch.logaddexp(math.log(beta) + lt, math.log1p(-beta) + ls)

        def pull(logp, share, like):
            p, g = logp.exp(), share * (logp - lm)
            out = p * (g - (p * g).sum(-1, keepdim=True)) / student.shape[0]
            return (out * dloss).to(like.dtype)

        ds = pull(ls, 1 - beta, student) if ctx.needs_input_grad[0] else None
        dt = pull(lt, beta, teacher) if ctx.needs_input_grad[1] else None
        return ds, dt, None


class ZLossCrossEntropyFn(Function):
    """Mean cross entropy with z-loss; returns the total and the z part."""

    @staticmethod
    def forward(logits, target, z_weight=1e-2):
        v = logits.to(acc_dtype(logits))
        lse = torch.logsumexp(v, -1)
        z = (z_weight * lse.square()).mean()
        return (lse - v.gather(1, target[:, None])[:, 0]).mean() + z, z

    @staticmethod
    def setup_context(ctx, inputs, output):
        logits, target, ctx.z_weight = inputs
        ctx.save_for_backward(logits, target)

    @staticmethod
    def backward(ctx, d_total, d_z):
        logits, target = ctx.saved_tensors
        v = logits.to(acc_dtype(logits))
        lse = torch.logsumexp(v, -1, keepdim=True)
        p = torch.softmax(v, -1)
        hot = F.one_hot(target, v.shape[1]).to(v.dtype)
        grad = d_total * (p - hot) + (d_total + d_z) * 2 * ctx.z_weight * lse * p
        return (grad / v.shape[0]).to(logits.dtype), None, None


class RotaryQKFn(Function):
    """Rotary embedding of q and k together; pairs interleaved or by halves."""

    @staticmethod
    def rotate(x, cos, sin, interleaved):
        if interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def forward(ctx, q, k, cos, sin, interleaved=False):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        acc = acc_dtype(q, k)
        c, s = cos.to(acc)[:, None], sin.to(acc)[:, None]
        rot = RotaryQKFn.rotate
        return rot(q.to(acc), c, s, interleaved).to(q.dtype), rot(k.to(acc), c, s, interleaved).to(k.dtype)

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        acc = acc_dtype(dq, dk)
        c, s = cos.to(acc)[:, None], -sin.to(acc)[:, None]
        rot = RotaryQKFn.rotate
        return (
            rot(dq.to(acc), c, s, ctx.interleaved).to(dq.dtype),
            rot(dk.to(acc), c, s, ctx.interleaved).to(dk.dtype),
            None,
            None,
            None,
        )


class AddRMSNormFn(Function):
    """s = x + residual; returns norm(s) * w (or 1 + w) and s."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps, plus_one=False):
        ctx.save_for_backward(x, residual, weight)
        ctx.eps, ctx.plus_one = eps, plus_one
        acc = acc_dtype(x, residual, weight)
        s = x.to(acc) + residual.to(acc)
        w = weight.to(acc) + (1 if plus_one else 0)
        y = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) * w
        return y.to(x.dtype), s.to(residual.dtype)

    @staticmethod
    def backward(ctx, dy, ds):
        x, residual, weight = ctx.saved_tensors
        acc = acc_dtype(x, residual, weight)
        s = x.to(acc) + residual.to(acc)
        w = weight.to(acc) + (1 if ctx.plus_one else 0)
        rstd = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * rstd
        d = dy.to(acc)
        g = d * w
        grad = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True)) + ds.to(acc)
        dw = (d * xhat).sum(tuple(range(d.dim() - 1)))
        return grad.to(x.dtype), grad.to(residual.dtype), dw.to(weight.dtype), None, None


class GatedRecurrenceFn(Function):
    """h_t = exp(g_t) h_{t-1} + x_t over dim 1; returns every h and the last one."""

    @staticmethod
    def forward(ctx, x, g, h0=None):
        acc = acc_dtype(x, g, h0)
        h = torch.zeros_like(x[:, 0], dtype=acc) if h0 is None else h0.to(acc)
        steps = [h]
        for t in range(x.shape[1]):
            h = torch.exp(g[:, t].to(acc)) * h + x[:, t].to(acc)
            steps.append(h)
        hs = torch.stack(steps, 1)
        ctx.save_for_backward(g, hs)
        ctx.x_dtype = x.dtype
        ctx.h0_dtype = None if h0 is None else h0.dtype
        return hs[:, 1:].to(x.dtype), h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlast):
        g, hs = ctx.saved_tensors
        acc = hs.dtype
        decay = torch.exp(g.to(acc))
        dh = dlast.to(acc)
        dx = torch.empty_like(decay)
        dg = torch.empty_like(decay)
        for t in range(g.shape[1] - 1, -1, -1):
            dh = dh + do[:, t].to(acc)
            dx[:, t] = dh
            dg[:, t] = dh * decay[:, t] * hs[:, t]
            dh = dh * decay[:, t]
        dh0 = None if ctx.h0_dtype is None else dh.to(ctx.h0_dtype)
        return dx.to(ctx.x_dtype), dg.to(g.dtype), dh0


class DropPathScaleFn(Function):
    """x + keep / keep_prob * gamma * y (layer scale and stochastic depth), the draw is given."""

    @staticmethod
    def forward(ctx, x, y, gamma, keep, keep_prob):
        ctx.save_for_backward(y, gamma, keep)
        ctx.keep_prob = keep_prob
        acc = acc_dtype(x, y, gamma)
        m = keep.to(acc)[:, None, None] / keep_prob
        return (x.to(acc) + m * gamma.to(acc) * y.to(acc)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        y, gamma, keep = ctx.saved_tensors
        acc = acc_dtype(dy, y, gamma)
        d = dy.to(acc) * (keep.to(acc)[:, None, None] / ctx.keep_prob)
        dgamma = (d * y.to(acc)).sum((0, 1))
        return dy, (d * gamma.to(acc)).to(y.dtype), dgamma.to(gamma.dtype), None, None


class LinearActFn(Function):
    """Fused linear, bias and activation; the pre-activation is computed again in backward."""

    @staticmethod
    def pre(x, weight, bias, acc):
        a = x.to(acc) @ weight.to(acc).t()
        return a if bias is None else a + bias.to(acc)

    @staticmethod
    def forward(ctx, x, weight, bias=None, activation="relu"):
        ctx.save_for_backward(x, weight, bias)
        ctx.activation = activation
        a = LinearActFn.pre(x, weight, bias, acc_dtype(x, weight, bias))
        if activation == "relu":
            a = torch.relu(a)
        elif activation == "squared_relu":
            a = torch.relu(a).square()
        elif activation == "silu":
            a = a * torch.sigmoid(a)
        return a.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        acc = acc_dtype(x, weight, bias)
        d = dy.to(acc)
        if ctx.activation != "identity":
            a = LinearActFn.pre(x, weight, bias, acc)
            if ctx.activation == "relu":
                d = d * (a > 0)
            elif ctx.activation == "squared_relu":
                d = d * 2 * torch.relu(a)
            else:
                s = torch.sigmoid(a)
                d = d * s * (1 + a * torch.sigmoid(-a))
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = (d @ weight.to(acc)).to(x.dtype)
        flat = d.reshape(-1, d.shape[-1])
        if ctx.needs_input_grad[1]:
            dw = (flat.t() @ x.to(acc).reshape(-1, x.shape[-1])).to(weight.dtype)
        if bias is not None and ctx.needs_input_grad[2]:
            db = flat.sum(0).to(bias.dtype)
        return dx, dw, db, None


class ScaledMaskedSoftmaxFn(Function):
    """softmax(scale * x) where mask is False; rows that are masked out whole give zeros."""

    @staticmethod
    def probs(x, mask, scale):
        v = (x.to(acc_dtype(x)) * scale).masked_fill(mask, -math.inf)
        top = v.detach().amax(-1, keepdim=True)
        top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
        e = torch.exp(v - top)
        total = e.sum(-1, keepdim=True)
        return e / torch.where(total == 0, torch.ones_like(total), total)

    @staticmethod
    def forward(ctx, x, mask, scale):
        ctx.save_for_backward(x, mask)
        ctx.scale = scale
        return ScaledMaskedSoftmaxFn.probs(x, mask, scale).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, mask = ctx.saved_tensors
        p = ScaledMaskedSoftmaxFn.probs(x, mask, ctx.scale)
        d = dy.to(p.dtype)
        dx = ctx.scale * p * (d - (p * d).sum(-1, keepdim=True))
        return dx.to(x.dtype), None, None


class LoRALinearFn(Function):
    """x W^T + scale * (x A^T) B^T + bias."""

    @staticmethod
    def forward(ctx, x, weight, lora_a, lora_b, scale, bias=None):
        ctx.save_for_backward(x, weight, lora_a, lora_b)
        ctx.scale = scale
        ctx.bias_dtype = None if bias is None else bias.dtype
        acc = acc_dtype(x, weight, lora_a, lora_b)
        xa = x.to(acc)
        y = xa @ weight.to(acc).t() + scale * (xa @ lora_a.to(acc).t()) @ lora_b.to(acc).t()
        if bias is not None:
            y = y + bias.to(acc)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight, lora_a, lora_b = ctx.saved_tensors
        acc = acc_dtype(x, weight, lora_a, lora_b)
        xa, wa, a, b = x.to(acc), weight.to(acc), lora_a.to(acc), lora_b.to(acc)
        d = dy.to(acc)
        low = ctx.scale * (d @ b)
        dx = dw = da = db = dbias = None
        if ctx.needs_input_grad[0]:
            dx = (d @ wa + low @ a).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dw = (d.t() @ xa).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            da = (low.t() @ xa).to(lora_a.dtype)
        if ctx.needs_input_grad[3]:
            db = (ctx.scale * d.t() @ (xa @ a.t())).to(lora_b.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[5]:
            dbias = d.sum(0).to(ctx.bias_dtype)
        return dx, dw, da, db, None, dbias


class LoRALayer(nn.Module):
    def __init__(self, n, m, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(m, n) / math.sqrt(n))
        self.lora_a = nn.Parameter(torch.randn(rank, n) / math.sqrt(n))
        self.lora_b = nn.Parameter(torch.randn(m, rank) / math.sqrt(rank))
        self.bias = nn.Parameter(torch.zeros(m))

    def forward(self, x):
        return LoRALinearFn.apply(x, self.weight, self.lora_a, self.lora_b, 0.5, self.bias)


# --------------------------------------------------------------------------------------
# state, options, in place, several outputs, integers, lists, complex
# --------------------------------------------------------------------------------------
class RunningBatchNormFn(Function):
    """Batch norm over (batch, length); running statistics are updated in training."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training=True, momentum=0.1, eps=1e-3):
        ctx.training, ctx.eps = training, eps
        if training:
            mean = x.mean((0, 2))
            var = (x - mean[:, None]).square().mean((0, 2))
            count = x.shape[0] * x.shape[2]
            with torch.no_grad():
                running_mean.mul_(1 - momentum).add_(momentum * mean)
                running_var.mul_(1 - momentum).add_(momentum * var * (count / max(count - 1, 1)))
            ctx.save_for_backward(x, weight)
        else:
            mean, var = running_mean, running_var
            ctx.save_for_backward(x, weight, running_mean.clone(), running_var.clone())
        return (x - mean[:, None]) * torch.rsqrt(var + eps)[:, None] * weight[:, None] + bias[:, None]

    @staticmethod
    def backward(ctx, dy):
        if ctx.training:
            x, weight = ctx.saved_tensors
            mean = x.mean((0, 2))
            var = (x - mean[:, None]).square().mean((0, 2))
        else:
            x, weight, mean, var = ctx.saved_tensors
        rstd = torch.rsqrt(var + ctx.eps)[:, None]
        xhat = (x - mean[:, None]) * rstd
        g = dy * weight[:, None]
        if ctx.training:
            g = g - g.mean((0, 2), keepdim=True) - xhat * (g * xhat).mean((0, 2), keepdim=True)
        return (g * rstd, (dy * xhat).sum((0, 2)), dy.sum((0, 2))) + (None,) * 5


class VectorQuantizeSTFn(Function):
    """Nearest code; straight through to z, and each code gets what its users got."""

    @staticmethod
    def forward(ctx, z, codebook):
        dist = (z[:, None, :] - codebook[None]).square().sum(-1)
        index = dist.argmin(1)
        ctx.save_for_backward(index)
        ctx.codes = codebook.shape
        ctx.mark_non_differentiable(index)
        return codebook[index], index

    @staticmethod
    def backward(ctx, dy, _):
        (index,) = ctx.saved_tensors
        return dy.clone(), dy.new_zeros(ctx.codes).index_add(0, index, dy)


def vq_composite(z, codebook):
    index = (z[:, None, :] - codebook[None]).square().sum(-1).argmin(1)
    return codebook[index] + z - z.detach(), index


class SegmentSoftmaxFn(Function):
    """Softmax over the entries of each segment (edges of a node), one column a head."""

    @staticmethod
    def forward(ctx, src, index, num_segments):
        wide = index[:, None].expand_as(src)
        top = src.new_full((num_segments, src.shape[1]), -math.inf)
        top = top.scatter_reduce(0, wide, src.detach(), "amax")
        e = torch.exp(src - top[index])
        p = e / src.new_zeros(num_segments, src.shape[1]).index_add(0, index, e)[index]
        ctx.save_for_backward(p, index)
        ctx.num_segments = num_segments
        return p

    @staticmethod
    def backward(ctx, dp):
        p, index = ctx.saved_tensors
        inner = dp.new_zeros(ctx.num_segments, p.shape[1]).index_add(0, index, p * dp)
        return p * (dp - inner[index]), None, None


class ScatterMaxArgFn(Function):
    """Maximum of each segment and the row that gave it; an empty segment gives 0 and row -1."""

    @staticmethod
    def forward(ctx, src, index, dim_size):
        rows = src.shape[0]
        wide = index[:, None].expand_as(src)
        top = src.new_full((dim_size, src.shape[1]), -math.inf).scatter_reduce(0, wide, src, "amax")
        here = torch.arange(rows, device=src.device)[:, None].expand_as(src)
        here = torch.where(src == top[index], here, torch.full_like(here, rows))
        arg = torch.full(top.shape, rows, dtype=torch.int64, device=src.device)
        arg = arg.scatter_reduce(0, wide, here, "amin")
        ctx.save_for_backward(arg)
        ctx.rows = rows
        out = torch.where(arg < rows, top, torch.zeros_like(top))
        arg_out = torch.where(arg < rows, arg, torch.full_like(arg, -1))
        ctx.mark_non_differentiable(arg_out)
        return out, arg_out

    @staticmethod
    def backward(ctx, dout, _):
        (arg,) = ctx.saved_tensors
        grad = dout.new_zeros(ctx.rows + 1, dout.shape[1]).scatter(0, arg, dout)
        return grad[: ctx.rows], None, None


class EmbeddingBagModesFn(Function):
    """Bags of rows given by offsets; entries equal to padding_idx do not count."""

    @staticmethod
    def forward(ctx, weight, indices, offsets, mode="sum", padding_idx=None):
        bags, args, counts = [], [], []
        for start, stop in zip(offsets.tolist()[:-1], offsets.tolist()[1:]):
            ids = indices[start:stop]
            if padding_idx is not None:
                ids = ids[ids != padding_idx]
            rows = weight[ids]
            counts.append(max(len(ids), 1))
            if len(ids) == 0:
                bags.append(weight.new_zeros(weight.shape[1]))
                args.append(torch.full((weight.shape[1],), -1, device=weight.device))
            elif mode == "max":
                best = rows.max(0)
                bags.append(best.values)
                args.append(ids[best.indices])
            else:
                bags.append(rows.sum(0) / (len(ids) if mode == "mean" else 1))
        ctx.mode, ctx.padding_idx, ctx.counts, ctx.table = mode, padding_idx, counts, weight.shape
        saved = torch.stack(args) if mode == "max" else None
        ctx.save_for_backward(indices, offsets, saved)
        return torch.stack(bags)

    @staticmethod
    def backward(ctx, dy):
        indices, offsets, arg = ctx.saved_tensors
        n, d = ctx.table
        if ctx.mode == "max":
            dest = torch.where(arg < 0, torch.full_like(arg, n), arg)
            return dy.new_zeros(n + 1, d).scatter_add(0, dest, dy)[:n], None, None, None, None
        if ctx.mode == "mean":
            dy = dy / torch.tensor(ctx.counts, dtype=dy.dtype, device=dy.device)[:, None]
        lengths = (offsets[1:] - offsets[:-1]).long()
        bag = torch.repeat_interleave(torch.arange(len(lengths), device=dy.device), lengths)
        rows = dy[bag]
        if ctx.padding_idx is not None:
            rows = rows * (indices != ctx.padding_idx)[:, None]
        return dy.new_zeros(n, d).index_add(0, indices, rows), None, None, None, None


class ScalarMixFn(Function):
    """gamma * sum_i softmax(weights)_i x_i over a list of layers."""

    @staticmethod
    def forward(ctx, weights, gamma, *xs):
        ctx.save_for_backward(weights, gamma, *xs)
        p = torch.softmax(weights, 0)
        return gamma * sum(p[i] * x for i, x in enumerate(xs))

    @staticmethod
    def backward(ctx, dy):
        weights, gamma, *xs = ctx.saved_tensors
        p = torch.softmax(weights, 0)
        inner = torch.stack([(dy * x).sum() for x in xs])
        mean = (p * inner).sum()
        return (gamma * p * (inner - mean), mean, *[gamma * p[i] * dy for i in range(len(xs))])


class ScalarMixLayer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return ScalarMixFn.apply(self.weights, self.gamma, *x.unbind(0))


class ComplexPhaseNormFn(Function):
    """z / sqrt(|z|^2 + eps)."""

    @staticmethod
    def forward(ctx, z, eps):
        ctx.save_for_backward(z)
        ctx.eps = eps
        return z * torch.rsqrt(z.real.square() + z.imag.square() + eps)

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        r = torch.rsqrt(z.real.square() + z.imag.square() + ctx.eps)
        inner = g.real * z.real + g.imag * z.imag
        return g * r - z * (inner * r**3), None


class LeakyIntegrateFn(Function):
    """state <- decay * state + inp in place (membrane potential of a spiking layer)."""

    @staticmethod
    def forward(ctx, state, inp, decay):
        old = state.clone()
        ctx.save_for_backward(old, decay)
        state.copy_(old * decay + inp)
        ctx.mark_dirty(state)
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        old, decay = ctx.saved_tensors
        return dy * decay, dy, (dy * old).sum(0)


class LSTMPointwiseFn(Function):
    @staticmethod
    def forward(ctx, gates, c):
        ctx.save_for_backward(gates, c)
        i, f, g, o = gates.chunk(4, 1)
        new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(new_c), new_c

    @staticmethod
    def backward(ctx, dh, dc):
        gates, c = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        t = torch.tanh(f * c + i * g)
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


class WeightedBCELogitsFn(Function):
    @staticmethod
    def forward(ctx, logits, target, weight=None, pos_weight=None, reduction="mean"):
        ctx.save_for_backward(logits, target, weight, pos_weight)
        ctx.reduction = reduction
        pw = 1 if pos_weight is None else pos_weight
        loss = pw * target * F.softplus(-logits, threshold=50.0) + (1 - target) * F.softplus(logits, threshold=50.0)
        if weight is not None:
            loss = loss * weight
        if reduction == "none":
            return loss
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def backward(ctx, dy):
        logits, target, weight, pos_weight = ctx.saved_tensors
        pw = 1 if pos_weight is None else pos_weight
        g = (1 - target) * torch.sigmoid(logits) - pw * target * torch.sigmoid(-logits)
        if weight is not None:
            g = g * weight
        if ctx.reduction == "mean":
            g = g / logits.numel()
        return g * dy, None, None, None, None


class MoETopKGateFn(Function):
    """Weights of the k best experts (softmax over those) and their numbers."""

    @staticmethod
    def forward(ctx, logits, k):
        values, index = logits.topk(k, -1)
        weights = torch.softmax(values, -1)
        ctx.save_for_backward(weights, index)
        ctx.experts = logits.shape
        ctx.mark_non_differentiable(index)
        return weights, index

    @staticmethod
    def backward(ctx, dw, _):
        weights, index = ctx.saved_tensors
        g = weights * (dw - (weights * dw).sum(-1, keepdim=True))
        return dw.new_zeros(ctx.experts).scatter(-1, index, g), None


class VarlenAttentionFn(Function):
    """Attention inside each packed sequence; q, k, v are (tokens, heads, dim)."""

    @staticmethod
    def probs(q, k, scale, causal):
        s = scale * torch.einsum("ihd,jhd->hij", q, k)
        if causal:
            n = q.shape[0]
            future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
            s = s.masked_fill(future, -math.inf)
        return torch.softmax(s, -1)

    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, causal=False):
        ctx.save_for_backward(q, k, v)
        ctx.bounds = cu_seqlens.tolist()
        ctx.causal = causal
        ctx.scale = q.shape[-1] ** -0.5
        outs = []
        for a, b in zip(ctx.bounds[:-1], ctx.bounds[1:]):
            p = VarlenAttentionFn.probs(q[a:b], k[a:b], ctx.scale, causal)
            outs.append(torch.einsum("hij,jhd->ihd", p, v[a:b]))
        return torch.cat(outs)

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        dq, dk, dv = [], [], []
        for a, b in zip(ctx.bounds[:-1], ctx.bounds[1:]):
            p = VarlenAttentionFn.probs(q[a:b], k[a:b], ctx.scale, ctx.causal)
            dp = torch.einsum("ihd,jhd->hij", do[a:b], v[a:b])
            ds = ctx.scale * p * (dp - (p * dp).sum(-1, keepdim=True))
            dq.append(torch.einsum("hij,jhd->ihd", ds, k[a:b]))
            dk.append(torch.einsum("hij,ihd->jhd", ds, q[a:b]))
            dv.append(torch.einsum("hij,ihd->jhd", p, do[a:b]))
        return torch.cat(dq), torch.cat(dk), torch.cat(dv), None, None


class CooMatmulFn(Function):
    """Sparse (values at rows, cols) times dense."""

    @staticmethod
    def forward(values, rows, cols, dense, n_rows):
        out = dense.new_zeros(n_rows, dense.shape[1])
        return out.index_add(0, rows, values[:, None] * dense[cols])

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, rows, cols, dense, _ = inputs
        ctx.save_for_backward(values, rows, cols, dense)

    @staticmethod
    def backward(ctx, dy):
        values, rows, cols, dense = ctx.saved_tensors
        picked = dy[rows]
        d_values = d_dense = None
        if ctx.needs_input_grad[0]:
            d_values = (picked * dense[cols]).sum(1)
        if ctx.needs_input_grad[3]:
            d_dense = torch.zeros_like(dense).index_add(0, cols, values[:, None] * picked)
        return d_values, None, None, d_dense, None


# --------------------------------------------------------------------------------------
# numerics
# --------------------------------------------------------------------------------------
class LogCumsumExpFn(Function):
    """log of the running sum of exp over the last dimension, by (max, rest) pairs."""

    @staticmethod
    def pairs(x):
        top = x.detach().cummax(-1).values
        rest = [torch.exp(x[..., 0] - top[..., 0])]
        for t in range(1, x.shape[-1]):
            step = torch.exp(top[..., t - 1] - top[..., t])
            rest.append(rest[-1] * step + torch.exp(x[..., t] - top[..., t]))
        return top, torch.stack(rest, -1)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        top, rest = LogCumsumExpFn.pairs(x)
        return top + rest.log()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        top, rest = LogCumsumExpFn.pairs(x)
        carry = torch.zeros_like(dy[..., 0])
        grads = []
        for t in range(x.shape[-1] - 1, -1, -1):
            # carry: sum over later s of dy_s exp(out_t - out_s)
            carry = carry + dy[..., t]
            grads.append(torch.exp(x[..., t] - top[..., t]) / rest[..., t] * carry)
            if t:
                carry = carry * torch.exp(top[..., t - 1] - top[..., t]) * rest[..., t - 1] / rest[..., t]
        return torch.stack(grads[::-1], -1)


def log_cumsum_exp_plain(x):
    return torch.stack([torch.logsumexp(x[..., : t + 1], -1) for t in range(x.shape[-1])], -1)


class TrimmedMeanFn(Function):
    """Mean of each row without its `trim` smallest and largest entries."""

    @staticmethod
    def forward(ctx, x, trim):
        values, order = x.sort(-1)
        kept = order[..., trim : x.shape[-1] - trim]
        ctx.save_for_backward(kept)
        ctx.width = x.shape[-1]
        return values[..., trim : x.shape[-1] - trim].mean(-1)

    @staticmethod
    def backward(ctx, dy):
        (kept,) = ctx.saved_tensors
        share = (dy / kept.shape[-1]).unsqueeze(-1).expand(kept.shape)
        return dy.new_zeros(*kept.shape[:-1], ctx.width).scatter(-1, kept, share), None


class SinkhornPlanFn(Function):
    """Transport plan after a fixed number of log-domain Sinkhorn steps, uniform marginals."""

    @staticmethod
    def forward(ctx, cost, epsilon, n_iters):
        n, m = cost.shape
        k = -cost / epsilon
        v = torch.zeros_like(k[0])
        us, vs = [], [v]
        for _ in range(n_iters):
            u = -math.log(n) - torch.logsumexp(k + v, 1)
            v = -math.log(m) - torch.logsumexp(k + u[:, None], 0)
            us.append(u)
            vs.append(v)
        plan = torch.exp(k + u[:, None] + v)
        ctx.save_for_backward(k, plan, torch.stack(us), torch.stack(vs))
        ctx.epsilon = epsilon
        return plan

    @staticmethod
    @once_differentiable
    def backward(ctx, d_plan):
        k, plan, us, vs = ctx.saved_tensors
        dk = d_plan * plan
        du, dv = dk.sum(1), dk.sum(0)
        for i in range(len(us) - 1, -1, -1):
            q = torch.softmax(k + us[i][:, None], 0) * dv
            dk = dk - q
            du = du - q.sum(1)
            r = torch.softmax(k + vs[i], 1) * du[:, None]
            dk = dk - r
            dv = -r.sum(0)
            du = torch.zeros_like(du)
        return -dk / ctx.epsilon, None, None


class DEQTanhFn(Function):
    """z = tanh(z W^T + x), solved by iteration; implicit gradient."""

    @staticmethod
    def forward(ctx, x, weight, max_iter=400):
        tol = torch.finfo(x.dtype).eps
        z = torch.tanh(x)
        for _ in range(max_iter):
            new = torch.tanh(z @ weight.t() + x)
            gap = (new - z).abs().max().item()
            z = new
            if gap < tol:
                break
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, dz):
        z, weight = ctx.saved_tensors
        slope = 1 - z * z
        eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        # (I - W^T diag(slope)) a = dz, one system a row
        a = torch.linalg.solve(eye - weight.t() * slope[:, None, :], dz.unsqueeze(-1)).squeeze(-1)
        a = a * slope
        return a, a.t() @ z, None


class GPMarginalFn(Function):
    """Negative log marginal likelihood of y under a Gaussian process."""

    @staticmethod
    def chol(gram, noise):
        sym = 0.5 * (gram + gram.mT)
        return torch.linalg.cholesky(sym + noise * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))

    @staticmethod
    def forward(ctx, gram, y, noise):
        ctx.save_for_backward(gram, y, noise)
        low = GPMarginalFn.chol(gram, noise)
        alpha = torch.cholesky_solve(y[:, None], low)[:, 0]
        return 0.5 * y @ alpha + low.diagonal().log().sum() + 0.5 * len(y) * math.log(2 * math.pi)

    @staticmethod
    def backward(ctx, dnll):
        gram, y, noise = ctx.saved_tensors
        low = GPMarginalFn.chol(gram, noise)
        alpha = torch.cholesky_solve(y[:, None], low)[:, 0]
        eye = torch.eye(len(y), dtype=gram.dtype, device=gram.device)
        d_gram = 0.5 * (torch.cholesky_solve(eye, low) - alpha[:, None] * alpha)
        return dnll * d_gram, dnll * alpha, dnll * d_gram.diagonal().sum()


class SPDSqrtFn(Function):
    """Symmetric square root by eigenvalues; the gradient solves a Sylvester equation."""

    @staticmethod
    def forward(ctx, a):
        vals, vecs = torch.linalg.eigh(0.5 * (a + a.mT))
        root = vals.sqrt()
        ctx.save_for_backward(root, vecs)
        return (vecs * root.unsqueeze(-2)) @ vecs.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        root, vecs = ctx.saved_tensors
        inner = vecs.mT @ (0.5 * (dy + dy.mT)) @ vecs
        inner = inner / (root.unsqueeze(-1) + root.unsqueeze(-2))
        return vecs @ inner @ vecs.mT


class BilinearSampleFn(Function):
    """Values of an image (c, h, w) at pixel coordinates (n, 2) = (x, y); zero outside."""

    @staticmethod
    def corners(img, pts):
        c, h, w = img.shape
        base = pts.detach().floor()
        fx, fy = (pts - base).unbind(-1)
        x0, y0 = base.long().unbind(-1)
        out = []
        for dx in (0, 1):
            for dy in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                inside = ((xi >= 0) & (xi < w) & (yi >= 0) & (yi < h)).to(img.dtype)
                flat = yi.clamp(0, h - 1) * w + xi.clamp(0, w - 1)
                wx, wy = (fx, fy)
                out.append((flat, inside, wx if dx else 1 - wx, wy if dy else 1 - wy, 2 * dx - 1, 2 * dy - 1))
        return out

    @staticmethod
    def forward(ctx, img, pts):
        ctx.save_for_backward(img, pts)
        pixels = img.reshape(img.shape[0], -1)
        out = 0
        for flat, inside, wx, wy, _, _ in BilinearSampleFn.corners(img, pts):
            out = out + pixels[:, flat] * (inside * wx * wy)
        return out

    @staticmethod
    def backward(ctx, d):
        img, pts = ctx.saved_tensors
        pixels = img.reshape(img.shape[0], -1)
        d_pixels = torch.zeros_like(pixels)
        gx = gy = 0
        for flat, inside, wx, wy, sx, sy in BilinearSampleFn.corners(img, pts):
            d_pixels = d_pixels.index_add(1, flat, d * (inside * wx * wy))
            dot = (d * pixels[:, flat]).sum(0) * inside
            gx = gx + dot * sx * wy
            gy = gy + dot * sy * wx
        return d_pixels.reshape(img.shape), torch.stack([gx, gy], -1)


class FFTLongConvFn(Function):
    """Causal long convolution by FFT with a skip term, u (b, d, t) and kernel (d, t)."""

    @staticmethod
    def forward(ctx, u, kernel, skip=None):
        ctx.save_for_backward(u, kernel, skip)
        t = u.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(u, 2 * t) * torch.fft.rfft(kernel, 2 * t), 2 * t)[..., :t]
        return y if skip is None else y + u * skip[:, None]

    @staticmethod
    def backward(ctx, dy):
        u, kernel, skip = ctx.saved_tensors
        t = u.shape[-1]
        df = torch.fft.rfft(dy, 2 * t)
        uf, kf = torch.fft.rfft(u, 2 * t), torch.fft.rfft(kernel, 2 * t)
        du = torch.fft.irfft(df * kf.conj(), 2 * t)[..., :t]
        dk = torch.fft.irfft((df * uf.conj()).sum(0), 2 * t)[..., :t]
        if skip is None:
            return du, dk, None
        return du + dy * skip[:, None], dk, (dy * u).sum((0, 2))


class Im2colConv2dFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None, stride=1, padding=0):
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.stride, ctx.padding = bias is not None, stride, padding
        k = weight.shape[-1]
        side = [(s + 2 * padding - k) // stride + 1 for s in x.shape[-2:]]
        cols = F.unfold(x, k, padding=padding, stride=stride)
        y = torch.einsum("ok,bkl->bol", weight.flatten(1), cols)
        if bias is not None:
            y = y + bias[:, None]
        return y.reshape(x.shape[0], weight.shape[0], *side)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        k = weight.shape[-1]
        d = dy.flatten(2)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            cols = torch.einsum("ok,bol->bkl", weight.flatten(1), d)
            dx = F.fold(cols, x.shape[-2:], k, padding=ctx.padding, stride=ctx.stride)
        if ctx.needs_input_grad[1]:
            cols = F.unfold(x, k, padding=ctx.padding, stride=ctx.stride)
            dw = torch.einsum("bol,bkl->ok", d, cols).reshape(weight.shape)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            db = d.sum((0, 2))
        return dx, dw, db, None, None


class SoftDTWNumpyFn(Function):
    """Soft dynamic time warping of a batch of cost matrices, in NumPy."""

    @staticmethod
    def forward(ctx, cost, gamma):
        d = cost.detach().cpu().numpy().astype(np.float64)
        b, n, m = d.shape
        r = np.full((b, n + 1, m + 1), np.inf)
        r[:, 0, 0] = 0.0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                z = -np.stack([r[:, i - 1, j - 1], r[:, i - 1, j], r[:, i, j - 1]]) / gamma
                top = z.max(0)
                r[:, i, j] = d[:, i - 1, j - 1] - gamma * (top + np.log(np.exp(z - top).sum(0)))
        ctx.r, ctx.d, ctx.gamma = r, d, gamma
        return torch.from_numpy(r[:, n, m].copy()).to(cost)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        r, d, gamma = ctx.r, ctx.d, ctx.gamma
        b, n, m = d.shape
        e = np.zeros((b, n + 1, m + 1))
        e[:, n - 1, m - 1] = 1.0
        for i in range(n - 1, -1, -1):
            for j in range(m - 1, -1, -1):
                for di, dj in ((1, 0), (0, 1), (1, 1)):
                    ii, jj = i + di, j + dj
                    if ii < n and jj < m:
                        w = np.exp((r[:, ii + 1, jj + 1] - d[:, ii, jj] - r[:, i + 1, j + 1]) / gamma)
                        e[:, i, j] += e[:, ii, jj] * w
        grad = torch.from_numpy(e[:, :n, :m].copy()).to(dy)
        return grad * dy[:, None, None], None


class QuantileHuberFn(Function):
    """Quantile Huber loss of QR-DQN: every predicted quantile against every target sample."""

    @staticmethod
    def forward(ctx, pred, target, kappa=1.0):
        ctx.save_for_backward(pred, target)
        ctx.kappa = kappa
        n = pred.shape[1]
        tau = (torch.arange(n, dtype=pred.dtype, device=pred.device) + 0.5) / n
        u = target[:, None, :] - pred[:, :, None]
        small = u.abs() <= kappa
        huber = torch.where(small, 0.5 * u * u, kappa * (u.abs() - 0.5 * kappa))
        side = (tau[:, None] - (u.detach() < 0).to(u.dtype)).abs()
        return (side * huber / kappa).mean(2).sum(1).mean()

    @staticmethod
    def backward(ctx, dy):
        pred, target = ctx.saved_tensors
        b, n = pred.shape
        tau = (torch.arange(n, dtype=pred.dtype, device=pred.device) + 0.5) / n
        u = target[:, None, :] - pred[:, :, None]
        side = (tau[:, None] - (u.detach() < 0).to(u.dtype)).abs()
        du = side * u.clamp(-ctx.kappa, ctx.kappa) / ctx.kappa
        return -dy * du.mean(2) / b, None, None


class SO3ExpFn(Function):
    """Rotation matrices from rotation vectors (n, 3), exact to round-off at zero too."""

    TERMS = 10

    @staticmethod
    def series(t, coefficients):
        out = torch.zeros_like(t)
        for c in reversed(coefficients):
            out = out * t + c
        return out

    @staticmethod
    def hat(w):
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*w.shape[:-1], 3, 3)

    @staticmethod
    def factors(t):
        """sin(th)/th, (1 - cos(th))/th^2 for t = th^2."""
        small = t < 1
        safe = torch.where(small, torch.ones_like(t), t)
        th = safe.sqrt()
        s = [(-1) ** k / math.factorial(2 * k + 1) for k in range(SO3ExpFn.TERMS)]
        c = [(-1) ** k / math.factorial(2 * k + 2) for k in range(SO3ExpFn.TERMS)]
        near = torch.where(small, t, torch.zeros_like(t))
        a = torch.where(small, SO3ExpFn.series(near, s), th.sin() / th)
        b = torch.where(small, SO3ExpFn.series(near, c), 2 * (0.5 * th).sin().square() / safe)
        return a, b

    @staticmethod
    def slopes(t):
        """Derivatives of the two factors by t."""
        small = t < 1
        safe = torch.where(small, torch.ones_like(t), t)
        a, b = SO3ExpFn.factors(t)
        n = SO3ExpFn.TERMS
        s = [(-1) ** k * k / math.factorial(2 * k + 1) for k in range(1, n)]
        c = [(-1) ** k * k / math.factorial(2 * k + 2) for k in range(1, n)]
        da = torch.where(small, SO3ExpFn.series(t, s), (safe.sqrt().cos() - a) / (2 * safe))
        db = torch.where(small, SO3ExpFn.series(t, c), (a - 2 * b) / (2 * safe))
        return da, db

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        a, b = SO3ExpFn.factors(w.square().sum(-1))
        k = SO3ExpFn.hat(w)
        eye = torch.eye(3, dtype=w.dtype, device=w.device)
        return eye + a[..., None, None] * k + b[..., None, None] * (k @ k)

    @staticmethod
    @once_differentiable
    def backward(ctx, dr):
        (w,) = ctx.saved_tensors
        t = w.square().sum(-1)
        a, b = SO3ExpFn.factors(t)
        da, db = SO3ExpFn.slopes(t)
        k = SO3ExpFn.hat(w)
        dk = a[..., None, None] * dr + b[..., None, None] * (dr @ k.mT + k.mT @ dr)
        dt = da * (dr * k).sum((-2, -1)) + db * (dr * (k @ k)).sum((-2, -1))
        dw = torch.stack(
            [dk[..., 2, 1] - dk[..., 1, 2], dk[..., 0, 2] - dk[..., 2, 0], dk[..., 1, 0] - dk[..., 0, 1]], -1
        )
        return dw + 2 * dt[..., None] * w


class AlphaCompositeFn(Function):
    """Front-to-back compositing along rays: colour and what light is left."""

    @staticmethod
    def forward(ctx, alpha, color):
        ctx.save_for_backward(alpha, color)
        left = torch.ones_like(alpha[:, 0])
        out = torch.zeros_like(color[:, 0])
        for i in range(alpha.shape[1]):
            out = out + (left * alpha[:, i])[:, None] * color[:, i]
            left = left * (1 - alpha[:, i])
        return out, left

    @staticmethod
    def backward(ctx, d_out, d_left):
        alpha, color = ctx.saved_tensors
        lights = [torch.ones_like(alpha[:, 0])]
        for i in range(alpha.shape[1] - 1):
            lights.append(lights[-1] * (1 - alpha[:, i]))
        d_alpha, d_color = [], []
        behind = d_left  # gradient by the light that enters what lies behind
        for i in range(alpha.shape[1] - 1, -1, -1):
            shade = (d_out * color[:, i]).sum(-1)
            d_alpha.append(lights[i] * (shade - behind))
            d_color.append((lights[i] * alpha[:, i])[:, None] * d_out)
            behind = alpha[:, i] * shade + (1 - alpha[:, i]) * behind
        return torch.stack(d_alpha[::-1], 1), torch.stack(d_color[::-1], 1)


class CRFLogPartitionFn(Function):
    """Log partition of a linear-chain CRF with lengths; marginals by forward-backward."""

    @staticmethod
    def forward(ctx, emissions, transitions, lengths):
        b, t, k = emissions.shape
        alpha = emissions[:, 0]
        alphas = [alpha]
        for i in range(1, t):
            new = torch.logsumexp(alpha[:, :, None] + transitions, 1) + emissions[:, i]
            alpha = torch.where((i < lengths)[:, None], new, alpha)
            alphas.append(alpha)
        logz = torch.logsumexp(alpha, 1)
        ctx.save_for_backward(emissions, transitions, lengths, torch.stack(alphas, 1), logz)
        return logz

    @staticmethod
    @once_differentiable
    def backward(ctx, dz):
        emissions, transitions, lengths, alphas, logz = ctx.saved_tensors
        b, t, k = emissions.shape
        beta = torch.zeros_like(emissions[:, 0])
        d_emit = torch.zeros_like(emissions)
        d_trans = torch.zeros_like(transitions)
        for i in range(t - 1, -1, -1):
            live = (i < lengths)[:, None]
            node = torch.exp(alphas[:, i] + beta - logz[:, None])
            d_emit[:, i] = torch.where(live, node, torch.zeros_like(node)) * dz[:, None]
            if i:
                msg = transitions + (emissions[:, i] + beta)[:, None, :]
                edge = torch.exp(alphas[:, i - 1, :, None] + msg - logz[:, None, None])
                edge = torch.where(live[:, :, None], edge, torch.zeros_like(edge))
                d_trans += (edge * dz[:, None, None]).sum(0)
                beta = torch.where(live, torch.logsumexp(msg, 2), beta)
        return d_emit, d_trans, None
