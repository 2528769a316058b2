"""Differentiable building blocks with hand-written gradients.

Spectra and complex signals, matrix functions, geometry, likelihoods, and a few numerical kernels that run outside of torch.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_LOG_2PI = math.log(2.0 * math.pi)


# ----------------------------------------------------------------------------------------------------------------------
# complex numbers and spectra
# ----------------------------------------------------------------------------------------------------------------------


class PhaseDifference(Function):
    """arg(conj(w) * z), elementwise."""

    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return torch.angle(w.conj() * z)

    @staticmethod
    def backward(ctx, grad):
        z, w = ctx.saved_tensors
        gz = gw = None
        if ctx.needs_input_grad[0]:
            gz = 1j * grad * z / (z.real.square() + z.imag.square())
        if ctx.needs_input_grad[1]:
            gw = -1j * grad * w / (w.real.square() + w.imag.square())
        return gz, gw


class PowerSpectrum(Function):
    """One-sided periodogram of a real signal, along the last dimension."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        spec = torch.fft.rfft(x, norm="ortho")
        return spec.real**2 + spec.imag**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        spec = torch.fft.rfft(x, norm="ortho")
        # the bins that the one-sided spectrum leaves out have no gradient: ifft pads them with zeros
        return 2 * torch.fft.ifft(grad * spec, n=x.shape[-1], norm="ortho").real


class HermitianEigenvalues(Function):
    """Eigenvalues, ascending, of the Hermitian part of each matrix."""

    @staticmethod
    def forward(ctx, a):
        h = (a + a.mH) / 2
        w, v = torch.linalg.eigh(h)
        ctx.save_for_backward(v)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return (v * grad.unsqueeze(-2)) @ v.mH


class UnitPhasor(Function):
    """z / |z|."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z):
        return z / z.abs()

    @staticmethod
    def setup_context(ctx, inputs, output):
        (z,) = inputs
        ctx.save_for_backward(z, output)
        ctx.save_for_forward(z, output)

    @staticmethod
    def _project(z, u, t):
        return (t - u * (u.conj() * t).real) / z.abs()

    @staticmethod
    def backward(ctx, grad):
        z, u = ctx.saved_tensors
        return UnitPhasor._project(z, u, grad)

    @staticmethod
    def jvp(ctx, tangent):
        z, u = ctx.saved_tensors
        return UnitPhasor._project(z, u, tangent)


class CircularConv(Function):
    """Circular convolution of real rows x with one complex kernel, plus an optional complex offset per position."""

    @staticmethod
    def forward(ctx, x, kernel, offset):
        ctx.save_for_backward(x, kernel)
        y = torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(kernel))
        return y if offset is None else y + offset

    @staticmethod
    def backward(ctx, g):
        x, kernel = ctx.saved_tensors
        need_x, need_k, need_o = ctx.needs_input_grad
        gf = torch.fft.fft(g)
        gx = torch.fft.ifft(gf * torch.fft.fft(kernel).conj()).real if need_x else None
        gk = torch.fft.ifft(gf * torch.fft.fft(x).conj()).sum_to_size(kernel.shape) if need_k else None
        go = g.sum_to_size(kernel.shape) if need_o else None
        return gx, gk, go


class ModReLU(Function):
    """relu(|z| + b) * z / |z| with one real bias per channel (last dimension)."""

    @staticmethod
    def forward(ctx, z, bias):
        ctx.save_for_backward(z, bias)
        r = z.abs()
        return torch.relu(r + bias) / r * z

    @staticmethod
    def backward(ctx, g):
        z, bias = ctx.saved_tensors
        r = z.abs()
        u = z / r
        active = (r + bias > 0).to(r.dtype)
        radial = (u.conj() * g).real
        gz = active * (g + bias / r * (g - u * radial))
        gb = (active * radial).reshape(-1, bias.shape[-1]).sum(0)
        return gz, gb


# ----------------------------------------------------------------------------------------------------------------------
# matrices
# ----------------------------------------------------------------------------------------------------------------------


class SPDSolve(Function):
    @staticmethod
    def forward(ctx, A, B):
        X = torch.cholesky_solve(B, torch.linalg.cholesky(A))
        ctx.save_for_backward(A, X)
        return X

    @staticmethod
    def backward(ctx, G):
        A, X = ctx.saved_tensors
        V = torch.cholesky_solve(G, torch.linalg.cholesky(A))
        W = V @ X.mT
        return -(W + W.mT) / 2, V


class CholeskyFactor(Function):
    """Lower Cholesky factor; reverse mode after Murray (2016), blocked as one level-3 expression."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        chol = torch.linalg.cholesky(a)
        ctx.save_for_backward(chol)
        return chol

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (chol,) = ctx.saved_tensors
        phi = torch.tril(chol.mT @ g)
        phi = phi - torch.diag_embed(phi.diagonal(dim1=-2, dim2=-1)) / 2
        half = torch.linalg.solve_triangular(chol.mT, phi, upper=True)
        full = torch.linalg.solve_triangular(chol, half, upper=False, left=False)
        return (full + full.mT) / 2


class ThinQR(Function):
    """Q, R of a tall matrix with a positive diagonal of R, so that both are unique."""

    @staticmethod
    def forward(ctx, a):
        q, r = torch.linalg.qr(a, mode="reduced")
        flip = torch.where(r.diagonal() < 0, -1.0, 1.0).to(a.dtype)
        q, r = q * flip, flip[:, None] * r
        ctx.save_for_backward(q, r)
        return q, r

    @staticmethod
    def backward(ctx, gq, gr):
        q, r = ctx.saved_tensors
        m = r @ gr.mT - gq.mT @ q
        sym = m.tril() + m.tril(-1).mT
        return torch.linalg.solve_triangular(r.mT, gq + q @ sym, upper=False, left=False)


class LyapunovSolve(Function):
    """X with M X + X M^T = Q where M = A + shift * I."""

    @staticmethod
    def forward(ctx, A, Q, shift=2.0):
        n = A.shape[0]
        eye = torch.eye(n, dtype=A.dtype, device=A.device)
        M = (A + shift * eye).contiguous()
        # row-major vec: vec(M X) = (M kron I) vec X, vec(X M^T) = (I kron M) vec X
        big = torch.kron(M, eye) + torch.kron(eye, M)
        X = torch.linalg.solve(big, Q.reshape(-1)).reshape(n, n)
        ctx.shift = shift
        ctx.save_for_backward(A, X)
        return X

    @staticmethod
    def backward(ctx, G):
        A, X = ctx.saved_tensors
        S = LyapunovSolve.apply(A.mT, G, ctx.shift)
        return -(S @ X.mT + S.mT @ X), S, None


class SPDSqrt(Function):
    """Principal square root of a symmetric positive definite matrix."""

    @staticmethod
    def forward(ctx, a):
        w, v = torch.linalg.eigh(a)
        root = (v * w.sqrt()) @ v.mT
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        root = ctx.saved_tensors[0].contiguous()
        n = root.shape[-1]
        eye = torch.eye(n, dtype=root.dtype, device=root.device)
        # the adjoint of dS S + S dS = dA is the same Sylvester equation
        z = torch.linalg.solve(torch.kron(root, eye) + torch.kron(eye, root), g.reshape(n * n)).reshape(n, n)
        return 0.5 * (z + z.T)


class DiagPlusLowRankSolve(Function):
    """(diag(d) + U U^T)^-1 b by the Woodbury identity, never forming the n x n matrix."""

    @staticmethod
    def forward(ctx, d, U, b):
        scaled = U / d[:, None]
        core = torch.eye(U.shape[1], dtype=U.dtype, device=U.device) + U.T @ scaled
        x = b / d - scaled @ torch.linalg.solve(core, scaled.T @ b)
        ctx.save_for_backward(d, U, x)
        return x

    @staticmethod
    def backward(ctx, g):
        d, U, x = ctx.saved_tensors
        v = DiagPlusLowRankSolve.apply(d, U, g)
        gd = gu = None
        if ctx.needs_input_grad[0]:
            gd = -v * x
        if ctx.needs_input_grad[1]:
            gu = -(torch.outer(v, x @ U) + torch.outer(x, v @ U))
        return gd, gu, v


# ----------------------------------------------------------------------------------------------------------------------
# geometry
# ----------------------------------------------------------------------------------------------------------------------


def hat(w):
    """Skew matrices [..., 3, 3] of vectors [..., 3]."""
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*w.shape[:-1], 3, 3)


def _power_series(t, coefficients):
    out = torch.zeros_like(t)
    for c in reversed(coefficients):
        out = out * t + c
    return out


_SERIES = range(12)
_A = [(-1) ** k / math.factorial(2 * k + 1) for k in _SERIES]
_B = [(-1) ** k / math.factorial(2 * k + 2) for k in _SERIES]
_DA = [(k + 1) * c for k, c in enumerate(_A[1:])]
_DB = [(k + 1) * c for k, c in enumerate(_B[1:])]


def _rodrigues_coefficients(t):
    """sin(h)/h, (1 - cos(h))/h^2 and their derivatives, in t = h^2; a series below 1, where the quotients cancel."""
    small = t < 1
    safe = torch.where(small, torch.ones_like(t), t)
    h = safe.sqrt()
    a = h.sin() / h
    b = (1 - h.cos()) / safe
    da = (h.cos() - a) / (2 * safe)
    db = (a - 2 * b) / (2 * safe)
    tt = torch.where(small, t, torch.zeros_like(t))
    closed = (a, b, da, db)
    series = tuple(_power_series(tt, c) for c in (_A, _B, _DA, _DB))
    return tuple(torch.where(small, s, c) for s, c in zip(series, closed))


class SO3Exp(Function):
    """Rotation matrices of rotation vectors (Rodrigues)."""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        a, b, _, _ = _rodrigues_coefficients((w * w).sum(-1))
        k = hat(w)
        eye = torch.eye(3, dtype=w.dtype, device=w.device)
        return eye + a[..., None, None] * k + b[..., None, None] * (k @ k)

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        a, b, da, db = _rodrigues_coefficients((w * w).sum(-1))
        k = hat(w)
        ga = (g * k).sum((-2, -1))
        gb = (g * (k @ k)).sum((-2, -1))
        gk = a[..., None, None] * g + b[..., None, None] * (g @ k.mT + k.mT @ g)
        axial = torch.stack([gk[..., 2, 1] - gk[..., 1, 2], gk[..., 0, 2] - gk[..., 2, 0], gk[..., 1, 0] - gk[..., 0, 1]], -1)
        return axial + 2 * (ga * da + gb * db)[..., None] * w


def so3_exp_composite(w):
    return torch.linalg.matrix_exp(hat(w))


class QuaternionRotate(Function):
    """Rotates the points v [b, n, 3] by the quaternions q [b, 4] = (w, x, y, z), of any length."""

    @staticmethod
    def _turn(w, u, v):
        c = torch.linalg.cross(u, v)
        return v + 2 * w * c + 2 * torch.linalg.cross(u, c)

    @staticmethod
    def forward(q, v):
        unit = q / q.norm(dim=-1, keepdim=True)
        w = unit[:, None, :1]
        u = unit[:, None, 1:].expand_as(v)
        return QuaternionRotate._turn(w, u, v)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        q, v = ctx.saved_tensors
        length = q.norm(dim=-1, keepdim=True)
        unit = q / length
        w = unit[:, None, :1]
        u = unit[:, None, 1:].expand_as(v)
        cross = torch.linalg.cross
        gq = gv = None
        if ctx.needs_input_grad[0]:
            uv = cross(u, v)
            gw = 2 * (g * uv).sum((-2, -1))[:, None]
            gu = 2 * (w * cross(v, g) + cross(uv, g) + cross(v, cross(g, u))).sum(-2)
            raw = torch.cat([gw, gu], -1)
            gq = (raw - unit * (unit * raw).sum(-1, keepdim=True)) / length
        if ctx.needs_input_grad[1]:
            gv = QuaternionRotate._turn(-w, u, g)
        return gq, gv


class BilinearSample(Function):
    """Samples img [c, h, w] at pixel coordinates xy [k, 2]; the outermost cells extrapolate."""

    @staticmethod
    def _cell(img, xy):
        h, w = img.shape[-2:]
        x, y = xy[:, 0], xy[:, 1]
        i = x.detach().floor().clamp(0, w - 2)
        j = y.detach().floor().clamp(0, h - 2)
        return i.long(), j.long(), x - i, y - j

    @staticmethod
    def forward(ctx, img, xy):
        ctx.save_for_backward(img, xy)
        i, j, u, v = BilinearSample._cell(img, xy)
        top = img[:, j, i] * (1 - u) + img[:, j, i + 1] * u
        bottom = img[:, j + 1, i] * (1 - u) + img[:, j + 1, i + 1] * u
        return top * (1 - v) + bottom * v

    @staticmethod
    def backward(ctx, g):
        img, xy = ctx.saved_tensors
        i, j, u, v = BilinearSample._cell(img, xy)
        g_img = g_xy = None
        if ctx.needs_input_grad[0]:
            ch = torch.arange(img.shape[0], device=img.device)[:, None]
            g_img = torch.zeros_like(img)
            for dj, wv in ((0, 1 - v), (1, v)):
                for di, wu in ((0, 1 - u), (1, u)):
                    g_img = g_img.index_put((ch, j + dj, i + di), g * wu * wv, accumulate=True)
        if ctx.needs_input_grad[1]:
            p00, p01 = img[:, j, i], img[:, j, i + 1]
            p10, p11 = img[:, j + 1, i], img[:, j + 1, i + 1]
            along_x = (p01 - p00) * (1 - v) + (p11 - p10) * v
            along_y = (p10 - p00) * (1 - u) + (p11 - p01) * u
            g_xy = torch.stack([(g * along_x).sum(0), (g * along_y).sum(0)], -1)
        return g_img, g_xy


class UniformBSpline(Function):
    """Cubic B-spline with unit knots: control [k, d], t [m] in [0, k - 3]; basis is six times the usual matrix."""

    @staticmethod
    def forward(ctx, control, basis, t):
        ctx.save_for_backward(control, basis, t)
        seg, powers, _ = UniformBSpline._local(control, t)
        weights = powers @ basis / 6
        return torch.einsum("mj,mjd->md", weights, control[seg])

    @staticmethod
    def _local(control, t):
        first = t.detach().floor().clamp(0, control.shape[0] - 4)
        u = t - first
        one, zero = torch.ones_like(u), torch.zeros_like(u)
        seg = first.long()[:, None] + torch.arange(4, device=t.device)
        return seg, torch.stack([one, u, u * u, u * u * u], -1), torch.stack([zero, one, 2 * u, 3 * u * u], -1)

    @staticmethod
    def backward(ctx, g):
        control, basis, t = ctx.saved_tensors
        seg, powers, slopes = UniformBSpline._local(control, t)
        weights = powers @ basis / 6
        spread = weights[:, :, None] * g[:, None, :]
        g_control = torch.zeros_like(control).index_add(0, seg.reshape(-1), spread.reshape(-1, control.shape[1]))
        g_t = torch.einsum("mj,mjd,md->m", slopes @ basis / 6, control[seg], g)
        return g_control, None, g_t


class BSplineCurve(nn.Module):
    """A learnable curve in d dimensions with k control points."""

    def __init__(self, k, d):
        super().__init__()
        self.control = nn.Parameter(torch.linspace(-1.0, 1.0, k * d).reshape(k, d))
        self.register_buffer("basis", torch.tensor([[1.0, 4, 1, 0], [-3, 0, 3, 0], [3, -6, 3, 0], [-1, 3, -3, 1]]))

    def forward(self, t):
        return UniformBSpline.apply(self.control, self.basis, t)


class SoftDisk(Function):
    """A disk drawn with soft edges on a pixel grid: sigmoid((radius - distance) / softness)."""

    @staticmethod
    def forward(ctx, center, radius, softness, height, width):
        ctx.save_for_backward(center, radius, softness)
        ctx.frame = height, width
        return SoftDisk._draw(center, radius, softness, height, width)[-1]

    @staticmethod
    def _draw(center, radius, softness, height, width):
        rows = torch.arange(height, dtype=center.dtype, device=center.device)[:, None] - center[0]
        cols = torch.arange(width, dtype=center.dtype, device=center.device)[None, :] - center[1]
        dist = (rows * rows + cols * cols + 1e-4).sqrt()
        return rows, cols, dist, torch.sigmoid((radius - dist) / softness)

    @staticmethod
    def backward(ctx, g):
        center, radius, softness = ctx.saved_tensors
        rows, cols, dist, ink = SoftDisk._draw(center, radius, softness, *ctx.frame)
        edge = g * ink * (1 - ink) / softness
        g_center = torch.stack([(edge * rows / dist).sum(), (edge * cols / dist).sum()])
        return g_center, edge.sum(), -(edge * (radius - dist)).sum() / softness, None, None


class RaySphereDepth(Function):
    """Depth along the rays origin + (0, 0, -3) + t (slope, 1) of the first hit of a sphere; t by Newton on the distance."""

    @staticmethod
    def _ray(origin, slope):
        back = torch.tensor([0.0, 0.0, -3.0], dtype=origin.dtype, device=origin.device)
        return origin + back, torch.cat([slope, torch.ones_like(slope[:, :1])], 1)

    @staticmethod
    def forward(ctx, origin, slope, center, radius):
        eye, ray = RaySphereDepth._ray(origin, slope)
        t = torch.full_like(slope[:, 0], 1.0)
        for _ in range(16):
            rel = eye + t[:, None] * ray - center
            dist = rel.norm(dim=1)
            t = t - (dist - radius) * dist / (rel * ray).sum(1)
        ctx.save_for_backward(origin, slope, center, t)
        return t

    @staticmethod
    def backward(ctx, g):
        # 0 = |eye + t ray - center| - radius, differentiated at the root
        origin, slope, center, t = ctx.saved_tensors
        eye, ray = RaySphereDepth._ray(origin, slope)
        rel = eye + t[:, None] * ray - center
        normal = rel / rel.norm(dim=1, keepdim=True)
        k = -g / (normal * ray).sum(1)
        push = k[:, None] * normal
        return push.sum(0), (t[:, None] * push)[:, :2], -push.sum(0), -k.sum()


# ----------------------------------------------------------------------------------------------------------------------
# probability
# ----------------------------------------------------------------------------------------------------------------------


class InverseMills(Function):
    """phi(x) / Phi(x), without overflow in either tail."""

    @staticmethod
    def forward(ctx, x):
        m = math.sqrt(2 / math.pi) / torch.special.erfcx(-x * math.sqrt(0.5))
        ctx.save_for_backward(x, m)
        return m

    @staticmethod
    def backward(ctx, g):
        x, m = ctx.saved_tensors
        return -g * m * (x + m)


class LogNdtr(Function):
    """log of the standard normal distribution function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.log_ndtr(x)

    @staticmethod
    def backward(ctx, g):
        return g * InverseMills.apply(*ctx.saved_tensors)


class StudentTKernel(Function):
    @staticmethod
    def forward(ctx, x, df, loc, scale):
        ctx.save_for_backward(x, df, loc, scale)
        z = (x - loc) / scale
        norm = torch.lgamma(df / 2) - torch.lgamma((df + 1) / 2) + 0.5 * torch.log(math.pi * df) + torch.log(scale)
        return -(df + 1) / 2 * torch.log1p(z * z / df) - norm

    @staticmethod
    def backward(ctx, g):
        x, df, loc, scale = ctx.saved_tensors
        z = (x - loc) / scale
        denom = df + z * z
        dz = -(df + 1) * z / denom
        ddf = 0.5 * (
            torch.digamma((df + 1) / 2) - torch.digamma(df / 2) - 1 / df - torch.log1p(z * z / df) + (df + 1) * z * z / (df * denom)
        )
        along = g * dz / scale
        return (
            along.sum_to_size(x.shape),
            (g * ddf).sum_to_size(df.shape),
            -along.sum_to_size(loc.shape),
            (-along * z - g / scale).sum_to_size(scale.shape),
        )


def student_t_logpdf(x, df, loc, scale):
    """Log density of Student's t; x [b, n], df scalar, loc and scale [n]."""
    return StudentTKernel.apply(x, df, loc, scale)


def student_t_composite(x, df, loc, scale):
    return torch.distributions.StudentT(df, loc, scale, validate_args=False).log_prob(x)


@torch.library.custom_op("dirstat::von_mises_logpdf", mutates_args=())
def von_mises_logpdf(x: Tensor, mu: Tensor, kappa: Tensor) -> Tensor:
    # kappa cos - log I0(kappa) with I0 = i0e(kappa) exp(kappa)
    return kappa * (torch.cos(x - mu) - 1) - torch.log(torch.special.i0e(kappa)) - _LOG_2PI


@von_mises_logpdf.register_fake
def _(x, mu, kappa):
    return x.new_empty(torch.broadcast_shapes(x.shape, mu.shape, kappa.shape))


def _von_mises_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _von_mises_backward(ctx, g):
    x, mu, kappa = ctx.saved_tensors
    pull = -g * kappa * torch.sin(x - mu)
    ratio = torch.special.i1e(kappa) / torch.special.i0e(kappa)
    return pull.sum_to_size(x.shape), -pull.sum_to_size(mu.shape), (g * (torch.cos(x - mu) - ratio)).sum_to_size(kappa.shape)


von_mises_logpdf.register_autograd(_von_mises_backward, setup_context=_von_mises_setup)


class HMMLogLikelihood(Function):
    """log sum over state paths of a chain with log potentials: start [s], transition [s, s] (from, to), emission [t, s]."""

    @staticmethod
    def forward(ctx, start, transition, emission):
        alpha = [start + emission[0]]
        for e in emission[1:]:
            alpha.append(torch.logsumexp(alpha[-1][:, None] + transition, 0) + e)
        total = torch.logsumexp(alpha[-1], 0)
        ctx.save_for_backward(transition, emission, torch.stack(alpha), total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        transition, emission, alpha, total = ctx.saved_tensors
        steps = emission.shape[0]
        beta = torch.zeros_like(alpha[0])
        posterior = torch.empty_like(alpha)
        pairs = torch.zeros_like(transition)
        for t in range(steps - 1, -1, -1):
            posterior[t] = (alpha[t] + beta - total).exp()
            if t > 0:
                ahead = emission[t] + beta
                pairs += (alpha[t - 1][:, None] + transition + ahead - total).exp()
                beta = torch.logsumexp(transition + ahead, 1)
        return g * posterior[0], g * pairs, g * posterior


class DiagonalMixture(Function):
    """Negative log-likelihood [b] of x [b, d] under a mixture of k diagonal Gaussians."""

    @staticmethod
    def _joint(x, logits, means, log_scales):
        z = (x[:, None] - means) * torch.exp(-log_scales)
        parts = -0.5 * (z * z).sum(-1) - log_scales.sum(-1) - 0.5 * x.shape[1] * _LOG_2PI
        return z, parts + torch.log_softmax(logits, 0)

    @staticmethod
    def forward(ctx, x, logits, means, log_scales):
        ctx.save_for_backward(x, logits, means, log_scales)
        return -torch.logsumexp(DiagonalMixture._joint(x, logits, means, log_scales)[1], 1)

    @staticmethod
    def backward(ctx, g):
        x, logits, means, log_scales = ctx.saved_tensors
        z, joint = DiagonalMixture._joint(x, logits, means, log_scales)
        resp = g[:, None] * torch.softmax(joint, 1)  # [b, k]
        pull = resp[..., None] * z * torch.exp(-log_scales)  # [b, k, d]
        g_logits = g.sum() * torch.softmax(logits, 0) - resp.sum(0)
        weight = resp[..., None]
        g_scales = (weight - weight * z * z).sum(0)
        return pull.sum(1), g_logits, -pull.sum(0), g_scales


class MixtureNLL(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(k))
        self.means = nn.Parameter(torch.linspace(-1, 1, k * d).reshape(k, d))
        self.log_scales = nn.Parameter(torch.zeros(k, d))

    def forward(self, x):
        return DiagonalMixture.apply(x, self.logits, self.means, self.log_scales)


# ----------------------------------------------------------------------------------------------------------------------
# the autograd interface
# ----------------------------------------------------------------------------------------------------------------------


class LogCosh(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        a = x.abs()
        return a + torch.log1p(torch.exp(-2 * a)) - math.log(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].tanh()

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].tanh()


class PairwiseSquaredDistance(Function):
    """|x_i - y_j|^2 for x [..., n, d] and y [..., m, d]."""

    @staticmethod
    def forward(x, y):
        return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = 2 * (g.sum(-1).unsqueeze(-1) * x - g @ y)
        gy = 2 * (g.sum(-2).unsqueeze(-1) * y - g.transpose(-1, -2) @ x)
        return gx, gy

    @staticmethod
    def vmap(info, in_dims, x, y):
        def front(t, dim):
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        return PairwiseSquaredDistance.apply(front(x, in_dims[0]), front(y, in_dims[1])), 0


class SortWithRank(Function):
    """Sorted rows, and the rank of each entry (an integer output without a gradient)."""

    @staticmethod
    def forward(ctx, x, descending=False):
        values, order = torch.sort(x, dim=-1, descending=descending)
        rank = torch.empty_like(order)
        rank.scatter_(-1, order, torch.arange(x.shape[-1], device=x.device).expand_as(order))
        ctx.mark_non_differentiable(rank)
        ctx.save_for_backward(rank)
        return values, rank

    @staticmethod
    def backward(ctx, g_values, _g_rank):
        (rank,) = ctx.saved_tensors
        return g_values.gather(-1, rank), None


class TanhInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.tanh_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - g * y * y


class HeadTail(Function):
    """The first `head` columns and the others, as views."""

    @staticmethod
    def forward(ctx, x, head):
        ctx.set_materialize_grads(False)
        ctx.parts = x[:, :head].shape, x[:, head:].shape
        return x[:, :head], x[:, head:]

    @staticmethod
    def backward(ctx, g_head, g_tail):
        if g_head is None and g_tail is None:
            return None, None
        first, second = ctx.parts
        if g_head is None:
            g_head = g_tail.new_zeros(first)
        if g_tail is None:
            g_tail = g_head.new_zeros(second)
        return torch.cat([g_head, g_tail], 1), None


class WeightedSum(Function):
    """sum_i weights[i] * xs[i], the xs broadcast against each other."""

    @staticmethod
    def forward(ctx, weights, *xs):
        ctx.save_for_backward(weights, *xs)
        return sum(w * x for w, x in zip(weights, xs))

    @staticmethod
    def backward(ctx, g):
        weights, *xs = ctx.saved_tensors
        g_weights = torch.stack([(g * x).sum() for x in xs]) if ctx.needs_input_grad[0] else None
        return (g_weights, *((w * g).sum_to_size(x.shape) for w, x in zip(weights, xs)))


# ----------------------------------------------------------------------------------------------------------------------
# kernels outside of torch
# ----------------------------------------------------------------------------------------------------------------------


def _numpy(t):
    return t.detach().cpu().numpy()


def _thomas(lower, diag, upper, rhs):
    """Tridiagonal solve; lower[i] couples i + 1 to i, upper[i] couples i to i + 1."""
    n = diag.shape[0]
    c = np.zeros_like(diag)
    x = np.array(rhs)
    pivot = diag[0]
    x[0] = x[0] / pivot
    for i in range(1, n):
        c[i] = upper[i - 1] / pivot
        pivot = diag[i] - lower[i - 1] * c[i]
        x[i] = (x[i] - lower[i - 1] * x[i - 1]) / pivot
    for i in range(n - 2, -1, -1):
        x[i] -= c[i + 1] * x[i + 1]
    return x


class TridiagonalSolve(Function):
    @staticmethod
    def forward(ctx, lower, diag, upper, rhs):
        x = torch.from_numpy(_thomas(*map(_numpy, (lower, diag, upper, rhs)))).to(rhs.device)
        ctx.save_for_backward(lower, diag, upper, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lower, diag, upper, x = map(_numpy, ctx.saved_tensors)
        v = _thomas(upper, diag, lower, _numpy(g))  # the transposed system
        out = (-v[1:] * x[:-1], -v * x, -v[:-1] * x[1:], v)
        return tuple(torch.from_numpy(np.ascontiguousarray(o)).to(g.device) for o in out)


def _lambert_w(x: float) -> float:
    w = math.log1p(x) if x < 1 else 0.7 * math.log(1 + x)
    for _ in range(40):
        e = math.exp(w)
        f = w * e - x
        step = f / (e * (w + 1) - (w + 2) * f / (2 * w + 2))
        w -= step
        if abs(step) <= 1e-16 * (1 + abs(w)):
            break
    return w


class LambertW(Function):
    """Principal branch, by Halley's iteration in Python floats."""

    @staticmethod
    def forward(ctx, x):
        w = torch.tensor([_lambert_w(v) for v in x.flatten().tolist()], dtype=x.dtype, device=x.device).reshape(x.shape)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * torch.exp(-w) / (1 + w)


_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.jn.restype = ctypes.c_double
_libm.jn.argtypes = [ctypes.c_int, ctypes.c_double]


class BesselJ(Function):
    """J_n(x) of integer order from the C library."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        out = np.empty(tuple(x.shape), dtype=np.float64)
        for at, v in np.ndenumerate(_numpy(x)):
            out[at] = _libm.jn(n, float(v))
        return torch.as_tensor(out, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (BesselJ.apply(x, ctx.n - 1) - BesselJ.apply(x, ctx.n + 1)) / 2, None


class LogAddExpLoop(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        out = a.detach().cpu().clone()
        out.map_(b.detach().cpu(), lambda p, q: max(p, q) + math.log1p(math.exp(-abs(p - q))))
        return out.to(a.device)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * torch.sigmoid(a - b), g * torch.sigmoid(b - a)


class ExponentialSmoothing(Function):
    """y[t] = a y[t-1] + (1 - a) x[t] over the first dimension, y[-1] = 0, one factor a per column."""

    @staticmethod
    def forward(ctx, x, a):
        xs, al = _numpy(x), _numpy(a)
        y = np.empty_like(xs, order="C")
        state = np.zeros_like(al)
        for t in range(len(xs)):
            state = al * state + (1 - al) * xs[t]
            y[t] = state
        y = torch.from_numpy(y).to(x.device)
        ctx.save_for_backward(x, a, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a, y = map(_numpy, ctx.saved_tensors)
        gy = _numpy(g)
        gx = np.empty_like(x, order="C")
        ga = np.zeros_like(a)
        carry = np.zeros_like(a)
        for t in reversed(range(len(x))):
            carry = gy[t] + a * carry
            gx[t] = (1 - a) * carry
            ga += carry * ((y[t - 1] if t else 0.0) - x[t])
        return torch.from_numpy(gx).to(g.device), torch.from_numpy(ga).to(g.device)


def kepler_solver(iterations):
    """A scalar solver of E - e sin E = M."""

    def solve(mean, ecc):
        E = mean + ecc * math.sin(mean)
        for _ in range(iterations):
            E -= (E - ecc * math.sin(E) - mean) / (1 - ecc * math.cos(E))
        return E

    return solve


newton = kepler_solver(iterations=25)


class EccentricAnomaly(Function):
    """Kepler's equation for each mean anomaly and one eccentricity, with the given scalar solver."""

    @staticmethod
    def forward(ctx, mean, ecc, solve):
        e = ecc.item()
        E = mean.new_tensor([solve(m, e) for m in mean.reshape(-1).tolist()]).reshape(mean.shape)
        ctx.save_for_backward(ecc, E)
        return E

    @staticmethod
    def backward(ctx, g):
        ecc, E = ctx.saved_tensors
        v = g / (1 - ecc * torch.cos(E))
        return v, (v * torch.sin(E)).sum(), None
