# -*- coding: utf-8 -*-
"""Assorted custom autograd ops collected from the layers / losses / geometry packages."""
import math
from enum import Enum
from typing import Callable, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


# ----------------------------------------------------------------------------
# normalisation
# ----------------------------------------------------------------------------
class RMSNormFn(torch.autograd.Function):
    """Root mean square norm with a gain, T5 / LLaMA style.

    x: (..., hidden), weight: (hidden,)
    """

    @staticmethod
    def forward(ctx, x, weight, eps=1e-6):
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        n = x.shape[-1]
        xhat = x * rstd
        dw = (dy * xhat).reshape(-1, n).sum(0)
        g = dy * weight
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx, dw, None


class FastRMSNorm(nn.Module):
    def __init__(self, hidden, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x):
        return RMSNormFn.apply(x, self.weight, self.eps)


class ChannelLayerNorm2dFunction(torch.autograd.Function):
    # LayerNorm over the channel axis of NCHW maps, see NAFNet

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        N, C, H, W = x.size()
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        y = (x - mu) / (var + eps).sqrt()
        ctx.save_for_backward(y, var, weight)
        y = weight.view(1, C, 1, 1) * y + bias.view(1, C, 1, 1)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        eps = ctx.eps
        N, C, H, W = grad_output.size()
        y, var, weight = ctx.saved_tensors
        g = grad_output * weight.view(1, C, 1, 1)
        mean_g = g.mean(dim=1, keepdim=True)
        mean_gy = (g * y).mean(dim=1, keepdim=True)
        gx = 1. / torch.sqrt(var + eps) * (g - y * mean_gy - mean_g)
        return gx, (grad_output * y).sum(dim=3).sum(dim=2).sum(dim=0), \
            grad_output.sum(dim=3).sum(dim=2).sum(dim=0), None


class GroupNormSiLU(Function):
    """Fused GroupNorm -> SiLU as used in the diffusion UNet blocks.

    Shapes: x (B, C, *spatial); gamma, beta (C,); C % num_groups == 0
    """

    @staticmethod
    def forward(ctx, x, gamma, beta, num_groups: int, eps: float = 1e-5):
        B, C = x.shape[:2]
        if C % num_groups != 0:
            raise ValueError(f"num_channels ({C}) must be divisible by num_groups ({num_groups})")
        xg = x.reshape(B, num_groups, -1)
        mean = xg.mean(-1, keepdim=True)
        rstd = (xg.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        xhat = ((xg - mean) * rstd).view_as(x)
        shape = (1, C) + (1,) * (x.dim() - 2)
        z = xhat * gamma.view(shape) + beta.view(shape)
        ctx.save_for_backward(xhat, rstd, z, gamma)
        ctx.num_groups = num_groups
        return z * torch.sigmoid(z)

    @staticmethod
    def backward(ctx, dy):
        xhat, rstd, z, gamma = ctx.saved_tensors
        B, C = dy.shape[:2]
        shape = (1, C) + (1,) * (dy.dim() - 2)
        sig = torch.sigmoid(z)
        dz = dy * sig * (1 + z * (1 - sig))
        red = [d for d in range(dy.dim()) if d != 1]
        dgamma = dbeta = None
        if ctx.needs_input_grad[1]:
            dgamma = (dz * xhat).sum(red)
        if ctx.needs_input_grad[2]:
            dbeta = dz.sum(red)
        dxhat = (dz * gamma.view(shape)).reshape(B, ctx.num_groups, -1)
        xh = xhat.reshape(B, ctx.num_groups, -1)
        dx = rstd * (dxhat - dxhat.mean(-1, keepdim=True) - xh * (dxhat * xh).mean(-1, keepdim=True))
        return dx.reshape(dy.shape), dgamma, dbeta, None, None


class WeightNormFunction(Function):
    """w = g * v / ||v||, norm over everything but ``dim``."""

    @staticmethod
    def forward(ctx, v, g, dim=0):
        dims = [d for d in range(v.dim()) if d != dim]
        norm = v.pow(2).sum(dims, keepdim=True).sqrt()
        shape = [1] * v.dim()
        shape[dim] = v.size(dim)
        ctx.dims = dims
        ctx.shape = shape
        ctx.save_for_backward(v, g, norm)
        return v * (g.view(shape) / norm)

    @staticmethod
    def backward(ctx, gw):
        v, g, norm = ctx.saved_tensors
        g_ = g.view(ctx.shape)
        dot = (gw * v).sum(ctx.dims, keepdim=True)
        gv = g_ / norm * (gw - v * dot / norm ** 2)
        gg = (dot / norm).reshape(g.shape)
        return gv, gg, None


class WNLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.v = nn.Parameter(torch.randn(out_features, in_features) * 0.05)
        self.g = nn.Parameter(torch.ones(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return F.linear(x, WeightNormFunction.apply(self.v, self.g, 0), self.bias)


# ----------------------------------------------------------------------------
# activations
# ----------------------------------------------------------------------------
class MemoryEfficientMish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul(torch.tanh(F.softplus(x)))

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0]
        x_sigmoid = torch.sigmoid(x)
        x_tanh_sp = F.softplus(x).tanh()
        return grad_output.mul(x_tanh_sp + x * x_sigmoid * (1 - x_tanh_sp * x_tanh_sp))


class GatedUnit(Function):
    """GLU family, the last axis holds [value | gate] so it has to be even.

    act: one of 'sigmoid', 'relu2', 'gelu'
    """

    @staticmethod
    def forward(ctx, x, act: str = 'gelu'):
        if x.shape[-1] % 2:
            raise RuntimeError("last dim must be even for a gated unit, got %d" % x.shape[-1])
        u, v = x.chunk(2, dim=-1)
        if act == 'sigmoid':
            s = torch.sigmoid(v)
        elif act == 'relu2':
            s = F.relu(v).square()
        elif act == 'gelu':
            s = 0.5 * v * (1 + torch.erf(v / math.sqrt(2)))
        else:
            raise KeyError(act)
        ctx.act = act
        ctx.save_for_backward(u, v)
        return u * s

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        if ctx.act == 'sigmoid':
            s = torch.sigmoid(v)
            ds = s * (1 - s)
        elif ctx.act == 'relu2':
            r = F.relu(v)
            s = r * r
            ds = 2 * r
        else:
            cdf = 0.5 * (1 + torch.erf(v / math.sqrt(2)))
            s = v * cdf
            ds = cdf + v * torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
        return torch.cat([g * s, g * u * ds], dim=-1), None


class InPlaceLeaky(Function):
    """Leaky ReLU that overwrites its input and recovers the sign from the output
    (slope must be > 0 so that the map is invertible)."""

    @staticmethod
    def forward(ctx, x, slope=0.01):
        assert slope > 0, "in-place activation needs an invertible slope"
        ctx.slope = slope
        x.mul_(torch.where(x < 0, torch.full_like(x, slope), torch.ones_like(x)))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        out, = ctx.saved_tensors
        return torch.where(out < 0, grad * ctx.slope, grad), None


def inplace_leaky(x, slope=0.01):
    return InPlaceLeaky.apply(x, slope)


class Sparsemax(Function):
    """Martins & Astudillo 2016."""

    @staticmethod
    def forward(ctx, z, dim=-1):
        ctx.dim = dim
        zmax, _ = z.max(dim=dim, keepdim=True)
        z = z - zmax
        zs, _ = torch.sort(z, descending=True, dim=dim)
        cs = zs.cumsum(dim) - 1
        n = z.size(dim)
        view = [1] * z.dim()
        view[dim] = -1
        rho = torch.arange(1, n + 1, device=z.device, dtype=z.dtype).view(view)
        support = rho * zs > cs
        k = support.sum(dim=dim, keepdim=True)
        tau = cs.gather(dim, k - 1) / k.to(z.dtype)
        out = torch.clamp(z - tau, min=0)
        ctx.save_for_backward(k, out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        k, out = ctx.saved_tensors
        dim = ctx.dim
        g = grad_output.clone()
        g[out == 0] = 0
        v = g.sum(dim=dim, keepdim=True) / k.to(out.dtype)
        return torch.where(out != 0, g - v, g), None


# ----------------------------------------------------------------------------
# losses
# ----------------------------------------------------------------------------
class LabelSmoothingCrossEntropyFn(Function):
    """Cross entropy with smoothing and ignore_index.

    logits (N, C) float, target (N,) long
    """

    @staticmethod
    def forward(ctx, logits, target, smoothing=0.1, ignore_index=-100, reduction='mean'):
        assert logits.dim() == 2 and target.dim() == 1
        assert target.dtype == torch.long
        C = logits.size(1)
        logp = F.log_softmax(logits, dim=1)
        keep = target.ne(ignore_index)
        t = target.masked_fill(~keep, 0)
        nll = -logp.gather(1, t.unsqueeze(1)).squeeze(1)
        smooth = -logp.mean(1)
        loss = ((1 - smoothing) * nll + smoothing * smooth) * keep
        q = torch.full_like(logp, smoothing / C)
        q.scatter_add_(1, t.unsqueeze(1), torch.full_like(nll, 1 - smoothing).unsqueeze(1))
        n = keep.sum().clamp(min=1)
        ctx.save_for_backward(logp, q, keep, n)
        ctx.reduction = reduction
        if reduction == 'mean':
            return loss.sum() / n
        if reduction == 'sum':
            return loss.sum()
        if reduction == 'none':
            return loss
        raise ValueError("unknown reduction: " + reduction)

    @staticmethod
    def backward(ctx, grad_output):
        logp, q, keep, n = ctx.saved_tensors
        grad = (logp.exp() - q) * keep.unsqueeze(1)
        if ctx.reduction == 'none':
            grad = grad * grad_output.unsqueeze(1)
        elif ctx.reduction == 'mean':
            grad = grad * (grad_output / n)
        else:
            grad = grad * grad_output
        return grad, None, None, None, None


class SigmoidFocalLossFunction(Function):
    """py_sigmoid_focal_loss with a hand written backward. Targets are 0/1, same shape as the logits."""

    @staticmethod
    def forward(ctx, pred, target, gamma=2.0, alpha=0.25):
        p = torch.sigmoid(pred)
        ctx.gamma, ctx.alpha = gamma, alpha
        ctx.save_for_backward(pred, target)
        pos = -alpha * (1 - p) ** gamma * F.logsigmoid(pred)
        neg = -(1 - alpha) * p ** gamma * F.logsigmoid(-pred)
        return torch.where(target > 0.5, pos, neg)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss):
        pred, target = ctx.saved_tensors
        gamma, alpha = ctx.gamma, ctx.alpha
        p = torch.sigmoid(pred)
        # (1-p)^g * (1 - p - g*p*log(p))
        t1 = (1 - p) ** gamma * (1 - p - gamma * p * F.logsigmoid(pred))
        # p^g * (g*(1-p)*log(1-p) - p)
        t2 = p ** gamma * (gamma * (1 - p) * F.logsigmoid(-pred) - p)
        d = torch.where(target > 0.5, -alpha * t1, -(1 - alpha) * t2)
        return d * d_loss, None, None, None


class MaskedDiceLoss(Function):
    """1 - (2 <p, t> + s) / (<p,p> + <t,t> + s), computed over valid pixels of each sample.

    probs: (N, H, W), probabilities; target: (N, H, W) in {0, 1}; mask: bool (N, H, W) or None
    """

    @staticmethod
    def forward(ctx, probs, target, mask=None, smooth=1.0):
        if probs.min() < 0 or probs.max() > 1:
            raise ValueError("dice loss expects probabilities, did you forget the sigmoid?")
        m = torch.ones_like(probs) if mask is None else mask.to(probs.dtype)
        p = (probs * m).flatten(1)
        t = (target.to(probs.dtype) * m).flatten(1)
        num = 2 * (p * t).sum(1) + smooth
        den = (p * p).sum(1) + (t * t).sum(1) + smooth
        ctx.save_for_backward(p, t, m, num, den)
        return (1 - num / den).mean()

    @staticmethod
    def backward(ctx, g):
        p, t, m, num, den = ctx.saved_tensors
        num, den = num[:, None], den[:, None]
        gp = -(2 * t * den - num * 2 * p) / den ** 2
        gp = gp.view_as(m) * m * (g / p.shape[0])
        return gp, None, None, None


class Reduction(Enum):
    NONE = 0
    MEAN = 1
    SUM = 2


class HuberFn(Function):
    @staticmethod
    def forward(ctx, input, target, delta: float = 1.0, reduction: Reduction = Reduction.MEAN):
        d = input - target
        a = d.abs()
        ctx.save_for_backward(d)
        ctx.delta = delta
        ctx.reduction = reduction
        out = torch.where(a <= delta, 0.5 * d * d, delta * (a - 0.5 * delta))
        if reduction is Reduction.MEAN:
            return out.mean()
        elif reduction is Reduction.SUM:
            return out.sum()
        return out

    @staticmethod
    def backward(ctx, grad_output):
        d, = ctx.saved_tensors
        g = d.clamp(-ctx.delta, ctx.delta) * grad_output
        if ctx.reduction is Reduction.MEAN:
            g = g / d.numel()
        return g, -g, None, None


class CRFLogPartition(Function):
    """Forward algorithm of a linear chain CRF; the backward runs the beta recursion.

    emissions: (T, B, K); transitions: (K, K), [i, j] is the score of i -> j; lengths: (B,) in 1..T
    """

    @staticmethod
    def forward(ctx, emissions, transitions, lengths):
        T, B, K = emissions.shape
        alphas = [emissions[0]]
        for t in range(1, T):
            a = torch.logsumexp(alphas[-1].unsqueeze(2) + transitions, dim=1) + emissions[t]
            alphas.append(a)
        alphas = torch.stack(alphas)
        last = (lengths - 1).clamp(min=0, max=T - 1)
        logZ = torch.logsumexp(alphas[last, torch.arange(B, device=last.device)], dim=-1)
        ctx.save_for_backward(emissions, transitions, lengths, alphas, logZ)
        return logZ

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        emissions, transitions, lengths, alphas, logZ = ctx.saved_tensors
        T, B, K = emissions.shape
        beta = emissions.new_zeros(B, K)
        d_em = torch.zeros_like(emissions)
        d_tr = torch.zeros_like(transitions)
        last = (lengths - 1).clamp(min=0, max=T - 1)
        for t in range(T - 1, -1, -1):
            if t < T - 1:
                inner = (t + 1 <= last)  # transition t -> t+1 is inside the sequence
                s = transitions.unsqueeze(0) + (emissions[t + 1] + beta).unsqueeze(1)
                pair = (alphas[t].unsqueeze(2) + s - logZ.view(-1, 1, 1)).exp()
                d_tr += (pair * (inner * grad).view(-1, 1, 1)).sum(0)
                new = torch.logsumexp(s, dim=2)
                beta = torch.where(inner.unsqueeze(1), new, torch.zeros_like(new))
            live = (t <= last)
            p = (alphas[t] + beta - logZ.unsqueeze(1)).exp()
            d_em[t] = p * (live * grad).unsqueeze(1)
        return d_em, d_tr, None


# ----------------------------------------------------------------------------
# attention and its parts
# ----------------------------------------------------------------------------
class ExactAttention(Function):
    """Reference softmax attention. q (B, H, Lq, D), k (B, H, Lk, D), v (B, H, Lk, Dv).
    Returns the output and the log-sum-exp of the scores (not differentiable)."""

    @staticmethod
    def forward(ctx, q, k, v, causal=False, softmax_scale=None):
        scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        s = torch.einsum('bhid,bhjd->bhij', q, k) * scale
        if causal:
            i, j = s.shape[-2:]
            s = s.masked_fill(torch.ones(i, j, dtype=torch.bool, device=s.device).triu(1), float('-inf'))
        lse = torch.logsumexp(s, -1)
        p = (s - lse.unsqueeze(-1)).exp()
        o = p @ v
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        s = torch.einsum('bhid,bhjd->bhij', q, k) * ctx.scale
        p = (s - lse.unsqueeze(-1)).exp()
        if ctx.causal:
            i, j = p.shape[-2:]
            p = p.masked_fill(torch.ones(i, j, dtype=torch.bool, device=p.device).triu(1), 0.)
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        delta = (do * o).sum(-1, keepdim=True)
        ds = p * (dp - delta) * ctx.scale
        return ds @ k, ds.transpose(-1, -2) @ q, dv, None, None


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class ApplyRotaryEmb(torch.autograd.Function):
    """
    x: (batch, seqlen, nheads, headdim)
    cos, sin: (seqlen, rotary_dim / 2)
    rotary_dim must be <= headdim; the remaining features pass through.
    interleaved: if True, rotate pairs of even and odd dimensions (GPT-J style) instead of
        1st half and 2nd half (GPT-NeoX style).
    The tables are constants, no gradient goes to them.
    """

    @staticmethod
    def _rotate(x1, x2, cos, sin, conj=False):
        sin = -sin if conj else sin
        return x1 * cos - x2 * sin, x1 * sin + x2 * cos

    @staticmethod
    def _apply(x, cos, sin, interleaved, conj):
        rd = cos.shape[-1] * 2
        cos, sin = cos[:, None, :], sin[:, None, :]
        ro, rest = x[..., :rd], x[..., rd:]
        if interleaved:
            a, b = ApplyRotaryEmb._rotate(ro[..., ::2], ro[..., 1::2], cos, sin, conj)
            out = torch.stack([a, b], -1).flatten(-2)
        else:
            a, b = ro.chunk(2, dim=-1)
            out = torch.cat(ApplyRotaryEmb._rotate(a, b, cos, sin, conj), -1)
        return torch.cat([out, rest], -1)

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved=False):
        batch, seqlen, nheads, headdim = x.shape
        rotary_seqlen, half = cos.shape
        assert half * 2 <= headdim
        assert seqlen <= rotary_seqlen
        assert sin.shape == cos.shape
        cos, sin = cos[:seqlen].detach(), sin[:seqlen].detach()
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return ApplyRotaryEmb._apply(x, cos, sin, interleaved, conj=False)

    @staticmethod
    def backward(ctx, do):
        cos, sin = ctx.saved_tensors
        return ApplyRotaryEmb._apply(do, cos, sin, ctx.interleaved, conj=True), None, None, None


apply_rotary_emb_func = ApplyRotaryEmb.apply


class MergeHeadsProject(Function):
    """Merge heads and apply the output projection: (B, H, L, D) x (O, H*D) -> (B, L, O)."""

    @staticmethod
    def forward(ctx, ctxt, weight, bias, num_heads: int):
        B, H, L, D = ctxt.shape
        if H != num_heads:
            raise ValueError("num_heads does not match")
        if weight.size(1) != H * D:
            raise ValueError("hidden size must be num_heads * head_dim")
        merged = ctxt.permute(0, 2, 1, 3).reshape(B, L, H * D)
        ctx.save_for_backward(merged, weight)
        ctx.dims = (B, H, L, D)
        ctx.has_bias = bias is not None
        out = merged @ weight.t()
        if bias is not None:
            out = out + bias
        return out

    @staticmethod
    def backward(ctx, grad):
        merged, weight = ctx.saved_tensors
        B, H, L, D = ctx.dims
        g_in = g_w = g_b = None
        if ctx.needs_input_grad[0]:
            g_in = (grad @ weight).view(B, L, H, D).permute(0, 2, 1, 3)
        if ctx.needs_input_grad[1]:
            g_w = grad.reshape(B * L, -1).t() @ merged.reshape(B * L, H * D)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            g_b = grad.sum((0, 1))
        return g_in, g_w, g_b, None


# ----------------------------------------------------------------------------
# convolutions & layout
# ----------------------------------------------------------------------------
class CausalDepthwiseConv1d(Function):
    """x: (B, D, L), weight: (D, W), bias: (D,) or None, activation: None or 'silu'"""

    @staticmethod
    def forward(ctx, x, weight, bias=None, activation=None):
        if activation not in (None, "silu"):
            raise NotImplementedError("activation must be None or silu")
        D, W = weight.shape
        L = x.shape[-1]
        xp = F.pad(x, (W - 1, 0))
        out = sum(xp[..., i:i + L] * weight[:, i, None] for i in range(W))
        if bias is not None:
            out = out + bias[:, None]
        ctx.save_for_backward(x, weight, out)
        ctx.activation = activation
        ctx.has_bias = bias is not None
        return out * out.sigmoid() if activation == "silu" else out.clone()

    @staticmethod
    def backward(ctx, dout):
        x, weight, pre = ctx.saved_tensors
        if ctx.activation == "silu":
            s = pre.sigmoid()
            dout = dout * (s + pre * s * (1 - s))
        D, W = weight.shape
        L = x.shape[-1]
        xp = F.pad(x, (W - 1, 0))
        dw = torch.stack([(dout * xp[..., i:i + L]).sum((0, 2)) for i in range(W)], dim=1)
        dp = F.pad(dout, (0, W - 1))
        # tap i looks W-1-i steps back
        dx = sum(dp[..., W - 1 - i:W - 1 - i + L] * weight[:, i, None] for i in range(W))
        db = dout.sum((0, 2)) if ctx.has_bias else None
        return dx, dw, db, None


class SpaceToDepthFn(Function):
    """(N, C, H, W) -> (N, C * bs * bs, H / bs, W / bs), TensorFlow channel order."""

    @staticmethod
    def forward(ctx, x, block_size):
        N, C, H, W = x.size()
        bs = block_size
        ctx.bs = bs
        x = x.view(N, C, H // bs, bs, W // bs, bs)
        x = x.permute(0, 3, 5, 1, 2, 4).contiguous()
        return x.view(N, C * (bs ** 2), H // bs, W // bs)

    @staticmethod
    def backward(ctx, g):
        bs = ctx.bs
        N, C, H, W = g.size()
        g = g.contiguous().view(N, bs, bs, C // (bs ** 2), H, W)
        g = g.permute(0, 3, 4, 1, 5, 2).contiguous()
        return g.view(N, C // (bs ** 2), H * bs, W * bs), None


def _pair(v):
    return v if isinstance(v, (tuple, list)) else (v, v)


class Im2colConv2d(Function):
    # conv2d as an explicit matmul over unfolded patches
    @staticmethod
    def forward(ctx, input, weight, bias, stride: Union[int, Tuple[int, int]] = 1,
                padding: Union[int, Tuple[int, int]] = 0):
        stride, padding = _pair(stride), _pair(padding)
        B, C, H, W = input.shape
        O, Ci, kh, kw = weight.shape
        if Ci != C:
            raise RuntimeError(f"expected {Ci} input channels, got {C}")
        cols = F.unfold(input, (kh, kw), padding=padding, stride=stride)
        out = weight.view(O, -1) @ cols
        if bias is not None:
            out = out + bias.view(1, -1, 1)
        oh = (H + 2 * padding[0] - kh) // stride[0] + 1
        ow = (W + 2 * padding[1] - kw) // stride[1] + 1
        ctx.save_for_backward(cols, weight)
        ctx.conf = (stride, padding, (H, W))
        return out.view(B, O, oh, ow)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        cols, weight = ctx.saved_tensors
        stride, padding, hw = ctx.conf
        O, C, kh, kw = weight.shape
        g = grad_out.flatten(2)
        grad_in = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_in = F.fold(weight.view(O, -1).t() @ g, hw, (kh, kw), padding=padding, stride=stride)
        if ctx.needs_input_grad[1]:
            grad_w = torch.einsum('bol,bkl->ok', g, cols).view_as(weight)
        if ctx.needs_input_grad[2]:
            grad_b = g.sum((0, 2))
        return grad_in, grad_w, grad_b, None, None


# ----------------------------------------------------------------------------
# ragged / graph
# ----------------------------------------------------------------------------
class VarlenMeanPool(Function):
    """Mean over every sequence of a packed batch.

    x: (total, D); cu_seqlens: (B + 1,) int32, cu_seqlens[0] == 0 and cu_seqlens[-1] == total
    """

    @staticmethod
    def forward(ctx, x, cu_seqlens):
        cu = cu_seqlens.tolist()
        if cu[0] != 0 or cu[-1] != x.shape[0]:
            raise ValueError("cu_seqlens does not cover the packed input")
        out = x.new_zeros(len(cu) - 1, x.shape[1])
        for b, (s, e) in enumerate(zip(cu[:-1], cu[1:])):
            if e > s:
                out[b] = x[s:e].mean(0)
        ctx.cu = cu
        return out

    @staticmethod
    def backward(ctx, grad):
        parts = []
        for b, (s, e) in enumerate(zip(ctx.cu[:-1], ctx.cu[1:])):
            parts.append(grad[b:b + 1].expand(e - s, -1) / max(e - s, 1))
        return torch.cat(parts, 0), None


class EdgeSoftmax(Function):
    """Softmax of edge scores (E, H) over the edges that share a destination node (GAT)."""

    @staticmethod
    def forward(ctx, score, dst, num_nodes):
        idx = dst.unsqueeze(-1).expand_as(score)
        mx = score.new_full((num_nodes, score.size(1)), float('-inf'))
        mx = mx.scatter_reduce(0, idx, score, reduce='amax', include_self=True)
        ex = (score - mx[dst]).exp()
        den = score.new_zeros(num_nodes, score.size(1)).index_add_(0, dst, ex)
        out = ex / den[dst]
        ctx.save_for_backward(out, dst)
        ctx.num_nodes = num_nodes
        return out

    @staticmethod
    def backward(ctx, grad_out):
        out, dst = ctx.saved_tensors
        sds = out * grad_out
        acc = sds.new_zeros(ctx.num_nodes, sds.size(1)).index_add_(0, dst, sds)
        return sds - out * acc[dst], None, None


# ----------------------------------------------------------------------------
# recurrences
# ----------------------------------------------------------------------------
class LSTMCellFunction(Function):
    """Pointwise part of an LSTM cell: gates (B, 4*H) in i, f, g, o order and c_prev (B, H) -> (h, c)."""

    @staticmethod
    def forward(ctx, gates, c_prev):
        i, f, g, o = gates.chunk(4, dim=1)
        i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
        g = g.tanh()
        c = f * c_prev + i * g
        tc = c.tanh()
        ctx.save_for_backward(i, f, g, o, c_prev, tc)
        return o * tc, c

    @staticmethod
    def backward(ctx, gh, gc):
        i, f, g, o, c_prev, tc = ctx.saved_tensors
        d_o = gh * tc
        dc = gc + gh * o * (1 - tc * tc)
        d_gates = torch.cat([
            dc * g * i * (1 - i),
            dc * c_prev * f * (1 - f),
            dc * i * (1 - g * g),
            d_o * o * (1 - o),
        ], dim=1)
        return d_gates, dc * f


class ChunkedLinearScan(Function):
    """h_t = a_t * h_{t-1} + x_t along dim 1, processed chunk by chunk.

    a, x: (B, L, D) with L a multiple of chunk_size; h0: (B, D) or None.
    """

    @staticmethod
    def forward(ctx, a, x, h0=None, chunk_size: int = 4):
        B, L, D = x.shape
        assert L % chunk_size == 0, "sequence length must be a multiple of the chunk size"
        h = x.new_zeros(B, D) if h0 is None else h0
        init = h
        outs = []
        for c in range(0, L, chunk_size):
            ac, xc = a[:, c:c + chunk_size], x[:, c:c + chunk_size]
            for t in range(chunk_size):
                h = ac[:, t] * h + xc[:, t]
                outs.append(h)
        hs = torch.stack(outs, 1)
        ctx.save_for_backward(a, hs, init)
        ctx.with_h0 = h0 is not None
        return hs

    @staticmethod
    def backward(ctx, ghs):
        a, hs, init = ctx.saved_tensors
        L = a.shape[1]
        prev = torch.cat([init.unsqueeze(1), hs[:, :-1]], 1)
        acc = torch.zeros_like(init)
        gx = []
        for t in reversed(range(L)):
            acc = acc + ghs[:, t]
            gx.append(acc)
            acc = acc * a[:, t]
        gx = torch.stack(gx[::-1], 1)
        return gx * prev, gx, (acc if ctx.with_h0 else None), None


# ----------------------------------------------------------------------------
# matrices
# ----------------------------------------------------------------------------
def _phi(A):
    """lower triangle with halved diagonal"""
    return A.tril() - 0.5 * torch.diag_embed(A.diagonal(dim1=-2, dim2=-1))


class CholeskyLower(Function):
    # Murray (2016), "Differentiation of the Cholesky decomposition", blocked version left out
    @staticmethod
    def forward(ctx, a):
        l = torch.linalg.cholesky(a)
        ctx.save_for_backward(l)
        return l

    @staticmethod
    def backward(ctx, grad_output):
        l, = ctx.saved_tensors
        P = _phi(l.transpose(-1, -2) @ grad_output.tril())
        S = P + P.transpose(-1, -2)
        # L^-T S L^-1 / 2
        tmp = torch.linalg.solve_triangular(l.transpose(-1, -2), S, upper=True)
        out = torch.linalg.solve_triangular(l, tmp, upper=False, left=False)
        return 0.5 * out


class KernelSolve(Function):
    """x = (K + noise * I)^-1 y for a kernel matrix K (symmetric), y (n, k); noise is a python float."""

    @staticmethod
    def forward(ctx, K, y, noise=1e-3):
        A = K + noise * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        if not torch.allclose(A, A.mT, atol=1e-5):
            raise ValueError("kernel matrix is not symmetric")
        x = torch.linalg.solve(A, y)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx, gx):
        A, x = ctx.saved_tensors
        gy = torch.linalg.solve(A, gx)      # A = A^T
        gK = -gy @ x.mT
        return gK, gy, None


class MatrixSquareRoot(Function):
    """Square root of a positive definite matrix (used for covariance pooling / FID)."""

    @staticmethod
    def forward(ctx, m):
        w, v = torch.linalg.eigh(0.5 * (m + m.transpose(-1, -2)))
        s = w.sqrt()
        ctx.save_for_backward(s, v)
        return (v * s.unsqueeze(-2)) @ v.transpose(-1, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        s, v = ctx.saved_tensors
        vt = v.transpose(-1, -2)
        gs = vt @ (0.5 * (g + g.transpose(-1, -2))) @ v
        gs = gs / (s.unsqueeze(-1) + s.unsqueeze(-2))
        return v @ gs @ vt


sqrtm = MatrixSquareRoot.apply


class CheckpointFunction(Function):
    """Gradient checkpointing (guided-diffusion).

    apply(run_function, length, *inputs, *params): the first ``length`` tensors go to run_function,
    the others are parameters that run_function closes over.
    """

    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function = run_function
        ctx.input_tensors = list(args[:length])
        ctx.input_params = list(args[length:])
        with torch.no_grad():
            output_tensors = ctx.run_function(*ctx.input_tensors)
        return output_tensors

    @staticmethod
    def backward(ctx, *output_grads):
        inputs = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with torch.enable_grad():
            # Fixes a bug where the first op in run_function modifies the
            # Tensor storage in place, which is not allowed for detach()'d Tensors.
            shallow_copies = [x.view_as(x) for x in inputs]
            output_tensors = ctx.run_function(*shallow_copies)
        input_grads = torch.autograd.grad(
            output_tensors,
            inputs + ctx.input_params,
            output_grads,
            allow_unused=True,
        )
        return (None, None) + input_grads


def checkpoint(func, inputs, params, flag):
    if flag:
        args = tuple(inputs) + tuple(params)
        return CheckpointFunction.apply(func, len(inputs), *args)
    return func(*inputs)


# ----------------------------------------------------------------------------
# distances / geometry
# ----------------------------------------------------------------------------
class PairwiseLp(Function):
    """|| x_i - y_j ||_p for p in {1, 2} or any float p >= 1; x (N, D), y (M, D)"""

    @staticmethod
    def forward(ctx, x, y, p: float = 2.0):
        diff = x.unsqueeze(1) - y.unsqueeze(0)
        if p == 1:
            d = diff.abs().sum(-1)
        elif p == 2:
            d = diff.square().sum(-1).sqrt()
        else:
            d = diff.abs().pow(p).sum(-1).pow(1.0 / p)
        ctx.p = p
        ctx.save_for_backward(diff, d)
        return d

    @staticmethod
    def backward(ctx, g):
        diff, d = ctx.saved_tensors
        p = ctx.p
        if p == 1:
            j = diff.sign()
        else:
            safe = d.clamp(min=1e-30).unsqueeze(-1)
            j = diff.sign() * (diff.abs() / safe).pow(p - 1)
        gd = g.unsqueeze(-1) * j
        return gd.sum(1), -gd.sum(0), None


class RotateByUnitQuaternion(Function):
    """v' = q v q*, quaternions are (w, x, y, z). q: (N, 4), v: (N, 3)"""

    @staticmethod
    def forward(ctx, q, v):
        n = q.norm(dim=-1)
        if not torch.allclose(n, torch.ones_like(n), atol=1e-3):
            raise ValueError("quaternions have to be normalised")
        w, u = q[..., :1], q[..., 1:]
        c = torch.cross(u, v, dim=-1)
        ctx.save_for_backward(q, v)
        return v + 2 * w * c + 2 * torch.cross(u, c, dim=-1)

    @staticmethod
    def backward(ctx, g):
        q, v = ctx.saved_tensors
        w, u = q[..., :1], q[..., 1:]
        c = torch.cross(u, v, dim=-1)
        gw = 2 * (g * c).sum(-1, keepdim=True)
        # total gradient at c
        gc = 2 * w * g + 2 * torch.cross(g, u, dim=-1)
        gu = 2 * torch.cross(c, g, dim=-1) + torch.cross(v, gc, dim=-1)
        gv = g + torch.cross(gc, u, dim=-1)
        return torch.cat([gw, gu], -1), gv


def _hat(w):
    z = torch.zeros_like(w[..., 0])
    return torch.stack([
        torch.stack([z, -w[..., 2], w[..., 1]], -1),
        torch.stack([w[..., 2], z, -w[..., 0]], -1),
        torch.stack([-w[..., 1], w[..., 0], z], -1)], -2)


class SO3Exp(Function):
    """Rodrigues' formula, rotation vector (..., 3) -> rotation matrix (..., 3, 3).
    Uses the compact derivative of Gallego & Yezzi (2015)."""

    @staticmethod
    def forward(ctx, r):
        theta2 = (r * r).sum(-1)[..., None, None]
        theta = theta2.sqrt()
        K = _hat(r)
        I = torch.eye(3, dtype=r.dtype, device=r.device)
        R = I + torch.sin(theta) / theta * K + (1 - torch.cos(theta)) / theta2 * (K @ K)
        ctx.save_for_backward(r, R, theta2)
        return R

    @staticmethod
    def backward(ctx, gR):
        r, R, theta2 = ctx.saved_tensors
        I = torch.eye(3, dtype=r.dtype, device=r.device)
        K = _hat(r)
        out = []
        for i in range(3):
            e = (I - R)[..., :, i]
            m = r[..., i, None, None] * K + _hat(torch.cross(r, e, dim=-1))
            dR = m @ R / theta2
            out.append((gR * dR).sum((-1, -2)))
        return torch.stack(out, -1)


class PinholeProjection(Function):
    """Project camera frame points to pixels.

    pts (N, 3) in front of the camera, intr (4,) = fx, fy, cx, cy, dist: tuple of (k1, k2) radial terms or None
    """

    @staticmethod
    def forward(ctx, pts, intr, dist=None):
        if (pts[:, 2] <= 0).any():
            raise ValueError("point behind the camera")
        k1, k2 = dist if dist is not None else (0.0, 0.0)
        x, y = pts[:, 0] / pts[:, 2], pts[:, 1] / pts[:, 2]
        r2 = x * x + y * y
        s = 1 + k1 * r2 + k2 * r2 * r2
        ctx.save_for_backward(pts, intr)
        ctx.k = (k1, k2)
        fx, fy, cx, cy = intr.unbind()
        return torch.stack([fx * x * s + cx, fy * y * s + cy], -1)

    @staticmethod
    def backward(ctx, g):
        pts, intr = ctx.saved_tensors
        k1, k2 = ctx.k
        fx, fy, _, _ = intr.unbind()
        z = pts[:, 2]
        x, y = pts[:, 0] / z, pts[:, 1] / z
        r2 = x * x + y * y
        s = 1 + k1 * r2 + k2 * r2 * r2
        ds = k1 + 2 * k2 * r2           # ds/dr2
        gu, gv = g[:, 0], g[:, 1]
        g_intr = torch.stack([(gu * x * s).sum(), (gv * y * s).sum(), gu.sum(), gv.sum()])
        gs = gu * fx * x + gv * fy * y
        gx = gu * fx * s + gs * ds * 2 * x
        gy = gv * fy * s + gs * ds * 2 * y
        gp = torch.stack([gx / z, gy / z, -(gx * x + gy * y) / z], -1)
        return gp, g_intr, None


class PoincareDistance(Function):
    """Distance in the Poincare ball, points must have norm < 1."""

    @staticmethod
    def forward(u, v):
        su = (u * u).sum(-1)
        sv = (v * v).sum(-1)
        d2 = ((u - v) ** 2).sum(-1)
        x = 1 + 2 * d2 / ((1 - su) * (1 - sv))
        return torch.acosh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        u, v = inputs
        ctx.save_for_backward(u, v, output)

    @staticmethod
    def _half(u, v, alpha, beta, sv, uv, root):
        # eq. (4) of Nickel & Kiela
        a = ((sv - 2 * uv + 1) / alpha.pow(2)).unsqueeze(-1) * u - v / alpha.unsqueeze(-1)
        return 4 * a / (beta * root).unsqueeze(-1)

    @staticmethod
    def backward(ctx, g):
        u, v, d = ctx.saved_tensors
        su, sv, uv = (u * u).sum(-1), (v * v).sum(-1), (u * v).sum(-1)
        alpha, beta = 1 - su, 1 - sv
        root = torch.sinh(d)            # sqrt(x^2 - 1)
        gu = PoincareDistance._half(u, v, alpha, beta, sv, uv, root)
        gv = PoincareDistance._half(v, u, beta, alpha, su, uv, root)
        g = g.unsqueeze(-1)
        return g * gu, g * gv


# ----------------------------------------------------------------------------
# ODE
# ----------------------------------------------------------------------------
class RK4StepAdjoint(Function):
    """One classical Runge-Kutta step of dy/dt = func(t, y) that stores only y and
    replays the stages when going backwards."""

    @staticmethod
    def forward(ctx, func: Callable, y, t0: float, dt: float):
        with torch.no_grad():
            out = RK4StepAdjoint._step(func, y, t0, dt)
        ctx.func, ctx.t0, ctx.dt = func, t0, dt
        ctx.save_for_backward(y)
        return out

    @staticmethod
    def _step(func, y, t0, dt):
        k1 = func(t0, y)
        k2 = func(t0 + dt / 2, y + dt / 2 * k1)
        k3 = func(t0 + dt / 2, y + dt / 2 * k2)
        k4 = func(t0 + dt, y + dt * k3)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, = ctx.saved_tensors
        func, t0, h = ctx.func, ctx.t0, ctx.dt

        def vjp(t, at, cot):
            with torch.enable_grad():
                at = at.detach().requires_grad_(True)
                return torch.autograd.grad(func(t, at), at, cot)[0]

        with torch.no_grad():
            k1 = func(t0, y)
            y2 = y + h / 2 * k1
            k2 = func(t0 + h / 2, y2)
            y3 = y + h / 2 * k2
            k3 = func(t0 + h / 2, y3)
            y4 = y + h * k3
        b4 = vjp(t0 + h, y4, h / 6 * g)
        b3 = vjp(t0 + h / 2, y3, h / 3 * g + h * b4)
        b2 = vjp(t0 + h / 2, y2, h / 3 * g + h / 2 * b3)
        b1 = vjp(t0, y, h / 6 * g + h / 2 * b2)
        return None, g + b1 + b2 + b3 + b4, None, None


# ----------------------------------------------------------------------------
# densities
# ----------------------------------------------------------------------------
def _unbroadcast(g, shape):
    while g.dim() > len(shape):
        g = g.sum(0)
    for d, n in enumerate(shape):
        if n == 1 and g.size(d) != 1:
            g = g.sum(d, keepdim=True)
    return g


class GammaLogProb(Function):
    """log Gamma(value; concentration, rate), all positive, broadcasting allowed."""

    @staticmethod
    def forward(ctx, value, concentration, rate):
        ctx.save_for_backward(value, concentration, rate)
        return (torch.xlogy(concentration, rate) + torch.xlogy(concentration - 1, value)
                - rate * value - torch.lgamma(concentration))

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        gx = g * ((a - 1) / x - b)
        ga = g * (b.log() + x.log() - torch.digamma(a))
        gb = g * (a / b - x)
        return _unbroadcast(gx, x.shape), _unbroadcast(ga, a.shape), _unbroadcast(gb, b.shape)


class CategoricalKL(Function):
    """KL(p || q) between rows of probabilities."""

    @staticmethod
    def forward(ctx, p, q):
        for name, t in (("p", p), ("q", q)):
            if (t <= 0).any() or ((t.sum(-1) - 1).abs() > 1e-3).any():
                raise ValueError(f"{name} is not a distribution")
        r = p.log() - q.log()
        ctx.save_for_backward(p, q, r)
        return (p * r).sum(-1)

    @staticmethod
    def backward(ctx, g):
        p, q, r = ctx.saved_tensors
        g = g.unsqueeze(-1)
        return g * (r + 1), -g * p / q


# ----------------------------------------------------------------------------
# signal
# ----------------------------------------------------------------------------
class RFFTFilter(Function):
    """y = irfft(rfft(x) * H) with a learnable complex response, x: (..., n) real, H: (n // 2 + 1,) complex.
    (global filter networks, 1d)"""

    @staticmethod
    def forward(ctx, x, H):
        n = x.shape[-1]
        X = torch.fft.rfft(x, dim=-1)
        if H.shape[-1] != X.shape[-1]:
            raise ValueError("response must have n // 2 + 1 bins")
        ctx.save_for_backward(X, H)
        ctx.n = n
        return torch.fft.irfft(X * H, n=n, dim=-1)

    @staticmethod
    def backward(ctx, gy):
        X, H = ctx.saved_tensors
        n = ctx.n
        G = torch.fft.rfft(gy, dim=-1)
        # bins 0 and (even n) n/2: irfft drops the imaginary part there
        k = torch.full((X.shape[-1],), 2.0, dtype=gy.dtype, device=gy.device)
        real_bins = [0, -1] if n % 2 == 0 else [0]
        k[real_bins] = 1.0
        Hr = H.clone()
        Hr[real_bins] = H[real_bins].real.to(H.dtype)
        gx = torch.fft.irfft(G * Hr.conj(), n=n, dim=-1)
        gH = G * X.conj() * (k / n)
        gH = gH.reshape(-1, gH.shape[-1]).sum(0)
        return gx, gH


class LinearInterp1d(Function):
    """np.interp: piecewise linear through (xp, fp); xp increasing. Queries outside are clamped to the ends."""

    @staticmethod
    def forward(x, xp, fp):
        i = torch.searchsorted(xp, x.contiguous(), right=True).clamp(1, xp.numel() - 1)
        x0, x1 = xp[i - 1], xp[i]
        w = ((x - x0) / (x1 - x0)).clamp(0, 1)
        return fp[i - 1] * (1 - w) + fp[i] * w, i, w

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, xp, fp = inputs
        _, i, w = output
        ctx.mark_non_differentiable(i, w)
        ctx.save_for_backward(x, xp, fp, i, w)

    @staticmethod
    def backward(ctx, g, _i, _w):
        x, xp, fp, i, w = ctx.saved_tensors
        dx = xp[i] - xp[i - 1]
        slope = (fp[i] - fp[i - 1]) / dx
        inside = ((x >= xp[0]) & (x <= xp[-1])).to(g.dtype)
        gs = g * slope * inside
        gxp = torch.zeros_like(xp)
        gxp.index_add_(0, (i - 1).reshape(-1), (-gs * (1 - w)).reshape(-1))
        gxp.index_add_(0, i.reshape(-1), (-gs * w).reshape(-1))
        gfp = torch.zeros_like(fp)
        gfp.index_add_(0, (i - 1).reshape(-1), (g * (1 - w)).reshape(-1))
        gfp.index_add_(0, i.reshape(-1), (g * w).reshape(-1))
        return gs, gxp, gfp


def interp(x, xp, fp):
    return LinearInterp1d.apply(x, xp, fp)[0]


class BilinearSampler(Function):
    """img: (C, H, W); coords: (N, 2) pixel positions (x, y). Samples outside of the image read zeros."""

    @staticmethod
    def _corner(img, xi, yi):
        C, H, W = img.shape
        ok = (xi >= 0) & (xi < W) & (yi >= 0) & (yi < H)
        idx = yi.clamp(0, H - 1) * W + xi.clamp(0, W - 1)
        return img.reshape(C, -1)[:, idx] * ok.to(img.dtype), idx, ok

    @staticmethod
    def forward(ctx, img, coords):
        x, y = coords[:, 0], coords[:, 1]
        x0, y0 = x.floor(), y.floor()
        fx, fy = x - x0, y - y0
        x0, y0 = x0.long(), y0.long()
        out = 0
        for dx in (0, 1):
            for dy in (0, 1):
                v, _, _ = BilinearSampler._corner(img, x0 + dx, y0 + dy)
                out = out + v * (fx if dx else 1 - fx) * (fy if dy else 1 - fy)
        ctx.save_for_backward(img, x0, y0, fx, fy)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        img, x0, y0, fx, fy = ctx.saved_tensors
        gi = torch.zeros_like(img).reshape(img.shape[0], -1)
        gx = torch.zeros_like(fx)
        gy = torch.zeros_like(fy)
        for dx in (0, 1):
            for dy in (0, 1):
                v, idx, ok = BilinearSampler._corner(img, x0 + dx, y0 + dy)
                wx = fx if dx else 1 - fx
                wy = fy if dy else 1 - fy
                gi.index_add_(1, idx, g * wx * wy * ok.to(g.dtype))
                s = (g * v).sum(0)
                gx += s * wy * (1 if dx else -1)
                gy += s * wx * (1 if dy else -1)
        return gi.view_as(img), torch.stack([gx, gy], 1)


class ModReLU(Function):
    """modReLU(z) = relu(|z| + b) * z / |z|  (unitary RNNs). z: complex (..., D), b: real (D,)"""

    @staticmethod
    def forward(ctx, z, b):
        if not z.is_complex():
            raise TypeError("modReLU works on complex tensors")
        ctx.save_for_backward(z, b)
        r = z.abs()
        return F.relu(r + b) * z / r

    @staticmethod
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        r = z.abs()
        u = z / r
        on = (r + b > 0).to(r.dtype)
        radial = (g * u.conj()).real          # component along u
        gz = on * (u * radial + (r + b) / r * (g - u * radial))
        gb = (on * radial).reshape(-1, b.numel()).sum(0)
        return gz, gb


class NumpyDCT(Function):
    """Orthonormal DCT-II along the last axis on the numpy side (cpu only)."""

    @staticmethod
    def _basis(n):
        k = np.arange(n)[:, None]
        m = np.cos(np.pi * k * (2 * np.arange(n)[None] + 1) / (2 * n)) * np.sqrt(2.0 / n)
        m[0] /= np.sqrt(2.0)
        return m

    @staticmethod
    def forward(ctx, x):
        a = x.detach().cpu().numpy()
        out = a @ NumpyDCT._basis(a.shape[-1]).T.astype(a.dtype)
        return torch.from_numpy(out).to(x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        g = grad.cpu().numpy()
        return torch.from_numpy(g @ NumpyDCT._basis(g.shape[-1]).astype(g.dtype)).to(grad.device)


# ----------------------------------------------------------------------------
# gradient tricks
# ----------------------------------------------------------------------------
class GradientReversal(Function):
    """DANN. Identity forward, -lambda * grad backward."""

    @staticmethod
    def forward(ctx, x, lambd=1.0):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.lambd, None


class RoundSTE(Function):
    """round() with a straight-through gradient inside [lo, hi]"""

    @staticmethod
    def forward(ctx, x, lo: float = -8.0, hi: float = 7.0):
        ctx.save_for_backward((x >= lo) & (x <= hi))
        return x.round().clamp(lo, hi)

    @staticmethod
    def backward(ctx, g):
        m, = ctx.saved_tensors
        return g * m, None, None


class ClipGradNorm(Function):
    """Identity whose gradient is rescaled to have at most norm max_norm."""

    @staticmethod
    def forward(ctx, x, max_norm):
        ctx.max_norm = max_norm
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        n = g.norm()
        return g * torch.clamp(ctx.max_norm / (n + 1e-12), max=1.0), None


if __name__ == "__main__":
    torch.manual_seed(0)
    layer = FastRMSNorm(16)
    x = torch.randn(2, 5, 16, requires_grad=True)
    layer(x).sum().backward()
    print("rmsnorm", x.grad.abs().mean())
    q = F.normalize(torch.randn(4, 4), dim=-1)
    print("rotated", RotateByUnitQuaternion.apply(q, torch.randn(4, 3)).shape)
