"""Hand-written backwards."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _acc(t):
    """Accumulation type: float32 for everything short, float64 stays."""
    return t if t.dtype == torch.float64 else t.float()


# ---------------------------------------------------------------- normalisation


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        xf = _acc(x)
        rstd = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (xf * rstd * _acc(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        xhat = _acc(x) * rstd
        g = _acc(dy)
        gw = g * _acc(weight)
        dx = rstd * (gw - xhat * (gw * xhat).mean(-1, keepdim=True))
        dw = (g * xhat).flatten(0, -2).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), None


class LayerNorm(Function):
    """Statistics are recomputed in backward, so that it can be differentiated again."""

    @staticmethod
    def forward(x, weight, bias, eps):
        xf = _acc(x)
        mean = xf.mean(-1, keepdim=True)
        rstd = torch.rsqrt((xf - mean).square().mean(-1, keepdim=True) + eps)
        y = (xf - mean) * rstd * _acc(weight)
        if bias is not None:
            y = y + _acc(bias)
        return y.to(x.dtype), rstd

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, eps = inputs
        ctx.eps = eps
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, dy, _):
        x, weight = ctx.saved_tensors
        xf, g = _acc(x), _acc(dy)
        xc = xf - xf.mean(-1, keepdim=True)
        rstd = torch.rsqrt(xc.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = xc * rstd
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            gw = g * _acc(weight)
            dx = rstd * (gw - gw.mean(-1, keepdim=True) - xhat * (gw * xhat).mean(-1, keepdim=True))
            dx = dx.to(x.dtype)
        lead = tuple(range(x.dim() - 1))
        if ctx.needs_input_grad[1]:
            dw = (g * xhat).sum(lead).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            db = g.sum(lead).to(ctx.bias_dtype)
        return dx, dw, db, None


class _BatchNormFn(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, eps, batch_stats):
        inv = torch.rsqrt(var + eps)
        xhat = (x - mean) * inv
        ctx.save_for_backward(xhat, weight, inv)
        ctx.batch_stats = batch_stats
        return xhat * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, weight, inv = ctx.saved_tensors
        db = g.sum(0)
        dw = (g * xhat).sum(0)
        if ctx.batch_stats:
            n = g.shape[0]
            dx = weight * inv * (g - db / n - xhat * dw / n)
        else:
            dx = g * (weight * inv)
        return dx, dw, db, None, None, None, None


class FastBatchNorm1d(nn.Module):
    def __init__(self, features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                mean = x.mean(0)
                var = x.var(0, unbiased=False)
                n = x.shape[0]
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * (n / (n - 1)), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        return _BatchNormFn.apply(x, self.weight, self.bias, mean, var, self.eps, self.training)


class _DyTFn(Function):
    @staticmethod
    def forward(ctx, x, alpha, gamma, beta):
        t = torch.tanh(_acc(alpha) * _acc(x))
        ctx.save_for_backward(x, alpha, gamma)
        return (t * _acc(gamma) + _acc(beta)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, alpha, gamma = ctx.saved_tensors
        xf, g = _acc(x), _acc(g)
        t = torch.tanh(_acc(alpha) * xf)
        inner = g * _acc(gamma) * (1 - t) * (1 + t)
        dims = tuple(range(x.dim() - 1))
        return (
            (inner * _acc(alpha)).to(x.dtype),
            (inner * xf).sum().reshape(1).to(alpha.dtype),
            (g * t).sum(dims).to(gamma.dtype),
            g.sum(dims).to(gamma.dtype),
        )


class DynamicTanh(nn.Module):
    def __init__(self, features, alpha=0.5):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return _DyTFn.apply(x, self.alpha, self.gamma, self.beta)


# ---------------------------------------------------------------- losses


class LabelSmoothingCE(Function):
    @staticmethod
    def forward(ctx, logits, target, weight, ignore_index, reduction, smoothing):
        n, c = logits.shape
        logp = torch.log_softmax(logits, 1)
        keep = target != ignore_index
        safe = torch.where(keep, target, torch.zeros_like(target))
        w = logits.new_ones(c) if weight is None else weight
        wt = w[safe] * keep
        nll = -logp.gather(1, safe[:, None])[:, 0] * wt
        smooth = -(logp * w).sum(1) * keep
        loss = (1 - smoothing) * nll + smoothing / c * smooth
        denominator = wt.sum().clamp_min(1e-12)
        ctx.save_for_backward(logp, safe, keep, w, wt, denominator)
        ctx.reduction, ctx.smoothing = reduction, smoothing
        if reduction == "mean":
            return loss.sum() / denominator
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logp, safe, keep, w, wt, denominator = ctx.saved_tensors
        c = logp.shape[1]
        p = logp.exp()
        eps = ctx.smoothing / c * keep[:, None].to(logp.dtype)
        # loss = -sum_j q_j logp_j with q = (1-s) wt 1[target] + s/c w;  d = p sum(q) - q
        q = eps * w
        q = q.scatter_add(1, safe[:, None], ((1 - ctx.smoothing) * wt)[:, None])
        d = p * q.sum(1, keepdim=True) - q
        if ctx.reduction == "mean":
            d = d * (g / denominator)
        elif ctx.reduction == "sum":
            d = d * g
        else:
            d = d * g[:, None]
        return d, None, None, None, None, None


def label_smoothing_reference(logits, target, weight, ignore_index, reduction, smoothing):
    return F.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing
    )


class SigmoidFocal(Function):
    @staticmethod
    def forward(ctx, logits, target, alpha, gamma):
        ctx.save_for_backward(logits, target)
        ctx.alpha, ctx.gamma = alpha, gamma
        t = target.to(logits.dtype)
        z = logits * (2 * t - 1)
        loss = -(torch.sigmoid(-z) ** gamma) * F.logsigmoid(z)
        if alpha is not None:
            loss = loss * (alpha * t + (1 - alpha) * (1 - t))
        return loss

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        t = target.to(logits.dtype)
        sign = 2 * t - 1
        z = logits * sign
        p, q, logp = torch.sigmoid(z), torch.sigmoid(-z), F.logsigmoid(z)
        d = q**ctx.gamma * (ctx.gamma * p * logp - q) * sign
        if ctx.alpha is not None:
            d = d * (ctx.alpha * t + (1 - ctx.alpha) * (1 - t))
        return g * d, None, None, None


class GaussianNLL(Function):
    @staticmethod
    def forward(ctx, input, target, var, full, eps, reduction):
        var_c = var.clamp(min=eps)
        loss = 0.5 * (var_c.log() + (input - target) ** 2 / var_c)
        if full:
            loss = loss + 0.5 * math.log(2 * math.pi)
        ctx.save_for_backward(input, target, var)
        ctx.reduction, ctx.eps = reduction, eps
        return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss

    @staticmethod
    def backward(ctx, g):
        input, target, var = ctx.saved_tensors
        var_c = var.clamp(min=ctx.eps)
        r = input - target
        if ctx.reduction == "mean":
            g = g / r.numel()
        d_in = g * r / var_c
        d_var = g * 0.5 * (1 / var_c - (r / var_c) ** 2)
        d_var = d_var.sum_to_size(var.shape)
        return d_in, -d_in, d_var, None, None, None


class NTXent(Function):
    """SimCLR's loss, a float32 kernel. Row i and row i + n are a pair."""

    @staticmethod
    def forward(ctx, z, temperature):
        if z.dtype != torch.float32:
            raise TypeError("NTXent: float32 only")
        norm = z.norm(dim=1, keepdim=True).clamp_min(1e-8)
        u = z / norm
        n2 = z.shape[0]
        sim = u @ u.t() / temperature
        sim.fill_diagonal_(float("-inf"))
        partner = (torch.arange(n2) + n2 // 2) % n2
        logp = torch.log_softmax(sim, 1)
        ctx.save_for_backward(u, norm, logp, partner)
        ctx.temperature = temperature
        return -logp[torch.arange(n2), partner].mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, norm, logp, partner = ctx.saved_tensors
        n2 = u.shape[0]
        ds = logp.exp()
        ds[torch.arange(n2), partner] -= 1
        ds *= g / (n2 * ctx.temperature)
        du = (ds + ds.t()) @ u
        dz = (du - u * (u * du).sum(1, keepdim=True)) / norm
        return dz, None


class FusedLinearCE(Function):
    """Gradients are computed chunk by chunk in forward (the logits are never kept), and scaled in backward."""

    CHUNK = 4

    @staticmethod
    def forward(ctx, h, weight, target):
        hf, wf = _acc(h), _acc(weight)
        n = h.shape[0]
        dh = torch.zeros_like(hf)
        dw = torch.zeros_like(wf)
        total = hf.new_zeros(())
        for s in range(0, n, FusedLinearCE.CHUNK):
            hc, tc = hf[s : s + FusedLinearCE.CHUNK], target[s : s + FusedLinearCE.CHUNK]
            logits = hc @ wf.t()
            lse = torch.logsumexp(logits, 1)
            rows = torch.arange(hc.shape[0], device=h.device)
            total += (lse - logits[rows, tc]).sum()
            p = logits.sub_(lse[:, None]).exp_()
            p[rows, tc] -= 1
            p /= n
            dh[s : s + FusedLinearCE.CHUNK] = p @ wf
            dw += p.t() @ hc
        ctx.save_for_backward(dh, dw)
        ctx.dtypes = h.dtype, weight.dtype
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return (dh * g).to(ctx.dtypes[0]), (dw * g).to(ctx.dtypes[1]), None


# ---------------------------------------------------------------- attention and its parts


class FlashAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        qf, kf, vf = _acc(q), _acc(k), _acc(v)
        scale = q.shape[-1] ** -0.5
        s = qf @ kf.transpose(-1, -2) * scale
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        lse = torch.logsumexp(s, -1)
        out = (s - lse[..., None]).exp() @ vf
        ctx.save_for_backward(q, k, v, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(lse)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, _):
        q, k, v, lse = ctx.saved_tensors
        qf, kf, vf, do = _acc(q), _acc(k), _acc(v), _acc(do)
        s = qf @ kf.transpose(-1, -2) * ctx.scale
        p = (s - lse[..., None]).exp()
        if ctx.causal:
            p = p.tril()
        dv = p.transpose(-1, -2) @ do
        dp = do @ vf.transpose(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
        return (ds @ kf).to(q.dtype), (ds.transpose(-1, -2) @ qf).to(k.dtype), dv.to(v.dtype), None


class Rotary(Function):
    @staticmethod
    def _tables(positions, d, base, like):
        inv = base ** (-torch.arange(0, d, 2, dtype=like.dtype) / d)
        angle = positions.to(like.dtype)[:, None] * inv
        return angle.cos(), angle.sin()

    @staticmethod
    def _rotate(x, cos, sin, interleaved):
        if interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def forward(ctx, x, positions, base, interleaved):
        xf = _acc(x)
        cos, sin = Rotary._tables(positions, x.shape[-1], base, xf)
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return Rotary._rotate(xf, cos, sin, interleaved).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return Rotary._rotate(_acc(g), cos, -sin, ctx.interleaved).to(g.dtype), None, None, None


class BiasDropoutAdd(Function):
    """residual + dropout(x + bias), with a mask that the caller drew."""

    @staticmethod
    def forward(ctx, x, bias, residual, mask, p, training):
        ctx.set_materialize_grads(False)
        h = _acc(x) + _acc(bias)
        scale = 1.0
        if training:
            scale = 1.0 / (1.0 - p)
            h = h * mask * scale
            ctx.save_for_backward(mask)
        ctx.training, ctx.scale, ctx.shape = training, scale, bias.shape
        return (_acc(residual) + h).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return (None,) * 6
        d = _acc(g)
        if ctx.training:
            (mask,) = ctx.saved_tensors
            d = d * mask * ctx.scale
        dbias = d.sum_to_size(ctx.shape).to(g.dtype) if ctx.needs_input_grad[1] else None
        dx = d.to(g.dtype) if ctx.needs_input_grad[0] else None
        return dx, dbias, g, None, None, None


class SwiGLU(Function):
    @staticmethod
    def forward(ctx, packed):
        ctx.save_for_backward(packed)
        gate, up = _acc(packed).chunk(2, -1)
        return (F.silu(gate) * up).to(packed.dtype)

    @staticmethod
    def backward(ctx, g):
        (packed,) = ctx.saved_tensors
        gate, up = _acc(packed).chunk(2, -1)
        g = _acc(g)
        s = torch.sigmoid(gate)
        dgate = g * up * (s + gate * s * (1 - s))
        return torch.cat([dgate, g * (gate * s)], -1).to(packed.dtype)


class HalfGelu(Function):
    """tanh GELU, a float16 kernel that computes in float32."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float16:
            raise TypeError(f"expected Half, got {x.dtype}")
        ctx.save_for_backward(x)
        v = x.float()
        return (0.5 * v * (1 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v**3)))).half()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        v = x.float()
        t = torch.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))
        d = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * v * v)
        return (g.float() * d).half()


# ---------------------------------------------------------------- convolution, pooling, embedding


class CausalDepthwiseConv(Function):
    @staticmethod
    def _shift(x, by):
        return F.pad(x, (by, 0))[..., : x.shape[-1]]

    @staticmethod
    def forward(ctx, x, weight, bias, dilation):
        ctx.save_for_backward(x, weight)
        ctx.dilation, ctx.has_bias = dilation, bias is not None
        k = weight.shape[1]
        y = torch.zeros_like(x)
        for j in range(k):
            y += weight[:, j, None] * CausalDepthwiseConv._shift(x, (k - 1 - j) * dilation)
        if bias is not None:
            y += bias[:, None]
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        k, t = weight.shape[1], x.shape[-1]
        dx, dw = None, []
        for j in range(k):
            by = (k - 1 - j) * ctx.dilation
            back = F.pad(g, (0, by))[..., by : by + t] * weight[:, j, None]
            dx = back if dx is None else dx + back
            dw.append((g * CausalDepthwiseConv._shift(x, by)).sum((0, 2)))
        db = g.sum((0, 2)) if ctx.has_bias else None
        return dx, torch.stack(dw, 1), db, None


class MaxPool2dWithIndices(Function):
    @staticmethod
    def forward(ctx, x, kernel, stride):
        out, index = F.max_pool2d(x, kernel, stride, return_indices=True)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return out, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        b, c, h, w = ctx.shape
        gf = _acc(g).flatten(2)
        flat = gf.new_zeros(b, c, h * w).scatter_add(2, index.flatten(2), gf)
        return flat.view(b, c, h, w).to(g.dtype), None, None


class EmbeddingBag(Function):
    @staticmethod
    def forward(ctx, weight, index, offsets, mode, padding_idx):
        bags = offsets.numel() - 1
        lengths = (offsets[1:] - offsets[:-1]).long()
        bag = torch.repeat_interleave(torch.arange(bags), lengths)
        rows = _acc(weight[index])
        keep = (index != padding_idx).to(rows.dtype)
        if mode == "mean":
            count = rows.new_zeros(bags).index_add_(0, bag, keep).clamp_min_(1)
            keep = keep / count[bag]
        out = rows.new_zeros(bags, weight.shape[1]).index_add_(0, bag, rows * keep[:, None])
        ctx.save_for_backward(index, bag, keep)
        ctx.rows = weight.shape[0]
        return out.to(weight.dtype)

    @staticmethod
    def backward(ctx, g):
        index, bag, coefficient = ctx.saved_tensors
        gf = _acc(g)
        dw = gf.new_zeros(ctx.rows, g.shape[1]).index_add(0, index, gf[bag] * coefficient[:, None])
        return dw.to(g.dtype), None, None, None, None


class SpMMIndexed(Function):
    """values at (row, col), any order, duplicates add up, times a dense matrix."""

    @staticmethod
    def forward(ctx, row, col, values, dense, rows):
        ctx.save_for_backward(row, col, values, dense)
        return dense.new_zeros(rows, dense.shape[1]).index_add_(0, row, values[:, None] * dense[col])

    @staticmethod
    def backward(ctx, g):
        row, col, values, dense = ctx.saved_tensors
        picked = g[row]
        dvalues = ddense = None
        if ctx.needs_input_grad[2]:
            dvalues = (picked * dense[col]).sum(1)
        if ctx.needs_input_grad[3]:
            ddense = torch.zeros_like(dense).index_add(0, col, values[:, None] * picked)
        return None, None, dvalues, ddense, None


class Int8WeightLinear(Function):
    """x @ (scale * w8).T + bias with an int8 weight that is not trained; its scales are."""

    @staticmethod
    def forward(ctx, x, w8, scale, bias):
        w = w8.to(_acc(x).dtype)
        y = (_acc(x) @ w.t()) * _acc(scale)
        ctx.save_for_backward(x, w8, scale)
        if bias is not None:
            y = y + _acc(bias)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w8, scale = ctx.saved_tensors
        gf = _acc(g)
        w = w8.to(gf.dtype)
        dx = dscale = dbias = None
        if ctx.needs_input_grad[0]:
            dx = ((gf * _acc(scale)) @ w).to(x.dtype)
        if ctx.needs_input_grad[2]:
            dscale = ((gf.t() @ _acc(x)) * w).sum(1).to(scale.dtype)
        if ctx.needs_input_grad[3]:
            dbias = gf.sum(0).to(g.dtype)
        return dx, None, dscale, dbias


# ---------------------------------------------------------------- recurrences and dynamic programs


class LinearRecurrence(Function):
    """h[t] = a[t] h[t-1] + b[t]"""

    @staticmethod
    def forward(ctx, a, b, h0):
        h = torch.zeros_like(b[:, 0]) if h0 is None else h0
        out = []
        for t in range(a.shape[1]):
            h = torch.addcmul(b[:, t], a[:, t], h)
            out.append(h)
        out = torch.stack(out, 1)
        ctx.has_h0 = h0 is not None
        ctx.save_for_backward(a, out, *([h0] if ctx.has_h0 else []))
        return out

    @staticmethod
    def backward(ctx, g):
        a, h, *h0 = ctx.saved_tensors
        first = h0[0] if h0 else torch.zeros_like(h[:, 0])
        previous = torch.cat([first[:, None], h[:, :-1]], 1)
        carry = torch.zeros_like(g[:, 0])
        db = []
        for t in reversed(range(g.shape[1])):
            total = g[:, t] + carry
            db.append(total)
            carry = a[:, t] * total
        db = torch.stack(db[::-1], 1)
        return db * previous, db, carry if ctx.has_h0 else None


class CRFLogPartition(Function):
    @staticmethod
    def forward(ctx, emissions, transitions, mask):
        b, t, k = emissions.shape
        alphas = [emissions[:, 0]]
        for i in range(1, t):
            step = torch.logsumexp(alphas[-1][:, :, None] + transitions, 1) + emissions[:, i]
            alphas.append(torch.where(mask[:, i, None], step, alphas[-1]))
        z = torch.logsumexp(alphas[-1], 1)
        ctx.save_for_backward(emissions, transitions, mask, torch.stack(alphas), z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        emissions, transitions, mask, alphas, z = ctx.saved_tensors
        b, t, k = emissions.shape
        de = torch.zeros_like(emissions)
        dtr = torch.zeros_like(transitions)
        beta = torch.zeros_like(alphas[0])
        for i in range(t - 1, 0, -1):
            right = emissions[:, i] + beta
            joint = alphas[i - 1][:, :, None] + transitions + right[:, None, :] - z[:, None, None]
            joint = (joint.exp() * g[:, None, None]).masked_fill(~mask[:, i, None, None], 0.0)
            de[:, i] = joint.sum(1)
            dtr += joint.sum(0)
            step = torch.logsumexp(transitions + right[:, None, :], 2)
            beta = torch.where(mask[:, i, None], step, beta)
        de[:, 0] = (alphas[0] + beta - z[:, None]).exp() * g[:, None]
        return de, dtr, None


class BiquadFilter(Function):
    """Direct form I: y[n] = b0 x[n] + b1 x[n-1] + b2 x[n-2] - a1 y[n-1] - a2 y[n-2]"""

    @staticmethod
    def _allpole(u, a):
        y = torch.zeros_like(u)
        for n in range(u.shape[-1]):
            y[..., n] = u[..., n]
            if n > 0:
                y[..., n] -= a[0] * y[..., n - 1]
            if n > 1:
                y[..., n] -= a[1] * y[..., n - 2]
        return y

    @staticmethod
    def _delay(x, by):
        return F.pad(x, (by, 0))[..., : x.shape[-1]]

    @staticmethod
    def forward(ctx, x, b, a):
        u = b[0] * x + b[1] * BiquadFilter._delay(x, 1) + b[2] * BiquadFilter._delay(x, 2)
        y = BiquadFilter._allpole(u, a)
        ctx.save_for_backward(x, b, a, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, b, a, y = ctx.saved_tensors
        # the adjoint of a filter is the same filter in reversed time
        du = BiquadFilter._allpole(g.flip(-1), a).flip(-1)
        rev = du.flip(-1)
        dx = b[0] * rev + b[1] * BiquadFilter._delay(rev, 1) + b[2] * BiquadFilter._delay(rev, 2)
        db = torch.stack([(du * BiquadFilter._delay(x, k)).sum() for k in range(3)])
        da = torch.stack([-(du * BiquadFilter._delay(y, k)).sum() for k in (1, 2)])
        return dx.flip(-1), db, da


# ---------------------------------------------------------------- quantisation, straight through


class LSQFakeQuant(Function):
    @staticmethod
    def forward(ctx, x, scale, qmin, qmax):
        ctx.save_for_backward(x, scale)
        ctx.q = qmin, qmax
        return torch.clamp(torch.round(x / scale), qmin, qmax) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        qmin, qmax = ctx.q
        v = x / scale
        inside = (v >= qmin) & (v <= qmax)
        ds = torch.where(inside, torch.round(v) - v, v.clamp(qmin, qmax))
        return g * inside, (g * ds).sum().reshape(scale.shape), None, None


def lsq_composite(x, scale, qmin, qmax):
    """Esser et al., equation 3, by detaching."""
    v = torch.clamp(x / scale, qmin, qmax)
    return (v + (torch.round(v) - v).detach()) * scale


class SignSTE(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


# ---------------------------------------------------------------- complex


class ComplexSelfGate(Function):
    """z sigmoid(|z|^2 + b), b real"""

    @staticmethod
    def forward(ctx, z, b):
        ctx.save_for_backward(z, b)
        return z * torch.sigmoid(z.abs().square() + b)

    @staticmethod
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        s = torch.sigmoid(z.real**2 + z.imag**2 + b)
        overlap = z.real * g.real + z.imag * g.imag
        slope = s * (1 - s) * overlap
        return g * s + 2 * slope * z, slope.sum(0)


class ComplexLinear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = x @ weight.t()
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g @ weight.conj()
        if ctx.needs_input_grad[1]:
            dw = g.t() @ x.conj()
        if ctx.needs_input_grad[2]:
            db = g.sum(0)
        return dx, dw, db


# ---------------------------------------------------------------- matrix functions, distances


class SPDSolve(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = torch.cholesky_solve(b, torch.linalg.cholesky(a))
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        v = SPDSolve.apply(a, g)
        da = -(v @ x.mT)
        return (da + da.mT) / 2, v


class MatrixSqrt(Function):
    @staticmethod
    def forward(ctx, a):
        lam, q = torch.linalg.eigh(a)
        root = lam.sqrt()
        ctx.save_for_backward(root, q)
        return (q * root) @ q.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        root, q = ctx.saved_tensors
        # dS S + S dS = dA, solved in the eigenbasis
        inner = q.mT @ ((g + g.mT) / 2) @ q
        return q @ (inner / (root[:, None] + root)) @ q.mT


class SelfDistance(Function):
    @staticmethod
    def forward(ctx, x):
        d = (x[:, None] - x[None]).square().sum(-1).sqrt()
        ctx.save_for_backward(x, d)
        return d

    @staticmethod
    def backward(ctx, g):
        x, d = ctx.saved_tensors
        zero = d == 0
        coefficient = torch.where(zero, torch.zeros_like(g), g / torch.where(zero, torch.ones_like(d), d))
        coefficient = coefficient + coefficient.t()
        return (coefficient[:, :, None] * (x[:, None] - x[None])).sum(1)


# ---------------------------------------------------------------- geometry, physics


class QuaternionRotate(Function):
    """v of [b, n, 3] turned by the unit quaternions (w, x, y, z) of [b, 4]"""

    @staticmethod
    def forward(ctx, q, v):
        ctx.save_for_backward(q, v)
        w, u = q[:, None, :1], q[:, None, 1:].expand_as(v)
        t = 2 * torch.linalg.cross(u, v)
        return v + w * t + torch.linalg.cross(u, t)

    @staticmethod
    def backward(ctx, g):
        q, v = ctx.saved_tensors
        w, u = q[:, None, :1], q[:, None, 1:].expand_as(v)
        uv = torch.linalg.cross(u, v)
        dw = 2 * (g * uv).sum((1, 2)).unsqueeze(1)
        # u x (u x v) = u (u.v) - v (u.u)
        dot = lambda a, b: (a * b).sum(-1, keepdim=True)  # noqa: E731
        du = 2 * w * torch.linalg.cross(v, g) + 2 * (g * dot(u, v) + v * dot(u, g) - 2 * u * dot(v, g))
        conj = -2 * w * torch.linalg.cross(u, g)
        dv = g + conj + 2 * torch.linalg.cross(u, torch.linalg.cross(u, g))
        return torch.cat([dw, du.sum(1)], 1), dv


class SO3Exp(Function):
    """Rodrigues' formula, with Taylor series where the angle is small."""

    @staticmethod
    def _coefficients(t):
        small = t < 0.25
        s = torch.where(small, torch.ones_like(t), t)
        theta = s.sqrt()

        def series(f):
            total = torch.zeros_like(t)
            for k in reversed(range(9)):
                total = total * t + f(k)
            return total

        sign = lambda k: -1.0 if k % 2 else 1.0  # noqa: E731
        a = torch.where(small, series(lambda k: sign(k) / math.factorial(2 * k + 1)), theta.sin() / theta)
        half = (theta / 2).sin() / theta
        b = torch.where(small, series(lambda k: sign(k) / math.factorial(2 * k + 2)), 2 * half**2)
        # 2 da/dt and 2 db/dt
        da = series(lambda k: 2 * (k + 1) * sign(k + 1) / math.factorial(2 * k + 3))
        db = series(lambda k: 2 * (k + 1) * sign(k + 1) / math.factorial(2 * k + 4))
        da = torch.where(small, da, (theta.cos() - a) / s)
        db = torch.where(small, db, (a - 2 * b) / s)
        return a, b, da, db

    @staticmethod
    def _hat(w):
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(*w.shape[:-1], 3, 3)

    @staticmethod
    def forward(ctx, w):
        t = w.square().sum(-1)
        a, b, da, db = SO3Exp._coefficients(t)
        k = SO3Exp._hat(w)
        ctx.save_for_backward(w, a, b, da, db)
        return torch.eye(3, dtype=w.dtype) + a[..., None, None] * k + b[..., None, None] * (k @ k)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, a, b, da, db = ctx.saved_tensors
        k = SO3Exp._hat(w)
        k2 = k @ k
        gk = a[..., None, None] * g + b[..., None, None] * (k.mT @ g + g @ k.mT)
        dw = torch.stack([gk[..., 2, 1] - gk[..., 1, 2], gk[..., 0, 2] - gk[..., 2, 0], gk[..., 1, 0] - gk[..., 0, 1]], -1)
        radial = da * (g * k).sum((-1, -2)) + db * (g * k2).sum((-1, -2))
        return dw + radial[..., None] * w


class RK4VanDerPol(Function):
    """The discrete adjoint of classical Runge-Kutta."""

    @staticmethod
    def _f(y, mu):
        x, v = y.unbind(-1)
        return torch.stack([v, mu * (1 - x * x) * v - x], -1)

    @staticmethod
    def _vjp(y, mu, g):
        x, v = y.unbind(-1)
        gx, gv = g.unbind(-1)
        return torch.stack([gv * (-2 * mu * x * v - 1), gx + gv * mu * (1 - x * x)], -1), (gv * (1 - x * x) * v).sum()

    @staticmethod
    def _stages(y, mu, h):
        f = RK4VanDerPol._f
        y2 = y + h / 2 * f(y, mu)
        y3 = y + h / 2 * f(y2, mu)
        return y2, y3, y + h * f(y3, mu)

    @staticmethod
    def forward(ctx, y0, mu, steps, h):
        f, y, kept = RK4VanDerPol._f, y0, []
        for _ in range(steps):
            kept.append(y)
            y2, y3, y4 = RK4VanDerPol._stages(y, mu, h)
            y = y + h / 6 * (f(y, mu) + 2 * f(y2, mu) + 2 * f(y3, mu) + f(y4, mu))
        ctx.save_for_backward(mu, *kept)
        ctx.h = h
        return y.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        mu, *kept = ctx.saved_tensors
        h, vjp, lam, dmu = ctx.h, RK4VanDerPol._vjp, g, torch.zeros_like(mu)
        for y in reversed(kept):
            y2, y3, y4 = RK4VanDerPol._stages(y, mu, h)
            g4, m4 = vjp(y4, mu, h / 6 * lam)
            g3, m3 = vjp(y3, mu, h / 3 * lam + h * g4)
            g2, m2 = vjp(y2, mu, h / 3 * lam + h / 2 * g3)
            g1, m1 = vjp(y, mu, h / 6 * lam + h / 2 * g2)
            lam = lam + g1 + g2 + g3 + g4
            dmu = dmu + m1 + m2 + m3 + m4
        return lam, dmu, None, None


class KeplerSolve(Function):
    """The eccentric anomaly E with E - e sin E = M, by Newton; differentiated implicitly."""

    @staticmethod
    def forward(ctx, mean_anomaly, e):
        x = mean_anomaly + e * mean_anomaly.sin()
        for _ in range(12):
            x = x - (x - e * x.sin() - mean_anomaly) / (1 - e * x.cos())
        ctx.save_for_backward(x, e)
        return x

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        g = g / (1 - e * x.cos())
        return g, (g * x.sin()).sum_to_size(e.shape)


# ---------------------------------------------------------------- densities


class StudentTLogProb(Function):
    @staticmethod
    def forward(ctx, x, df, loc, scale):
        ctx.save_for_backward(x, df, loc, scale)
        z = (x - loc) / scale
        norm = torch.lgamma(df / 2) - torch.lgamma((df + 1) / 2) + 0.5 * (df * math.pi).log() + scale.log()
        return -0.5 * (df + 1) * torch.log1p(z * z / df) - norm

    @staticmethod
    def backward(ctx, g):
        x, df, loc, scale = ctx.saved_tensors
        z = (x - loc) / scale
        z2 = z * z
        w = (df + 1) / (df + z2)
        dx = -g * w * z / scale
        ddf = 0.5 * g * (
            torch.digamma((df + 1) / 2) - torch.digamma(df / 2) - 1 / df - torch.log1p(z2 / df) + w * z2 / df
        )
        dscale = g * (w * z2 - 1) / scale
        return dx, ddf.sum_to_size(df.shape), -dx.sum_to_size(loc.shape), dscale.sum_to_size(scale.shape)


# ---------------------------------------------------------------- signals, sampling


class FFTCausalConv(Function):
    @staticmethod
    def forward(ctx, u, k):
        ctx.save_for_backward(u, k)
        t = u.shape[-1]
        n = 2 * t
        return torch.fft.irfft(torch.fft.rfft(u, n) * torch.fft.rfft(k, n), n)[..., :t]

    @staticmethod
    def backward(ctx, g):
        u, k = ctx.saved_tensors
        t = u.shape[-1]
        n = 2 * t
        gf = torch.fft.rfft(g, n)
        du = torch.fft.irfft(gf * torch.fft.rfft(k, n).conj(), n)[..., :t]
        dk = torch.fft.irfft(gf * torch.fft.rfft(u, n).conj(), n)[..., :t].sum(0)
        return du, dk


class PowerSpectrogram(Function):
    @staticmethod
    def forward(ctx, x, window, hop):
        n = window.shape[0]
        spectrum = torch.fft.rfft(x.unfold(-1, n, hop) * window)
        ctx.save_for_backward(spectrum, window)
        ctx.hop, ctx.length = hop, x.shape[-1]
        return spectrum.real**2 + spectrum.imag**2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        spectrum, window = ctx.saved_tensors
        n = window.shape[0]
        # the adjoint of rfft: pad the half spectrum with zeros, inverse transform, real part
        frames = torch.fft.ifft(2 * g * spectrum, n=n, norm="forward").real * window
        dx = frames.new_zeros(g.shape[0], ctx.length)
        for i in range(frames.shape[1]):
            dx[:, i * ctx.hop : i * ctx.hop + n] += frames[:, i]
        return dx, None, None


class BilinearSample(Function):
    """features [c, h, w] at pixel coordinates [k, 2] of (x, y); zero outside"""

    @staticmethod
    def _corners(coords, h, w):
        x, y = coords.unbind(1)
        x0, y0 = x.floor(), y.floor()
        for dy in (0, 1):
            for dx in (0, 1):
                cx, cy = (x0 + dx).long(), (y0 + dy).long()
                inside = (cx >= 0) & (cx < w) & (cy >= 0) & (cy < h)
                wx = (x - x0) if dx else 1 - (x - x0)
                wy = (y - y0) if dy else 1 - (y - y0)
                flat = cy.clamp(0, h - 1) * w + cx.clamp(0, w - 1)
                yield flat, inside.to(coords.dtype), wx, wy, 2 * dx - 1, 2 * dy - 1

    @staticmethod
    def forward(ctx, features, coords):
        ctx.save_for_backward(features, coords)
        c, h, w = features.shape
        out = features.new_zeros(c, coords.shape[0])
        for flat, inside, wx, wy, _, _ in BilinearSample._corners(coords, h, w):
            out += features.reshape(c, -1)[:, flat] * (inside * wx * wy)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        features, coords = ctx.saved_tensors
        c, h, w = features.shape
        df = features.new_zeros(c, h * w)
        dc = torch.zeros_like(coords)
        for flat, inside, wx, wy, sx, sy in BilinearSample._corners(coords, h, w):
            df.index_add_(1, flat, g * (inside * wx * wy))
            dot = (g * features.reshape(c, -1)[:, flat]).sum(0) * inside
            dc[:, 0] += dot * wy * sx
            dc[:, 1] += dot * wx * sy
        return df.view(c, h, w), dc


def make_bilinear_inputs(generator, device, dtype, *, k):
    features = torch.randn(2, 4, 5, generator=generator, device=device, dtype=dtype, requires_grad=True)
    whole = torch.randint(-2, 5, (k, 2), generator=generator, device=device).to(dtype)
    fraction = 0.2 + 0.6 * torch.rand(k, 2, generator=generator, device=device, dtype=dtype)
    return features, (whole + fraction).requires_grad_()


# ---------------------------------------------------------------- memory


class _RecomputeFn(Function):
    @staticmethod
    def forward(ctx, run, x, *params):
        ctx.run = run
        ctx.save_for_backward(x, *params)
        with torch.no_grad():
            return run(x, *params)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*leaves)
        return (None, *torch.autograd.grad(out, leaves, g))


class RecomputedMLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    @staticmethod
    def _run(x, w1, b1, w2, b2):
        return x + F.linear(F.silu(F.linear(x, w1, b1)), w2, b2)

    def forward(self, x):
        return _RecomputeFn.apply(self._run, x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)


class InplaceLeakyReLU(Function):
    """Keeps its output only: the slope is positive, so the sign of the output is that of the input."""

    @staticmethod
    def forward(ctx, x, slope):
        x.copy_(torch.where(x > 0, x, slope * x))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, g, ctx.slope * g), None


class ScratchSoftplus(Function):
    """log(1 + exp(x)) * w, its backward writing into a scratch buffer that all calls share."""

    _scratch = {}

    @staticmethod
    def _buffer(like):
        key = like.dtype, like.device
        buffer = ScratchSoftplus._scratch.get(key)
        if buffer is None or buffer.numel() < like.numel():
            buffer = ScratchSoftplus._scratch[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return buffer[: like.numel()].view(like.shape)

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))) * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        tmp = ScratchSoftplus._buffer(x)
        torch.sigmoid(x.clamp(-80.0, 80.0), out=tmp)
        tmp.mul_(g).mul_(w)
        dx = tmp.clone()
        torch.exp(-x.abs(), out=tmp)
        tmp.log1p_().add_(x.clamp_min(0)).mul_(g)
        return dx, tmp.sum(0)


# ---------------------------------------------------------------- composites that compute the same


def focal_reference(logits, target, alpha, gamma):
    t = target.to(logits.dtype)
    ce = F.binary_cross_entropy_with_logits(logits, t, reduction="none")
    miss = torch.sigmoid(-logits) * t + torch.sigmoid(logits) * (1 - t)
    loss = ce * miss**gamma
    return loss if alpha is None else (alpha * t + (1 - alpha) * (1 - t)) * loss


def swiglu_reference(packed):
    gate, up = packed.chunk(2, -1)
    return F.silu(gate) * up


def causal_conv_reference(u, k):
    t = u.shape[-1]
    lag = torch.arange(t)[:, None] - torch.arange(t)
    toeplitz = k[:, lag.clamp_min(0)] * (lag >= 0)
    return torch.einsum("dts,bds->bdt", toeplitz, u)


def student_t_reference(x, df, loc, scale):
    return torch.distributions.StudentT(df, loc, scale, validate_args=False).log_prob(x)


def embedding_bag_reference(weight, index, offsets, mode, padding_idx):
    position = torch.arange(index.numel())
    member = (position >= offsets[:-1, None]) & (position < offsets[1:, None]) & (index != padding_idx)
    member = member.to(weight.dtype)
    if mode == "mean":
        member = member / member.sum(1, keepdim=True).clamp_min(1)
    return member @ weight[index]
