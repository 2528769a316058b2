"""Layers and kernels' wrappers: fused, blocked, quantised, with transforms and options."""

import functools
import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def contiguous_inputs(method):
    """Every tensor argument made contiguous, as wrappers of kernels do."""

    @functools.wraps(method)
    def wrapped(ctx, *args):
        return method(ctx, *(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args))

    return wrapped


class PartialRotary(Function):
    """Rotates the first channels by position, interleaved or in halves; the rest passes."""

    @staticmethod
    def rotate(x, cos, sin, interleaved):
        r = 2 * cos.size(-1)
        turned, rest = x[..., :r], x[..., r:]
        if interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return torch.cat([turned, rest], -1)

    @staticmethod
    def forward(ctx, x, cos, sin, positions, interleaved=False):
        c, s = cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)
        ctx.save_for_backward(c, s)
        ctx.interleaved = interleaved
        return PartialRotary.rotate(x, c, s, interleaved)

    @staticmethod
    def backward(ctx, g):
        c, s = ctx.saved_tensors
        return PartialRotary.rotate(g, c, -s, ctx.interleaved), None, None, None, None


class AlibiAttention(Function):
    """Attention in blocks of keys with linear biases; the log-sum-exp comes out, and has a gradient."""

    @staticmethod
    def bias(slopes, rows, columns, causal):
        distance = (rows[:, None] - columns[None, :]).abs().to(slopes.dtype)
        bias = -slopes.view(-1, 1, 1) * distance
        if causal:
            bias = bias.masked_fill(columns[None, :] > rows[:, None], -math.inf)
        return bias

    @staticmethod
    @contiguous_inputs
    def forward(ctx, q, k, v, slopes, causal, block):
        t, scale = q.size(-2), q.size(-1) ** -0.5
        rows = torch.arange(t)
        top = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype)
        total, out = torch.zeros_like(top), torch.zeros_like(q[..., :1]) * v[..., :1, :]
        for start in range(0, k.size(-2), block):
            columns = torch.arange(start, min(start + block, k.size(-2)))
            s = q @ k[..., columns, :].mT * scale + AlibiAttention.bias(slopes, rows, columns, causal)
            new = torch.maximum(top, s.amax(-1))
            safe = torch.where(new == -math.inf, torch.zeros_like(new), new)
            p, old = torch.exp(s - safe.unsqueeze(-1)), torch.exp(top - safe)
            total = total * old + p.sum(-1)
            out = out * old.unsqueeze(-1) + p @ v[..., columns, :]
            top = new
        out, lse = out / total.unsqueeze(-1), top + total.log()
        ctx.save_for_backward(q, k, v, slopes, out, lse)
        ctx.causal, ctx.block, ctx.scale = causal, block, scale
        return out, lse

    @staticmethod
    @once_differentiable
    @contiguous_inputs
    def backward(ctx, d_out, d_lse):
        q, k, v, slopes, out, lse = ctx.saved_tensors
        rows = torch.arange(q.size(-2))
        dq, dk, dv, d_slopes = (torch.zeros_like(a) for a in (q, k, v, slopes))
        delta = (d_out * out).sum(-1) - d_lse
        for start in range(0, k.size(-2), ctx.block):
            end = min(start + ctx.block, k.size(-2))
            columns, kb = torch.arange(start, end), k[..., start:end, :]
            s = q @ kb.mT * ctx.scale + AlibiAttention.bias(slopes, rows, columns, ctx.causal)
            p = torch.exp(s - lse.unsqueeze(-1))
            dv[..., start:end, :] = p.mT @ d_out
            ds = p * (d_out @ v[..., start:end, :].mT - delta.unsqueeze(-1))
            dq += ds @ kb * ctx.scale
            dk[..., start:end, :] = ds.mT @ q * ctx.scale
            distance = (rows[:, None] - columns[None, :]).abs().to(slopes.dtype)
            d_slopes -= (ds * distance).sum((-1, -2))
        return dq, dk, dv, d_slopes, None, None


class AdaptiveInstanceNorm(Function):
    """Content normalised over time, scaled and shifted by the statistics of a style."""

    @staticmethod
    def forward(ctx, content, style, eps=1e-5):
        def stats(x):
            mean = x.mean(-1, keepdim=True)
            return mean, (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt()

        (mc, sc), (ms, ss) = stats(content), stats(style)
        normal = (content - mc) / sc
        ctx.save_for_backward(normal, sc, (style - ms) / ss, ss)
        return normal * ss + ms

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        normal, sc, style_normal, ss = ctx.saved_tensors
        d_normal = g * ss
        d_content = (
            d_normal - d_normal.mean(-1, keepdim=True) - normal * (d_normal * normal).mean(-1, keepdim=True)
        ) / sc
        d_ms, d_ss = g.sum(-1, keepdim=True), (g * normal).sum(-1, keepdim=True)
        d_style = (d_ms + d_ss * style_normal) / style_normal.size(-1)
        return d_content, d_style, None


class DropoutAddLayerNorm(Function):
    """Dropout by a seed, the residual added, layer norm; the sum before the norm comes out as well."""

    @staticmethod
    def mask(shape, p, seed, dtype):
        generator = torch.Generator().manual_seed(seed)
        return (torch.rand(shape, generator=generator) >= p).to(dtype) / (1 - p)

    @staticmethod
    def forward(ctx, x, residual, weight, bias, p, seed, eps):
        total = x * DropoutAddLayerNorm.mask(x.shape, p, seed, x.dtype)
        if residual is not None:
            total = total + residual
        mean = total.mean(-1, keepdim=True)
        rstd = (total.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        y = (total - mean) * rstd * weight
        if bias is not None:
            y = y + bias
        ctx.save_for_backward(total, mean, rstd, weight)
        ctx.p, ctx.seed, ctx.has_residual, ctx.has_bias = p, seed, residual is not None, bias is not None
        return y, total

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, d_total):
        total, mean, rstd, weight = ctx.saved_tensors
        normal = (total - mean) * rstd
        wdy = dy * weight
        d = (
            wdy - wdy.mean(-1, keepdim=True) - normal * (wdy * normal).mean(-1, keepdim=True)
        ) * rstd + d_total
        lead = tuple(range(dy.dim() - 1))
        dx = d * DropoutAddLayerNorm.mask(d.shape, ctx.p, ctx.seed, d.dtype)
        d_residual = d.clone() if ctx.has_residual else None
        d_bias = dy.sum(lead) if ctx.has_bias else None
        return dx, d_residual, (dy * normal).sum(lead), d_bias, None, None, None


class LoRALinear(Function):
    """A frozen weight and a trained low-rank update; computes only what is needed."""

    @staticmethod
    def forward(ctx, x, weight, a, b, scaling):
        low = x @ a.t()
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scaling = scaling
        return x @ weight.t() + scaling * (low @ b.t())

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, a, b, low = ctx.saved_tensors
        flat = g.flatten(0, -2)
        d_low = ctx.scaling * (flat @ b)
        dx = dw = da = db = None
        if ctx.needs_input_grad[0]:
            dx = (flat @ weight + d_low @ a).view_as(x)
        if ctx.needs_input_grad[1]:
            dw = flat.t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            da = d_low.t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[3]:
            db = ctx.scaling * (flat.t() @ low.flatten(0, -2))
        return dx, dw, da, db, None


class GroupDequantLinear(Function):
    """x times int8 codes scaled by group; scales and zero points are trained, the codes are not."""

    @staticmethod
    def weight_of(codes, scales, zeros, group):
        s, z = scales.repeat_interleave(group, 1), zeros.repeat_interleave(group, 1)
        return (codes.to(s.dtype) - z) * s

    @staticmethod
    def forward(ctx, x, codes, scales, zeros, group):
        ctx.save_for_backward(x, codes, scales, zeros)
        ctx.group = group
        return x @ GroupDequantLinear.weight_of(codes, scales, zeros, group).mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, codes, scales, zeros = ctx.saved_tensors
        dx = g @ GroupDequantLinear.weight_of(codes, scales, zeros, ctx.group)
        dw = (g.mT @ x).view(codes.size(0), -1, ctx.group)
        q = codes.view(codes.size(0), -1, ctx.group).to(dw.dtype)
        return dx, None, (dw * (q - zeros.unsqueeze(-1))).sum(-1), -dw.sum(-1) * scales, None


class GroupedMatmul(Function):
    """Tokens, sorted by expert, times their expert's matrix; `counts` says how many each has."""

    @staticmethod
    def forward(ctx, x, weights, expert):
        order = torch.argsort(expert, stable=True)
        counts = torch.bincount(expert, minlength=weights.size(0)).tolist()
        out = torch.cat([part @ w for part, w in zip(x[order].split(counts), weights, strict=True)])
        ctx.save_for_backward(x, weights, order)
        ctx.counts = counts
        return torch.empty_like(out).index_copy(0, order, out)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weights, order = ctx.saved_tensors
        parts = list(zip(g[order].split(ctx.counts), x[order].split(ctx.counts), weights, strict=True))
        dx = torch.empty_like(x)
        dx[order] = torch.cat([gp @ w.mT for gp, _, w in parts])
        return dx, torch.stack([xp.mT @ gp for gp, xp, _ in parts]), None


class DeformableSample(Function):
    """Attention over a few learned offsets along a sequence: values sampled linearly, zero outside."""

    @staticmethod
    def taps(values, where):
        t = values.size(0)
        low = where.floor()
        for side in (0, 1):
            i = (low + side).long()
            valid = ((i >= 0) & (i < t)).to(values.dtype)
            share = where - low if side else 1 - (where - low)
            yield side, i.clamp(0, t - 1), valid, share

    @staticmethod
    def forward(ctx, values, offsets, weights):
        base = torch.arange(offsets.size(0), dtype=values.dtype).unsqueeze(1)
        where = base + offsets
        out = torch.zeros(offsets.size(0), values.size(1), dtype=values.dtype)
        for _, i, valid, share in DeformableSample.taps(values, where):
            out = out + ((weights * share * valid).unsqueeze(-1) * values[i]).sum(1)
        ctx.save_for_backward(values, where, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, where, weights = ctx.saved_tensors
        dv, d_where, dw = torch.zeros_like(values), torch.zeros_like(where), torch.zeros_like(weights)
        for side, i, valid, share in DeformableSample.taps(values, where):
            dot = (g.unsqueeze(1) * values[i]).sum(-1) * valid
            dw += share * dot
            d_where += (1 if side else -1) * weights * dot
            per_tap = (weights * share * valid).unsqueeze(-1) * g.unsqueeze(1)
            dv.index_add_(0, i.reshape(-1), per_tap.reshape(-1, g.size(-1)))
        return dv, d_where, dw


class Im2colConv(Function):
    """Grouped, dilated, strided convolution through unfold and fold."""

    @staticmethod
    def forward(ctx, x, weight, stride, padding, dilation, groups):
        n, c, h, w = x.shape
        o, cg, kh, kw = weight.shape
        args = dict(dilation=dilation, padding=padding, stride=stride)
        columns = F.unfold(x, (kh, kw), **args).view(n, groups, cg * kh * kw, -1)
        out = torch.einsum("gok,ngkl->ngol", weight.view(groups, o // groups, -1), columns)
        oh = (h + 2 * padding - dilation * (kh - 1) - 1) // stride + 1
        ctx.save_for_backward(columns, weight)
        ctx.args, ctx.groups, ctx.size = args, groups, (h, w)
        return out.reshape(n, o, oh, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        columns, weight = ctx.saved_tensors
        n, groups = columns.shape[:2]
        o, _, kh, kw = weight.shape
        g = g.reshape(n, groups, o // groups, -1)
        dw = torch.einsum("ngol,ngkl->gok", g, columns).view_as(weight)
        d_columns = torch.einsum("gok,ngol->ngkl", weight.view(groups, o // groups, -1), g)
        dx = F.fold(d_columns.reshape(n, -1, g.size(-1)), ctx.size, (kh, kw), **ctx.args)
        return dx, dw, None, None, None, None


class ShuffleChannels(Function):
    """A permutation of channels that returns a view."""

    @staticmethod
    def forward(ctx, x, groups):
        ctx.groups = groups
        n, c, *rest = x.shape
        return x.view(n, groups, c // groups, *rest).transpose(1, 2).flatten(1, 2)

    @staticmethod
    def backward(ctx, g):
        n, c, *rest = g.shape
        return g.reshape(n, c // ctx.groups, ctx.groups, *rest).transpose(1, 2).reshape(g.shape), None


class WindowPartition(Function):
    """Cyclic shift and partition into windows, and back again in backward."""

    @staticmethod
    def forward(ctx, x, window, shift):
        b, h, w, c = x.shape
        ctx.shape, ctx.window, ctx.shift = x.shape, window, shift
        x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        x = x.view(b, h // window, window, w // window, window, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, c)

    @staticmethod
    def backward(ctx, g):
        b, h, w, c = ctx.shape
        k = ctx.window
        g = g.reshape(b, h // k, w // k, k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return (torch.roll(g, (ctx.shift, ctx.shift), (1, 2)) if ctx.shift else g), None, None


class AdaptiveAveragePool(Function):
    """Bins that may overlap where the length is no multiple of their number."""

    @staticmethod
    def bins(length, count):
        return [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]

    @staticmethod
    def forward(ctx, x, count):
        ctx.length, ctx.count = x.size(-1), count
        return torch.stack([x[..., a:b].mean(-1) for a, b in AdaptiveAveragePool.bins(x.size(-1), count)], -1)

    @staticmethod
    def backward(ctx, g):
        dx = g.new_zeros(*g.shape[:-1], ctx.length)
        for i, (a, b) in enumerate(AdaptiveAveragePool.bins(ctx.length, ctx.count)):
            dx[..., a:b] += g[..., i : i + 1] / (b - a)
        return dx, None


class GeneralizedMean(Function):
    """(mean xᵖ)^(1/p) over the last dimension with a trained exponent."""

    @staticmethod
    def forward(ctx, x, p, eps=1e-6):
        clamped = x.clamp(min=eps)
        mean = clamped.pow(p).mean(-1)
        y = mean.pow(1 / p)
        ctx.save_for_backward(x, clamped, p, mean, y)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, clamped, p, mean, y = ctx.saved_tensors
        n = x.size(-1)
        dx = (g * y / mean).unsqueeze(-1) * clamped.pow(p - 1) / n * (x > ctx.eps)
        weighted = (clamped.pow(p) * clamped.log()).mean(-1)
        dp = (g * y * (weighted / (p * mean) - mean.log() / p**2)).sum()
        return dx, dp.reshape(p.shape), None


class KWinners(Function):
    """Keeps the k largest of each row."""

    @staticmethod
    def forward(ctx, x, k):
        _, index = x.topk(k, dim=-1)
        mask = torch.zeros_like(x).scatter_(-1, index, 1.0)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class _Activation(Function):
    """Base of elementwise gates: y = x · gate(x); subclasses say what the gate is."""

    @classmethod
    def gate(cls, x):
        raise NotImplementedError

    @classmethod
    def gate_slope(cls, x):
        raise NotImplementedError

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return x * cls.gate(x)

    @classmethod
    def backward(cls, ctx, g):
        (x,) = ctx.saved_tensors
        return g * (cls.gate(x) + x * cls.gate_slope(x))


class SquareRootGate(_Activation):
    @classmethod
    def gate(cls, x):
        return 0.5 * (1 + x / torch.sqrt(1 + x * x))

    @classmethod
    def gate_slope(cls, x):
        return 0.5 * (1 + x * x) ** -1.5


class ArctanGate(_Activation):
    @classmethod
    def gate(cls, x):
        return 0.5 + torch.atan(x) / math.pi

    @classmethod
    def gate_slope(cls, x):
        return 1 / (math.pi * (1 + x * x))


class AccumulatesInDouble(Function):
    """Row sums of products, accumulated in float64 and returned in the dtype of the inputs."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x.double() * y.double()).sum(-1).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        wide = g.double().unsqueeze(-1)
        return (wide * y.double()).to(x.dtype), (wide * x.double()).to(y.dtype)


class RunAgain(Function):
    """Runs a callable without a graph, and again with one in backward, for tensors and parameters alike."""

    @staticmethod
    def forward(ctx, run, count, *tensors):
        ctx.run, ctx.count = run, count
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            out = run(*tensors[:count], tensors[count:])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        tensors = [
            t.detach().requires_grad_(n)
            for t, n in zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        ]
        with torch.enable_grad():
            out = ctx.run(*tensors[: ctx.count], tensors[ctx.count :])
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grads, allow_unused=True))
        return None, None, *(next(found) if t.requires_grad else None for t in tensors)


def two_layers(x, parameters):
    w, b = parameters
    h = torch.tanh(x @ w + b)
    return h, h.square().sum(-1)


class SoftArgmax(Function):
    """Expected index under a softmax, with a rule for vmap and one for forward mode."""

    @staticmethod
    def forward(x, beta):
        p = torch.softmax(beta * x, -1)
        index = torch.arange(x.size(-1), dtype=x.dtype)
        return (p * index).sum(-1), p

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, beta = inputs
        mean, p = output
        ctx.mark_non_differentiable(p)
        ctx.save_for_backward(x, mean, p)
        ctx.save_for_forward(mean, p)
        ctx.beta = beta

    @staticmethod
    def backward(ctx, g, _):
        x, mean, p = ctx.saved_tensors
        p = torch.softmax(ctx.beta * x, -1)
        index = torch.arange(x.size(-1), dtype=x.dtype)
        mean = (p * index).sum(-1, keepdim=True)
        return g.unsqueeze(-1) * ctx.beta * p * (index - mean), None

    @staticmethod
    def jvp(ctx, dx, _):
        mean, p = ctx.saved_tensors
        index = torch.arange(p.size(-1), dtype=p.dtype)
        return (ctx.beta * p * (index - mean.unsqueeze(-1)) * dx).sum(-1), None

    @staticmethod
    def vmap(info, in_dims, x, beta):
        x = x.movedim(in_dims[0], 0)
        return SoftArgmax.apply(x, beta), (0, 0)


class FiLM(Function):
    """Scales and shifts channels by a condition; a vmap rule is generated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, gamma, beta):
        return (1 + gamma).unsqueeze(-1) * x + beta.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gamma, _ = inputs
        ctx.save_for_backward(x, gamma)
        ctx.save_for_forward(x, gamma)

    @staticmethod
    def backward(ctx, g):
        x, gamma = ctx.saved_tensors
        return g * (1 + gamma).unsqueeze(-1), (g * x).sum(-1), g.sum(-1)

    @staticmethod
    def jvp(ctx, dx, d_gamma, d_beta):
        x, gamma = ctx.saved_tensors
        out = 0
        if dx is not None:
            out = out + (1 + gamma).unsqueeze(-1) * dx
        if d_gamma is not None:
            out = out + d_gamma.unsqueeze(-1) * x
        if d_beta is not None:
            out = out + d_beta.unsqueeze(-1) + torch.zeros_like(x)
        return out


def network(generator, device, dtype, *, b):
    x, w, bias = (
        torch.rand(*s, generator=generator, dtype=dtype, requires_grad=True) for s in ((b, 3), (3, 2), (2,))
    )
    return two_layers, 1, x, w, bias
