from __future__ import annotations

import enum
import math
from typing import List, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

NEG_INF = float("-inf")


def _unbroadcast(grad: Tensor, like: Tensor) -> Tensor:
    return grad if grad.shape == like.shape else grad.sum_to_size(like.shape)


# --------------------------------------------------------------------------- layers


class GroupRMSNorm(Function):
    """RMS norm on ``groups`` equal slices of the last dimension (``eps`` > 0)."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, groups: int, eps: float = 1e-6) -> Tensor:
        dim = x.shape[-1]
        if groups < 1 or dim % groups != 0:
            raise ValueError(f"cannot split {dim} features into {groups} groups")
        if weight.shape != x.shape[-1:]:
            raise ValueError("weight must have one entry per feature")
        xg = x.unflatten(-1, (groups, dim // groups))
        rstd = torch.rsqrt(xg.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.groups = groups
        return (xg * rstd).flatten(-2) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: Tensor):
        x, weight, rstd = ctx.saved_tensors
        split = (ctx.groups, x.shape[-1] // ctx.groups)
        xhat = x.unflatten(-1, split) * rstd
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            h = (grad_output * weight).unflatten(-1, split)
            grad_x = rstd * (h - xhat * (h * xhat).mean(-1, keepdim=True))
            grad_x = grad_x.flatten(-2)
        if ctx.needs_input_grad[1]:
            grad_w = (grad_output * xhat.flatten(-2)).sum_to_size(weight.shape)
        return grad_x, grad_w, None, None


class GroupRMSNormLayer(nn.Module):
    def __init__(self, dim: int, groups: int = 4, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.groups, self.eps = groups, eps

    def forward(self, x):
        return GroupRMSNorm.apply(x, self.weight, self.groups, self.eps)


def rope_tables(length, dim, base, offset, like):
    freq = base ** (-torch.arange(0, dim, 2, dtype=like.dtype, device=like.device) / dim)
    pos = torch.arange(offset, offset + length, dtype=like.dtype, device=like.device)
    angle = torch.outer(pos, freq)
    return angle.cos(), angle.sin()


def rotate_half(x, cos, sin):
    lo, hi = x.chunk(2, dim=-1)
    return torch.cat((lo * cos - hi * sin, lo * sin + hi * cos), dim=-1)


class RotaryQK(Function):
    """Rotary position embedding of queries and keys, both (..., T, D) with the same T and an even D."""

    @staticmethod
    def forward(q, k, base=10000.0, offset=0):
        assert q.shape[-2:] == k.shape[-2:], "q and k must agree in length and head size"
        assert q.shape[-1] % 2 == 0, "head size must be even"
        assert base > 0
        cos, sin = rope_tables(q.shape[-2], q.shape[-1], base, offset, q)
        return rotate_half(q, cos, sin), rotate_half(k, cos, sin)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, _, base, offset = inputs
        ctx.geometry = (q.shape[-2], q.shape[-1], base, offset)

    @staticmethod
    def backward(ctx, grad_q, grad_k):
        cos, sin = rope_tables(*ctx.geometry, grad_q)
        return rotate_half(grad_q, cos, -sin), rotate_half(grad_k, cos, -sin), None, None


def apply_rope(q: Tensor, k: Tensor, cache_len: int = 0) -> Tuple[Tensor, Tensor]:
    return RotaryQK.apply(q, k, 10000.0, cache_len)


class FiLMFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta):
        """x: (N, C, *), gamma and beta: (N, C)"""
        assert gamma.shape == x.shape[:2] and beta.shape == x.shape[:2]
        view = gamma.shape + (1,) * (x.dim() - 2)
        ctx.save_for_backward(x, gamma)
        ctx.view = view
        return (1 + gamma.view(view)) * x + beta.view(view)

    @staticmethod
    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        dx = dgamma = dbeta = None
        if ctx.needs_input_grad[0]:
            dx = (1 + gamma.reshape(ctx.view)) * dy
        if ctx.needs_input_grad[1]:
            dgamma = (dy * x).sum_to_size(ctx.view).reshape(gamma.shape)
        if ctx.needs_input_grad[2]:
            dbeta = dy.sum_to_size(ctx.view).reshape(gamma.shape)
        return dx, dgamma, dbeta


class FiLMBlock(nn.Module):
    def __init__(self, channels, cond_dim):
        super().__init__()
        self.to_scale = nn.Linear(cond_dim, channels)
        self.to_shift = nn.Linear(cond_dim, channels)

    def forward(self, feat, cond):
        return FiLMFn.apply(feat, self.to_scale(cond), self.to_shift(cond))


class TokenShift(Function):
    """Time mixing of RWKV: every token is blended with its predecessor. Also returns the new state."""

    @staticmethod
    def forward(ctx, x, mu, state: Optional[Tensor] = None):
        if x.ndim != 3 or mu.shape != x.shape[2:]:
            raise ValueError("expected x (B, T, C) and mu (C,)")
        if state is None:
            first = x.new_zeros(x.size(0), 1, x.size(2))
        else:
            if state.shape != (x.size(0), x.size(2)):
                raise ValueError("state must be (B, C)")
            first = state.unsqueeze(1)
        prev = torch.cat([first, x[:, :-1]], dim=1)
        ctx.has_state = state is not None
        ctx.save_for_backward(x, mu, *([state] if ctx.has_state else []))
        return x * mu + prev * (1 - mu), x[:, -1].clone()

    @staticmethod
    def backward(ctx, g, g_last):
        x, mu, *rest = ctx.saved_tensors
        first = rest[0].unsqueeze(1) if rest else torch.zeros_like(x[:, :1])
        prev = torch.cat([first, x[:, :-1]], dim=1)
        to_prev = g * (1 - mu)
        shifted = torch.cat([to_prev[:, 1:], torch.zeros_like(to_prev[:, :1])], dim=1)
        tail = torch.cat([torch.zeros_like(x[:, 1:]), g_last.unsqueeze(1)], dim=1)
        gx = g * mu + shifted + tail
        gmu = (g * (x - prev)).sum(dim=(0, 1))
        gstate = to_prev[:, 0] if ctx.has_state else None
        return gx, gmu, gstate


class LoRALinear(Function):
    @staticmethod
    def forward(ctx, x, weight, lora_a, lora_b, alpha: float, bias=None):
        # x (*, in), weight (out, in), lora_a (r, in), lora_b (out, r)
        rank = lora_a.shape[0]
        assert lora_b.shape == (weight.shape[0], rank)
        assert lora_a.shape[1] == weight.shape[1] == x.shape[-1]
        assert bias is None or bias.shape == weight.shape[:1]
        ctx.scaling = alpha / rank
        ctx.save_for_backward(x, weight, lora_a, lora_b)
        ctx.with_bias = bias is not None
        out = x @ weight.t() + ctx.scaling * ((x @ lora_a.t()) @ lora_b.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight, lora_a, lora_b = ctx.saved_tensors
        s = ctx.scaling
        x2 = x.reshape(-1, weight.shape[1])
        g2 = grad.reshape(-1, weight.shape[0])
        gb = g2 @ lora_b
        gx = (g2 @ weight + s * (gb @ lora_a)).reshape(x.shape)
        gw = g2.t() @ x2 if ctx.needs_input_grad[1] else None
        ga = s * (gb.t() @ x2)
        gbm = s * (g2.t() @ (x2 @ lora_a.t()))
        gbias = g2.sum(0) if ctx.with_bias else None
        return gx, gw, ga, gbm, None, gbias


def lora_forward(layer: nn.Linear, down: Tensor, up: Tensor, x: Tensor, alpha: float = 16.0):
    return LoRALinear.apply(x, layer.weight, down, up, alpha, layer.bias)


class MaskedAttention(Function):
    """
    Scaled dot product attention, q (*, Lq, E), k (*, Lk, E), v (*, Lk, Ev).

    ``mask`` is boolean, True where a query may look, and must expand to (*, Lq, Lk). Rows which may
    look nowhere give zeros.
    """

    @staticmethod
    def forward(ctx, q, k, v, mask: Optional[Tensor] = None, scale: Optional[float] = None):
        assert q.dim() == k.dim() == v.dim() >= 2
        assert q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        assert k.shape[-2] == v.shape[-2]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        scores = torch.matmul(q, k.mT) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask.expand_as(scores), NEG_INF)
        attn = torch.softmax(scores, dim=-1)
        if mask is not None:
            attn = attn.masked_fill(~mask.any(-1, keepdim=True).expand_as(attn), 0.0)
        ctx.save_for_backward(q, k, v, attn)
        ctx.scale = scale
        return attn @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, go):
        q, k, v, attn = ctx.saved_tensors
        gv = attn.mT @ go
        ga = go @ v.mT
        gs = attn * (ga - (attn * ga).sum(dim=-1, keepdim=True)) * ctx.scale
        return gs @ k, gs.mT @ q, gv, None, None


# --------------------------------------------------------------------------- losses


class BinaryFocalLoss(Function):
    @staticmethod
    def forward(ctx, logits: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0,
                reduction: str = "mean") -> Tensor:
        if target.is_floating_point():
            raise TypeError("target holds class ids (0 or 1), not floats")
        if logits.shape != target.shape:
            raise ValueError("logits and target differ in shape")
        if ((target != 0) & (target != 1)).any():
            raise ValueError("target must be 0 or 1")
        if gamma < 0:
            raise ValueError("gamma must not be negative")
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"unknown reduction {reduction!r}")
        ctx.save_for_backward(logits, target)
        ctx.conf = (alpha, gamma, reduction)
        sign = 2 * target.to(logits.dtype) - 1
        z = sign * logits
        weight = 0.5 * (1 + sign * (2 * alpha - 1))
        loss = -weight * torch.sigmoid(-z) ** gamma * F.logsigmoid(z)
        if reduction == "mean":
            return loss.mean()
        if reduction == "sum":
            return loss.sum()
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        logits, target = ctx.saved_tensors
        alpha, gamma, reduction = ctx.conf
        sign = 2 * target.to(logits.dtype) - 1
        z = sign * logits
        weight = 0.5 * (1 + sign * (2 * alpha - 1))
        p, q = torch.sigmoid(z), torch.sigmoid(-z)
        dz = weight * q ** gamma * (gamma * p * F.logsigmoid(z) - q)
        grad = grad_output * dz * sign
        if reduction == "mean":
            grad = grad / logits.numel()
        return grad, None, None, None, None


def focal_loss(inputs, targets, reduction="mean"):
    return BinaryFocalLoss.apply(inputs, targets.long(), 0.25, 2.0, reduction)


class InfoNCELoss(Function):
    """Contrastive loss of matching rows of two (N, D) batches; ``symmetric`` averages both directions."""

    @staticmethod
    def forward(ctx, queries, keys, temperature=0.1, symmetric=False):
        if queries.shape != keys.shape or queries.ndim != 2:
            raise ValueError("queries and keys must be two (N, D) matrices of one shape")
        if not temperature > 0:
            raise ValueError("temperature must be positive")
        logits = queries @ keys.t() / temperature
        pos = logits.diagonal()
        loss = (logits.logsumexp(1) - pos).mean()
        if symmetric:
            loss = 0.5 * (loss + (logits.logsumexp(0) - pos).mean())
        ctx.save_for_backward(queries, keys)
        ctx.temperature = temperature
        ctx.symmetric = symmetric
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        queries, keys = ctx.saved_tensors
        n = queries.size(0)
        logits = queries @ keys.t() / ctx.temperature
        d = logits.softmax(1)
        if ctx.symmetric:
            d = 0.5 * (d + logits.softmax(0))
        d = d - torch.eye(n, dtype=d.dtype, device=d.device)
        d = grad_output * d / (n * ctx.temperature)
        return d @ keys, d.t() @ queries, None, None


class ContrastiveHead(nn.Module):
    def __init__(self, temperature: float = 0.07):
        super().__init__()
        self.temperature = temperature

    def forward(self, img, txt):
        img = F.normalize(img, dim=-1)
        txt = F.normalize(txt, dim=-1)
        return InfoNCELoss.apply(img, txt, self.temperature, True)


class QuantileHuber(Function):
    @staticmethod
    def forward(ctx, theta, target, kappa=1.0):
        # theta: (B, N) predicted quantiles; target: (B, M) samples of the return
        assert theta.dim() == 2 and target.dim() == 2 and theta.size(0) == target.size(0)
        assert kappa > 0
        n = theta.size(1)
        tau = (torch.arange(n, dtype=theta.dtype, device=theta.device) + 0.5) / n
        u = target.unsqueeze(1) - theta.unsqueeze(2)
        huber = torch.where(u.abs() <= kappa, 0.5 * u * u, kappa * (u.abs() - 0.5 * kappa))
        w = (tau.view(1, -1, 1) - (u < 0).to(u.dtype)).abs()
        ctx.save_for_backward(theta, target)
        ctx.kappa = kappa
        return (w * huber / kappa).mean(2).sum(1).mean(0)

    @staticmethod
    def backward(ctx, g):
        theta, target = ctx.saved_tensors
        b, n = theta.shape
        m = target.shape[1]
        tau = (torch.arange(n, dtype=theta.dtype, device=theta.device) + 0.5) / n
        u = target.unsqueeze(1) - theta.unsqueeze(2)
        w = (tau.view(1, -1, 1) - (u < 0).to(u.dtype)).abs()
        du = g * w * u.clamp(-ctx.kappa, ctx.kappa) / (ctx.kappa * m * b)
        return -du.sum(2), du.sum(1), None


class SortedL1Norm(Function):
    """SLOPE / OWL penalty: sum of lam[i] * |x|_(i), |x|_(0) the largest."""

    @staticmethod
    def forward(ctx, x, lam):
        if lam.dim() != 1 or lam.numel() != x.numel():
            raise ValueError("need one lambda per coefficient")
        mags, order = x.abs().flatten().sort(descending=True)
        ctx.save_for_backward(x, lam, order)
        return torch.dot(lam, mags)

    @staticmethod
    def backward(ctx, g):
        x, lam, order = ctx.saved_tensors
        flat = x.flatten()
        per_coef = torch.zeros_like(lam).scatter(0, order, lam)
        gx = (g * per_coef * flat.sign()).view_as(x)
        glam = g * flat.abs()[order]
        return gx, glam


class TotalVariation(Function):
    """Smoothed isotropic TV of images (..., H, W), summed over everything; eps > 0."""

    @staticmethod
    def _diffs(img):
        dy = F.pad(img[..., 1:, :] - img[..., :-1, :], (0, 0, 0, 1))
        dx = F.pad(img[..., :, 1:] - img[..., :, :-1], (0, 1))
        return dy, dx

    @staticmethod
    def forward(ctx, img, eps: float = 1e-3):
        assert img.dim() >= 2 and eps > 0
        dy, dx = TotalVariation._diffs(img)
        ctx.save_for_backward(img)
        ctx.eps = eps
        return torch.sqrt(dy * dy + dx * dx + eps).sum()

    @staticmethod
    def backward(ctx, g):
        (img,) = ctx.saved_tensors
        dy, dx = TotalVariation._diffs(img)
        mag = torch.sqrt(dy * dy + dx * dx + ctx.eps)
        py, px = (g * dy / mag)[..., :-1, :], (g * dx / mag)[..., :, :-1]
        out = F.pad(py, (0, 0, 1, 0)) - F.pad(py, (0, 0, 0, 1))
        out = out + F.pad(px, (1, 0)) - F.pad(px, (0, 1))
        return out, None


class NuclearNorm(Function):
    """Sum of singular values, via LAPACK on the host. Differentiable where the matrix has full rank."""

    @staticmethod
    def forward(ctx, mat):
        a = mat.detach().cpu().numpy()
        u, s, vh = np.linalg.svd(a, full_matrices=False)
        ctx.save_for_backward(torch.as_tensor(u @ vh).to(mat))
        return torch.as_tensor(np.asarray(s.sum(axis=-1))).to(mat)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (uv,) = ctx.saved_tensors
        return g[..., None, None] * uv


# --------------------------------------------------------------------------- sequences


class CRFLogPartition(Function):
    """log Z of a linear chain CRF.

    Args:
        emissions: (B, T, K) scores
        transitions: (K, K), from row to column
        lengths: (B,) integers, 1 <= length <= T
    """

    @staticmethod
    def forward(ctx, emissions, transitions, lengths):
        batch, steps, tags = emissions.shape
        if transitions.shape != (tags, tags):
            raise ValueError("transitions must be (K, K)")
        if lengths.shape != (batch,) or bool(((lengths < 1) | (lengths > steps)).any()):
            raise ValueError("lengths must be (B,) with entries in [1, T]")
        alpha = emissions[:, 0]
        alphas = [alpha]
        for t in range(1, steps):
            nxt = torch.logsumexp(alpha.unsqueeze(2) + transitions, dim=1) + emissions[:, t]
            alpha = torch.where((lengths > t).unsqueeze(1), nxt, alpha)
            alphas.append(alpha)
        log_z = alpha.logsumexp(1)
        ctx.save_for_backward(emissions, transitions, lengths, torch.stack(alphas, 1), log_z)
        return log_z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        emissions, transitions, lengths, alphas, log_z = ctx.saved_tensors
        batch, steps, tags = emissions.shape
        beta = emissions.new_zeros(batch, tags)
        g_em = torch.zeros_like(emissions)
        g_tr = torch.zeros_like(transitions)
        norm = log_z.view(-1, 1)
        for t in range(steps - 1, -1, -1):
            live = (lengths > t).unsqueeze(1)
            marg = torch.exp(alphas[:, t] + beta - norm)
            g_em[:, t] = torch.where(live, marg, 0.0) * grad.unsqueeze(1)
            if t == 0:
                break
            right = transitions + (emissions[:, t] + beta).unsqueeze(1)
            pair = torch.exp(alphas[:, t - 1].unsqueeze(2) + right - norm.unsqueeze(2))
            pair = torch.where(live.unsqueeze(2), pair, 0.0)
            g_tr += torch.einsum("b,bij->ij", grad, pair)
            beta = torch.where(live, right.logsumexp(2), beta)
        return g_em, g_tr, None


def crf_nll(emissions, transitions, tags, lengths):
    b, t, _ = emissions.shape
    mask = torch.arange(t, device=tags.device)[None] < lengths[:, None]
    score = emissions.gather(2, tags.unsqueeze(2)).squeeze(2).masked_fill(~mask, 0).sum(1)
    steps = transitions[tags[:, :-1], tags[:, 1:]].masked_fill(~mask[:, 1:], 0).sum(1)
    return (CRFLogPartition.apply(emissions, transitions, lengths) - score - steps).mean()


def _softdtw_forward(D, gamma):
    n, m = D.shape
    R = np.full((n + 2, m + 2), np.inf, dtype=D.dtype)
    R[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            r = -np.array([R[i - 1, j - 1], R[i - 1, j], R[i, j - 1]]) / gamma
            top = r.max()
            R[i, j] = D[i - 1, j - 1] - gamma * (np.log(np.exp(r - top).sum()) + top)
    return R


def _softdtw_backward(D_, R, gamma):
    n, m = D_.shape
    D = np.zeros((n + 2, m + 2), dtype=D_.dtype)
    E = np.zeros((n + 2, m + 2), dtype=D_.dtype)
    D[1:-1, 1:-1] = D_
    E[-1, -1] = 1
    R = R.copy()
    R[:, -1] = -np.inf
    R[-1, :] = -np.inf
    R[-1, -1] = R[-2, -2]
    for j in range(m, 0, -1):
        for i in range(n, 0, -1):
            a = np.exp((R[i + 1, j] - R[i, j] - D[i + 1, j]) / gamma)
            b = np.exp((R[i, j + 1] - R[i, j] - D[i, j + 1]) / gamma)
            c = np.exp((R[i + 1, j + 1] - R[i, j] - D[i + 1, j + 1]) / gamma)
            E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c
    return E[1:-1, 1:-1]


class SoftDTW(Function):
    @staticmethod
    def forward(ctx, D: Tensor, gamma: float = 1.0):
        assert D.dim() == 3, "batch of cost matrices expected"
        assert D.numel() > 0
        assert gamma > 0
        D_np = D.detach().cpu().numpy()
        Rs = np.stack([_softdtw_forward(d, gamma) for d in D_np])
        ctx.save_for_backward(D, torch.from_numpy(Rs))
        ctx.gamma = gamma
        return torch.from_numpy(Rs[:, -2, -2].copy()).to(D)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        E = torch.zeros_like(D)
        for b in range(D.size(0)):
            e = _softdtw_backward(D[b].detach().cpu().numpy(), R[b].numpy(), ctx.gamma)
            E[b] = torch.from_numpy(e.copy()).to(D)
        return grad_output.view(-1, 1, 1).expand_as(E) * E, None


class SoftDTWLoss(torch.nn.Module):
    def __init__(self, gamma=0.1):
        super().__init__()
        self.gamma = gamma

    def forward(self, x, y):
        D = (x.unsqueeze(2) - y.unsqueeze(1)).pow(2).sum(-1)
        return SoftDTW.apply(D, self.gamma).mean()


class LinearRecurrence(Function):
    """h[t] = a[t] * h[t-1] + b[t] along dim 1. ``h0`` is (B, D) or None for zeros; ``reverse`` runs from the end."""

    @staticmethod
    def forward(ctx, a, b, h0=None, reverse=False):
        assert a.shape == b.shape and a.ndim == 3 and a.shape[1] > 0
        if h0 is not None:
            assert h0.shape == (a.shape[0], a.shape[2])
        steps = range(a.shape[1])
        out: List[Optional[Tensor]] = [None] * a.shape[1]
        h = torch.zeros_like(b[:, 0]) if h0 is None else h0
        for t in (reversed(steps) if reverse else steps):
            h = a[:, t] * h + b[:, t]
            out[t] = h
        h_all = torch.stack(out, dim=1)
        ctx.reverse = reverse
        ctx.has_h0 = h0 is not None
        ctx.save_for_backward(a, h_all, h0)
        return h_all

    @staticmethod
    def backward(ctx, grad):
        a, h_all, h0 = ctx.saved_tensors
        if ctx.reverse:
            a, h_all, grad = a.flip(1), h_all.flip(1), grad.flip(1)
        first = torch.zeros_like(h_all[:, :1]) if h0 is None else h0.unsqueeze(1)
        h_prev = torch.cat([first, h_all[:, :-1]], 1)
        carry = torch.zeros_like(grad[:, 0])
        lam = []
        for t in range(a.shape[1] - 1, -1, -1):
            total = grad[:, t] + carry
            lam.append(total)
            carry = a[:, t] * total
        lam = torch.stack(lam[::-1], dim=1)
        ga, gb = lam * h_prev, lam
        if ctx.reverse:
            ga, gb = ga.flip(1), gb.flip(1)
        return ga, gb, carry if ctx.has_h0 else None, None


# --------------------------------------------------------------------------- signal processing


class OverlapAdd(Function):
    """frames (B, F, L) -> signal (B, (F - 1) * hop + L)"""

    @staticmethod
    def forward(frames, hop: int):
        b, f, l = frames.shape
        if hop < 1 or f < 1:
            raise ValueError("need a positive hop and at least one frame")
        out = frames.new_zeros(b, (f - 1) * hop + l)
        for i in range(f):
            out[:, i * hop:i * hop + l] += frames[:, i]
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        frames, hop = inputs
        ctx.frame_len = frames.shape[2]
        ctx.hop = hop

    @staticmethod
    def backward(ctx, grad):
        return grad.unfold(1, ctx.frame_len, ctx.hop).contiguous(), None


def istft_frames(spec: Tensor, window: Tensor, hop: int) -> Tensor:
    frames = torch.fft.irfft(spec, n=window.numel(), dim=-1) * window
    return OverlapAdd.apply(frames, hop)


class AllPoleFilter(Function):
    """y[t] = x[t] - sum_k a[k] y[t - 1 - k], x is (B, T) and a is (P,)."""

    @staticmethod
    def forward(ctx, x, a):
        assert x.dim() == 2 and a.dim() == 1
        y = torch.zeros_like(x)
        for t in range(x.shape[1]):
            acc = x[:, t].clone()
            for k in range(min(t, a.shape[0])):
                acc -= a[k] * y[:, t - 1 - k]
            y[:, t] = acc
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        a, y = ctx.saved_tensors
        gx = AllPoleFilter.apply(grad.flip(1), a).flip(1)
        T = y.shape[1]
        rows = []
        for k in range(a.shape[0]):
            lag = k + 1
            rows.append(-(gx[:, lag:] * y[:, :max(T - lag, 0)]).sum())
        ga = torch.stack(rows) if rows else torch.zeros_like(a)
        return gx, ga


class ConvMode(enum.Enum):
    FULL = "full"
    SAME = "same"
    VALID = "valid"


class FFTConvolve(Function):
    """Convolves real signals (..., N) with one real kernel (K,)."""

    @staticmethod
    def forward(ctx, signal, kernel, mode: ConvMode = ConvMode.FULL):
        n, k = signal.shape[-1], kernel.shape[0]
        if kernel.dim() != 1 or n == 0 or k == 0:
            raise ValueError("kernel must be one-dimensional and nothing may be empty")
        if mode is ConvMode.FULL:
            start, length = 0, n + k - 1
        elif mode is ConvMode.SAME:
            start, length = (k - 1) // 2, n
        elif mode is ConvMode.VALID:
            if k > n:
                raise ValueError("the kernel is longer than the signal")
            start, length = k - 1, n - k + 1
        else:
            raise TypeError(mode)
        nfft = n + k - 1
        S, H = torch.fft.rfft(signal, nfft), torch.fft.rfft(kernel, nfft)
        full = torch.fft.irfft(S * H, nfft)

        def pullback(g):
            G = torch.fft.rfft(F.pad(g, (start, nfft - start - length)), nfft)
            gs = torch.fft.irfft(G * H.conj(), nfft)[..., :n]
            gk = torch.fft.irfft(G * S.conj(), nfft)[..., :k]
            return gs, gk.reshape(-1, k).sum(0)

        ctx.pullback = pullback
        return full[..., start:start + length].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gs, gk = ctx.pullback(grad)
        return gs, gk, None


def reverb(audio: Tensor, impulse_response: Tensor) -> Tensor:
    return FFTConvolve.apply(audio, impulse_response, ConvMode.SAME)


class ModReLU(Function):
    """modReLU for complex features: relu(|z| + b) * z / |z|, with |z| smoothed by eps > 0."""

    eps = 1e-4

    @staticmethod
    def forward(ctx, z, b):
        if not z.is_complex() or b.is_complex():
            raise TypeError("z must be complex and b real")
        if b.shape != z.shape[-1:]:
            raise ValueError("one bias per feature")
        ctx.save_for_backward(z, b)
        mag = torch.sqrt(z.real ** 2 + z.imag ** 2 + ModReLU.eps)
        return z * (F.relu(mag + b) / mag)

    @staticmethod
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        mag = torch.sqrt(z.real ** 2 + z.imag ** 2 + ModReLU.eps)
        on = (mag + b > 0).to(mag.dtype)
        s = on * (1 + b / mag)
        inner = g.real * z.real + g.imag * z.imag
        gz = g * s - z * (on * inner * b / mag ** 3)
        gb = _unbroadcast(on * inner / mag, b)
        return gz, gb


class KMaxPool(Function):
    """The k largest entries of the last dimension, kept in their order, and where they were."""

    @staticmethod
    def forward(ctx, x, k):
        if not 1 <= k <= x.shape[-1]:
            raise ValueError(f"k must be between 1 and {x.shape[-1]}")
        where = x.topk(k, dim=-1).indices.sort(dim=-1).values
        ctx.save_for_backward(where)
        ctx.mark_non_differentiable(where)
        ctx.size = x.shape
        return x.gather(-1, where), where

    @staticmethod
    def backward(ctx, grad, _):
        (where,) = ctx.saved_tensors
        return grad.new_zeros(ctx.size).scatter(-1, where, grad), None


class KMaxPooling(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.k = k

    def forward(self, x):
        return KMaxPool.apply(x, self.k)[0]


# --------------------------------------------------------------------------- geometry and vision


class SO3Exp(Function):
    """Exponential map: rotation vectors (..., 3) to rotation matrices (..., 3, 3)."""

    SMALL = 1e-2

    @staticmethod
    def _hat(w):
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))

    @staticmethod
    def _coeffs(s):
        small = s < SO3Exp.SMALL
        safe = torch.where(small, torch.ones_like(s), s)
        th = safe.sqrt()
        A = torch.where(small, 1 - s / 6 + s ** 2 / 120 - s ** 3 / 5040 + s ** 4 / 362880, th.sin() / th)
        B = torch.where(small, 0.5 - s / 24 + s ** 2 / 720 - s ** 3 / 40320 + s ** 4 / 3628800,
                        2 * (th / 2).sin() ** 2 / safe)
        dA = torch.where(small, -1 / 6 + s / 60 - s ** 2 / 1680 + s ** 3 / 90720, (th.cos() - A) / (2 * safe))
        dB = torch.where(small, -1 / 24 + s / 360 - s ** 2 / 13440 + s ** 3 / 907200, (A - 2 * B) / (2 * safe))
        return [c[..., None] for c in (A, B, dA, dB)]

    @staticmethod
    def forward(ctx, omega):
        assert omega.shape[-1] == 3
        ctx.save_for_backward(omega)
        A, B, _, _ = SO3Exp._coeffs(omega.square().sum(-1))
        K = SO3Exp._hat(omega)
        eye = torch.eye(3, dtype=omega.dtype, device=omega.device)
        return eye + A[..., None] * K + B[..., None] * (K @ K)

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        (w,) = ctx.saved_tensors
        A, B, dA, dB = SO3Exp._coeffs(w.square().sum(-1))
        K = SO3Exp._hat(w)
        skew = G - G.mT
        vee = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1)
        trace = G.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        sym = ((G + G.mT) @ w.unsqueeze(-1)).squeeze(-1)
        gk = (G * K).sum((-2, -1)).unsqueeze(-1)
        gkk = (G * (K @ K)).sum((-2, -1)).unsqueeze(-1)
        return A * vee + B * (sym - 2 * w * trace) + 2 * w * (dA * gk + dB * gkk)


def cross(a, b):
    return torch.linalg.cross(a, b, dim=-1)


class QuaternionApply(Function):
    """Rotates v (..., 3) by q (..., 4), real part first; q is normalised here and must not be zero."""

    @staticmethod
    def forward(ctx, q, v):
        if q.shape[-1] != 4 or v.shape[-1] != 3 or q.shape[:-1] != v.shape[:-1]:
            raise ValueError(f"bad shapes {tuple(q.shape)}, {tuple(v.shape)}")
        norm = q.norm(dim=-1, keepdim=True)
        if (norm == 0).any():
            raise ValueError("zero quaternion")
        ctx.save_for_backward(q, v)
        unit = q / norm
        w, u = unit[..., :1], unit[..., 1:]
        t = 2 * cross(u, v)
        return v + w * t + cross(u, t)

    @staticmethod
    def backward(ctx, g):
        q, v = ctx.saved_tensors
        norm = q.norm(dim=-1, keepdim=True)
        unit = q / norm
        w, u = unit[..., :1], unit[..., 1:]
        dot = lambda a, b: (a * b).sum(-1, keepdim=True)
        t = 2 * cross(u, g)
        gv = g - w * t + cross(u, t)
        gw = 2 * dot(g, cross(u, v))
        gu = 2 * (w * cross(v, g) + dot(u, v) * g + dot(u, g) * v - 2 * dot(v, g) * u)
        gq = torch.cat([gw, gu], -1)
        gq = (gq - unit * dot(unit, gq)) / norm
        return gq, gv


class NearestSegment(Function):
    """Squared distance of each point (N, D) to the nearest of M >= 1 segments start[m]-end[m], and which one."""

    @staticmethod
    def _project(p, a, b):
        ab = b - a
        len2 = (ab * ab).sum(-1)
        safe = torch.where(len2 > 0, len2, torch.ones_like(len2))
        t = (((p - a) * ab).sum(-1) / safe).clamp(0, 1)
        return t.unsqueeze(-1), p - a - t.unsqueeze(-1) * ab

    @staticmethod
    def forward(ctx, points, start, end):
        assert points.ndim == 2 and start.ndim == 2
        assert start.shape == end.shape and start.shape[1] == points.shape[1]
        _, off = NearestSegment._project(points[:, None], start[None], end[None])
        best, which = (off * off).sum(-1).min(dim=1)
        ctx.save_for_backward(points, start, end, which)
        ctx.mark_non_differentiable(which)
        return best, which

    @staticmethod
    @once_differentiable
    def backward(ctx, g, _which):
        points, start, end, which = ctx.saved_tensors
        t, off = NearestSegment._project(points, start[which], end[which])
        gp = 2 * g.unsqueeze(1) * off
        ga = torch.zeros_like(start).index_add_(0, which, -(1 - t) * gp)
        gb = torch.zeros_like(end).index_add_(0, which, -t * gp)
        return gp, ga, gb


class BilinearSample(Function):
    @staticmethod
    def forward(ctx, feat, xy):
        """feat: (C, H, W); xy: (P, 2) in pixels, clamped to the border."""
        c, h, w = feat.shape
        assert xy.dim() == 2 and xy.size(1) == 2
        x = xy[:, 0].clamp(0, w - 1)
        y = xy[:, 1].clamp(0, h - 1)
        x0, y0 = x.floor(), y.floor()
        fx, fy = x - x0, y - y0
        x0, y0 = x0.long(), y0.long()
        x1, y1 = (x0 + 1).clamp(max=w - 1), (y0 + 1).clamp(max=h - 1)
        ctx.save_for_backward(feat, xy, fx, fy, x0, y0, x1, y1)
        top = feat[:, y0, x0] * (1 - fx) + feat[:, y0, x1] * fx
        bot = feat[:, y1, x0] * (1 - fx) + feat[:, y1, x1] * fx
        return top * (1 - fy) + bot * fy

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        feat, xy, fx, fy, x0, y0, x1, y1 = ctx.saved_tensors
        c, h, w = feat.shape
        gfeat = gxy = None
        if ctx.needs_input_grad[0]:
            flat = torch.zeros(c, h * w, dtype=feat.dtype, device=feat.device)
            for yy, wy in ((y0, 1 - fy), (y1, fy)):
                for xx, wx in ((x0, 1 - fx), (x1, fx)):
                    flat.index_add_(1, yy * w + xx, g * (wy * wx))
            gfeat = flat.view(c, h, w)
        if ctx.needs_input_grad[1]:
            f00, f01 = feat[:, y0, x0], feat[:, y0, x1]
            f10, f11 = feat[:, y1, x0], feat[:, y1, x1]
            gx = (g * ((f01 - f00) * (1 - fy) + (f11 - f10) * fy)).sum(0)
            gy = (g * ((f10 - f00) * (1 - fx) + (f11 - f01) * fx)).sum(0)
            lim = torch.tensor([w - 1, h - 1], dtype=xy.dtype, device=xy.device)
            inside = (xy >= 0) & (xy <= lim)
            gxy = torch.stack([gx, gy], 1) * inside
        return gfeat, gxy


# --------------------------------------------------------------------------- physics, implicit and numerics


class HarmonicBonds(Function):
    """E = 1/2 sum_b k_b (|x_i - x_j| - r_b)^2. The two atoms of a bond must not coincide."""

    @staticmethod
    def forward(ctx, pos, bonds, k, r0):
        if bonds.dtype != torch.int64 or bonds.dim() != 2 or bonds.size(1) != 2:
            raise ValueError("bonds must be an int64 tensor of shape (M, 2)")
        if bool((bonds < 0).any()):
            raise IndexError("negative atom index")
        if k.shape != r0.shape or k.shape != bonds.shape[:1]:
            raise ValueError("k and r0 must be (M,)")
        i, j = bonds.unbind(1)
        vec = pos[i] - pos[j]
        dist = vec.norm(dim=1)
        if (dist == 0).any():
            raise ValueError("a bond of zero length has no direction")
        ctx.save_for_backward(pos, bonds, k, r0)
        return 0.5 * (k * (dist - r0) ** 2).sum()

    @staticmethod
    def backward(ctx, g):
        pos, bonds, k, r0 = ctx.saved_tensors
        i, j = bonds.unbind(1)
        vec = pos[i] - pos[j]
        dist = vec.norm(dim=1)
        stretch = dist - r0
        pull = g * (k * stretch / dist).unsqueeze(1) * vec
        gpos = torch.zeros_like(pos).index_add(0, i, pull).index_add(0, j, -pull)
        return gpos, None, g * 0.5 * stretch ** 2, -g * k * stretch


class DuffingVerlet(Function):
    """Velocity Verlet for the force -alpha q - beta q^3 (unit mass); returns the final (q, p)."""

    @staticmethod
    def forward(ctx, q, p, steps: int, dt: float = 0.1, alpha: float = 1.0, beta: float = 0.3):
        if q.shape != p.shape:
            raise ValueError("q and p must have the same shape")
        if steps < 0:
            raise ValueError("steps must not be negative")
        force = lambda x: -alpha * x - beta * x ** 3
        q, p = q.clone(), p.clone()
        path = [q]
        for _ in range(steps):
            half = p + 0.5 * dt * force(q)
            q = q + dt * half
            p = half + 0.5 * dt * force(q)
            path.append(q)
        ctx.save_for_backward(*path)
        ctx.coef = (dt, alpha, beta)
        return q.clone(), p

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        path = ctx.saved_tensors
        dt, alpha, beta = ctx.coef
        slope = [-alpha - 3 * beta * x ** 2 for x in path]
        for t in range(len(path) - 1, 0, -1):
            gq = gq + 0.5 * dt * slope[t] * gp
            gp = gp + dt * gq
            gq = gq + 0.5 * dt * slope[t - 1] * gp
        return gq, gp, None, None, None, None


class ImplicitDiffusion(Function):
    """One backward Euler step of diffusion on a line.

    u is (B, N), log_c the logarithms of the N - 1 conductances between neighbours.
    """

    @staticmethod
    def _matrix(log_c, n, dt):
        c = log_c.exp()
        m = torch.eye(n, dtype=c.dtype, device=c.device)
        m = m + dt * (torch.diag(F.pad(c, (0, 1))) + torch.diag(F.pad(c, (1, 0))))
        if n > 1:
            m = m - dt * (torch.diag(c, 1) + torch.diag(c, -1))
        return m

    @staticmethod
    def forward(ctx, u, log_c, dt=0.1):
        assert u.dim() == 2 and log_c.shape == (u.size(1) - 1,)
        assert dt >= 0
        A = ImplicitDiffusion._matrix(log_c, u.size(1), dt)
        out = torch.linalg.solve(A, u.t()).t().contiguous()
        ctx.save_for_backward(log_c, out)
        ctx.dt = dt
        return out

    @staticmethod
    def backward(ctx, g):
        log_c, out = ctx.saved_tensors
        A = ImplicitDiffusion._matrix(log_c, out.size(1), ctx.dt)
        lam = torch.linalg.solve(A, g.t()).t()
        glog = -ctx.dt * log_c.exp() * (lam.diff(dim=1) * out.diff(dim=1)).sum(0)
        return lam, glog, None


class KeplerSolve(Function):
    """Eccentric anomaly E with E - e sin E = M, 0 <= e < 1."""

    @staticmethod
    def forward(ctx, mean_anomaly, ecc):
        if mean_anomaly.shape != ecc.shape:
            raise ValueError("mean_anomaly and ecc must have one shape")
        if bool(((ecc < 0) | (ecc >= 1)).any()):
            raise ValueError("eccentricity out of [0, 1)")
        M = mean_anomaly.detach().cpu().numpy()
        e = ecc.detach().cpu().numpy()
        turns = np.floor(M / (2 * np.pi))
        m = M - 2 * np.pi * turns
        E = m + 0.85 * e * np.sign(np.sin(m))
        for _ in range(60):
            step = (E - e * np.sin(E) - m) / (1 - e * np.cos(E))
            E = E - step
            if np.all(np.abs(step) < 1e-15):
                break
        E = torch.as_tensor(np.asarray(E + 2 * np.pi * turns)).to(mean_anomaly)
        ctx.save_for_backward(E, ecc)
        return E

    @staticmethod
    def backward(ctx, grad):
        E, ecc = ctx.saved_tensors
        gM = grad / (1 - ecc * torch.cos(E))
        return gM, gM * torch.sin(E)


def sky_position(t, period, ecc, axis):
    E = KeplerSolve.apply(2 * math.pi * t / period, ecc.expand_as(t))
    return axis * (E.cos() - ecc), axis * (1 - ecc ** 2).sqrt() * E.sin()


class SylvesterSolve(Function):
    """Solves A X + X B = C (A and -B must not share an eigenvalue)."""

    @staticmethod
    def forward(ctx, A, B, C):
        n, m = C.shape
        assert A.shape == (n, n) and B.shape == (m, m)
        eye_n = torch.eye(n, dtype=A.dtype, device=A.device)
        eye_m = torch.eye(m, dtype=A.dtype, device=A.device)
        big = torch.einsum("ij,kl->ikjl", A, eye_m) + torch.einsum("ij,lk->ikjl", eye_n, B)
        X = torch.linalg.solve(big.reshape(n * m, n * m), C.reshape(-1)).reshape(n, m)
        ctx.save_for_backward(A, B, X)
        return X

    @staticmethod
    def backward(ctx, G):
        A, B, X = ctx.saved_tensors
        Y = SylvesterSolve.apply(A.t(), B.t(), G)
        return -Y @ X.t(), -X.t() @ Y, Y


class NumpyInterp(Function):
    """Differentiable ``np.interp``: knots ``xp`` (K,) strictly increasing, values ``fp`` (K,), K >= 2."""

    @staticmethod
    def forward(ctx, x, xp, fp):
        if xp.ndim != 1 or xp.shape != fp.shape or xp.numel() < 2:
            raise ValueError("xp and fp must be vectors of one length, two at least")
        if not bool((xp[1:] > xp[:-1]).all()):
            raise ValueError("xp must be strictly increasing")
        ctx.save_for_backward(x, xp, fp)
        y = np.interp(x.detach().numpy(), xp.detach().numpy(), fp.detach().numpy())
        return torch.as_tensor(np.asarray(y)).to(fp)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, xp, fp = (t.detach().numpy() for t in ctx.saved_tensors)
        g = grad.detach().numpy()
        lo = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, len(xp) - 2)
        x0, x1, f0, f1 = xp[lo], xp[lo + 1], fp[lo], fp[lo + 1]
        t = np.clip((x - x0) / (x1 - x0), 0.0, 1.0)
        slope = np.where((x >= xp[0]) & (x <= xp[-1]), (f1 - f0) / (x1 - x0), 0.0)
        gxp, gfp = np.zeros_like(xp), np.zeros_like(fp)
        np.add.at(gxp, lo, g * slope * (t - 1))
        np.add.at(gxp, lo + 1, -g * slope * t)
        np.add.at(gfp, lo, g * (1 - t))
        np.add.at(gfp, lo + 1, g * t)
        like = grad
        return tuple(torch.as_tensor(np.asarray(v)).to(like) for v in (g * slope, gxp, gfp))


class PolyHorner(Function):
    """Evaluates a polynomial; coefficients come as separate tensors, highest power first, and may broadcast."""

    @staticmethod
    def forward(ctx, x, *coeffs):
        if not coeffs:
            raise ValueError("no coefficients")
        y = torch.zeros_like(x) + coeffs[0]
        for c in coeffs[1:]:
            y = y * x + c
        ctx.save_for_backward(x, *coeffs)
        return y

    @staticmethod
    def backward(ctx, g):
        x, *coeffs = ctx.saved_tensors
        dp = torch.zeros_like(g)
        p = torch.zeros_like(g)
        for c in coeffs:
            dp = dp * x + p
            p = p * x + c
        grads = []
        power = torch.ones_like(g)
        for c in reversed(coeffs):
            grads.append(_unbroadcast(g * power, c))
            power = power * x
        return (_unbroadcast(g * dp, x), *reversed(grads))


def polyval(coeffs: List[Tensor], x: Tensor) -> Tensor:
    return PolyHorner.apply(x, *coeffs)


# --------------------------------------------------------------------------- probability


class VonMisesNLL(Function):
    @staticmethod
    def forward(ctx, x, loc, kappa):
        """Negative log likelihood of angles; arguments broadcast, kappa > 0."""
        if (kappa <= 0).any():
            raise ValueError("kappa must be positive")
        ctx.save_for_backward(x, loc, kappa)
        log_i0 = torch.log(torch.special.i0e(kappa)) + kappa
        return math.log(2 * math.pi) + log_i0 - kappa * torch.cos(x - loc)

    @staticmethod
    def backward(ctx, grad):
        x, loc, kappa = ctx.saved_tensors
        d = x - loc
        gx = grad * kappa * torch.sin(d)
        ratio = torch.special.i1e(kappa) / torch.special.i0e(kappa)
        gk = grad * (ratio - torch.cos(d))
        return _unbroadcast(gx, x), _unbroadcast(-gx, loc), _unbroadcast(gk, kappa)


class ProductOfExperts(Function):
    """Fuses n Gaussians: ``apply(n, mu_1, ..., mu_n, logvar_1, ..., logvar_n)`` -> (mu, logvar)."""

    @staticmethod
    def forward(ctx, n: int, *stats: Tensor):
        if n < 1 or len(stats) != 2 * n:
            raise ValueError("expected n means followed by n log variances")
        if any(s.shape != stats[0].shape for s in stats):
            raise ValueError("all experts must have one shape")
        mus, logvars = torch.stack(stats[:n]), torch.stack(stats[n:])
        weights = torch.softmax(-logvars, dim=0)
        mu = (weights * mus).sum(0)
        ctx.n = n
        ctx.save_for_backward(*stats)
        return mu, -torch.logsumexp(-logvars, dim=0)

    @staticmethod
    def backward(ctx, g_mu, g_logvar):
        n = ctx.n
        stats = ctx.saved_tensors
        mus, logvars = torch.stack(stats[:n]), torch.stack(stats[n:])
        w = torch.softmax(-logvars, dim=0)
        mu = (w * mus).sum(0)
        d_mus = g_mu * w
        d_logvars = w * (g_logvar - g_mu * (mus - mu))
        return (None, *d_mus.unbind(0), *d_logvars.unbind(0))


def poe(mus, logvars):
    return ProductOfExperts.apply(len(mus), *mus, *logvars)


class _KeepsInputAndOutput(Function):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)


class LogNdtr(_KeepsInputAndOutput):
    """log of the standard normal CDF, elementwise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.special.log_ndtr(x)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        log_pdf = -0.5 * x * x - 0.5 * math.log(2 * math.pi)
        return grad_output * torch.exp(log_pdf - y)


def probit_loss(score, label):
    sign = 2.0 * label - 1.0
    return -LogNdtr.apply(sign * score).mean()


# --------------------------------------------------------------------------- quantisation, segments, graphs


class DequantPerChannel(Function):
    @staticmethod
    def forward(ctx, q, scale, zero_point=None, axis=0):
        """(q - zero_point) * scale with one scale (and zero point) for each index along ``axis``; q is integer."""
        if q.is_floating_point():
            raise TypeError("q must be an integer tensor")
        axis = axis % q.dim()
        shape = [1] * q.dim()
        shape[axis] = -1
        assert scale.shape == (q.size(axis),)
        assert zero_point is None or zero_point.shape == scale.shape
        centred = q.to(scale.dtype)
        if zero_point is not None:
            centred = centred - zero_point.view(shape)
        ctx.save_for_backward(q, scale, zero_point)
        ctx.axis, ctx.shape = axis, shape
        return centred * scale.view(shape)

    @staticmethod
    def backward(ctx, grad):
        q, scale, zero_point = ctx.saved_tensors
        rows = lambda t: t.movedim(ctx.axis, 0).reshape(scale.numel(), -1)
        g = rows(grad)
        g_scale = g_zero = None
        if ctx.needs_input_grad[1]:
            level = rows(q.to(scale.dtype))
            if zero_point is not None:
                level = level - zero_point.unsqueeze(1)
            g_scale = (g * level).sum(1)
        if zero_point is not None and ctx.needs_input_grad[2]:
            g_zero = -scale * g.sum(1)
        return None, g_scale, g_zero, None


class SegmentSoftmax(Function):
    """Softmax over the rows of ``src`` (E, ...) which share an entry of ``index`` (E,)."""

    @staticmethod
    def forward(ctx, src, index, num_segments: int):
        assert index.shape == src.shape[:1] and index.dtype == torch.int64
        idx = index.view(-1, *([1] * (src.dim() - 1))).expand_as(src)
        shape = (num_segments,) + src.shape[1:]
        top = src.new_full(shape, NEG_INF).scatter_reduce_(0, idx, src, "amax", include_self=True)
        ex = torch.exp(src - top.index_select(0, index))
        total = src.new_zeros(shape).index_add_(0, index, ex)
        out = ex / total.index_select(0, index)
        ctx.save_for_backward(out, index)
        ctx.num_segments = num_segments
        return out

    @staticmethod
    def backward(ctx, grad):
        out, index = ctx.saved_tensors
        weighted = out * grad
        shape = (ctx.num_segments,) + tuple(out.shape[1:])
        inner = weighted.new_zeros(shape).index_add(0, index, weighted)
        return weighted - out * inner.index_select(0, index), None, None


class ScatterMean(Function):
    @staticmethod
    def forward(ctx, src, index, dim_size=None):
        if index.dim() != 1 or index.numel() != src.size(0):
            raise RuntimeError("index must name a row for every row of src")
        if dim_size is None:
            dim_size = int(index.max()) + 1
        count = torch.bincount(index, minlength=dim_size).clamp(min=1)
        out = src.new_zeros((dim_size, *src.shape[1:])).index_add_(0, index, src)
        inv = count.to(src.dtype).reciprocal().view(-1, *[1] * (src.dim() - 1))
        ctx.save_for_backward(index, inv)
        return out * inv

    @staticmethod
    def backward(ctx, grad_out):
        index, inv = ctx.saved_tensors
        return (grad_out * inv)[index], None, None


def scatter_mean(x, batch):
    """Global mean pooling of a PyG style batch."""
    return ScatterMean.apply(x, batch, None)


class LogSumExpCSR(Function):
    """Log-sum-exp of values[indptr[s]:indptr[s+1]]; indptr rises from 0 to len(values). Empty segments give -inf."""

    @staticmethod
    def forward(ctx, values, indptr):
        if values.ndim != 1 or indptr.ndim != 1 or indptr.numel() < 1:
            raise ValueError("values and indptr must be vectors")
        sizes = indptr.diff()
        if int(indptr[0]) != 0 or int(indptr[-1]) != values.numel() or bool((sizes < 0).any()):
            raise ValueError("indptr must rise from 0 to len(values)")
        out = values.new_full((sizes.numel(),), NEG_INF)
        for s, chunk in enumerate(values.split(sizes.tolist())):
            if chunk.numel():
                out[s] = torch.logsumexp(chunk, 0)
        ctx.save_for_backward(values, sizes, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        values, sizes, out = ctx.saved_tensors
        owner = torch.repeat_interleave(torch.arange(sizes.numel(), device=sizes.device), sizes)
        return grad[owner] * torch.exp(values - out[owner]), None


class GraphPropagate(Function):
    """out[dst] = sum (or mean) of w * x[src] over the edges src -> dst."""

    @staticmethod
    def forward(ctx, x, edge_index, edge_weight=None, aggr: str = "sum"):
        if aggr not in {"sum", "mean"}:
            raise ValueError(f"aggr={aggr}")
        if x.dim() != 2 or edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise ValueError("x must be (N, F), edge_index (2, E)")
        if bool((edge_index < 0).any()):
            raise IndexError("negative node index")
        src, dst = edge_index[0], edge_index[1]
        norm = None
        if aggr == "mean":
            degree = torch.bincount(dst, minlength=x.size(0)).clamp_(min=1)
            norm = degree.to(x.dtype).reciprocal()[dst]
        coef = torch.ones_like(src, dtype=x.dtype) if edge_weight is None else edge_weight
        if coef.shape != src.shape:
            raise ValueError("one weight per edge")
        if norm is not None:
            coef = coef * norm
        ctx.save_for_backward(x, edge_index, edge_weight, norm)
        return torch.zeros_like(x).index_add_(0, dst, coef.unsqueeze(1) * x[src])

    @staticmethod
    def backward(ctx, grad):
        x, edge_index, edge_weight, norm = ctx.saved_tensors
        src, dst = edge_index[0], edge_index[1]
        per_edge = grad[dst]
        if norm is not None:
            per_edge = per_edge * norm.unsqueeze(1)
        gx = gw = None
        if ctx.needs_input_grad[0]:
            msg = per_edge if edge_weight is None else per_edge * edge_weight.unsqueeze(1)
            gx = torch.zeros_like(x).index_add(0, src, msg)
        if edge_weight is not None and ctx.needs_input_grad[2]:
            gw = (per_edge * x[src]).sum(1)
        return gx, None, gw, None


class SimpleGraphConv(nn.Module):
    def __init__(self, d_in: int, d_out: int, aggr: str = "mean"):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        self.aggr = aggr

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Optional[Tensor] = None) -> Tensor:
        return GraphPropagate.apply(self.lin(x), edge_index, edge_weight, self.aggr)


class InplaceLeaky(Function):
    """Leaky ReLU which overwrites its input; the slope must be positive, as the sign is read off the output."""

    @staticmethod
    def forward(ctx, x, slope=0.01):
        if slope <= 0:
            raise ValueError("slope must be positive")
        F.leaky_relu_(x, slope)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, grad, ctx.slope * grad), None


class ABN(nn.Module):
    def __init__(self, features, slope=0.01):
        super().__init__()
        self.bn = nn.BatchNorm2d(features)
        self.slope = slope

    def forward(self, x):
        return InplaceLeaky.apply(self.bn(x), self.slope)
