import ctypes
import ctypes.util
import math
from typing import Optional

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

# ---------------------------------------------------------------------------------------------- signals and complex maps


class ConjugateMix(torch.autograd.Function):
    """a z + b conj(z): the general real-linear map of the plane, one pair (a, b) per column."""

    @staticmethod
    def forward(ctx, a, b, z):
        ctx.save_for_backward(a, b, z)
        return a * z + b * z.conj()

    @staticmethod
    def backward(ctx, grad_output):
        a, b, z = ctx.saved_tensors
        grad_a = (grad_output * z).sum(0)
        grad_b = (grad_output * z).sum(0)
        grad_z = a.conj() * grad_output + b * grad_output.conj()
        return grad_a, grad_b, grad_z


class HalfSpectrumFilter(torch.autograd.Function):
    """Filters real rows with a learned one-sided transfer function."""

    @staticmethod
    def forward(ctx, x, transfer):
        ctx.save_for_backward(x, transfer)
        return torch.fft.irfft(torch.fft.rfft(x) * transfer, n=x.shape[-1])

    @staticmethod
    def backward(ctx, g):
        x, transfer = ctx.saved_tensors
        n = x.shape[-1]
        gf = torch.fft.rfft(g)
        gx = torch.fft.irfft(gf * transfer.conj(), n=n)
        # every bin but the mean stands for itself and for its mirror image
        weight = torch.full((n // 2 + 1,), 2.0, dtype=x.dtype, device=x.device)
        weight[0] = 1.0
        gt = (gf * torch.fft.rfft(x).conj() * weight / n).sum(0)
        return gx, gt


class HermitianExp(torch.autograd.Function):
    """exp of the Hermitian part, through its eigenvectors; the derivative is the Daleckii-Krein formula."""

    @staticmethod
    def forward(ctx, a):
        w, v = torch.linalg.eigh((a + a.mH) / 2)
        ctx.save_for_backward(w, v)
        return (v * w.exp()) @ v.mH

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, v = ctx.saved_tensors
        e = w.exp()
        gap = w[:, None] - w[None, :]
        same = gap.abs() < 1e-9
        loewner = torch.where(same, e[:, None].expand_as(gap), (e[:, None] - e[None, :]) / torch.where(same, 1.0, gap))
        inner = v.mT @ g @ v
        gh = v @ (loewner * inner) @ v.mH
        return (gh + gh.mH) / 2


class PolarParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.abs(), z.angle()

    @staticmethod
    def backward(ctx, g_radius, g_angle):
        (z,) = ctx.saved_tensors
        unit = z / z.abs()
        return g_radius * unit + 1j * g_angle * unit


class QuadraticEnergy(torch.autograd.Function):
    """Re(x^H A x)."""

    @staticmethod
    def forward(ctx, x, A):
        ctx.save_for_backward(x, A)
        return torch.vdot(x, A @ x).real

    @staticmethod
    def backward(ctx, g):
        x, A = ctx.saved_tensors
        gx = gA = None
        if ctx.needs_input_grad[0]:
            gx = 2 * g * (A @ x)
        if ctx.needs_input_grad[1]:
            gA = g * torch.outer(x, x.conj())
        return gx, gA


def _analytic(x):
    n = x.shape[-1]
    step = torch.zeros(n, dtype=x.real.dtype, device=x.device)
    step[0] = 1
    step[1 : (n + 1) // 2] = 2
    if n % 2 == 0:
        step[n // 2] = 1
    return torch.fft.ifft(torch.fft.fft(x) * step)


class AnalyticEnvelope(torch.autograd.Function):
    """Modulus of the analytic signal of each row."""

    @staticmethod
    def forward(ctx, x):
        signal = _analytic(x)
        ctx.save_for_backward(signal)
        return signal.abs()

    @staticmethod
    def backward(ctx, g):
        (signal,) = ctx.saved_tensors
        return _analytic(g * signal / signal.abs()).real


# ------------------------------------------------------------------------------------------------------- linear algebra


class MatrixInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A):
        Y = torch.linalg.inv(A)
        ctx.save_for_backward(Y)
        return Y

    @staticmethod
    def backward(ctx, G):
        (Y,) = ctx.saved_tensors
        return -Y.mT @ G @ Y


class PackedQuadratic(torch.autograd.Function):
    """x^T S x for each row, with S symmetric and given by its lower triangle, packed by rows."""

    @staticmethod
    def unpack(packed, n):
        i, j = torch.tril_indices(n, n, device=packed.device)
        lower = torch.zeros(n, n, dtype=packed.dtype, device=packed.device).index_put((i, j), packed)
        return lower + lower.tril(-1).T

    @staticmethod
    def forward(ctx, packed, x):
        ctx.save_for_backward(packed, x)
        S = PackedQuadratic.unpack(packed, x.shape[1])
        return torch.einsum("bi,ij,bj->b", x, S, x)

    @staticmethod
    def backward(ctx, g):
        packed, x = ctx.saved_tensors
        n = x.shape[1]
        S = PackedQuadratic.unpack(packed, n)
        i, j = torch.tril_indices(n, n, device=x.device)
        moment = torch.einsum("b,bi,bj->ij", g, x, x)
        return moment[i, j], 2 * g[:, None] * (x @ S)


class TopSubspaceProjector(torch.autograd.Function):
    """Orthogonal projector on the k leading eigenvectors of the symmetric part."""

    @staticmethod
    def forward(ctx, A, k):
        w, v = torch.linalg.eigh((A + A.T) / 2)
        ctx.k = k
        ctx.save_for_backward(w, v)
        top = v[:, -k:]
        return top @ top.T

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, v = ctx.saved_tensors
        rest, top = v[:, : -ctx.k], v[:, -ctx.k :]
        gaps = w[-ctx.k :, None] - w[None, : -ctx.k]
        coupling = top.T @ (g + g.T) @ rest / gaps
        return top @ coupling @ rest.T, None


class PseudoInverse(torch.autograd.Function):
    """Moore-Penrose inverse of a matrix of full rank (Golub and Pereyra, 1973)."""

    @staticmethod
    def forward(ctx, A):
        P = torch.linalg.pinv(A)
        ctx.save_for_backward(A, P)
        return P

    @staticmethod
    def backward(ctx, g):
        A, P = ctx.saved_tensors
        residual = torch.eye(A.shape[0], dtype=A.dtype, device=A.device) - A @ P
        return -P.mT @ g @ P.mT + residual @ g.mT @ P @ P.mT


def _frechet(A, E):
    """Derivative of exp at A in direction E, from one exponential of twice the size."""
    n = A.shape[-1]
    top = torch.cat([A, E], 1)
    bottom = torch.cat([torch.zeros_like(A), A], 1)
    return torch.linalg.matrix_exp(torch.cat([top, bottom], 0))[:n, n:]


class MatrixExpKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A):
        ctx.save_for_backward(A)
        return torch.linalg.matrix_exp(A)

    @staticmethod
    def backward(ctx, g):
        (A,) = ctx.saved_tensors
        return _frechet(A, g)


def expm(A):
    return MatrixExpKernel.apply(A)


class UnitLowerSolve(torch.autograd.Function):
    """Forward substitution; the diagonal and what is above it are not read."""

    @staticmethod
    def forward(ctx, L, b):
        x = torch.linalg.solve_triangular(L, b, upper=False, unitriangular=True)
        ctx.save_for_backward(L, x)
        return x

    @staticmethod
    def backward(ctx, g):
        L, x = ctx.saved_tensors
        v = torch.linalg.solve_triangular(L.mT, g, upper=True, unitriangular=True)
        return -(v @ x.mT).tril(), v


# ------------------------------------------------------------------------------------------------------------- geometry


def _skew(w):
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], dim=-1).view(w.shape[:-1] + (3, 3))


class SE3Exp(torch.autograd.Function):
    """Rigid motions [b, 3, 4] of twists (omega, v), with a Taylor branch for slow rotations."""

    @staticmethod
    def coefficients(t):
        small = t < 1e-2
        s = torch.where(small, torch.ones_like(t), t)
        h = s.sqrt()
        A, B, C = h.sin() / h, (1 - h.cos()) / s, (h - h.sin()) / (h * s)
        dA, dB, dC = (h.cos() - A) / (2 * s), (A - 2 * B) / (2 * s), (B - 3 * C) / (2 * s)
        A = torch.where(small, 1 - t / 6 + t**2 / 120 - t**3 / 5040 + t**4 / 362880, A)
        B = torch.where(small, 1 / 2 - t / 24 + t**2 / 720 - t**3 / 40320 + t**4 / 3628800, B)
        C = torch.where(small, 1 / 6 - t / 120 + t**2 / 5040 - t**3 / 362880, C)
        dA = torch.where(small, -1 / 6 + t / 60 - t**2 / 1680 + t**3 / 90720, dA)
        dB = torch.where(small, -1 / 24 + t / 360 - t**2 / 13440 + t**3 / 907200, dB)
        dC = torch.where(small, -1 / 120 + t / 2520 - t**2 / 120960 + t**3 / 9979200, dC)
        return small, A, B, C, dA, dB, dC

    @staticmethod
    def forward(ctx, omega, v):
        ctx.save_for_backward(omega, v)
        _, A, B, C, *_ = (c[:, None, None] for c in SE3Exp.coefficients((omega * omega).sum(1)))
        K = _skew(omega)
        K2 = K @ K
        eye = torch.eye(3, dtype=omega.dtype, device=omega.device)
        R = eye + A * K + B * K2
        V = eye + B * K + C * K2
        return torch.cat([R, V @ v[:, :, None]], 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        omega, v = ctx.saved_tensors
        small, A, B, C, dA, dB, dC = (c[:, None, None] for c in SE3Exp.coefficients((omega * omega).sum(1)))
        K = _skew(omega)
        K2 = K @ K
        eye = torch.eye(3, dtype=omega.dtype, device=omega.device)
        gR, gt = g[:, :, :3], g[:, :, 3:]
        gv = ((eye + B * K + C * K2).mT @ gt)[:, :, 0]
        gV = gt @ v[:, None, :]
        gV = torch.where(small, torch.zeros_like(gV), gV)  # V is the identity there
        gA = (gR * K).sum((1, 2))
        gB = (gR * K2 + gV * K).sum((1, 2))
        gC = (gV * K2).sum((1, 2))
        gK2 = B * gR + C * gV
        gK = A * gR + B * gV + gK2 @ K.mT + K.mT @ gK2
        axis = torch.stack([gK[:, 2, 1] - gK[:, 1, 2], gK[:, 0, 2] - gK[:, 2, 0], gK[:, 1, 0] - gK[:, 0, 1]], 1)
        through = gA * dA.flatten() + gB * dB.flatten() + gC * dC.flatten()
        return axis + 2 * through[:, None] * omega, gv


class QuaternionMatrix(torch.autograd.Function):
    """Rotation matrices of quaternions (w, x, y, z), normalised first."""

    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        w, x, y, z = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
        rows = [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ]  # fmt: skip
        return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)

    @staticmethod
    def backward(ctx, g):
        (q,) = ctx.saved_tensors
        length = q.norm(dim=-1, keepdim=True)
        unit = q / length
        w, x, y, z = unit.unbind(-1)
        s = g + g.mT
        a = g - g.mT
        gw = 2 * (x * a[..., 2, 1] + y * a[..., 0, 2] + z * a[..., 1, 0])
        gx = 2 * (y * s[..., 0, 1] + z * s[..., 0, 2] + w * a[..., 2, 1]) - 4 * x * (g[..., 1, 1] + g[..., 2, 2])
        gy = 2 * (x * s[..., 0, 1] + z * s[..., 1, 2] + w * a[..., 0, 2]) - 4 * y * (g[..., 0, 0] + g[..., 2, 2])
        gz = 2 * (x * s[..., 0, 2] + y * s[..., 1, 2] + w * a[..., 1, 0]) - 4 * z * (g[..., 0, 0] + g[..., 1, 1])
        return torch.stack([gw, gx, gy, gz], -1) / length


class BarycentricInterpolate(torch.autograd.Function):
    """Linear interpolation of corner values [3, c] at points [k, 2]; the corners move by `offset` from a fixed triangle."""

    @staticmethod
    def frame(offset):
        rest = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=offset.dtype, device=offset.device)
        corners = rest + offset
        edges = torch.stack([corners[0] - corners[2], corners[1] - corners[2]], 1)
        return corners[2], torch.linalg.inv(edges)

    @staticmethod
    def forward(ctx, offset, values, points):
        ctx.save_for_backward(offset, values, points)
        last, inverse = BarycentricInterpolate.frame(offset)
        lam = (points - last) @ inverse.T
        return values[2] + lam @ (values[:2] - values[2])

    @staticmethod
    def backward(ctx, g):
        offset, values, points = ctx.saved_tensors
        last, inverse = BarycentricInterpolate.frame(offset)
        lam = (points - last) @ inverse.T
        g_lam = g @ (values[:2] - values[2]).T
        g_point = g_lam @ inverse
        g_edges = -g_point.T @ lam
        g_offset = torch.stack([g_edges[:, 0], g_edges[:, 1], -g_edges.sum(1) - g_point.sum(0)])
        full = torch.cat([lam, 1 - lam.sum(1, keepdim=True)], 1)
        return g_offset, full.T @ g, None


class CatmullRom(torch.autograd.Function):
    """Interpolates the control values [k] at t in [0, k - 1]; the end values are repeated."""

    MATRIX = [[0, 1, 0, 0], [-0.5, 0, 0.5, 0], [1, -2.5, 2, -0.5], [-0.5, 1.5, -1.5, 0.5]]

    @classmethod
    def weights(cls, control, t):
        k = control.shape[0]
        left = t.floor().clamp(0, k - 2)
        u = (t - left)[:, None]
        m = torch.tensor(cls.MATRIX, dtype=t.dtype, device=t.device)
        idx = (left.long()[:, None] + torch.arange(-1, 3, device=t.device)).clamp(0, k - 1)
        value = torch.cat([torch.ones_like(u), u, u**2, u**3], 1) @ m
        slope = torch.cat([torch.zeros_like(u), torch.ones_like(u), 2 * u, 3 * u**2], 1) @ m
        return idx, value, slope

    @staticmethod
    def forward(ctx, control, t):
        ctx.save_for_backward(control, t)
        idx, value, _ = CatmullRom.weights(control, t)
        return (value * control[idx]).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        control, t = ctx.saved_tensors
        idx, value, slope = CatmullRom.weights(control, t)
        grad_control = torch.zeros_like(control)
        grad_control[idx] += g[:, None] * value
        return grad_control, g * (slope * control[idx]).sum(1)


class RoundedBoxSDF(torch.autograd.Function):
    """Signed distance of points [k, d] to a box with half sizes [d], grown by a radius."""

    @staticmethod
    def forward(ctx, p, half, radius):
        ctx.save_for_backward(p, half)
        q = p.abs() - half
        return q.clamp(min=0).norm(dim=1) + q.amax(1).clamp(max=0) - radius

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, half = ctx.saved_tensors
        q = p.abs() - half
        inside = q.amax(1, keepdim=True) < 0
        out = q.clamp(min=0)
        radial = out / torch.where(inside, 1.0, out.norm(dim=1, keepdim=True))
        nearest = torch.nn.functional.one_hot(q.argmax(1), p.shape[1]).to(p.dtype)
        gq = g[:, None] * torch.where(inside, nearest, radial)
        gp = torch.where(inside, gq, gq * p.sign())
        return gp, -gq.sum(0), -g.sum()


class PeriodicWarp(torch.autograd.Function):
    """Reads periodic rows x [b, n] at grid + shift, blending neighbours with a smooth step."""

    @staticmethod
    def neighbours(grid, shift):
        at = grid + shift
        base = at.floor()
        f = at - base
        n = grid.shape[0]
        i = base.long() % n
        return i, (i + 1) % n, f

    @staticmethod
    def forward(ctx, x, shift, grid):
        ctx.save_for_backward(x, shift, grid)
        i, j, f = PeriodicWarp.neighbours(grid, shift)
        w = f * f * (3 - 2 * f)
        return (1 - w) * x[:, i] + w * x[:, j]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, shift, grid = ctx.saved_tensors
        i, j, f = PeriodicWarp.neighbours(grid, shift)
        w = f * f * (3 - 2 * f)
        gx = torch.zeros_like(x).index_add_(1, i, g * (1 - w)).index_add_(1, j, g * w)
        gs = (g * (x[:, j] - x[:, i]) * 6 * f * (1 - f)).mean(0)
        return gx, gs, None


class RowWarp(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.shift = nn.Parameter(torch.full((n,), 0.3))
        self.register_buffer("grid", torch.arange(n, dtype=torch.get_default_dtype()))

    def forward(self, x):
        return PeriodicWarp.apply(x, self.shift, self.grid)


# ---------------------------------------------------------------------------------------------------------- probability


class TruncatedNormalLogPdf(torch.autograd.Function):
    """Log density of a normal variable that is kept positive; mu and sigma [n] against x [b, n]."""

    @staticmethod
    def forward(ctx, x, mu, sigma):
        ctx.save_for_backward(x, mu, sigma)
        z = (x - mu) / sigma
        return -0.5 * z * z - torch.log(sigma) - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(mu / sigma)

    @staticmethod
    def backward(ctx, g):
        x, mu, sigma = ctx.saved_tensors
        z = (x - mu) / sigma
        beta = mu / sigma
        hazard = torch.exp(-0.5 * beta * beta - torch.special.log_ndtr(beta)) / math.sqrt(2 * math.pi)
        gx = -g * z / sigma
        gmu = g * (z - hazard) / sigma
        gsigma = g * (z * z - 1 - hazard * beta) / sigma
        return gx.sum_to_size(x.shape), gmu.sum_to_size(mu.shape), gsigma.sum_to_size(sigma.shape)


class RegularizedGammaP(torch.autograd.Function):
    """P(a, x) of a fixed order a, by its series."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x)
        ctx.a = a
        ctx.log_norm = math.lgamma(a + 1)
        term = torch.ones_like(x)
        total = torch.ones_like(x)
        for k in range(1, 80):
            term = term * x / (a + k)
            total = total + term
        return total * torch.exp(a * torch.log(x) - x - ctx.log_norm)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp((ctx.a - 1) * torch.log(x) - x - ctx.log_norm), None


class MonotonicAlignment(torch.autograd.Function):
    """log sum over monotone alignments of the scores x [t, s]: each step stays or advances by one, from (0, 0) to the end."""

    @staticmethod
    def forward(ctx, x):
        steps, states = x.shape
        blocked = x.new_full((1,), -math.inf)
        row = torch.cat([x[0, :1], blocked.expand(states - 1)])
        rows = [row]
        for t in range(1, steps):
            row = torch.logaddexp(row, torch.cat([blocked, row[:-1]])) + x[t]
            rows.append(row)
        ctx.save_for_backward(x, torch.stack(rows))
        return row[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, alpha = ctx.saved_tensors
        steps, states = x.shape
        blocked = x.new_full((1,), -math.inf)
        beta = torch.cat([blocked.expand(states - 1), x.new_zeros(1)])
        grad = torch.empty_like(x)
        for t in range(steps - 1, -1, -1):
            grad[t] = torch.exp(alpha[t] + beta - alpha[-1, -1])
            beta = beta + x[t - 1]
            beta = torch.logaddexp(beta, torch.cat([beta[1:], blocked]))
        return g * grad


class LogErfcKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        far = x > 3
        near = torch.where(far, torch.zeros_like(x), x)
        tail = torch.where(far, x, torch.full_like(x, 3))
        return torch.where(far, torch.log(torch.special.erfcx(tail)) - tail * tail, torch.log(torch.special.erfc(near)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = -2 / math.sqrt(math.pi) / torch.special.erfcx(x)
        return g * torch.where(x > 3, -2 * x, slope)


def log_erfc(x):
    return LogErfcKernel.apply(x)


def log_erfc_composite(x):
    return torch.log(torch.special.erfcx(x)) - x * x


class DirichletLogPdf(torch.autograd.Function):
    """Log density per row: concentrations alpha [b, k], log probabilities logp [b, k]."""

    @staticmethod
    def forward(ctx, alpha, logp):
        ctx.save_for_backward(alpha, logp)
        return ((alpha - 1) * logp).sum(-1) + torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)

    @staticmethod
    def backward(ctx, g):
        alpha, logp = ctx.saved_tensors
        g = g.unsqueeze(-1)
        return g * (logp + torch.digamma(alpha.sum(-1)) - torch.digamma(alpha)), g * (alpha - 1)


class NegativeBinomialScore(torch.autograd.Function):
    """Derivatives of the log mass function by its two parameters."""

    @staticmethod
    def forward(ctx, counts, total, logits):
        ctx.save_for_backward(counts, total, logits)
        by_total = torch.digamma(counts + total) - torch.digamma(total) + torch.nn.functional.logsigmoid(-logits)
        by_logits = counts - (counts + total) * torch.sigmoid(logits)
        return by_total, by_logits

    @staticmethod
    @once_differentiable
    def backward(ctx, h_total, h_logits):
        counts, total, logits = ctx.saved_tensors
        p = torch.sigmoid(logits)
        curve = torch.polygamma(1, counts + total) - torch.polygamma(1, total)
        g_total = h_total * curve - h_logits * p
        g_logits = -h_logits * (counts + total) * p * (1 - p)
        return None, g_total.sum_to_size(total.shape), g_logits.sum_to_size(logits.shape)


class NegativeBinomialLogPmf(torch.autograd.Function):
    """Log mass of integer counts [b, n] with a total [n] and success logits [n]."""

    @staticmethod
    def forward(ctx, counts, total, logits):
        ctx.save_for_backward(counts, total, logits)
        binomial = torch.lgamma(counts + total) - torch.lgamma(total) - torch.lgamma(counts.to(total.dtype) + 1)
        return binomial + total * torch.nn.functional.logsigmoid(-logits) + counts * torch.nn.functional.logsigmoid(logits)

    @staticmethod
    def backward(ctx, g):
        counts, total, logits = ctx.saved_tensors
        by_total, by_logits = NegativeBinomialScore.apply(counts, total, logits)
        return None, (g * by_total).sum_to_size(total.shape), (g * by_logits).sum_to_size(logits.shape)


# ------------------------------------------------------------------------------------------------ contracts with autograd


class Squareplus(torch.autograd.Function):
    """(x + sqrt(x^2 + b)) / 2."""

    @staticmethod
    def forward(x, b):
        return (x + torch.sqrt(x * x + b)) / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, b = inputs
        ctx.b = b
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 0.5 * (1 + x / torch.sqrt(x * x + ctx.b)), None

    @staticmethod
    def jvp(ctx, x_t, _):
        (x,) = ctx.saved_tensors
        return x_t * 0.5 * (1 + x / (x * x + ctx.b))


class DecayScan(torch.autograd.Function):
    """y[t] = decay * y[t - 1] + x[t] over the first dimension."""

    @staticmethod
    def scan(rows, decay):
        out = [rows[0]]
        for row in rows[1:]:
            out.append(decay * out[-1] + row)
        return out

    @staticmethod
    def forward(x, decay):
        return torch.stack(DecayScan.scan(x.unbind(0), decay))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.decay = inputs

    @staticmethod
    def backward(ctx, g):
        return torch.stack(DecayScan.scan(g.unbind(0)[::-1], ctx.decay)[::-1]), None

    @staticmethod
    def vmap(info, in_dims, x, decay):
        x = x.movedim(in_dims[0], 0)
        return DecayScan.apply(x, decay), 0


class MeanStd(torch.autograd.Function):
    """Elementwise mean and population standard deviation over several tensors."""

    @staticmethod
    def forward(ctx, *xs):
        ctx.save_for_backward(*xs)
        x = torch.stack(xs)
        mean = x.mean(0)
        return mean, ((x - mean) ** 2).mean(0).sqrt()

    @staticmethod
    def backward(ctx, g_mean, g_std):
        x = torch.stack(ctx.saved_tensors)
        mean = x.mean(0)
        std = ((x - mean) ** 2).mean(0).sqrt()
        return tuple((g_std * (x - mean) / (std * len(x))).unbind(0))


class ScaledSwish(torch.autograd.Function):
    """x sigmoid(beta x)."""

    gate = None

    @staticmethod
    def forward(ctx, x, beta):
        ScaledSwish.gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * ScaledSwish.gate

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        s = ScaledSwish.gate
        bend = s * (1 - s)
        return g * (s + beta * x * bend), (g * x * x * bend).sum()


class SoftmaxCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        logp = torch.log_softmax(logits, 1)
        ctx.save_for_backward(logp.exp(), target)
        return -logp.gather(1, target[:, None])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, target = ctx.saved_tensors
        grad = p
        grad[torch.arange(len(target), device=p.device), target] -= 1
        return grad * g[:, None], None


@torch.library.custom_op("gating::gated_scale", mutates_args=())
def gated_scale(x: torch.Tensor, gate: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * x * torch.sigmoid(gate)


@gated_scale.register_fake
def _(x, gate, scale):
    return x.new_empty(torch.broadcast_shapes(x.shape, gate.shape))


def _gated_scale_context(ctx, inputs, output):
    x, gate, ctx.scale = inputs
    ctx.save_for_backward(x, gate)


def _gated_scale_backward(ctx, g):
    x, gate = ctx.saved_tensors
    s = torch.sigmoid(gate)
    gx = ggate = None
    if ctx.needs_input_grad[0]:
        gx = (ctx.scale * g * s).sum_to_size(x.shape)
    if ctx.needs_input_grad[0]:
        ggate = (ctx.scale * g * x * s * (1 - s)).sum_to_size(gate.shape)
    return gx, ggate, None


gated_scale.register_autograd(_gated_scale_backward, setup_context=_gated_scale_context)


# ----------------------------------------------------------------------------------------------- NumPy and plain Python


class LeakyIntegrator(torch.autograd.Function):
    """y[t] = leak * y[t - 1] + x[t] in NumPy; y[-1] is `start`, or zero."""

    @staticmethod
    def forward(ctx, x, leak, start: Optional[torch.Tensor]):
        xs = x.detach().cpu().numpy()
        k = leak.detach().cpu().numpy()
        s = np.zeros_like(k) if start is None else start.detach().cpu().numpy().copy()
        states = [s]
        for row in xs:
            states.append(k * states[-1] + row)
        y = torch.from_numpy(np.stack(states)).to(x.device)
        ctx.has_start = start is not None
        ctx.save_for_backward(leak, y)
        return y[1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        leak, y = (t.detach().cpu().numpy() for t in ctx.saved_tensors)
        gy = g.detach().cpu().numpy()
        steps = gy.shape[0]
        gx = np.zeros(gy.shape, gy.dtype)
        g_leak = np.zeros_like(leak)
        carry = np.zeros_like(leak)
        for t in range(steps - 1, -1, -1):
            carry = gy[t] + leak * carry
            gx[t] = carry
            g_leak += carry * y[t + 1]
        back = lambda a: torch.from_numpy(a).to(g.device)  # noqa: E731
        return back(gx), back(g_leak), back(leak * carry) if ctx.has_start else None


class IsotonicFit(torch.autograd.Function):
    """Least-squares nondecreasing fit by pooling adjacent violators."""

    @staticmethod
    def forward(ctx, y):
        blocks = []
        for i, v in enumerate(y.detach().cpu().tolist()):
            blocks.append([v, 1, i])
            while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
                s, n, _ = blocks.pop()
                blocks[-1][0] += s
                blocks[-1][1] += n
        ctx.blocks = [(i, i + n) for _, n, i in blocks]
        out = torch.empty_like(y)
        for s, n, i in blocks:
            out[i : i + n] = s / n
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        grad = torch.empty(g.shape, dtype=g.dtype, device=g.device)
        for lo, hi in ctx.blocks:
            grad[lo:hi] = g[lo:hi].sum()
        return grad


_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.erf.restype = ctypes.c_double
_libm.erf.argtypes = [ctypes.c_double]


class LibmErf(torch.autograd.Function):
    """erf from the C library, one call per entry."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        values = [_libm.erf(v) for v in x.detach().reshape(-1).tolist()]
        return torch.tensor(values, dtype=x.dtype, device=x.device).reshape(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        upstream = np.ravel(g.detach().cpu().numpy(), order="K")
        flat = x.detach().cpu().numpy().reshape(-1)
        out = np.empty_like(flat)
        for i in range(flat.size):
            out[i] = upstream[i] * 2.0 / math.sqrt(math.pi) * math.exp(-float(flat[i]) ** 2)
        return torch.from_numpy(out.reshape(tuple(x.shape))).to(g.device)


def _agm_integrals(m):
    """Complete elliptic integrals K(m) and E(m) by the arithmetic-geometric mean."""
    a, b, c2, power, total = 1.0, math.sqrt(1.0 - m), m, 0.5, 0.5 * m
    for _ in range(12):
        a, b, c2 = (a + b) / 2, math.sqrt(a * b), ((a - b) / 2) ** 2
        power *= 2
        total += power * c2
    K = math.pi / (2 * a)
    return K, K * (1 - total)


class EllipticK(torch.autograd.Function):
    """Complete elliptic integral of the first kind, of the parameter m."""

    @staticmethod
    def forward(ctx, m):
        pairs = torch.tensor([_agm_integrals(v) for v in m.reshape(-1).tolist()], dtype=m.dtype, device=m.device)
        K, E = pairs[:, 0].reshape(m.shape), pairs[:, 1].reshape(m.shape)
        ctx.save_for_backward(m, K, E)
        return K.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        m, K, E = ctx.saved_tensors
        return g * (E / (m * (1 - m * m)) - K / m)


class CumulativeTrapezoid(torch.autograd.Function):
    """Running integral along the last dimension, zero at the first sample."""

    @staticmethod
    def forward(ctx, y, dx):
        ctx.dx = dx
        a = y.detach().cpu().numpy()
        out = np.zeros(a.shape, a.dtype)
        out[..., 1:] = np.cumsum((a[..., 1:] + a[..., :-1]) * (dx / 2), axis=-1)
        return torch.from_numpy(out).to(y.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        gy = g.detach().cpu().numpy()
        tail = np.cumsum(gy[..., :0:-1], axis=-1)[..., ::-1] * (ctx.dx / 2)
        grad = np.zeros(gy.shape, dtype=np.float32)
        grad[..., :-1] += tail
        grad[..., 1:] += tail
        return torch.from_numpy(grad).to(g.device), None


class SoftDTW(torch.autograd.Function):
    """Soft dynamic time warping of a cost matrix [n, m] (Cuturi and Blondel, 2017)."""

    @staticmethod
    def forward(ctx, cost, gamma):
        D = cost.detach().cpu().numpy()
        n, m = D.shape
        R = np.full((n + 2, m + 2), np.inf, dtype=np.float64)
        R[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                z = -np.array([R[i - 1, j], R[i, j - 1], R[i - 1, j - 1]]) / gamma
                top = z.max()
                R[i, j] = D[i - 1, j - 1] - gamma * (top + np.log(np.exp(z - top).sum()))
        ctx.gamma = gamma
        ctx.save_for_backward(cost, torch.from_numpy(R))
        return cost.new_tensor(R[n, m])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        cost, R = (t.detach().cpu().numpy() for t in ctx.saved_tensors)
        n, m = cost.shape
        E = np.zeros((n + 2, m + 2))
        E[n, m] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                for a, b in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
                    if a <= n and b <= m:
                        E[i, j] += E[a, b] * math.exp(R[a, b] - R[i, j] - cost[a - 1, b - 1])
        return g * torch.from_numpy(E[1:-1, 1:-1].astype(cost.dtype)).to(g.device), None
