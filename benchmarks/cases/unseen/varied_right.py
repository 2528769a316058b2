"""Differentiable operators collected from several projects: solvers, physics, signal processing, losses, kernels."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_HALF = (torch.float16, torch.bfloat16)


def _opmath(t: Tensor) -> Tensor:
    """16-bit inputs are computed in float32, everything else as it is."""
    return t.float() if t.dtype in _HALF else t


# --------------------------------------------------------------------------------------------------------------------
# linear algebra and solvers
# --------------------------------------------------------------------------------------------------------------------


def _thomas(lower, diag, upper, rhs):
    ratios, partial = [], []
    for i in range(diag.shape[0]):
        pivot = diag[i] if i == 0 else diag[i] - lower[i] * ratios[-1]
        right = rhs[i] if i == 0 else rhs[i] - lower[i] * partial[-1]
        ratios.append(upper[i] / pivot)
        partial.append(right / pivot)
    solution = [partial[-1]]
    for i in reversed(range(diag.shape[0] - 1)):
        solution.append(partial[i] - ratios[i] * solution[-1])
    return torch.stack(solution[::-1])


class TridiagonalSolve(Function):
    """x with A x = rhs, where A has the three diagonals given (lower[0] and upper[-1] are padding)."""

    @staticmethod
    def forward(ctx, lower, diag, upper, rhs):
        x = _thomas(lower, diag, upper, rhs)
        ctx.save_for_backward(lower, diag, upper, x)
        return x

    @staticmethod
    def backward(ctx, grad_x):
        lower, diag, upper, x = ctx.saved_tensors
        pad = diag.new_zeros(1)
        # the adjoint system has the off-diagonals exchanged and shifted
        lam = TridiagonalSolve.apply(torch.cat([pad, upper[:-1]]), diag, torch.cat([lower[1:], pad]), grad_x)
        grad_lower = torch.cat([pad, -(lam[1:] * x[:-1]).sum(1)])
        grad_upper = torch.cat([-(lam[:-1] * x[1:]).sum(1), pad])
        return grad_lower, -(lam * x).sum(1), grad_upper, lam


class ContinuousLyapunov(Function):
    """X with A X + X A^T = Q."""

    @staticmethod
    def forward(ctx, A, Q):
        n = A.shape[0]
        eye = torch.eye(n, dtype=A.dtype, device=A.device)
        system = torch.kron(A.contiguous(), eye) + torch.kron(eye, A.contiguous())
        X = torch.linalg.solve(system, Q.reshape(-1)).reshape(n, n)
        ctx.save_for_backward(A, X)
        return X

    @staticmethod
    def backward(ctx, G):
        A, X = ctx.saved_tensors
        S = ContinuousLyapunov.apply(A.mT, G)
        return -(S @ X.mT + S.mT @ X), S


def lyapunov_arguments(generator, device, dtype, n):
    A = 0.4 * torch.randn(n, n, generator=generator, dtype=torch.float64) - 2.0 * torch.eye(n, dtype=torch.float64)
    Q = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_() for t in (A, Q))


class KeplerAnomaly(Function):
    """Eccentric anomaly E with E - e sin E = M (Newton iteration, implicit derivative)."""

    @staticmethod
    def forward(mean_anomaly, eccentricity):
        E = mean_anomaly + eccentricity * torch.sin(mean_anomaly)
        for _ in range(60):
            E = E - (E - eccentricity * torch.sin(E) - mean_anomaly) / (1 - eccentricity * torch.cos(E))
        return E

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx, grad):
        ecc, E = ctx.saved_tensors
        dM = grad / (1 - ecc * torch.cos(E))
        return dM, dM * torch.sin(E)


class GrandPotential(Function):
    """Omega = -T sum log(1 + exp((mu - e_i) / T)) over the levels of H c = e S c; the levels come along as a constant."""

    @staticmethod
    def forward(ctx, H, S, mu, T):
        L = torch.linalg.cholesky(0.5 * (S + S.mT))
        half = torch.linalg.solve_triangular(L, 0.5 * (H + H.mT), upper=False)
        levels, W = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.mT, upper=False))
        C = torch.linalg.solve_triangular(L.mT, W, upper=True)
        ctx.T = T
        ctx.save_for_backward(levels, C, mu)
        ctx.mark_non_differentiable(levels)
        return -T * F.softplus((mu - levels) / T, beta=1, threshold=50).sum(), levels

    @staticmethod
    @once_differentiable
    def backward(ctx, g_omega, _g_levels):
        levels, C, mu = ctx.saved_tensors
        occupation = torch.sigmoid((mu - levels) / ctx.T)
        density = (C * occupation) @ C.mT
        energy_weighted = (C * (occupation * levels)) @ C.mT
        return g_omega * density, -g_omega * energy_weighted, -g_omega * occupation.sum(), None


# --------------------------------------------------------------------------------------------------------------------
# order and alignment
# --------------------------------------------------------------------------------------------------------------------


def _pool_adjacent_violators(y, w):
    """Block number of each entry of the isotonic fit."""
    stack = []  # [mean, weight, count]
    for value, weight in zip(y.tolist(), w.tolist()):
        stack.append([value, weight, 1])
        while len(stack) > 1 and stack[-2][0] > stack[-1][0]:
            m1, w1, c1 = stack.pop()
            m0, w0, c0 = stack.pop()
            stack.append([(m0 * w0 + m1 * w1) / (w0 + w1), w0 + w1, c0 + c1])
    return np.repeat(np.arange(len(stack)), [c for _, _, c in stack])


class IsotonicFit(Function):
    @staticmethod
    def forward(ctx, y, weight=None):
        w = torch.ones_like(y) if weight is None else weight
        block = torch.from_numpy(_pool_adjacent_violators(y.detach().cpu(), w.detach().cpu())).to(y.device)
        mass = torch.zeros_like(y).index_add(0, block, w)
        fit = (torch.zeros_like(y).index_add(0, block, w * y) / mass.clamp_min(1e-30))[block]
        ctx.weighted = weight is not None
        ctx.save_for_backward(y, w, fit, block)
        return fit

    @staticmethod
    def backward(ctx, g):
        y, w, fit, block = ctx.saved_tensors
        mass = torch.zeros_like(y).index_add(0, block, w)[block]
        pooled = torch.zeros_like(g).index_add(0, block, g)[block] / mass
        return w * pooled, (y - fit) * pooled if ctx.weighted else None


class SoftGlobalAlignment(Function):
    """Smoothed Needleman-Wunsch score with a linear gap penalty; dynamic programme in NumPy."""

    @staticmethod
    def forward(ctx, similarity, gap, temperature):
        s = similarity.detach().cpu().double().numpy()
        penalty = gap.item()
        n, m = s.shape
        D = np.zeros((n + 1, m + 1))
        D[:, 0] = -penalty * np.arange(n + 1)
        D[0, :] = -penalty * np.arange(m + 1)
        W = np.zeros((n + 1, m + 1, 3))
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                options = np.array([D[i - 1, j - 1] + s[i - 1, j - 1], D[i - 1, j] - penalty, D[i, j - 1] - penalty])
                top = options.max()
                e = np.exp((options - top) / temperature)
                D[i, j] = top + temperature * np.log(e.sum())
                W[i, j] = e / e.sum()
        ctx.save_for_backward(torch.from_numpy(W))
        return similarity.new_tensor(D[n, m])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        W = ctx.saved_tensors[0].numpy()
        n, m = W.shape[0] - 1, W.shape[1] - 1
        E = np.zeros((n + 1, m + 1))
        E[n, m] = 1.0
        gap = 0.0
        for i in range(n, 0, -1):
            for j in range(m, 0, -1):
                E[i - 1, j - 1] += E[i, j] * W[i, j, 0]
                E[i - 1, j] += E[i, j] * W[i, j, 1]
                E[i, j - 1] += E[i, j] * W[i, j, 2]
                gap -= E[i, j] * (W[i, j, 1] + W[i, j, 2])
        gap -= (np.arange(n + 1) * E[:, 0]).sum() + (np.arange(m + 1) * E[0, :]).sum()
        matched = torch.from_numpy(E[1:, 1:] * W[1:, 1:, 0]).to(grad)
        return grad * matched, grad * gap, None


class SegmentPeak(Function):
    """Largest value of each segment and column, with its row; empty segments give 0."""

    @staticmethod
    def forward(ctx, values, segment, count):
        rows, cols = values.shape
        index = segment[:, None].expand(rows, cols)
        peak = values.new_full((count, cols), -math.inf).scatter_reduce(0, index, values, "amax")
        here = torch.arange(rows, device=values.device)[:, None].expand(rows, cols)
        candidates = torch.where(values == peak.gather(0, index), here, rows)
        where = torch.full((count, cols), rows, device=values.device).scatter_reduce(0, index, candidates, "amin")
        peak = peak.masked_fill(where == rows, 0.0)
        ctx.rows = rows
        ctx.save_for_backward(where)
        ctx.mark_non_differentiable(where)
        return peak, where

    @staticmethod
    def backward(ctx, g_peak, _):
        (where,) = ctx.saved_tensors
        spread = g_peak.new_zeros(ctx.rows + 1, g_peak.shape[1]).scatter(0, where, g_peak)
        return spread[: ctx.rows], None, None


# --------------------------------------------------------------------------------------------------------------------
# geometry and physics
# --------------------------------------------------------------------------------------------------------------------


class SignedMeshVolume(Function):
    @staticmethod
    def forward(ctx, vertices, faces):
        ctx.save_for_backward(vertices, faces)
        a, b, c = vertices[faces].unbind(1)
        return (a * torch.linalg.cross(b, c)).sum() / 6

    @staticmethod
    def backward(ctx, g):
        vertices, faces = ctx.saved_tensors
        a, b, c = vertices[faces].unbind(1)
        normals = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], 1)
        out = torch.zeros_like(vertices).index_add(0, faces.reshape(-1), normals.reshape(-1, 3))
        return g * out / 6, None


@dataclass(frozen=True)
class Integrator:
    dt: float = 0.1
    steps: int = 6
    quartic: float = 0.3


SHORT_RUN = Integrator()


class DuffingLeapfrog(Function):
    """Time-reversible integration: backward walks the trajectory back instead of storing it."""

    @staticmethod
    def forward(ctx, q, p, stiffness, run: Integrator):
        force = DuffingLeapfrog._force
        for _ in range(run.steps):
            p = p + 0.5 * run.dt * force(q, stiffness, run)
            q = q + run.dt * p
            p = p + 0.5 * run.dt * force(q, stiffness, run)
        ctx.run = run
        ctx.save_for_backward(q, p, stiffness)
        return q, p

    @staticmethod
    def _force(q, k, run):
        return -k * q - run.quartic * q**3

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        q, p, k = ctx.saved_tensors
        run, h = ctx.run, ctx.run.dt
        gk = torch.zeros_like(q)

        def slope(position):
            return -k - 3 * run.quartic * position**2

        for _ in range(run.steps):
            p = p - 0.5 * h * DuffingLeapfrog._force(q, k, run)
            gk = gk - 0.5 * h * q * gp
            gq = gq + 0.5 * h * slope(q) * gp
            gp = gp + h * gq
            q = q - h * p
            p = p - 0.5 * h * DuffingLeapfrog._force(q, k, run)
            gk = gk - 0.5 * h * q * gp
            gq = gq + 0.5 * h * slope(q) * gp
        return gq, gp, gk.sum_to_size(k.shape), None


class LorentzBoost(Function):
    """Four-vectors (E, px, py, pz) seen from a frame that moves with beta."""

    generate_vmap_rule = True

    @staticmethod
    def _frame(beta):
        gamma = (1 - (beta * beta).sum(-1)).rsqrt()
        return gamma, gamma * gamma / (gamma + 1)

    @staticmethod
    def forward(p, beta):
        gamma, k = LorentzBoost._frame(beta)
        energy, momentum = p[..., :1], p[..., 1:]
        along = (momentum * beta).sum(-1, keepdim=True)
        return torch.cat([gamma * (energy - along), momentum + (k * along - gamma * energy) * beta], -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        p, beta = ctx.saved_tensors
        gamma, k = LorentzBoost._frame(beta)
        energy, momentum = p[..., :1], p[..., 1:]
        along = (momentum * beta).sum(-1, keepdim=True)
        g_e, g_m = g[..., :1], g[..., 1:]
        proj = (g_m * beta).sum(-1, keepdim=True)
        g_gamma = g_e * (energy - along) + proj * (gamma * (gamma + 2) / (gamma + 1) ** 2 * along - energy)
        g_along = proj * k - gamma * g_e
        g_beta = g_gamma * gamma**3 * beta + g_along * momentum + (k * along - gamma * energy) * g_m
        # the boost matrix is symmetric
        return LorentzBoost.apply(g, beta), g_beta.sum(0)

    @staticmethod
    def jvp(ctx, t_p, t_beta):
        p, beta = ctx.saved_tensors
        gamma, k = LorentzBoost._frame(beta)
        out = torch.zeros_like(p)
        if t_p is not None:
            out = out + LorentzBoost.apply(t_p, beta)
        if t_beta is not None:
            energy, momentum = p[..., :1], p[..., 1:]
            along = (momentum * beta).sum(-1, keepdim=True)
            t_along = (momentum * t_beta).sum(-1, keepdim=True)
            t_gamma = gamma**3 * (beta * t_beta).sum(-1)
            t_k = gamma * (gamma + 2) / (gamma + 1) ** 2 * t_gamma
            first = t_gamma * (energy - along) - gamma * t_along
            coefficient = t_k * along + k * t_along - t_gamma * energy
            out = out + torch.cat([first, coefficient * beta + (k * along - gamma * energy) * t_beta], -1)
        return out


class QubitRotation(Function):
    """exp(-i theta sigma / 2) on one qubit of a batch of states laid out as (batch, high, 2, low)."""

    @staticmethod
    def _pauli(axis, s):
        zero, one = s.unbind(2)
        if axis == "X":
            return torch.stack([one, zero], 2)
        if axis == "Y":
            return torch.stack([-1j * one, 1j * zero], 2)
        return torch.stack([zero, -one], 2)

    @staticmethod
    def _split(flat, low):
        return flat.reshape(flat.shape[0], -1, 2, low)

    @staticmethod
    def forward(ctx, state, theta, low, axis):
        ctx.low, ctx.axis = low, axis
        ctx.save_for_backward(state, theta)
        s = QubitRotation._split(state, low)
        half = theta.reshape(-1, 1, 1, 1) / 2
        out = torch.cos(half) * s - 1j * torch.sin(half) * QubitRotation._pauli(axis, s)
        return out.reshape(state.shape)

    @staticmethod
    def backward(ctx, grad):
        state, theta = ctx.saved_tensors
        s, g = QubitRotation._split(state, ctx.low), QubitRotation._split(grad, ctx.low)
        half = theta.reshape(-1, 1, 1, 1) / 2
        g_state = torch.cos(half) * g + 1j * torch.sin(half) * QubitRotation._pauli(ctx.axis, g)
        velocity = -0.5 * (torch.sin(half) * s + 1j * torch.cos(half) * QubitRotation._pauli(ctx.axis, s))
        g_theta = (g.conj() * velocity).real.sum((1, 2, 3))
        return g_state.reshape(state.shape), g_theta, None, None


class RayleighQuotient(Function):
    """Re <psi|H|psi> / <psi|psi> for a complex H that need not be Hermitian."""

    @staticmethod
    def forward(ctx, psi, H):
        norm = (psi.abs() ** 2).sum()
        value = (psi.conj() @ (H @ psi)).real / norm
        ctx.save_for_backward(psi, H, value)
        return value

    @staticmethod
    def backward(ctx, g):
        psi, H, value = ctx.saved_tensors
        scale = g / (psi.conj() * psi).real.sum()
        return scale * (H @ psi + H.mH @ psi - 2 * value * psi), scale * torch.outer(psi, psi.conj())


# --------------------------------------------------------------------------------------------------------------------
# special functions
# --------------------------------------------------------------------------------------------------------------------


class BesselK0(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.modified_bessel_k0(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * BesselK1.apply(x)


class BesselK1(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.modified_bessel_k1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * (BesselK0.apply(x) + BesselK1.apply(x) / x)


class VonMisesLogNorm(Function):
    """log(2 pi I0(kappa)), by the exponentially scaled Bessel functions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa):
        return torch.log(torch.special.i0e(kappa)) + kappa.abs() + math.log(2 * math.pi)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (kappa,) = inputs
        ctx.save_for_backward(kappa)
        ctx.save_for_forward(kappa)

    @staticmethod
    def _ratio(kappa):
        return torch.special.i1e(kappa) / torch.special.i0e(kappa)

    @staticmethod
    def backward(ctx, g):
        return g * VonMisesLogNorm._ratio(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, t):
        return t * VonMisesLogNorm._ratio(*ctx.saved_tensors)


@functools.lru_cache(maxsize=None)
def _libm(symbol: str, single: bool):
    number = ctypes.c_float if single else ctypes.c_double
    function = getattr(ctypes.CDLL("libm.so.6"), symbol + ("f" if single else ""))
    function.argtypes, function.restype = [number], number
    return function


class LibmLogGamma(Function):
    """lgamma of the C library, one entry at a time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        call = _libm("lgamma", x.dtype == torch.float32)
        flat = [call(v) for v in x.detach().reshape(-1).tolist()]
        return torch.tensor(flat, dtype=x.dtype, device=x.device).reshape(x.shape)

    @staticmethod
    def backward(ctx, g):
        return g * torch.digamma(ctx.saved_tensors[0])


class KnotTable(Function):
    """Piecewise linear table with learnable heights and gaps, constant beyond its ends; looked up by NumPy."""

    @staticmethod
    def _knots(gap):
        return torch.cat([gap.new_zeros(1), gap.cumsum(0)])

    @staticmethod
    def forward(ctx, x, height, gap):
        knots = KnotTable._knots(gap)
        xs, ks, hs = (t.detach().cpu().double().numpy() for t in (x, knots, height))
        cell = np.clip(np.searchsorted(ks, xs, side="right") - 1, 0, len(ks) - 2)
        ctx.save_for_backward(x, height, gap, torch.from_numpy(cell).to(x.device))
        return torch.from_numpy(np.interp(xs, ks, hs)).to(x)

    @staticmethod
    def backward(ctx, g):
        x, height, gap, cell = ctx.saved_tensors
        knots = KnotTable._knots(gap)
        left, width = knots[cell], gap[cell]
        t = (x - left) / width
        low, high = t <= 0, t >= 1
        rise = height[cell + 1] - height[cell]
        slope = torch.where(low | high, 0.0, rise / width) * g
        frac = t.clamp(0, 1)
        g_height = torch.zeros_like(height).index_add(0, cell, g * (1 - frac)).index_add(0, cell + 1, g * frac)
        g_knot = torch.zeros_like(knots).index_add(0, cell, -slope)
        # knot i is the sum of the gaps before it
        g_gap = g_knot[1:].flip(0).cumsum(0).flip(0).index_add(0, cell, -slope * frac)
        return slope, g_height, g_gap


# --------------------------------------------------------------------------------------------------------------------
# with state, options, several outputs
# --------------------------------------------------------------------------------------------------------------------


class RunningWhiten(Function):
    @staticmethod
    def forward(ctx, x, running_mean, running_var, gain, training, momentum, eps):
        ctx.training, ctx.eps = training, eps
        if training:
            var, mean = torch.var_mean(x, 0, correction=0)
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (x.shape[0] / (x.shape[0] - 1)), momentum)
        else:
            var, mean = running_var.clone(), running_mean.clone()
        ctx.save_for_backward(x, gain, mean, var)
        return (x - mean) * (var + eps).rsqrt() * gain

    @staticmethod
    def backward(ctx, g):
        x, gain, mean, var = ctx.saved_tensors
        if ctx.training:
            var, mean = torch.var_mean(x, 0, correction=0)
        rstd = (var + ctx.eps).rsqrt()
        xhat = (x - mean) * rstd
        gx = g * gain
        if ctx.training:
            gx = gx - gx.mean(0) - xhat * (gx * xhat).mean(0)
        return gx * rstd, None, None, (g * xhat).sum(0), None, None, None


class Whitening(nn.Module):
    def __init__(self, features, momentum=0.1, eps=1e-3):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.gain = nn.Parameter(torch.ones(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))

    def forward(self, x):
        return RunningWhiten.apply(x, self.mean, self.var, self.gain, self.training, self.momentum, self.eps)


class Shrink_(Function):
    """Soft threshold in place, one threshold for each column."""

    @staticmethod
    def forward(ctx, x, threshold):
        x.copy_(torch.sign(x) * (x.abs() - threshold).clamp_min(0))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        side = torch.sign(ctx.saved_tensors[0])
        return g * side.abs(), -(g * side).sum(0)


class ScaleToNorm(Function):
    """Joint rescaling of many tensors, as in gradient clipping, but differentiable."""

    @staticmethod
    def forward(ctx, max_norm, *tensors):
        ctx.max_norm = max_norm
        ctx.save_for_backward(*tensors)
        total = torch.stack([t.pow(2).sum() for t in tensors]).sum().sqrt()
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        return tuple(t * factor for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        tensors = ctx.saved_tensors
        total = torch.stack([t.pow(2).sum() for t in tensors]).sum()
        if total.sqrt() + 1e-6 <= ctx.max_norm:
            return None, *[g.clone() for g in grads]
        total = total.sqrt()
        factor = ctx.max_norm / (total + 1e-6)
        inner = sum((g * t).sum() for g, t in zip(grads, tensors))
        pull = factor * inner / ((total + 1e-6) * total)
        return None, *[factor * g - pull * t for g, t in zip(grads, tensors)]


_ACTIVATIONS = {"tanh": torch.tanh, "softplus": F.softplus}


def _dense_stack(activation, x, params):
    for weight, bias in zip(params[::2], params[1::2]):
        x = _ACTIVATIONS[activation](F.linear(x, weight, bias))
    return x


class RecomputedStack(Function):
    """Keeps the inputs only; the activations are computed again in backward."""

    @staticmethod
    def forward(ctx, activation, x, *params):
        ctx.activation = activation
        ctx.save_for_backward(x, *params)
        return _dense_stack(activation, x, params)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        needs = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(n) for t, n in zip(ctx.saved_tensors, needs)]
            out = _dense_stack(ctx.activation, leaves[0], leaves[1:])
            found = iter(torch.autograd.grad(out, [t for t in leaves if t.requires_grad], g.to(out.dtype)))
        return None, *[next(found) if n else None for n in needs]


class KalmanScalarUpdate(Function):
    """One scalar measurement z = h.x + noise of variance r; returns the new mean and covariance."""

    @staticmethod
    def forward(x, P, h, z, r):
        gain = (P @ h) / (h @ P @ h + r)
        return x + gain * (z - h @ x), P - torch.outer(gain, h @ P)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gx, gP):
        x, P, h, z, r = ctx.saved_tensors
        gx, gP = gx.to(x.dtype), gP.to(P.dtype)
        u, v = P @ h, h @ P
        s = h @ u + r
        e = z - h @ x
        g_e = (gx @ u) / s
        g_s = (u @ gP @ v) / s**2 - g_e * e / s
        g_u = gx * e / s - gP @ v / s + g_s * h
        g_v = -(u @ gP) / s
        g_h = g_s * u - g_e * x + g_u @ P + P @ g_v
        return gx - g_e * h, gP + torch.outer(g_u, h) + torch.outer(h, g_v), g_h, g_e, g_s


def leaky_spikes_surrogate(current, decay, threshold, sharpness):
    """What the spiking layer pretends to be when it is differentiated."""
    v, spikes = torch.zeros_like(current[0]), []
    for i in current:
        v = decay * v + i
        soft = torch.sigmoid(sharpness * (v - threshold))
        hard = (v >= threshold).to(v.dtype)
        spikes.append(hard + soft - soft.detach())
        v = v - threshold * hard
    return torch.stack(spikes), v


class LeakySpikes(Function):
    @staticmethod
    def forward(ctx, current, decay, threshold, sharpness):
        v, spikes, potentials = torch.zeros_like(current[0]), [], []
        for i in current:
            v = decay * v + i
            potentials.append(v)
            spikes.append((v >= threshold).to(v.dtype))
            v = v - threshold * spikes[-1]
        ctx.settings = decay, threshold, sharpness
        ctx.save_for_backward(torch.stack(potentials))
        return torch.stack(spikes), v

    @staticmethod
    @once_differentiable
    def backward(ctx, g_spikes, g_v):
        decay, threshold, sharpness = ctx.settings
        (potentials,) = ctx.saved_tensors
        out = torch.empty_like(potentials)
        for t in reversed(range(len(potentials))):
            soft = torch.sigmoid(sharpness * (potentials[t] - threshold))
            out[t] = g_v + g_spikes[t] * sharpness * soft * (1 - soft)
            g_v = decay * out[t]
        return out, None, None, None


def power_of_two_surrogate(x, scale, low, high):
    magnitude = x.abs().clamp(2.0**low, 2.0**high)
    return scale * torch.sign(x).detach() * magnitude


class PowerOfTwo(Function):
    """scale * sign(x) * 2^round(log2|x|); straight-through for x inside the exponents, exact for the scale."""

    @staticmethod
    def _level(x, low, high):
        return torch.sign(x) * torch.exp2(torch.log2(x.abs()).round().clamp(low, high))

    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.window = low, high
        ctx.save_for_backward(x, scale)
        return scale * PowerOfTwo._level(x, low, high)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        low, high = ctx.window
        inside = (x.abs() >= 2.0**low) & (x.abs() <= 2.0**high)
        return g * scale * inside, (g * PowerOfTwo._level(x, low, high)).sum_to_size(scale.shape), None, None


def _tweedie_terms(mu, y, power):
    deviance = 2 * (
        y ** (2 - power) / ((1 - power) * (2 - power))
        - y * mu ** (1 - power) / (1 - power)
        + mu ** (2 - power) / (2 - power)
    )
    by_mu = 2 * (mu ** (1 - power) - y * mu ** (-power))
    by_y = 2 * (y ** (1 - power) - mu ** (1 - power)) / (1 - power)
    return deviance, by_mu, by_y


class TweedieDeviance(Function):
    @staticmethod
    def forward(ctx, mu, y, power, weight=None, reduction="mean"):
        ctx.power, ctx.reduction, ctx.weighted = power, reduction, weight is not None
        ctx.save_for_backward(mu, y, *([weight] if ctx.weighted else []))
        deviance = _tweedie_terms(mu, y, power)[0]
        w = weight if ctx.weighted else torch.ones_like(mu)
        if reduction == "none":
            return w * deviance
        total = (w * deviance).sum()
        return total / w.sum() if reduction == "mean" else total

    @staticmethod
    def backward(ctx, g):
        mu, y, *rest = ctx.saved_tensors
        w = rest[0] if ctx.weighted else torch.ones_like(mu)
        deviance, by_mu, by_y = _tweedie_terms(mu, y, ctx.power)
        g_weight = g * deviance
        if ctx.reduction == "mean":
            mass = w.sum()
            g_weight = g * (deviance - (w * deviance).sum() / mass) / mass
            g = g / mass
        return g * w * by_mu, g * w * by_y, None, g_weight if ctx.weighted else None, None


class SinkhornPlan(Function):
    """A fixed number of log-domain Sinkhorn rounds between uniform marginals, differentiated round by round."""

    @staticmethod
    def forward(ctx, cost, epsilon, rounds):
        n, m = cost.shape
        g = cost.new_zeros(m)
        history = []
        for _ in range(rounds):
            f = -epsilon * (torch.logsumexp((g - cost) / epsilon, 1) + math.log(n))
            history += [f, g]
            g = -epsilon * (torch.logsumexp((f[:, None] - cost) / epsilon, 0) + math.log(m))
        plan = torch.exp((f[:, None] + g - cost) / epsilon)
        ctx.epsilon = epsilon
        ctx.save_for_backward(cost, plan, *history)
        return plan

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        cost, plan, *history = ctx.saved_tensors
        through = grad * plan / ctx.epsilon
        g_cost, g_g, g_f = -through, through.sum(0), through.sum(1)
        while history:
            g, f = history.pop(), history.pop()
            share = torch.softmax((f[:, None] - cost) / ctx.epsilon, 0) * g_g
            g_cost = g_cost + share
            g_f = g_f - share.sum(1)
            share = torch.softmax((g - cost) / ctx.epsilon, 1) * g_f[:, None]
            g_cost = g_cost + share
            g_g, g_f = -share.sum(0), torch.zeros_like(f)
        return g_cost, None, None


class MoreauAbs(Function):
    """Proximal point and Moreau envelope of lam * |.| in one pass."""

    @staticmethod
    def forward(ctx, x, lam):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, lam)
        rest = torch.minimum(torch.maximum(x, -lam), lam)
        prox = x - rest
        return prox, prox.abs() + rest**2 / (2 * lam)

    @staticmethod
    def backward(ctx, g_prox, g_env):
        if g_prox is None and g_env is None:
            return None, None
        x, lam = ctx.saved_tensors
        g_x, g_lam = torch.zeros_like(x), torch.zeros_like(x)
        if g_prox is not None:
            moved = (x.abs() > lam).to(x.dtype)
            g_x = g_x + g_prox * moved
            g_lam = g_lam - g_prox * moved * torch.sign(x)
        if g_env is not None:
            slope = (x / lam).clamp(-1, 1)
            g_x = g_x + g_env * slope
            g_lam = g_lam - g_env * slope**2 / 2
        return g_x, g_lam.sum_to_size(lam.shape)


class ToPolar(Function):
    @staticmethod
    def forward(z):
        return z.abs(), z.angle()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g_radius, g_angle):
        (z,) = ctx.saved_tensors
        unit = z / z.abs()
        return g_radius * unit + 1j * g_angle * unit / z.abs()

    @staticmethod
    def vmap(info, in_dims, z):
        return ToPolar.apply(z), (in_dims[0], in_dims[0])


# --------------------------------------------------------------------------------------------------------------------
# kernels in native dtypes
# --------------------------------------------------------------------------------------------------------------------


class Int8Linear(Function):
    """x @ (scale * q)^T + bias with frozen int8 codes q."""

    @staticmethod
    def forward(ctx, x, codes, scale, bias=None):
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(x, codes, scale)
        wide = _opmath(x)
        out = (wide @ codes.to(wide.dtype).t()) * scale
        if bias is not None:
            out = out + bias
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, codes, scale = ctx.saved_tensors
        wide, g = _opmath(x), _opmath(g).to(_opmath(x).dtype)
        codes = codes.to(wide.dtype)
        g_x = ((g * scale) @ codes).to(x.dtype)
        g_scale = (g * (wide @ codes.t())).sum(0).to(scale.dtype)
        return g_x, None, g_scale, g.sum(0).to(ctx.bias_dtype) if ctx.bias_dtype else None


class TokenLoss(Function):
    """Cross-entropy with label smoothing and a z-loss; the gradient is made in forward, where the softmax is at hand."""

    @staticmethod
    def forward(ctx, logits, target, pad, smoothing, reduction):
        z = _opmath(logits)
        classes = z.shape[1]
        keep = (target != pad).to(z.dtype)
        lse = torch.logsumexp(z, 1)
        picked = z.gather(1, target[:, None]).squeeze(1)
        loss = lse - (1 - smoothing) * picked - smoothing * z.mean(1) + 1e-2 * lse**2
        share = keep / keep.sum().clamp_min(1) if reduction == "mean" else keep
        grad = torch.exp(z - lse[:, None]) * (1 + 2e-2 * lse)[:, None] - smoothing / classes
        grad.scatter_add_(1, target[:, None], grad.new_full((len(z), 1), smoothing - 1))
        ctx.save_for_backward(grad * share[:, None])
        ctx.dtype = logits.dtype
        return (loss * share).sum().to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        return (grad * g).to(ctx.dtype), None, None, None, None


class PartialRotary(Function):
    """Rotary embedding of the first `rot` features; backward turns the other way."""

    @classmethod
    def turn(cls, x, rot, interleaved, sign):
        wide = _opmath(x)
        head, tail = wide[..., :rot], wide[..., rot:]
        half = rot // 2
        rate = 10.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
        phase = torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)[:, None] * rate
        cos, sin = phase.cos().to(wide.dtype), sign * phase.sin().to(wide.dtype)
        first, second = (head[..., ::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
        pair = first * cos - second * sin, second * cos + first * sin
        turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
        return torch.cat([turned, tail], -1).to(x.dtype)

    @classmethod
    def forward(cls, ctx, x, rot, interleaved):
        ctx.rot, ctx.interleaved = rot, interleaved
        return cls.turn(x, rot, interleaved, 1)

    @classmethod
    def backward(cls, ctx, g):
        return cls.turn(g, ctx.rot, ctx.interleaved, -1), None, None


class WideCumsum(Function):
    """Running sum that is accumulated in float64 whatever the dtype."""

    @staticmethod
    def forward(ctx, x, dim, exclusive):
        ctx.dim, ctx.exclusive = dim, exclusive
        wide = x.double()
        total = wide.cumsum(dim)
        return (total - wide if exclusive else total).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        wide = g.double()
        total = wide.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)
        return (total - wide if ctx.exclusive else total).to(g.dtype), None, None


@functools.lru_cache(maxsize=32)
def _lanczos_matrix(n, m, a=2):
    position = (np.arange(m) + 0.5) * n / m - 0.5
    offset = position[:, None] - np.arange(n)
    weights = np.where(np.abs(offset) < a, np.sinc(offset) * np.sinc(offset / a), 0.0)
    weights = weights / weights.sum(1, keepdims=True)
    return weights.astype(np.float32)


class LanczosResample(Function):
    """Resampling of rows to m samples; the kernel is single precision only."""

    @staticmethod
    def forward(ctx, x, m):
        if x.dtype != torch.float32:
            raise TypeError(f"LanczosResample takes float32, got {x.dtype}")
        ctx.n, ctx.m = x.shape[1], m
        out = x.detach().cpu().numpy() @ _lanczos_matrix(ctx.n, m).T
        return torch.from_numpy(np.ascontiguousarray(out)).to(x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        out = g.detach().cpu().numpy() @ _lanczos_matrix(ctx.n, ctx.m)
        return torch.from_numpy(np.ascontiguousarray(out)).to(g.device), None


class BitmaskClamp(Function):
    """clamp(x, low, high) that keeps one bit per entry for backward."""

    @staticmethod
    def forward(ctx, x, low, high):
        inside = ((x > low) & (x < high)).reshape(-1)
        packed = np.packbits(inside.cpu().numpy())
        ctx.save_for_backward(torch.from_numpy(packed))
        ctx.shape = x.shape
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        (packed,) = ctx.saved_tensors
        bits = np.unpackbits(packed.numpy(), count=ctx.shape.numel()).astype(bool)
        return g * torch.from_numpy(bits).reshape(ctx.shape).to(g.device), None, None


class SoftcapGate(Function):
    """cap * tanh(x / cap) * sigmoid(gate), gate shared by the rows."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, x, gate, cap):
        ctx.cap = cap
        ctx.save_for_backward(x, gate)
        return (cap * torch.tanh(_opmath(x) / cap) * torch.sigmoid(_opmath(gate))).to(x.dtype)

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, gate = ctx.saved_tensors
        wide = _opmath(g)
        t, s = torch.tanh(_opmath(x) / ctx.cap), torch.sigmoid(_opmath(gate))
        g_x = wide * s * (1 - t) * (1 + t)
        g_gate = (wide * ctx.cap * t).sum(0) * s * torch.sigmoid(-_opmath(gate))
        return g_x.to(x.dtype), g_gate.to(gate.dtype), None


class GroupNormSiLU(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        b, c, length = x.shape
        wide = _opmath(x).reshape(b, groups, -1)
        var, mean = torch.var_mean(wide, 2, correction=0, keepdim=True)
        rstd = (var + eps).rsqrt()
        u = ((wide - mean) * rstd).reshape(b, c, length) * _opmath(weight)[:, None] + _opmath(bias)[:, None]
        ctx.groups = groups
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return (u * torch.sigmoid(u)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        b, c, length = x.shape
        xhat = (_opmath(x).reshape(b, ctx.groups, -1) - mean) * rstd
        flat = xhat.reshape(b, c, length)
        u = flat * _opmath(weight)[:, None] + _opmath(bias)[:, None]
        s = torch.sigmoid(u)
        g_u = _opmath(g) * s * (1 + u * (1 - s))
        g_hat = (g_u * _opmath(weight)[:, None]).reshape(b, ctx.groups, -1)
        g_x = rstd * (g_hat - g_hat.mean(2, keepdim=True) - xhat * (g_hat * xhat).mean(2, keepdim=True))
        g_weight, g_bias = (g_u * flat).sum((0, 2)), g_u.sum((0, 2))
        return g_x.reshape(x.shape).to(x.dtype), g_weight.to(weight.dtype), g_bias.to(bias.dtype), None, None


class GatedScan(Function):
    """h_t = a_t h_{t-1} + x_t, forwards or backwards in time, from an optional start."""

    @staticmethod
    def _scan(a, x, start):
        h, states = start, []
        for t in range(x.shape[0]):
            h = x[t] if h is None else a[t] * h + x[t]
            states.append(h)
        return torch.stack(states)

    @staticmethod
    def forward(ctx, a, x, start=None, reverse=False):
        ctx.reverse, ctx.started = reverse, start is not None
        if reverse:
            h = GatedScan._scan(a.flip(0), x.flip(0), start).flip(0)
        else:
            h = GatedScan._scan(a, x, start)
        ctx.save_for_backward(a, h, *([start] if ctx.started else []))
        return h

    @staticmethod
    def backward(ctx, g):
        a, h, *start = ctx.saved_tensors
        if ctx.reverse:
            a, h, g = a.flip(0), h.flip(0), g.flip(0)
        lam = [g[-1]]
        for t in range(len(g) - 2, -1, -1):
            lam.append(g[t] + a[t + 1] * lam[-1])
        lam = torch.stack(lam[::-1])
        before = torch.cat([start[0][None] if ctx.started else torch.zeros_like(h[:1]), h[:-1]])
        g_a = lam * before
        g_start = lam[0] * a[0] if ctx.started else None
        if ctx.reverse:
            return g_a.flip(0), lam.flip(0), g_start, None
        return g_a, lam, g_start, None


_GAMMA, _A = 2.4, 0.055
_KNEE = _A / (_GAMMA - 1)
_SLOPE = _KNEE / ((_KNEE + _A) / (1 + _A)) ** _GAMMA


class DisplayToLinear(Function):
    """Decoding of display values to linear light, mirrored below zero; both pieces meet with one slope."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        wide = _opmath(v)
        m = wide.abs()
        curve = torch.sign(wide) * ((m + _A) / (1 + _A)) ** _GAMMA
        return torch.where(m <= _KNEE, wide / _SLOPE, curve).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        m = _opmath(v).abs()
        curve = _GAMMA / (1 + _A) * ((m + _A) / (1 + _A)) ** (_GAMMA - 1)
        return (_opmath(g) * torch.where(m <= _KNEE, 1 / _SLOPE, curve)).to(v.dtype)


class Periodogram(Function):
    """One-sided power of windowed rows, in single precision inside."""

    @staticmethod
    def forward(ctx, x, window):
        n = x.shape[-1]
        taper = {"box": torch.ones, "hann": torch.hann_window}[window](n, dtype=torch.float32).to(x.device)
        spectrum = torch.fft.rfft(x.float() * taper)
        ctx.n, ctx.dtype = n, x.dtype
        ctx.save_for_backward(spectrum, taper)
        return (spectrum.abs() ** 2 / n).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        spectrum, taper = ctx.saved_tensors
        weighted = g.float() * spectrum
        full = F.pad(torch.view_as_real(weighted), (0, 0, 0, ctx.n - weighted.shape[-1]))
        back = torch.fft.ifft(torch.view_as_complex(full.contiguous())).real
        return (2 * back * taper).to(ctx.dtype), None


class RbfGram(Function):
    """Gram matrix of a Gaussian kernel; distances and exponentials in float32."""

    @staticmethod
    def forward(ctx, x, z, log_length):
        ctx.save_for_backward(x, z, log_length)
        diff = (x.float()[:, None] - z.float()[None]) * torch.exp(-log_length.float())
        return torch.exp(-0.5 * diff.pow(2).sum(-1)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, z, log_length = ctx.saved_tensors
        inverse = torch.exp(-log_length.float())
        diff = (x.float()[:, None] - z.float()[None]) * inverse
        square = diff.pow(2).sum(-1)
        weight = g.float() * torch.exp(-0.5 * square)
        pull = weight[..., None] * diff * inverse
        g_length = (weight * square).sum()
        return -pull.sum(1).to(x.dtype), pull.sum(0).to(z.dtype), g_length.to(log_length.dtype)
