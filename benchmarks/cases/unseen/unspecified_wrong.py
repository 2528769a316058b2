# -*- coding: utf-8 -*-
"""Custom ops used across our models. Everything here has a manual backward to save memory."""
import enum
import math
from typing import Callable, List, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


# ---------------------------------------------------------------- norms / activations
class InstanceNorm2dFunction(Function):
    """Instance norm without running stats; weight and bias are optional."""

    @staticmethod
    def forward(ctx, x, weight=None, bias=None, eps=1e-5):
        mean = x.mean((2, 3), keepdim=True)
        xc = x - mean
        rstd = (xc.square().mean((2, 3), keepdim=True) + eps).rsqrt()
        xhat = xc * rstd
        ctx.save_for_backward(xhat, rstd, weight)
        ctx.has_bias = bias is not None
        out = xhat
        if weight is not None:
            out = out * weight[None, :, None, None]
        if bias is not None:
            out = out + bias[None, :, None, None]
        return out.clone() if out is xhat else out

    @staticmethod
    def backward(ctx, grad):
        xhat, rstd, weight = ctx.saved_tensors
        gw = gb = None
        if weight is not None:
            gw = (grad * xhat).sum((0, 2, 3))
        if ctx.has_bias:
            gb = grad.sum((0, 2, 3))
        if weight is not None:
            grad = grad * weight[None, :, None, None]
        gx = rstd * (grad - grad.mean((2, 3), keepdim=True))
        return gx, gw, gb, None


class LocalResponseNormFn(Function):
    """AlexNet style response normalisation across channels.

    y_c = x_c / (k + alpha / size * sum_{c' in window(c)} x_c'^2)^beta
    The window of channel c covers [c - size // 2, c + (size - 1) // 2].
    """

    @staticmethod
    def _window_sum(t, size):
        pad = (size // 2, (size - 1) // 2)
        B, C = t.shape[:2]
        flat = F.pad(t.reshape(B, C, -1).transpose(1, 2), pad)
        return flat.unfold(-1, size, 1).sum(-1).transpose(1, 2).reshape(t.shape)

    @staticmethod
    def forward(ctx, x, size=4, alpha=0.1, beta=0.75, k=1.0):
        den = k + alpha / size * LocalResponseNormFn._window_sum(x * x, size)
        ctx.save_for_backward(x, den)
        ctx.conf = (size, alpha, beta)
        return x * den.pow(-beta)

    @staticmethod
    def backward(ctx, g):
        x, den = ctx.saved_tensors
        size, alpha, beta = ctx.conf
        inner = g * x * den.pow(-beta - 1)
        acc = LocalResponseNormFn._window_sum(inner, size)
        gx = g * den.pow(-beta) - 2 * alpha * beta / size * x * acc
        return gx, None, None, None, None


class TanhGELU(Function):
    K = math.sqrt(2.0 / math.pi)

    @staticmethod
    def forward(ctx, x):
        inner = TanhGELU.K * (x + 0.044715 * x ** 3)
        t = torch.tanh(inner)
        ctx.save_for_backward(x, t)
        return 0.5 * x * (1 + t)

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        dinner = TanhGELU.K * (1 + 0.044715 * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * dinner)


class ELUFunction(Function):
    @staticmethod
    def forward(ctx, x, alpha: float = 1.0):
        out = torch.where(x > 0, x, alpha * torch.expm1(x))
        ctx.save_for_backward(out)
        ctx.alpha = alpha
        return out

    @staticmethod
    def backward(ctx, g):
        out, = ctx.saved_tensors
        return torch.where(out > 0, g, g * (out + 1)), None


class MemHardSwish(Function):
    """x * relu6(x + 3) / 6 with a jit friendly backward"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * F.relu6(x + 3.) / 6.

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0]
        m = torch.zeros_like(x)
        m = torch.where((x >= -3.) & (x <= 3.), x / 3. + .5, m)
        return grad_output * m


class HardSwishMe(nn.Module):
    def __init__(self, inplace: bool = False):
        super().__init__()

    def forward(self, x):
        return MemHardSwish.apply(x)


class SwiGLUFunction(Function):
    """silu(gate) * up, keeps only its inputs (recomputes the sigmoid)."""

    @staticmethod
    def forward(ctx, gate, up):
        assert gate.shape == up.shape
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, dout):
        gate, up = ctx.saved_tensors
        sig = torch.sigmoid(gate)
        d_up = dout * gate * sig
        d_gate = dout * up * sig * (1 + gate * (1 - sig))
        return d_up, d_gate


class InplaceTanh(Function):
    """tanh that writes into its input. Pass a temporary."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x.tanh_()
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        t = torch.tanh(x)
        return g * (1 - t * t)


# ---------------------------------------------------------------- losses
class WeightedNLL(Function):
    """Cross entropy with class weights and ignore_index (mean is over the weights of the kept targets).

    logits: (N, C), target: (N,) int64, weight: (C,) or None. The weight is a constant.
    """

    @staticmethod
    def forward(ctx, logits, target, weight=None, ignore_index=-100):
        keep = target != ignore_index
        t = torch.where(keep, target, torch.zeros_like(target))
        w = torch.ones(logits.shape[1], dtype=logits.dtype) if weight is None else weight.detach()
        wt = w[t] * keep
        logp = F.log_softmax(logits, 1)
        loss = -(logp.gather(1, t[:, None])[:, 0] * wt).sum()
        total = wt.sum()
        ctx.save_for_backward(logp, t, keep, total)
        return loss / total

    @staticmethod
    def backward(ctx, g):
        logp, t, keep, total = ctx.saved_tensors
        grad = logp.exp()
        grad[torch.arange(len(t)), t] -= 1
        grad = grad * keep[:, None]
        return g * grad / total, None, None, None


class MaskedBCEWithLogits(Function):
    """logits/targets (B, L), mask (B, L) bool of the valid steps; mean over valid steps"""

    @staticmethod
    def forward(ctx, logits, targets, mask):
        if mask.dtype != torch.bool:
            raise TypeError("mask must be boolean")
        t = targets.to(logits.dtype)
        loss = F.relu(logits) - logits * t + torch.log1p(torch.exp(-logits.abs()))
        n = mask.sum().clamp(min=1)
        ctx.save_for_backward(logits, t, n)
        return (loss * mask).sum() / n

    @staticmethod
    def backward(ctx, g):
        logits, t, n = ctx.saved_tensors
        return g * (torch.sigmoid(logits) - t) / n, None, None


class KLDistill(Function):
    """Knowledge distillation: T^2 * KL(softmax(teacher / T) || softmax(student / T)); teacher is frozen."""

    @staticmethod
    def forward(ctx, student, teacher, T=2.0, reduction='batchmean'):
        teacher = teacher.detach()
        q = F.log_softmax(student / T, dim=-1)
        p = F.softmax(teacher / T, dim=-1)
        kl = (torch.xlogy(p, p) - p * q).sum(-1) * T * T
        ctx.save_for_backward(p, q)
        ctx.T, ctx.reduction = T, reduction
        if reduction == 'batchmean':
            return kl.sum() / student.shape[0]
        if reduction == 'sum':
            return kl.sum()
        if reduction == 'none':
            return kl
        raise NotImplementedError(reduction)

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        grad = ctx.T * (q.exp() - p)
        if ctx.reduction == 'none':
            grad = grad * g.unsqueeze(-1)
        elif ctx.reduction == 'batchmean':
            grad = grad * g / grad.numel()
        else:
            grad = grad * g
        return grad, None, None, None


class TripletLossFn(Function):
    """mean(relu(|a-p|^2 - |a-n|^2 + margin))"""

    @staticmethod
    def forward(ctx, anchor, positive, negative, margin=0.3):
        dp = (anchor - positive).pow(2).sum(1)
        dn = (anchor - negative).pow(2).sum(1)
        viol = dp - dn + margin
        ctx.save_for_backward(anchor, positive, negative, viol > 0)
        return F.relu(viol).mean()

    @staticmethod
    def backward(ctx, g):
        a, p, n, active = ctx.saved_tensors
        s = g * 2.0 / a.shape[0] * active.to(a.dtype).unsqueeze(1)
        return s * (a - p), s * (p - a), s * (a - n), None


class ClipLossFn(Function):
    """Symmetric InfoNCE over a square similarity matrix: (CE(rows) + CE(columns)) / 2, targets on the diagonal."""

    @staticmethod
    def forward(ctx, sim, logit_scale):
        if sim.dim() != 2 or sim.size(0) != sim.size(1):
            raise ValueError("expected a square matrix of similarities")
        z = sim * logit_scale
        lr, lc = F.log_softmax(z, 1), F.log_softmax(z, 0)
        ctx.save_for_backward(sim, logit_scale, lr)
        return -(lr.diagonal().mean() + lc.diagonal().mean()) / 2

    @staticmethod
    def backward(ctx, g):
        sim, logit_scale, lr = ctx.saved_tensors
        n = sim.size(0)
        eye = torch.eye(n, dtype=sim.dtype)
        gz = g * (lr.exp() - eye) / n
        return gz * logit_scale, (gz * sim).sum().reshape(logit_scale.shape)


class AnisotropicTV(Function):
    """sum |x[i+1] - x[i]| in both directions of (B, C, H, W) images, divided by B"""

    @staticmethod
    def forward(ctx, img):
        dh = img[..., 1:, :] - img[..., :-1, :]
        dw = img[..., :, 1:] - img[..., :, :-1]
        ctx.save_for_backward(dh.sign(), dw.sign())
        return (dh.abs().sum() + dw.abs().sum()) / img.shape[0]

    @staticmethod
    def backward(ctx, grad_output):
        sh, sw = ctx.saved_tensors
        B = sh.shape[0]
        g = F.pad(sh, (0, 0, 1, 0)) - F.pad(sh, (0, 0, 0, 1))
        g = g + F.pad(sw, (1, 0)) - F.pad(sw, (0, 1))
        return g / B


# ---------------------------------------------------------------- attention parts
class BiasedSoftmax(Function):
    """softmax(scores + bias), scores (B, H, L, L), relative position bias (H, L, L) shared by the batch"""

    @staticmethod
    def forward(ctx, scores, bias):
        p = F.softmax(scores + bias, dim=-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, dp):
        p, = ctx.saved_tensors
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds, ds.mean(0)


class TemperatureSoftmax(Function):
    """softmax(x / tau), tau is a 0-d tensor (learnable temperature) > 0"""

    @staticmethod
    def forward(ctx, x, tau):
        if not (tau > 0).all():
            raise ValueError("temperature must be positive")
        y = torch.softmax(x / tau, dim=-1)
        ctx.save_for_backward(y, tau)
        return y

    @staticmethod
    def backward(ctx, g):
        y, tau = ctx.saved_tensors
        gx = y * (g - (g * y).sum(-1, keepdim=True)) / tau
        return gx, None


class LearnedTemperature(nn.Module):
    def __init__(self, init=1.0):
        super().__init__()
        self.tau = nn.Parameter(torch.tensor(float(init)))

    def forward(self, x):
        return TemperatureSoftmax.apply(x, self.tau)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x, dim: int = -1, keepdim: bool = False):
        m = x.amax(dim, keepdim=True)
        lse = m + (x - m).exp().sum(dim, keepdim=True).log()
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(x)
        return lse if keepdim else lse.squeeze(dim)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        if not ctx.keepdim:
            g = g.unsqueeze(ctx.dim)
        return g * torch.softmax(x, -1), None, None


class VarlenSoftmax(Function):
    """Softmax inside every segment of packed scores.
    scores: (total,) or (total, H); cu_seqlens: (B + 1,), increasing from 0 to total"""

    @staticmethod
    def forward(ctx, scores, cu_seqlens):
        bounds = cu_seqlens.tolist()
        assert bounds[0] == 0 and bounds[-1] == scores.shape[0], "bad cu_seqlens"
        out = torch.empty_like(scores)
        for s, e in zip(bounds[:-1], bounds[1:]):
            if e > s:
                out[s:e] = torch.softmax(scores[s:e], 0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        p, = ctx.saved_tensors
        return p * (g - (p * g).sum(0, keepdim=True)), None


class PooledQueryAttention(Function):
    """Attention pooling with a single query. keys (B, L, D), query (D,) -> (B, D)"""
    _cache = {}

    @staticmethod
    def forward(ctx, keys, query):
        s = keys @ query / math.sqrt(keys.shape[-1])
        p = torch.softmax(s, -1)
        ctx.save_for_backward(keys, query)
        # keep the probabilities around so that they aren't computed twice
        PooledQueryAttention._cache['p'] = p
        return (p.unsqueeze(-1) * keys).sum(1)

    @staticmethod
    def backward(ctx, g):
        keys, query = ctx.saved_tensors
        p = PooledQueryAttention._cache['p']
        dp = (keys * g.unsqueeze(1)).sum(-1)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(keys.shape[-1])
        gk = p.unsqueeze(-1) * g.unsqueeze(1) + ds.unsqueeze(-1) * query
        gq = (ds.unsqueeze(-1) * keys).sum((0, 1))
        return gk, gq


# ---------------------------------------------------------------- linear / conv / pooling
class GroupedLinearFn(Function):
    """Block diagonal linear map.

    x (N, in), weight (G, out / G, in / G), bias (out,). in and out are multiples of G.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        G, o, i = weight.shape
        if x.shape[1] != G * i:
            raise ValueError("input features must be groups * weight.shape[2]")
        ctx.save_for_backward(x, weight)
        out = torch.einsum('ngi,goi->ngo', x.view(-1, G, i), weight).reshape(-1, G * o)
        return out + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        G, o, i = weight.shape
        gg = g.reshape(-1, G, o)
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = torch.einsum('ngo,goi->ngi', gg, weight).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            gw = torch.einsum('ngo,ngi->goi', gg, x.view(-1, G, i))
            gb = g.sum(0)
        return gx, gw, gb


class GroupedLinear(nn.Module):
    def __init__(self, in_features, out_features, groups=2):
        super().__init__()
        assert in_features % groups == 0 and out_features % groups == 0
        self.weight = nn.Parameter(torch.randn(groups, out_features // groups, in_features // groups) * 0.1)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return GroupedLinearFn.apply(x, self.weight, self.bias)


class DilatedConv1dFn(Function):
    """Valid 1d convolution, (B, C, L) * (O, C, K) with dilation"""

    @staticmethod
    def forward(ctx, x, w, dilation=1):
        ctx.save_for_backward(x, w)
        ctx.dilation = dilation
        K = w.shape[-1]
        Lo = x.shape[-1] - dilation * (K - 1)
        if Lo <= 0:
            raise ValueError("input is shorter than the receptive field")
        return sum(torch.einsum('bcl,oc->bol', x[..., k * dilation:k * dilation + Lo], w[..., k]) for k in range(K))

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        d, K, Lo = ctx.dilation, w.shape[-1], g.shape[-1]
        gx = torch.zeros_like(x)
        gw = torch.zeros_like(w)
        for k in range(K):
            gx[..., k * d:k * d + Lo] += torch.einsum('bol,oc->bcl', g, w[..., k])
            gw[..., k] = torch.einsum('bol,bcl->oc', g, x[..., k:k + Lo])
        return gx, gw, None


class AvgPool1dNoPad(Function):
    """Average pooling with count_include_pad=False. x (B, C, L)"""

    @staticmethod
    def forward(ctx, x, kernel_size: int = 3, stride: int = 1, padding: int = 1):
        assert padding <= kernel_size // 2
        L = x.shape[-1]
        xp = F.pad(x, (padding, padding))
        one = F.pad(torch.ones(L, dtype=x.dtype), (padding, padding))
        cnt = one.unfold(0, kernel_size, stride).sum(-1)
        ctx.conf = (kernel_size, stride, padding, L)
        return xp.unfold(-1, kernel_size, stride).sum(-1) / cnt

    @staticmethod
    def backward(ctx, g):
        k, s, p, L = ctx.conf
        gp = g.new_zeros(g.shape[:-1] + (L + 2 * p,))
        for t in range(g.shape[-1]):
            gp[..., t * s:t * s + k] += g[..., t:t + 1] / k
        return gp[..., p:p + L], None, None, None


class MaxPool1dFn(Function):
    @staticmethod
    def forward(ctx, x, kernel_size, stride=None):
        stride = kernel_size if stride is None else stride
        vals, arg = x.unfold(-1, kernel_size, stride).max(-1)
        ctx.kernel_size, ctx.size = kernel_size, x.shape
        ctx.save_for_backward(arg)
        return vals

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        arg, = ctx.saved_tensors
        start = torch.arange(arg.shape[-1]) * ctx.kernel_size
        pos = (arg + start).clamp(max=ctx.size[-1] - 1)
        gx = g.new_zeros(ctx.size)
        gx.scatter_add_(-1, pos, g)
        return gx, None, None


class PixelUnshuffleFn(Function):
    """Inverse of pixel shuffle, (B, C, H*r, W*r) -> (B, C*r*r, H, W)"""

    @staticmethod
    def forward(ctx, x, r: int):
        B, C, H, W = x.shape
        if H % r or W % r:
            raise ValueError(f"spatial size {H}x{W} is not divisible by {r}")
        ctx.r = r
        x = x.reshape(B, C, H // r, r, W // r, r)
        return x.permute(0, 1, 3, 5, 2, 4).reshape(B, C * r * r, H // r, W // r)

    @staticmethod
    def backward(ctx, g):
        r = ctx.r
        B, Cr, H, W = g.shape
        g = g.reshape(B, Cr // (r * r), r, r, H, W)
        g = g.permute(0, 1, 4, 3, 5, 2)
        return g.reshape(B, Cr // (r * r), H * r, W * r), None


# ---------------------------------------------------------------- embedding / scan
class EmbeddingFn(Function):
    """weight[indices] with padding_idx; indices may have any shape"""

    @staticmethod
    def forward(ctx, indices, weight, padding_idx=None):
        if indices.is_floating_point():
            raise TypeError("indices must be integers")
        ctx.save_for_backward(indices)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        out = weight[indices]
        if padding_idx is not None:
            out = out * (indices != padding_idx).unsqueeze(-1)
        return out

    @staticmethod
    def backward(ctx, g):
        indices, = ctx.saved_tensors
        gw = g.new_zeros(ctx.shape)
        gw[indices.reshape(-1)] = g.reshape(-1, ctx.shape[1])
        if ctx.padding_idx is not None:
            gw[ctx.padding_idx] = 0
        return None, gw, None


class ExclusiveCumsum(Function):
    """out[i] = sum_{j < i} x[j] along dim"""

    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        return torch.cumsum(x, dim) - x

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class GRUCellFn(Function):
    """Fused pointwise GRU. gi, gh: (B, 3H) in r, z, n order; h: (B, H).
    n = tanh(gi_n + r * gh_n), h' = (1 - z) * n + z * h"""

    @staticmethod
    def forward(ctx, gi, gh, h):
        ir, iz, i_n = gi.chunk(3, 1)
        hr, hz, hn = gh.chunk(3, 1)
        r = torch.sigmoid(ir + hr)
        z = torch.sigmoid(iz + hz)
        n = torch.tanh(i_n + r * hn)
        ctx.save_for_backward(r, z, n, hn, h)
        return (1 - z) * n + z * h

    @staticmethod
    def backward(ctx, g):
        r, z, n, hn, h = ctx.saved_tensors
        dz = g * (h - n) * z * (1 - z)
        dn = g * (1 - z) * (1 - n * n)
        dr = dn * hn * r * (1 - r)
        d_gi = torch.cat([dr, dz, dn], 1)
        d_gh = torch.cat([dr, dz, dn], 1)
        return d_gi, d_gh, g * z


class EMAScan(Function):
    """y_t = a * y_{t-1} + (1 - a) * x_t, x (B, L, D), decay a (D,) in (0, 1), y_{-1} = 0"""

    @staticmethod
    def forward(ctx, x, a):
        if a.min() <= 0 or a.max() >= 1:
            raise ValueError("decay must lie in (0, 1)")
        y = torch.zeros_like(x[:, 0])
        ys = []
        for t in range(x.shape[1]):
            y = a * y + (1 - a) * x[:, t]
            ys.append(y)
        ys = torch.stack(ys, 1)
        ctx.save_for_backward(x, a, ys)
        return ys

    @staticmethod
    def backward(ctx, g):
        x, a, ys = ctx.saved_tensors
        acc = torch.zeros_like(g[:, 0])
        gx = torch.empty_like(x)
        ga = torch.zeros_like(a)
        for t in range(x.shape[1] - 1, -1, -1):
            acc = acc + g[:, t]
            gx[:, t] = acc * (1 - a)
            ga = ga + (acc * (ys[:, t] - x[:, t])).sum(0)
            acc = acc * a
        return gx, ga


class EMALayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(-1, 2, dim))

    def forward(self, x):
        return EMAScan.apply(x, torch.sigmoid(self.logit))


# ---------------------------------------------------------------- matrices
class BilinearScore(Function):
    """s_n = x_n^T A y_n (DistMult / RESCAL), x (N, D), A (D, D), y (N, D)"""

    @staticmethod
    def forward(ctx, x, A, y):
        ctx.save_for_backward(x, A, y)
        return torch.einsum('nd,de,ne->n', x, A, y)

    @staticmethod
    def backward(ctx, g):
        x, A, y = ctx.saved_tensors
        g = g.unsqueeze(1)
        gx = g * (y @ A)
        gy = g * (x @ A)
        gA = (g * x).t() @ y
        return gx, gA, gy


class LowRankLinearFn(Function):
    """y = x U V with U (in, rank) and V (rank, out); keeps x U for the backward pass."""

    @staticmethod
    def forward(ctx, x, U, V):
        if U.shape[1] != V.shape[0]:
            raise ValueError("rank of the factors differs")
        h = x @ U
        ctx.save_for_backward(x, U, V, h)
        return h @ V

    @staticmethod
    def backward(ctx, g):
        x, U, V, h = ctx.saved_tensors
        gh = g @ V.t()
        gU = x.flatten(0, -2).t() @ gh.flatten(0, -2)
        gV = g.flatten(0, -2).t() @ h.flatten(0, -2)
        return gh @ U.t(), gU, gV


class LowRankAdapter(nn.Module):
    """LoRA branch, rank defaults to a quarter of the width"""

    def __init__(self, dim, rank=None):
        super().__init__()
        rank = rank or dim // 4
        self.U = nn.Parameter(torch.randn(dim, rank) / dim ** 0.5)
        self.V = nn.Parameter(torch.randn(rank, dim) * 0.01)

    def forward(self, x):
        return x + LowRankLinearFn.apply(x, self.U, self.V)


class TriangularSolveFn(Function):
    """Solve T x = b, T (n, n) triangular; only the triangle that ``upper`` selects is read."""

    @staticmethod
    def forward(ctx, T, b, upper: bool = False):
        x = torch.linalg.solve_triangular(T, b, upper=upper)
        ctx.save_for_backward(T, x)
        ctx.upper = upper
        return x

    @staticmethod
    def backward(ctx, gx):
        T, x = ctx.saved_tensors
        gb = torch.linalg.solve_triangular(T.mT, gx, upper=not ctx.upper)
        gT = -gb @ x.mT
        return gT.tril(), gb, None


class MahalanobisSq(Function):
    """(x - mu)^T S^-1 (x - mu) with a covariance S; x (N, D), mu (D,), S (D, D)"""

    @staticmethod
    def forward(ctx, x, mu, cov):
        L = torch.linalg.cholesky(cov)  # covariances are positive definite
        d = x - mu
        z = torch.cholesky_solve(d.t(), L).t()
        ctx.save_for_backward(d, z)
        return (d * z).sum(-1)

    @staticmethod
    def backward(ctx, g):
        d, z = ctx.saved_tensors
        gz = g.unsqueeze(-1) * z
        return 2 * gz, -gz.sum(0), -gz.t() @ z


# ---------------------------------------------------------------- geometry
class GeodesicDistance(Function):
    """Angle between unit vectors, u and v (N, D) on the sphere"""

    @staticmethod
    def forward(ctx, u, v):
        for t in (u, v):
            if ((t.norm(dim=-1) - 1).abs() > 1e-3).any():
                raise AssertionError("inputs have to be on the unit sphere")
        c = (u * v).sum(-1).clamp(-1 + 1e-12, 1 - 1e-12)
        ctx.save_for_backward(u, v, c)
        return torch.acos(c)

    @staticmethod
    def backward(ctx, g):
        u, v, c = ctx.saved_tensors
        s = (g / torch.sqrt(1 - c * c)).unsqueeze(-1)
        return -s * v, s * u


class QuaternionMultiply(Function):
    """Hamilton product of (..., 4) quaternions in w, x, y, z order"""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        aw, ax, ay, az = a.unbind(-1)
        bw, bx, by, bz = b.unbind(-1)
        return torch.stack([
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw], -1)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        aw, ax, ay, az = a.unbind(-1)
        bw, bx, by, bz = b.unbind(-1)
        gw, gx, gy, gz = g.unbind(-1)
        ga = torch.stack([
            gw * bw + gx * bx + gy * by + gz * bz,
            -gw * bx + gx * bw - gy * bz + gz * by,
            -gw * by + gx * bz + gy * bw - gz * bx,
            -gw * bz - gx * by + gy * bx + gz * bw], -1)
        gb = torch.stack([
            gw * aw + gx * ax + gy * ay + gz * az,
            -gw * ax + gx * aw + gy * az - gz * ay,
            -gw * ay - gx * az + gy * aw + gz * ax,
            -gw * az + gx * ay + gy * ax + gz * aw], -1)
        return ga, gb


# ---------------------------------------------------------------- ODE / quadrature
class HeunStep(Function):
    """One step of Heun's method, y + dt / 2 * (k1 + k2), recomputes the slopes in backward.

    f: callable (t, y) -> dy/dt
    """

    @staticmethod
    def forward(ctx, y, f: Callable[[float, torch.Tensor], torch.Tensor], t: float, dt: float):
        with torch.no_grad():
            k1 = f(t, y)
            y_pred = y + dt * k1
            k2 = f(t + dt, y_pred)
        ctx.save_for_backward(y, y_pred)
        ctx.f, ctx.t, ctx.dt = f, t, dt
        return y + 0.5 * dt * (k1 + k2)

    @staticmethod
    def backward(ctx, g):
        y, y_pred = ctx.saved_tensors
        f, t, dt = ctx.f, ctx.t, ctx.dt

        def pull(time, at, v):
            with torch.enable_grad():
                at = at.detach().requires_grad_()
                return torch.autograd.grad(f(time, at), at, v)[0]

        half = 0.5 * dt * g
        gy = g + pull(t, y, half) + pull(t + dt, y_pred, half)
        return gy, None, None, None


class NumpyTrapezoid(Function):
    """np.trapz over non-uniform, increasing sample positions. y (B, n), x (n,) constant grid"""

    @staticmethod
    def forward(ctx, y, x):
        xs = x.detach().numpy()
        if np.any(np.diff(xs) <= 0):
            raise ValueError("x must be strictly increasing")
        ys = y.detach().numpy()
        dx = np.diff(xs)
        out = (0.5 * dx * (ys[:, 1:] + ys[:, :-1])).sum(-1)
        ctx.dx = dx
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        dx = ctx.dx
        w = np.empty(len(dx) + 1, dtype=dx.dtype)
        w[1:-1] = 0.5 * (dx[1:] + dx[:-1])
        w[0], w[-1] = dx[0], dx[-1]
        return g.unsqueeze(1) * torch.from_numpy(w), None


# ---------------------------------------------------------------- densities / quantisation
class BetaLogProb(Function):
    """Elementwise log density of Beta(a, b) at x in (0, 1); all three share a shape"""

    @staticmethod
    def forward(ctx, x, a, b):
        if ((x <= 0) | (x >= 1)).any():
            raise ValueError("value outside of the support")
        ctx.save_for_backward(x, a, b)
        return ((a - 1) * x.log() + (b - 1) * torch.log1p(-x)
                + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b))

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        gx = (a - 1) / x - (b - 1) / (1 - x)
        ga = x.log() + torch.digamma(a + b) - torch.digamma(a)
        gb = torch.log1p(-x) - torch.digamma(b)
        return g * gx, g * ga, g * gb


class MuLawCompand(Function):
    """sign(x) * log(1 + mu |x|) / log(1 + mu) for waveforms in [-1, 1]"""

    @staticmethod
    def forward(ctx, x, mu: int = 255):
        assert x.abs().max() <= 1, "audio must be in [-1, 1]"
        ctx.mu = mu
        ctx.save_for_backward(x)
        return x.sign() * torch.log1p(mu * x.abs()) / math.log1p(mu)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * ctx.mu / (1 + ctx.mu * x.abs()), None


# ---------------------------------------------------------------- signal / complex
class CircularFFTConv(Function):
    """Circular convolution of (B, n) signals with an (n,) kernel through the FFT"""

    @staticmethod
    def forward(ctx, x, k):
        n = x.shape[-1]
        X, K = torch.fft.rfft(x), torch.fft.rfft(k)
        ctx.save_for_backward(X, K)
        ctx.n = n
        return torch.fft.irfft(X * K, n=n)

    @staticmethod
    def backward(ctx, g):
        X, K = ctx.saved_tensors
        G = torch.fft.rfft(g)
        gx = torch.fft.irfft(G * K, n=ctx.n)
        gk = torch.fft.irfft(G * X.conj(), n=ctx.n).sum(0)
        return gx, gk


class ComplexLinearFn(Function):
    """y = x W^T + b for complex x (N, in), W (out, in), b (out,)"""

    @staticmethod
    def forward(x, weight, bias):
        assert x.is_complex() and weight.is_complex()
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = g @ weight.conj()
        gw = g.t() @ x
        return gx, gw, g.sum(0)


# ---------------------------------------------------------------- statistics
class VarMean(Function):
    """Unbiased variance and mean of the last axis (needs at least 2 samples)"""

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] < 2:
            raise ValueError("variance of a single sample")
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).square().sum(-1) / (x.shape[-1] - 1)
        ctx.save_for_backward(x, mean)
        return var, mean.squeeze(-1)

    @staticmethod
    def backward(ctx, g_var, g_mean):
        x, mean = ctx.saved_tensors
        return g_var.unsqueeze(-1) * 2 * (x - mean) / (x.shape[-1] - 1)


if __name__ == '__main__':
    m = GroupedLinear(8, 4)
    m(torch.randn(3, 8)).sum().backward()
    print({k: v.grad.norm().item() for k, v in m.named_parameters()})
    e = EMALayer(3)
    e(torch.randn(2, 5, 3)).mean().backward()
    print(e.logit.grad)
