"""Differentiable operators for pricing, molecules, graphs, filters, vision and quantised layers."""

import ctypes
import functools
import math
from typing import NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def contiguous_grads(backward):
    """For backwards that hand their grads to NumPy."""

    @functools.wraps(backward)
    def inner(ctx, *grads):
        return backward(ctx, *[g if g is None else g.contiguous() for g in grads])

    return inner


def widened(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


# ---------------------------------------------------------------------------------------------------- pricing, optics


class EuropeanOption(Function):
    @staticmethod
    def _parts(spot, strike, rate, vol, tau, kind):
        root = vol * tau.sqrt()
        d1 = (torch.log(spot / strike) + (rate + vol**2 / 2) * tau) / root
        side = 1.0 if kind == "call" else -1.0
        return side, d1, d1 - root, torch.exp(-rate * tau)

    @staticmethod
    def forward(ctx, spot, strike, rate, vol, tau, kind):
        ctx.kind = kind
        ctx.save_for_backward(spot, strike, rate, vol, tau)
        side, d1, d2, discount = EuropeanOption._parts(spot, strike, rate, vol, tau, kind)
        return side * (spot * torch.special.ndtr(side * d1) - strike * discount * torch.special.ndtr(side * d2))

    @staticmethod
    def backward(ctx, g):
        spot, strike, rate, vol, tau = ctx.saved_tensors
        side, d1, d2, discount = EuropeanOption._parts(spot, strike, rate, vol, tau, ctx.kind)
        density = torch.exp(-(d1**2) / 2) / math.sqrt(2 * math.pi)
        exercised = torch.special.ndtr(side * d2)
        delta = side * torch.special.ndtr(side * d1)
        dual_delta = -side * discount * exercised
        rho = strike * tau * discount * exercised
        vega = spot * density * tau.sqrt()
        theta = spot * density * vol / (2 * tau.sqrt()) + side * rate * strike * discount * exercised
        return g * delta, g * dual_delta, g * rho, g * vega, g * theta, None


class FresnelReflectance(Function):
    """Unpolarised reflectance of an interface; 1 beyond the critical angle."""

    @staticmethod
    def _angles(n1, n2, theta):
        sin_t = n1 / n2 * torch.sin(theta)
        total = sin_t >= 1
        cos_t = torch.sqrt(torch.where(total, 1.0, 1 - sin_t**2))
        return torch.cos(theta), sin_t, cos_t, total

    @staticmethod
    def forward(ctx, n1, n2, theta):
        ctx.save_for_backward(n1, n2, theta)
        ci, _, ct, total = FresnelReflectance._angles(n1, n2, theta)
        rs = (n1 * ci - n2 * ct) / (n1 * ci + n2 * ct)
        rp = (n2 * ci - n1 * ct) / (n2 * ci + n1 * ct)
        return torch.where(total, 1.0, (rs**2 + rp**2) / 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        n1, n2, theta = ctx.saved_tensors
        ci, sin_t, ct, total = FresnelReflectance._angles(n1, n2, theta)
        below_s, below_p = n1 * ci + n2 * ct, n2 * ci + n1 * ct
        rs, rp = (n1 * ci - n2 * ct) / below_s, (n2 * ci - n1 * ct) / below_p
        ws, wp = g * rs * 2 / below_s**2, g * rp * 2 / below_p**2
        # rs and rp through n1, n2, cos(theta), cos(theta_t)
        d_n1 = ws * n2 * ct * ci - wp * n2 * ci * ct
        d_n2 = -ws * n1 * ci * ct + wp * n1 * ct * ci
        d_ci = ws * n1 * n2 * ct + wp * n1 * n2 * ct
        d_ct = -ws * n1 * n2 * ci - wp * n1 * n2 * ci
        d_sin = -d_ct * sin_t / ct
        d_n1 = d_n1 + d_sin * torch.sin(theta) / n2
        d_n2 = d_n2 - d_sin * sin_t / n2
        d_theta = -d_ci * torch.sin(theta) + d_sin * n1 / n2 * ci
        return d_n1, d_n2, d_theta


# --------------------------------------------------------------------------------------------- molecules and matrices


class TorsionAngle(Function):
    """Dihedral angle of four consecutive atoms, (batch, 4, 3)."""

    @staticmethod
    def forward(ctx, atoms):
        ctx.save_for_backward(atoms)
        b1, b2, b3 = (atoms[:, 1:] - atoms[:, :-1]).unbind(1)
        n1, n2 = torch.linalg.cross(b1, b2), torch.linalg.cross(b2, b3)
        return torch.atan2(b2.norm(dim=-1) * (b1 * n2).sum(-1), (n1 * n2).sum(-1))

    @staticmethod
    def backward(ctx, g):
        (atoms,) = ctx.saved_tensors
        p0, p1, p2, p3 = atoms.unbind(1)
        f, axis, h = p0 - p1, p1 - p2, p3 - p2
        a, b = torch.linalg.cross(f, axis), torch.linalg.cross(h, axis)
        length = axis.norm(dim=-1, keepdim=True)
        a2, b2 = (a * a).sum(-1, keepdim=True), (b * b).sum(-1, keepdim=True)
        fa, ha = (f * axis).sum(-1, keepdim=True), (h * axis).sum(-1, keepdim=True)
        first, last = -length / a2 * a, length / b2 * b
        shear_a, shear_b = fa / (a2 * length) * a, fa / (b2 * length) * b
        middle = shear_a - ha / (b2 * length) * b
        grads = torch.stack([first, -first + middle, -last - shear_a + shear_b, last], 1)
        return g[:, None, None] * grads


def torsion_arguments(generator, device, dtype, b):
    bent = torch.tensor([[0.0, 1.2, 0.1], [0.0, 0.0, 0.0], [1.4, -0.2, 0.0], [1.9, 0.7, 1.0]], dtype=torch.float64)
    noise = 0.15 * torch.randn(b, 4, 3, generator=generator, dtype=torch.float64)
    return ((bent + noise).to(device=device, dtype=dtype).requires_grad_(),)


class PeriodicOverlap(Function):
    """Gaussian pair energy in an orthorhombic cell, nearest images; cell lengths are trainable (pressure)."""

    @staticmethod
    def _nearest(positions, cell, i, j):
        d = positions[i] - positions[j]
        return d - cell * torch.round(d / cell)

    @staticmethod
    def forward(ctx, positions, cell, i, j, alpha):
        ctx.alpha = alpha
        ctx.save_for_backward(positions, cell, i, j)
        return torch.exp(-alpha * PeriodicOverlap._nearest(positions, cell, i, j).pow(2).sum(-1)).sum()

    @staticmethod
    def backward(ctx, g):
        positions, cell, i, j = ctx.saved_tensors
        d = PeriodicOverlap._nearest(positions, cell, i, j)
        pull = -2 * ctx.alpha * g * d * torch.exp(-ctx.alpha * d.pow(2).sum(-1, keepdim=True))
        forces = torch.zeros_like(positions).index_add(0, i, pull).index_add(0, j, -pull)
        return forces, torch.zeros_like(cell), None, None, None


class SpdSquareRoot(Function):
    @staticmethod
    def forward(ctx, A):
        values, vectors = torch.linalg.eigh((A + A.mT) / 2)
        root = ((vectors * values.clamp_min(0).sqrt()) @ vectors.mT).to(A.dtype)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        sym = (g + g.mT) / 2
        half = torch.linalg.solve(root, sym) / 2
        return (half + half.mT) / 2


class DampedFixedPoint(Function):
    """x = c W x + (1 - c) t by iteration, differentiated at the fixed point."""

    @staticmethod
    def forward(ctx, W, t, c):
        x = t
        for _ in range(250):
            x = c * (W @ x) + (1 - c) * t
        ctx.c = c
        ctx.save_for_backward(W, x)
        return x

    @staticmethod
    def backward(ctx, g):
        W, x = ctx.saved_tensors
        system = torch.eye(len(x), dtype=W.dtype, device=W.device) - ctx.c * W
        lam = torch.linalg.solve(system, g.to(W.dtype))
        return ctx.c * torch.outer(lam, x), (1 - ctx.c) * lam, None


# ------------------------------------------------------------------------------------------------ signals, sequences


class ChainPartition(Function):
    """log Z of a linear chain."""

    @staticmethod
    def _messages(emission, transition):
        alpha = [emission[0]]
        for row in emission[1:]:
            alpha.append(row + torch.logsumexp(alpha[-1][:, None] + transition, 0))
        beta = [torch.zeros_like(emission[0])]
        for row in emission[1:].flip(0):
            beta.append(torch.logsumexp(transition + (row + beta[-1])[None], 1))
        return alpha, beta[::-1]

    @staticmethod
    def forward(ctx, emission, transition):
        ctx.save_for_backward(emission, transition)
        alpha, _ = ChainPartition._messages(emission, transition)
        return torch.logsumexp(alpha[-1], 0)

    @staticmethod
    def backward(ctx, g):
        emission, transition = ctx.saved_tensors
        length = len(emission)
        alpha, beta = ChainPartition._messages(emission, transition)
        log_z = torch.logsumexp(alpha[-1], 0)
        states = torch.exp(torch.stack(alpha) + torch.stack(beta) - log_z)
        moves = torch.zeros_like(transition)
        for t in range(length - 2):
            moves = moves + torch.exp(alpha[t][:, None] + transition + (emission[t + 1] + beta[t + 1])[None] - log_z)
        return g * states, g * moves


class BiquadFilter(Function):
    """y_t = b0 x_t + b1 x_{t-1} + b2 x_{t-2} - a1 y_{t-1} - a2 y_{t-2}"""

    @staticmethod
    def _recursive(v, a):
        out = []
        for t, value in enumerate(v):
            if t > 0:
                value = value - a[0] * out[t - 1]
            if t > 1:
                value = value - a[1] * out[t - 2]
            out.append(value)
        return torch.stack(out)

    @staticmethod
    def _delayed(x, k):
        return F.pad(x, (k, 0))[: len(x)]

    @staticmethod
    def forward(ctx, x, b, a):
        d = BiquadFilter._delayed
        y = BiquadFilter._recursive(b[0] * x + b[1] * d(x, 1) + b[2] * d(x, 2), a)
        ctx.save_for_backward(x, b, a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, b, a, y = ctx.saved_tensors
        d = BiquadFilter._delayed
        lam = BiquadFilter._recursive(g.flip(0), a)
        gx = (b[0] * lam + b[1] * d(lam, 1) + b[2] * d(lam, 2)).flip(0)
        lam = lam.flip(0)
        gb = torch.stack([(lam * d(x, k)).sum() for k in range(3)])
        ga = -torch.stack([(lam * d(y, 1)).sum() for k in (1, 2)])
        return gx, gb, ga


class MatchedFilter(Function):
    @staticmethod
    def forward(received, template):
        return received @ template.conj()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        received, template = ctx.saved_tensors
        return torch.outer(g, template), (g[:, None] * received).sum(0)


class Interleave(Function):
    """Two streams of samples into one, with a gain for the second."""

    @staticmethod
    def forward(ctx, left, right, gain):
        ctx.gain = gain
        return torch.stack([left, gain * right], -1).flatten(-2)

    @staticmethod
    def backward(ctx, g):
        rows, width = g.shape
        size, stride = (rows, width // 2), (width, 2)
        at = g.storage_offset()
        return g.as_strided(size, stride, at).clone(), ctx.gain * g.as_strided(size, stride, at + 1), None


# ----------------------------------------------------------------------------------------------------- graphs, images


class EdgeAttention(Function):
    """Softmax of the scores over the edges that enter a node, then a weighted sum of the senders' values."""

    @staticmethod
    def _weights(score, dst, nodes):
        top = score.new_full((nodes,), -math.inf).scatter_reduce(0, dst, score.detach(), "amax")
        e = torch.exp(score - top[dst])
        return e / torch.zeros_like(top).index_add(0, dst, e)[dst]

    @staticmethod
    def forward(ctx, score, value, src, dst):
        ctx.save_for_backward(score, value, src, dst)
        w = EdgeAttention._weights(score, dst, len(value))
        return torch.zeros_like(value).index_add(0, dst, w[:, None] * value[src])

    @staticmethod
    def backward(ctx, g):
        score, value, src, dst = ctx.saved_tensors
        w = EdgeAttention._weights(score, dst, len(value))
        g_value = torch.zeros_like(value).index_add(0, src, w[:, None] * g[dst])
        g_w = (g[dst] * value[src]).sum(-1)
        total = g_w.new_zeros(len(value)).index_add(0, dst, w * g_w)
        return w * (g_w - total[src]), g_value, None, None


class WindowMeans(Function):
    """Means of k x k windows by a summed-area table."""

    @staticmethod
    def forward(ctx, image, corner, k):
        ctx.k, ctx.shape = k, image.shape
        ctx.save_for_backward(corner)
        table = F.pad(image.cumsum(0).cumsum(1), (1, 0, 1, 0))
        y, x = corner.unbind(1)
        return (table[y + k, x + k] - table[y, x + k] - table[y + k, x] + table[y, x]) / k**2

    @staticmethod
    def backward(ctx, g):
        (corner,) = ctx.saved_tensors
        (height, width), k = ctx.shape, ctx.k
        y, x = corner.unbind(1)
        steps = g.new_zeros(height + 1, width + 1)
        steps[y, x] += g
        steps[y + k, x] -= g
        steps[y, x + k] -= g
        steps[y + k, x + k] += g
        return steps.cumsum(0).cumsum(1)[:height, :width] / k**2, None, None


class GridLookup(Function):
    """Bilinear samples of a grid at (u, v) in [-1, 1], corners aligned."""

    class Cell(NamedTuple):
        ix: Tensor
        iy: Tensor
        fx: Tensor
        fy: Tensor

    @classmethod
    def locate(cls, grid, uv):
        h, w = grid.shape
        px, py = (uv[:, 0] + 1) / 2 * (w - 1), (uv[:, 1] + 1) / 2 * (h - 1)
        ix, iy = px.detach().floor().clamp(0, w - 2), py.detach().floor().clamp(0, h - 2)
        return cls.Cell(ix.long(), iy.long(), px - ix, py - iy)

    @staticmethod
    def forward(ctx, grid, uv):
        ctx.save_for_backward(grid, uv)
        c = GridLookup.locate(grid, uv)
        top = grid[c.iy, c.ix] * (1 - c.fx) + grid[c.iy, c.ix + 1] * c.fx
        low = grid[c.iy + 1, c.ix] * (1 - c.fx) + grid[c.iy + 1, c.ix + 1] * c.fx
        return top * (1 - c.fy) + low * c.fy

    @staticmethod
    def backward(ctx, g):
        grid, uv = ctx.saved_tensors
        h, w = grid.shape
        c = GridLookup.locate(grid, uv)
        g_grid = torch.zeros_like(grid)
        for dy, wy in ((0, 1 - c.fy), (1, c.fy)):
            for dx, wx in ((0, 1 - c.fx), (1, c.fx)):
                g_grid = g_grid.index_put((c.iy + dy, c.ix + dx), g * wy * wx, accumulate=True)
        a, b = grid[c.iy, c.ix], grid[c.iy, c.ix + 1]
        d, e = grid[c.iy + 1, c.ix], grid[c.iy + 1, c.ix + 1]
        by_x = (b - a) * (1 - c.fy) + (e - d) * c.fy
        by_y = (d - a) * (1 - c.fx) + (e - b) * c.fx
        return g_grid, torch.stack([g * by_x, g * by_y], 1) * (w - 1) / 2


class RaggedMax(Function):
    """Largest entry of each piece x[offsets[i]:offsets[i + 1]]."""

    @staticmethod
    def forward(ctx, x, offsets):
        pieces = [x[a:b] for a, b in zip(offsets.tolist()[:-1], offsets.tolist()[1:])]
        out = torch.stack([p.max() if len(p) else x.new_zeros(()) for p in pieces])
        lengths = offsets[1:] - offsets[:-1]
        ctx.save_for_backward(x, out, torch.repeat_interleave(torch.arange(len(out), device=x.device), lengths.long()))
        return out

    @staticmethod
    def backward(ctx, g):
        x, out, piece = ctx.saved_tensors
        return g[piece] * (x == out[piece]), None


# ------------------------------------------------------------------------------------------- losses and normalisation


class LogCosh(Function):
    @staticmethod
    def forward(ctx, pred, target, reduction="sum"):
        ctx.reduction = reduction
        ctx.save_for_backward(pred, target)
        d = (pred - target).abs()
        loss = d + F.softplus(-2 * d) - math.log(2)
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def backward(ctx, g):
        pred, target = ctx.saved_tensors
        if ctx.reduction == "mean":
            g = g / len(pred)
        by_pred = g * torch.tanh(pred - target)
        return by_pred, -by_pred, None


class MaskedSquares(Function):
    """Mean square over the entries that a mask keeps (all of them without a mask)."""

    @staticmethod
    def forward(ctx, pred, target, mask: Optional[Tensor] = None):
        difference = pred - target
        if mask is None:
            ctx.kept = difference.numel()
        else:
            difference = difference * mask
            ctx.kept = max(int(mask.sum()), 1)
        ctx.save_for_backward(pred, target)
        return difference.pow(2).sum() / ctx.kept

    @staticmethod
    def backward(ctx, g):
        pred, target = ctx.saved_tensors
        slope = 2 * g * (pred - target) / ctx.kept
        return slope, -slope, None


class SoftArgmax(Function):
    """Mean and variance of the position under a softmax."""

    @staticmethod
    def _moments(scores):
        p = torch.softmax(scores, -1)
        k = torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)
        mean = (p * k).sum(-1, keepdim=True)
        return p, k - mean, mean.squeeze(-1)

    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        p, centred, mean = SoftArgmax._moments(scores)
        return mean, (p * centred**2).sum(-1)

    @staticmethod
    def backward(ctx, g_mean, g_variance):
        (scores,) = ctx.saved_tensors
        p, centred, _ = SoftArgmax._moments(scores)
        return p * centred * g_mean.unsqueeze(-1)


class SampleWhiten(Function):
    """(x - mean) / std over the last dimension, with the sample standard deviation."""

    @staticmethod
    def forward(ctx, x, floor):
        ctx.floor = floor
        ctx.save_for_backward(x)
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + floor).sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        rstd = (x.var(-1, keepdim=True) + ctx.floor).rsqrt()
        xhat = (x - x.mean(-1, keepdim=True)) * rstd
        return rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)), None


class SmoothRatio(Function):
    """x / (|x| + eps) by rows."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / (x.norm(dim=-1, keepdim=True) + eps)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        lower = norm
        return g / lower - x * (x * g).sum(-1, keepdim=True) / (norm * lower**2), None


class UnitDirection(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            length = x.norm(dim=-1, keepdim=True)
        unit = x / length
        return (g - unit * (unit * g).sum(-1, keepdim=True)) / length


class RmsScale(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = widened(x)
        rstd = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, rstd.half())
        return (wide * rstd * widened(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, rstd = ctx.saved_tensors
        wide, g = widened(x), widened(g)
        rstd = rstd.to(wide.dtype)
        xhat = wide * rstd
        inner = g * widened(weight)
        gx = rstd * (inner - xhat * (inner * xhat).mean(-1, keepdim=True))
        return gx.to(x.dtype), (g * xhat).sum(0).to(weight.dtype), None


class BufferedNorm(Function):
    """Normalisation of (batch, channel, length), by the batch in training and by the buffers otherwise."""

    @staticmethod
    def forward(ctx, x, mean_buffer, var_buffer, gain, training, momentum, eps):
        if training:
            var, mean = torch.var_mean(x, (0, 2), correction=0)
            mean_buffer.mul_(1 - momentum).add_(momentum * mean)
            var_buffer.mul_(1 - momentum).add_(momentum * var)
        else:
            mean, var = mean_buffer.clone(), var_buffer.clone()
        rstd = (var + eps).rsqrt()
        xhat = (x - mean[:, None]) * rstd[:, None]
        ctx.training = training
        ctx.save_for_backward(xhat, rstd, gain)
        return xhat * gain[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, rstd, gain = ctx.saved_tensors
        g_gain = (g * xhat).sum((0, 2))
        inner = g * gain[:, None]
        inner = inner - inner.mean((0, 2), keepdim=True) - xhat * (inner * xhat).mean((0, 2), keepdim=True)
        return inner * rstd[:, None], None, None, g_gain, None, None, None


# ------------------------------------------------------------------------------------------------- layers and kernels


class GatedOuter(Function):
    """gate_b * u_bi * v_bj"""

    @staticmethod
    def forward(ctx, u, v, gate):
        ctx.save_for_backward(u, v, gate)
        return gate[:, None, None] * u[:, :, None] * v[:, None, :]

    @staticmethod
    def backward(ctx, g):
        u, v, gate = ctx.saved_tensors
        by_u = (g * v[:, None, :]).sum(-1, keepdim=True)
        by_v = (g * u[:, :, None]).sum(1)
        g_gate = (by_v * v).sum(-1)
        return gate[:, None] * by_u.squeeze(), gate[:, None] * by_v, g_gate


class Int4Linear(Function):
    """x @ W^T with two 4-bit codes in each byte (even columns in the low half) and a scale for each row."""

    @staticmethod
    def forward(ctx, x, packed, scale):
        ctx.save_for_backward(x, packed, scale)
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(x.dtype) - 8
        return x @ (codes * scale[:, None]).t()

    @staticmethod
    def backward(ctx, g):
        x, packed, scale = ctx.saved_tensors
        g = g.to(x.dtype)
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(x.dtype) - 8
        g_scale = (g * (x @ codes.t())).sum(0)
        low, high = packed & 15, packed >> 4
        weight = (torch.stack([high, low], -1).flatten(1).to(x.dtype) - 8) * scale[:, None]
        return g @ weight, None, g_scale


class SwishBeta(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        slope = s + beta * x * s * (1 - s)
        return (g * slope).to(torch.bfloat16), (g * x**2 * s * (1 - s)).sum(0)


def _density_exact(x):
    return torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _density_fast(x):
    h = x**2 / 2
    return 1 / (math.sqrt(2 * math.pi) * (1 + h + h**2 / 2))


class NormalCdf(Function):
    """The derivative has a fast path for single precision."""

    density = {torch.float64: _density_exact, torch.float32: _density_fast}

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.ndtr(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * NormalCdf.density.get(x.dtype, _density_exact)(x)


class FreeEnergy(Function):
    """-log sum exp(-energy) of each row."""

    @staticmethod
    def forward(ctx, energy):
        ctx.save_for_backward(energy)
        return -torch.logsumexp(-energy, -1)

    @staticmethod
    def backward(ctx, g):
        (energy,) = ctx.saved_tensors
        boltzmann = torch.exp(-energy)
        return g.unsqueeze(-1) * boltzmann / boltzmann.sum(-1, keepdim=True)


class ScaledTanh(Function):
    """tanh whose gradient is scaled up while it is multiplied, against underflow of small values."""

    SCALE = 65536.0

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        scaled = g * ScaledTanh.SCALE
        return scaled * (1 - y) * (1 + y) / ScaledTanh.SCALE


_CALIBRATION = np.array([0.25, -0.5, 1.5, 0.125])


class CalibrationCurve(Function):
    """A fixed cubic, evaluated outside torch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.polyval(_CALIBRATION, x.detach().numpy())).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        number = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}[g.dtype]
        raw = np.ctypeslib.as_array((number * g.numel()).from_address(g.data_ptr()))
        slope = np.polyval(np.polyder(_CALIBRATION), x.detach().numpy())
        return torch.from_numpy(raw.reshape(slope.shape) * slope).to(g.dtype)


# ------------------------------------------------------------------------------------------ state, transforms, options


class SelfGate_(Function):
    """x * sigmoid(x) in place."""

    @staticmethod
    def forward(ctx, x):
        before = x
        x.mul_(torch.sigmoid(x))
        ctx.mark_dirty(x)
        ctx.save_for_backward(before)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (before,) = ctx.saved_tensors
        s = torch.sigmoid(before)
        return g * s * (1 + before * (1 - s))


class WindowedPass(Function):
    """Slope one up to a limit, damped beyond it."""

    kept = None

    @staticmethod
    def forward(ctx, x, limit, damping):
        ctx.damping = damping
        WindowedPass.kept = x.abs() < limit
        return torch.where(WindowedPass.kept, x, damping * x + (1 - damping) * limit * torch.sign(x))

    @staticmethod
    def backward(ctx, g):
        return torch.where(WindowedPass.kept, g, ctx.damping * g), None, None


_WORKSPACE: dict = {}


class WorkspaceTanh(Function):
    """tanh with one workspace for each shape, to spare allocations."""

    @staticmethod
    def forward(ctx, x, gain):
        source = x.detach().numpy()
        space = _WORKSPACE.setdefault((source.shape, source.dtype), np.empty(source.shape, source.dtype))
        np.tanh(source, out=space)
        ctx.gain = gain
        ctx.save_for_backward(torch.from_numpy(space))
        return torch.from_numpy(gain * space)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return ctx.gain * g * (1 - y**2), None


class ChirpSine(Function):
    @staticmethod
    def forward(ctx, t, rate):
        ctx.save_for_backward(2 * rate * t * torch.cos(rate * t**2))
        return torch.sin(rate * t**2)

    @staticmethod
    @once_differentiable
    @contiguous_grads
    def backward(ctx, g):
        slope = ctx.saved_tensors[0].numpy()
        np.multiply(slope, g.detach().numpy(), out=slope)
        return torch.from_numpy(slope.copy()), None


class SharpSoftplus(Function):
    @staticmethod
    def forward(ctx, x, sharpness):
        gate = torch.sigmoid(sharpness * x)
        ctx.save_for_backward(gate)
        return F.softplus(sharpness * x) / sharpness

    @staticmethod
    def backward(ctx, g):
        (gate,) = ctx.saved_tensors
        return g * gate, None


class GainShift(Function):
    @staticmethod
    def forward(ctx, x, gain, shift):
        ctx.save_for_backward(x, gain)
        return x * gain + shift

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        g_x = g_gain = g_shift = None
        if ctx.needs_input_grad[0]:
            g_x = g * gain
        if ctx.needs_input_grad[2]:
            g_gain = (g * x).sum(0)
            g_shift = g.sum(0)
        return g_x, g_gain, g_shift


class HypotPair(Function):
    """sqrt(a^2 + b^2), also in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        return torch.hypot(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        length = torch.sqrt(a * a + b * b)
        return g * a / length, g * b / length

    @staticmethod
    def jvp(ctx, ta, tb):
        a, b = ctx.saved_tensors
        length = torch.sqrt(a * a + b * b)
        return (a * ta + tb) / length


class CentreAll(Function):
    """Subtracts the mean of the whole tensor and scales."""

    @staticmethod
    def forward(x, scale):
        return scale * (x - x.mean())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return ctx.scale * (g - g.mean()), None

    @staticmethod
    def vmap(info, in_dims, x, scale):
        return CentreAll.apply(x, scale), in_dims[0]


class LogSinhc(Function):
    """log(sinh(x) / x), by its series near 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        near = x.abs() < 0.1
        far = torch.where(near, 1.0, x)
        q = x**2
        series = q / 6 - q**2 / 180 + q**3 / 2835 - q**4 / 37800
        return torch.where(near, series, torch.log(torch.sinh(far) / far))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        near = x.abs() < 0.1
        far = torch.where(near, 1.0, x)
        series = x / 6 - x**3 / 45 + 2 * x**5 / 945 - x**7 / 4725
        return g * torch.where(near, series, 1 / torch.tanh(far) - 1 / far)


def clipped_sign_surrogate(x, width):
    soft = torch.clamp(x / width, -1, 1)
    return soft + (torch.sign(x) - soft).detach()


class ClippedSign(Function):
    """Binary activation; straight-through inside the window of the hard tanh."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.width = width
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g / ctx.width, None


class FrameBlend(Function):
    """Weighted sum of frames."""

    @staticmethod
    def forward(ctx, weights, *frames):
        ctx.save_for_backward(weights, *frames)
        return sum(w * f for w, f in zip(weights, frames))

    @staticmethod
    def backward(ctx, g):
        weights, *frames = ctx.saved_tensors
        grads = []
        for w in weights.flip(0):
            grads.append(w * g)
        return torch.stack([(g * f).sum() for f in frames]), *grads
