"""Functions of many fields, as their authors write them: the second half."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def binary(generator, device, dtype, shape):
    return (torch.rand(shape, generator=generator, device=device, dtype=dtype) > 0.5).to(dtype)


# --- losses --------------------------------------------------------------------------------------
class SigmoidFocal(Function):
    """Focal loss with alpha and a positive weight per class, reduced as asked."""

    @staticmethod
    def forward(ctx, logits, target, alpha, gamma, reduction):
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        pt = p * target + (1 - p) * (1 - target)
        at = alpha * target + (1 - alpha) * (1 - target)
        loss = at * (1 - pt).pow(gamma) * ce
        ctx.save_for_backward(logits, target)
        ctx.alpha, ctx.gamma, ctx.reduction = alpha, gamma, reduction
        if reduction == "mean":
            return loss.mean()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    def backward(ctx, grad_output):
        logits, target = ctx.saved_tensors
        sign = 2 * target - 1
        pt = torch.sigmoid(sign * logits)
        at = ctx.alpha * target + (1 - ctx.alpha) * (1 - target)
        log_pt = F.logsigmoid(sign * logits)
        grad = at * sign * (1 - pt).pow(ctx.gamma) * (ctx.gamma * pt * log_pt - (1 - pt))
        if ctx.reduction == "mean":
            grad = grad / logits.numel()
        return grad_output * grad, None, None, None, None


class MarginRanking(Function):
    """Triplet loss with the hardest negative of the batch."""

    @staticmethod
    def forward(ctx, anchor, positive, negatives, margin):
        dp = (anchor - positive).norm(dim=1)
        dn, hardest = torch.cdist(anchor, negatives).min(1)
        loss = F.relu(dp - dn + margin)
        ctx.save_for_backward(anchor, positive, negatives, hardest, dp, dn)
        ctx.margin = margin
        return loss.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        anchor, positive, negatives, hardest, dp, dn = ctx.saved_tensors
        active = (dp - dn + ctx.margin > 0).to(anchor.dtype) / len(anchor) * grad_output
        up = (anchor - positive) / dp[:, None] * active[:, None]
        un = (anchor - negatives[hardest]) / dn[:, None] * active[:, None]
        grad_negatives = torch.zeros_like(negatives).index_add(0, hardest, un)
        return up - un, -up, grad_negatives, None


class CoxPartialLikelihood(Function):
    """Negative log partial likelihood; rows are sorted by time, latest first."""

    @staticmethod
    def forward(ctx, risk, event):
        lse = torch.logcumsumexp(risk, 0)
        e = event.to(risk.dtype)
        total = e.sum().clamp(min=1)
        ctx.save_for_backward(risk, e, total)
        return ((lse - risk) * e).sum() / total

    @staticmethod
    def backward(ctx, grad_output):
        risk, e, total = ctx.saved_tensors
        lse = torch.logcumsumexp(risk, 0)
        later = (e * torch.exp(-lse)).flip(0).cumsum(0).flip(0)
        return grad_output * (risk.exp() * later - e) / total, None


class SoftDTW(Function):
    """Soft dynamic time warping of a cost matrix."""

    @staticmethod
    def forward(ctx, D, gamma):
        n, m = D.shape
        R = D.new_full((n + 2, m + 2), math.inf)
        R[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r = torch.stack((R[i - 1, j - 1], R[i - 1, j], R[i, j - 1]))
                R[i, j] = D[i - 1, j - 1] - gamma * torch.logsumexp(-r / gamma, 0)
        ctx.save_for_backward(D, R)
        ctx.gamma = gamma
        return R[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        n, m = D.shape
        gamma = ctx.gamma
        R = R.clone()
        R[:, -1] = -math.inf
        R[-1, :] = -math.inf
        R[-1, -1] = R[-2, -2]
        padded = F.pad(D, (1, 1, 1, 1))
        E = torch.zeros_like(R)
        E[-1, -1] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                a = torch.exp((R[i + 1, j] - R[i, j] - padded[i + 1, j]) / gamma)
                b = torch.exp((R[i, j + 1] - R[i, j] - padded[i, j + 1]) / gamma)
                c = torch.exp((R[i + 1, j + 1] - R[i, j] - padded[i + 1, j + 1]) / gamma)
                E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c
        return grad_output * E[1:-1, 1:-1], None


class SpectralConvergence(Function):
    """Relative error of STFT magnitudes, || |X| - |Y| ||_F / || |Y| ||_F, for x only."""

    @staticmethod
    def stft(x, window, hop):
        frames = x.unfold(-1, window.shape[0], hop) * window
        return torch.fft.rfft(frames)

    @staticmethod
    def forward(ctx, x, y, window, hop):
        X, Y = SpectralConvergence.stft(x, window, hop), SpectralConvergence.stft(y, window, hop)
        difference = X.abs() - Y.abs()
        ctx.save_for_backward(x, y, window)
        ctx.hop = hop
        return difference.norm() / Y.abs().norm()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y, window = ctx.saved_tensors
        n, hop = window.shape[0], ctx.hop
        X, Y = SpectralConvergence.stft(x, window, hop), SpectralConvergence.stft(y, window, hop)
        difference = X.abs() - Y.abs()
        g = difference / (difference.norm() * Y.abs().norm()) * torch.sgn(X)
        full = F.pad(g, (0, n - g.shape[-1]))
        frames = torch.fft.ifft(full, dim=-1).real * n * window
        grad = torch.zeros_like(x)
        for i in range(frames.shape[-2]):
            grad[..., i * hop : i * hop + n] += frames[..., i, :]
        return grad_output * grad, None, None, None


# --- recurrences ---------------------------------------------------------------------------------
class WKV(Function):
    """RWKV-4: weighted mean of past v by exp(k), decay w per channel, bonus u of the present token."""

    @staticmethod
    def forward(ctx, w, u, k, v):
        decay = torch.exp(-torch.exp(w))
        a, b = torch.zeros_like(k[0]), torch.zeros_like(k[0])
        out, tops, bottoms = [], [], []
        for t in range(k.shape[0]):
            e = torch.exp(u + k[t])
            tops.append(a)
            bottoms.append(b)
            out.append((a + e * v[t]) / (b + e))
            a = decay * a + torch.exp(k[t]) * v[t]
            b = decay * b + torch.exp(k[t])
        out = torch.stack(out)
        ctx.save_for_backward(w, u, k, v, out, torch.stack(tops), torch.stack(bottoms))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        w, u, k, v, out, tops, bottoms = ctx.saved_tensors
        decay = torch.exp(-torch.exp(w))
        grad_u, grad_decay = torch.zeros_like(u), torch.zeros_like(w)
        grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
        ga, gb = torch.zeros_like(k[0]), torch.zeros_like(k[0])
        for t in range(k.shape[0] - 1, -1, -1):
            grad_decay += ga * tops[t] + gb * bottoms[t]
            ek = torch.exp(k[t])
            grad_k[t] = ek * (ga * v[t] + gb)
            grad_v[t] = ek * ga
            e = torch.exp(u + k[t])
            share = grad_output[t] / (bottoms[t] + e)
            ge = share * (v[t] - out[t]) * e
            grad_u += ge
            grad_k[t] += ge
            grad_v[t] += share * e
            ga = decay * ga + share
            gb = decay * gb - share * out[t]
        return grad_decay * decay * -torch.exp(w), grad_u, grad_k, grad_v


class DeltaRule(Function):
    """S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T; o_t = S_t^T q_t; returns the outputs and the last state."""

    @staticmethod
    def forward(ctx, q, k, v, beta, state):
        states, out = [], []
        for t in range(q.shape[0]):
            states.append(state)
            error = v[t] - state.t() @ k[t]
            state = state + beta[t] * torch.outer(k[t], error)
            out.append(state.t() @ q[t])
        ctx.save_for_backward(q, k, v, beta, torch.stack([*states, state]))
        return torch.stack(out), state.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_state):
        q, k, v, beta, states = ctx.saved_tensors
        gq, gk, gv, gbeta = (
            torch.zeros_like(q),
            torch.zeros_like(k),
            torch.zeros_like(v),
            torch.zeros_like(beta),
        )
        G = grad_state.clone()
        for t in range(q.shape[0] - 1, -1, -1):
            before, after = states[t], states[t + 1]
            gq[t] = after @ grad_out[t]
            G = G + torch.outer(q[t], grad_out[t])
            error = v[t] - before.t() @ k[t]
            inner = G.t() @ k[t]
            gbeta[t] = inner.dot(error)
            gv[t] = beta[t] * inner
            gk[t] = beta[t] * (G @ error - before @ inner)
            G = G - beta[t] * torch.outer(k[t], inner)
        return gq, gk, gv, gbeta, G


class GRUCell(Function):
    @staticmethod
    def forward(ctx, x, h, w_ih, w_hh, bias):
        gi, gh = x @ w_ih.t() + bias, h @ w_hh.t()
        ir, iz, inn = gi.chunk(3, 1)
        hr, hz, hn = gh.chunk(3, 1)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        n = torch.tanh(inn + r * hn)
        ctx.save_for_backward(x, h, w_ih, w_hh, r, z, n, hn)
        return (1 - z) * n + z * h

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, h, w_ih, w_hh, r, z, n, hn = ctx.saved_tensors
        dn = g * (1 - z) * (1 - n * n)
        dz = g * (h - n) * z * (1 - z)
        dr = dn * hn * r * (1 - r)
        di = torch.cat((dr, dz, dn), 1)
        dh = torch.cat((dr, dz, dn * r), 1)
        return di @ w_ih, g * z + dh @ w_hh, di.t() @ x, dh.t() @ h, di.sum(0)


# --- rendering, geometry -------------------------------------------------------------------------
class AlphaComposite(Function):
    """Front to back: color = sum_i T_i a_i c_i + T_n background; also gives the transmittance left."""

    @staticmethod
    def forward(ctx, alpha, color, background):
        T = alpha.new_ones(alpha.shape[0])
        out = color.new_zeros(color.shape[0], color.shape[2])
        for i in range(alpha.shape[1]):
            out = out + (T * alpha[:, i])[:, None] * color[:, i]
            T = T * (1 - alpha[:, i])
        ctx.save_for_backward(alpha, color, background, T)
        return out + T[:, None] * background, T

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_color, grad_T):
        alpha, color, background, T = ctx.saved_tensors
        grad_alpha, grad_c = torch.zeros_like(alpha), torch.zeros_like(color)
        behind = background.expand(len(alpha), -1)
        left = torch.ones_like(T)
        final = T
        for i in range(alpha.shape[1] - 1, -1, -1):
            T = T / (1 - alpha[:, i])
            grad_c[:, i] = (T * alpha[:, i])[:, None] * grad_color
            grad_alpha[:, i] = T * (grad_color * (color[:, i] - behind)).sum(1) - grad_T * T * left
            behind = alpha[:, i, None] * color[:, i] + (1 - alpha[:, i, None]) * behind
            left = left * (1 - alpha[:, i])
        return grad_alpha, grad_c, (final[:, None] * grad_color).sum(0)


class ProjectGaussians(Function):
    """Means and covariances of camera-space Gaussians to the image by the local affine approximation."""

    @staticmethod
    def jacobian(mean, f):
        x, y, z = mean.unbind(-1)
        zero = torch.zeros_like(z)
        return torch.stack(
            (torch.stack((f / z, zero, -f * x / z**2), -1), torch.stack((zero, f / z, -f * y / z**2), -1)), -2
        )

    @staticmethod
    def forward(ctx, mean, cov, focal):
        J = ProjectGaussians.jacobian(mean, focal)
        ctx.save_for_backward(mean, cov)
        ctx.focal = focal
        return focal * mean[..., :2] / mean[..., 2:], J @ cov @ J.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_mean2, grad_cov2):
        mean, cov = ctx.saved_tensors
        f = ctx.focal
        x, y, z = mean.unbind(-1)
        J = ProjectGaussians.jacobian(mean, f)
        grad_cov = J.mT @ grad_cov2 @ J
        grad_J = grad_cov2 @ J @ cov.mT + grad_cov2.mT @ J @ cov
        gu, gv = grad_mean2.unbind(-1)
        gx = gu * f / z - grad_J[..., 0, 2] * f / z**2
        gy = gv * f / z - grad_J[..., 1, 2] * f / z**2
        gz = -f * (gu * x + gv * y) / z**2
        gz = gz - f / z**2 * (grad_J[..., 0, 0] + grad_J[..., 1, 1])
        gz = gz + 2 * f / z**3 * (grad_J[..., 0, 2] * x + grad_J[..., 1, 2] * y)
        return torch.stack((gx, gy, gz), -1), grad_cov, None


class SO3Exp(Function):
    """Rotation matrices of rotation vectors [n, 3]; a series near zero."""

    @staticmethod
    def coefficients(w):
        t2 = (w * w).sum(-1)
        small = t2 < 1e-4
        safe = torch.where(small, torch.ones_like(t2), t2)
        t = safe.sqrt()
        a = torch.where(small, 1 - t2 / 6 + t2**2 / 120 - t2**3 / 5040, t.sin() / t)
        b = torch.where(small, 0.5 - t2 / 24 + t2**2 / 720 - t2**3 / 40320, (1 - t.cos()) / safe)
        c = torch.where(small, 1 / 6 - t2 / 120 + t2**2 / 5040, (t - t.sin()) / (safe * t))
        return a, b, c

    @staticmethod
    def hat(w):
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack((o, -z, y, z, o, -x, -y, x, o), -1).view(*w.shape, 3)

    @staticmethod
    def forward(ctx, w):
        a, b, _ = SO3Exp.coefficients(w)
        K = SO3Exp.hat(w)
        R = torch.eye(3, dtype=w.dtype, device=w.device) + a[:, None, None] * K + b[:, None, None] * (K @ K)
        ctx.save_for_backward(w, R)
        return R

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        w, R = ctx.saved_tensors
        M = R.mT @ G
        tangent = torch.stack((M[:, 2, 1] - M[:, 1, 2], M[:, 0, 2] - M[:, 2, 0], M[:, 1, 0] - M[:, 0, 1]), -1)
        _, b, c = SO3Exp.coefficients(w)
        K = SO3Exp.hat(w)
        right = (
            torch.eye(3, dtype=w.dtype, device=w.device) - b[:, None, None] * K + c[:, None, None] * (K @ K)
        )
        return (right.mT @ tangent.unsqueeze(-1)).squeeze(-1)


class LorentzDistance(Function):
    """Distance on the hyperboloid of points given by their space parts."""

    @staticmethod
    def forward(ctx, x, y, curvature):
        x0, y0 = (1 / curvature + x.square().sum(-1)).sqrt(), (1 / curvature + y.square().sum(-1)).sqrt()
        inner = curvature * (x0 * y0 - (x * y).sum(-1))
        ctx.save_for_backward(x, y, x0, y0, inner)
        ctx.curvature = curvature
        return torch.acosh(inner) / curvature**0.5

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, x0, y0, inner = ctx.saved_tensors
        slope = (g * ctx.curvature**0.5 / (inner.square() - 1).sqrt())[:, None]
        grad_x = slope * (x * (y0 / x0)[:, None] - y)
        grad_y = slope * (y * (x0 / y0)[:, None] - x)
        return grad_x, grad_y, None


class PoincareExpMap0(Function):
    """tanh(sqrt(c)|v|) v / (sqrt(c)|v|)."""

    @staticmethod
    def forward(ctx, v, c):
        ctx.save_for_backward(v, c)
        n = c.sqrt() * v.norm(dim=-1, keepdim=True)
        return torch.tanh(n) / n * v

    @staticmethod
    def backward(ctx, g):
        v, c = ctx.saved_tensors
        s = c.sqrt()
        n = s * v.norm(dim=-1, keepdim=True)
        th = torch.tanh(n)
        f = th / n
        df = (1 - th * th - f) / n
        along = (g * v).sum(-1, keepdim=True)
        grad_v = f * g + along * df * c * v / n
        grad_c = (along * df * n).sum() / (2 * c)
        return grad_v, grad_c


# --- transforms ----------------------------------------------------------------------------------
class LiftingStep53(Function):
    """One level of the CDF 5/3 wavelet by lifting, mirrored at the ends; returns (approximation, detail)."""

    @staticmethod
    def forward(ctx, x):
        even, odd = x[..., 0::2], x[..., 1::2]
        following = torch.cat((even[..., 1:], even[..., -1:]), -1)
        d = odd - 0.5 * (even + following)
        previous = torch.cat((d[..., :1], d[..., :-1]), -1)
        return even + 0.25 * (previous + d), d

    @staticmethod
    def backward(ctx, grad_s, grad_d):
        gd = grad_d + 0.25 * grad_s
        shifted = 0.25 * grad_s
        gd = gd + torch.cat((shifted[..., 1:], torch.zeros_like(shifted[..., :1])), -1)
        gd = torch.cat((gd[..., :1] + shifted[..., :1], gd[..., 1:]), -1)
        back = -0.5 * gd
        ge = grad_s + back
        ge = ge + torch.cat((torch.zeros_like(back[..., :1]), back[..., :-1]), -1)
        ge = torch.cat((ge[..., :-1], ge[..., -1:] + back[..., -1:]), -1)
        return torch.stack((ge, gd), -1).flatten(-2)


class DCT2(Function):
    """Orthonormal DCT-II of the last dimension through an FFT."""

    @staticmethod
    def phases(n, like):
        k = torch.arange(n, dtype=like.dtype, device=like.device)
        scale = torch.full_like(k, math.sqrt(2 / n))
        scale[0] = math.sqrt(1 / n)
        angle = -math.pi * k / (2 * n)
        return torch.complex(angle.cos(), angle.sin()) * scale

    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        order = torch.cat((x[..., ::2], x[..., 1::2].flip(-1)), -1)
        return (torch.fft.fft(order) * DCT2.phases(n, x)).real

    @staticmethod
    def backward(ctx, g):
        n = g.shape[-1]
        back = torch.fft.fft(g * DCT2.phases(n, g)).real
        half = (n + 1) // 2
        out = torch.empty_like(back)
        out[..., ::2] = back[..., :half]
        out[..., 1::2] = back[..., half:].flip(-1)
        return out


class LogCumSumExp(Function):
    @staticmethod
    def forward(ctx, x, dim):
        y = torch.logcumsumexp(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        scaled = g * torch.exp(-y)
        return torch.exp(x) * scaled.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class ComplexLinear(Function):
    """z W^T + b of complex layers, and the power of the result."""

    @staticmethod
    def forward(ctx, z, W, b):
        y = z @ W.t() + b
        ctx.save_for_backward(z, W, y)
        return y, (y * y.conj()).real.mean(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, gp):
        z, W, y = ctx.saved_tensors
        g = gy + 2 * y * gp / len(y)
        return g @ W.conj(), g.t() @ z.conj(), g.sum(0)


# --- linear algebra, implicit --------------------------------------------------------------------
class ThinQR(Function):
    """Q and R of a tall matrix."""

    @staticmethod
    def forward(ctx, A):
        Q, R = torch.linalg.qr(A)
        sign = torch.sign(R.diagonal())
        Q, R = Q * sign, R * sign[:, None]
        ctx.save_for_backward(Q, R)
        return Q, R

    @staticmethod
    @once_differentiable
    def backward(ctx, gQ, gR):
        Q, R = ctx.saved_tensors
        M = R @ gR.mT - gQ.mT @ Q
        symmetric = M.tril() + M.tril(-1).mT
        return torch.linalg.solve_triangular(R, (gQ + Q @ symmetric).mT, upper=True).mT


class EqualityQP(Function):
    """argmin 0.5 x'Px + q'x with Ax = b, by the KKT system; returns x and the multipliers."""

    @staticmethod
    def kkt(P, A):
        m = A.shape[0]
        top = torch.cat((P, A.mT), 1)
        return torch.cat((top, torch.cat((A, A.new_zeros(m, m)), 1)), 0)

    @staticmethod
    def forward(ctx, P, q, A, b):
        n = len(q)
        z = torch.linalg.solve(EqualityQP.kkt(P, A), torch.cat((-q, b)))
        ctx.save_for_backward(P, A, z)
        return z[:n].clone(), z[n:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gx, gnu):
        P, A, z = ctx.saved_tensors
        n = P.shape[0]
        x, nu = z[:n], z[n:]
        d = torch.linalg.solve(EqualityQP.kkt(P, A).mT, torch.cat((gx, gnu)))
        dx, dnu = d[:n], d[n:]
        grad_P = -torch.outer(dx, x)
        grad_A = -torch.outer(dnu, x) - torch.outer(nu, dx)
        return 0.5 * (grad_P + grad_P.mT), -dx, grad_A, dnu


class BisectRoot(Function):
    """The x with x + a sinh(x) = y (a > 0), by bisection."""

    @staticmethod
    def forward(ctx, y, a):
        low, high = -y.abs() - 1, y.abs() + 1
        for _ in range(80):
            mid = (low + high) / 2
            above = mid + a * mid.sinh() > y
            high = torch.where(above, mid, high)
            low = torch.where(above, low, mid)
        x = (low + high) / 2
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        slope = 1 + a * x.cosh()
        return g / slope, (-g * x.sinh() / slope).sum()


class SparsemaxRows(Function):
    """Projection of rows onto the simplex."""

    @staticmethod
    def forward(ctx, x):
        s, _ = x.sort(-1, descending=True)
        k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        cumulative = s.cumsum(-1) - 1
        support = (s * k > cumulative).sum(-1, keepdim=True)
        tau = cumulative.gather(-1, support - 1) / support
        y = (x - tau).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        on = (y > 0).to(g.dtype)
        mean = (g * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)
        return on * (g - mean)


class RK4Step(Function):
    """One step of classical Runge-Kutta for x' = tanh(A x) + b, with the discrete adjoint."""

    @staticmethod
    def forward(ctx, x, A, b, dt):
        def f(v):
            return torch.tanh(v @ A.t()) + b

        k1 = f(x)
        k2 = f(x + dt / 2 * k1)
        k3 = f(x + dt / 2 * k2)
        k4 = f(x + dt * k3)
        ctx.save_for_backward(x, A, k1, k2, k3, b)
        ctx.dt = dt
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, A, k1, k2, k3, b = ctx.saved_tensors
        dt = ctx.dt
        grad_A, grad_b = torch.zeros_like(A), torch.zeros_like(b)

        def pull(point, cotangent):
            nonlocal grad_A, grad_b
            slope = cotangent * (1 - torch.tanh(point @ A.t()).square())
            grad_A = grad_A + slope.t() @ point
            grad_b = grad_b + cotangent.sum(0)
            return slope @ A

        p4 = pull(x + dt * k3, dt / 6 * g)
        p3 = pull(x + dt / 2 * k2, dt / 3 * g + dt * p4)
        p2 = pull(x + dt / 2 * k1, dt / 3 * g + dt / 2 * p3)
        p1 = pull(x, dt / 6 * g + dt / 2 * p2)
        return g + p1 + p2 + p3 + p4, grad_A, grad_b, None


class NewtonInverse(Function):
    """The inverse by Newton-Schulz iterations from A^T/(|A|_1 |A|_inf), run to rest."""

    @staticmethod
    def forward(ctx, A):
        X = A.mT / (A.abs().sum(0).max() * A.abs().sum(1).max())
        eye = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        for _ in range(60):
            X = X @ (2 * eye - A @ X)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (X,) = ctx.saved_tensors
        return -X.mT @ g @ X.mT


class KroneckerLinear(Function):
    """x (A kron B)^T without building the product."""

    @staticmethod
    def forward(ctx, x, A, B):
        X = x.view(-1, A.shape[1], B.shape[1])
        ctx.save_for_backward(x, A, B)
        return torch.einsum("ij,njl,kl->nik", A, X, B).reshape(x.shape[0], -1)

    @staticmethod
    def backward(ctx, g):
        x, A, B = ctx.saved_tensors
        X = x.view(-1, A.shape[1], B.shape[1])
        G = g.reshape(-1, A.shape[0], B.shape[0])
        grad_x = torch.einsum("ij,nik,kl->njl", A, G, B).reshape(x.shape)
        grad_A = torch.einsum("nik,njl,kl->ij", G, X, B)
        grad_B = torch.einsum("nik,njl,ij->kl", G, X, A)
        return grad_x, grad_A, grad_B


class LowRankAdapter(Function):
    """x W^T + scale * dropout-free (x A^T) B^T with W frozen; W gets a gradient only if asked."""

    @staticmethod
    def forward(ctx, x, W, A, B, scale):
        ctx.save_for_backward(x, W, A, B)
        ctx.scale = scale
        return x @ W.t() + scale * (x @ A.t()) @ B.t()

    @staticmethod
    def backward(ctx, g):
        x, W, A, B = ctx.saved_tensors
        grad_x = grad_W = grad_A = grad_B = None
        inner = ctx.scale * (g @ B)
        if ctx.needs_input_grad[0]:
            grad_x = g @ W + inner @ A
        if ctx.needs_input_grad[1]:
            grad_W = g.t() @ x
        if ctx.needs_input_grad[2]:
            grad_A = inner.t() @ x
        if ctx.needs_input_grad[3]:
            grad_B = ctx.scale * g.t() @ (x @ A.t())
        return grad_x, grad_W, grad_A, grad_B, None


# --- graphs, indices, grids ----------------------------------------------------------------------
class GraphMeanAggregate(Function):
    """Mean over incoming edges of edge_weight * x[src]."""

    @staticmethod
    def forward(ctx, x, edge_weight, src, dst):
        n = x.shape[0]
        degree = torch.bincount(dst, minlength=n).clamp(min=1).to(x.dtype)
        out = torch.zeros_like(x).index_add(0, dst, edge_weight[:, None] * x[src])
        ctx.save_for_backward(x, edge_weight, src, dst, degree)
        return out / degree[:, None]

    @staticmethod
    def backward(ctx, g):
        x, edge_weight, src, dst, degree = ctx.saved_tensors
        ge = (g / degree[:, None])[dst]
        grad_x = torch.zeros_like(x).index_add(0, src, edge_weight[:, None] * ge)
        return grad_x, (ge * x[src]).sum(1), None, None


class PermutedGather(Function):
    """Rows in the order of a permutation, scaled, with their inverse order for the caller."""

    @staticmethod
    def forward(ctx, x, scale, order):
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device, dtype=order.dtype)
        ctx.save_for_backward(x, scale, order, inverse)
        ctx.mark_non_differentiable(inverse)
        return x[order] * scale[:, None], inverse

    @staticmethod
    def backward(ctx, g, _):
        x, scale, order, inverse = ctx.saved_tensors
        return (g * scale[:, None])[inverse], (g * x[order]).sum(1), None


class UpsampleLinear1d(Function):
    """Linear interpolation to a new length, align_corners or not."""

    @staticmethod
    def grid(n, m, align, like):
        i = torch.arange(m, dtype=like.dtype, device=like.device)
        if align:
            position = i * ((n - 1) / (m - 1)) if m > 1 else torch.zeros_like(i)
        else:
            position = ((i + 0.5) * (n / m) - 0.5).clamp(min=0)
        low = position.floor().long().clamp(max=n - 1)
        return low, (low + 1).clamp(max=n - 1), position - low

    @staticmethod
    def forward(ctx, x, m, align):
        n = x.shape[-1]
        low, high, t = UpsampleLinear1d.grid(n, m, align, x)
        ctx.shape, ctx.m, ctx.align = x.shape, m, align
        return x[..., low] * (1 - t) + x[..., high] * t

    @staticmethod
    def backward(ctx, g):
        low, high, t = UpsampleLinear1d.grid(ctx.shape[-1], ctx.m, ctx.align, g)
        grad = g.new_zeros(ctx.shape)
        return grad.index_add(-1, low, g * (1 - t)).index_add(-1, high, g * t), None, None


class HashGridEncode(Function):
    """Trilinear features of points in a hashed grid of tables (instant NGP), one level, two dimensions."""

    @staticmethod
    def cells(points, resolution, size):
        scaled = points * resolution
        base = scaled.floor()
        frac = scaled - base
        for dx in (0, 1):
            for dy in (0, 1):
                ix, iy = base[:, 0].long() + dx, base[:, 1].long() + dy
                slot = (ix ^ (iy * 2654435761)) % size
                wx = frac[:, 0] if dx else 1 - frac[:, 0]
                wy = frac[:, 1] if dy else 1 - frac[:, 1]
                yield slot, wx, wy, 2 * dx - 1, 2 * dy - 1

    @staticmethod
    def forward(ctx, points, table, resolution):
        out = table.new_zeros(points.shape[0], table.shape[1])
        for slot, wx, wy, _, _ in HashGridEncode.cells(points, resolution, table.shape[0]):
            out = out + (wx * wy)[:, None] * table[slot]
        ctx.save_for_backward(points, table)
        ctx.resolution = resolution
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        points, table = ctx.saved_tensors
        grad_points, grad_table = torch.zeros_like(points), torch.zeros_like(table)
        for slot, wx, wy, sx, sy in HashGridEncode.cells(points, ctx.resolution, table.shape[0]):
            grad_table.index_add_(0, slot, (wx * wy)[:, None] * g)
            along = (g * table[slot]).sum(1) * ctx.resolution
            grad_points[:, 0] += sx * wy * along
            grad_points[:, 1] += sy * wx * along
        return grad_points, grad_table, None


class DepthwiseConv1d(Function):
    """Causal depthwise convolution with an optional bias and SiLU."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        k = weight.shape[1]
        y = F.conv1d(F.pad(x, (k - 1, 0)), weight.unsqueeze(1), bias, groups=x.shape[1])
        ctx.save_for_backward(x, weight, bias)
        ctx.activation = activation
        return F.silu(y) if activation else y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        k, channels = weight.shape[1], x.shape[1]
        padded = F.pad(x, (k - 1, 0))
        if ctx.activation:
            y = F.conv1d(padded, weight.unsqueeze(1), bias, groups=channels)
            s = torch.sigmoid(y)
            g = g * s * (1 + y * (1 - s))
        grad_x = F.conv_transpose1d(g, weight.unsqueeze(1), groups=channels)[..., k - 1 :]
        windows = padded.unfold(-1, k, 1)
        grad_weight = torch.einsum("bcl,bclk->ck", g, windows)
        return grad_x, grad_weight, g.sum((0, 2)) if bias is not None else None, None


# --- interfaces ----------------------------------------------------------------------------------
class StackAffine(Function):
    """Any number of tensors, each scaled by its own weight and summed; a Function of *args."""

    @staticmethod
    def forward(ctx, weights, *tensors):
        ctx.save_for_backward(weights, *tensors)
        out = torch.zeros_like(tensors[0])
        for i, t in enumerate(tensors):
            out = out + weights[i] * t
        return out

    @staticmethod
    def backward(ctx, g):
        weights, *tensors = ctx.saved_tensors
        grad_weights = torch.stack([(g * t).sum() for t in tensors])
        return grad_weights, *[g * w for w in weights]


class ChunkedActivation(Function):
    """Gated activation over chunks of rows to bound memory; returns gate statistics as an output without gradient."""

    @staticmethod
    def forward(ctx, x, gate, rows):
        out = torch.empty_like(x)
        for i in range(0, x.shape[0], rows):
            out[i : i + rows] = x[i : i + rows] * torch.sigmoid(gate[i : i + rows])
        ctx.save_for_backward(x, gate)
        ctx.rows = rows
        open_share = (gate > 0).to(x.dtype).mean()
        ctx.mark_non_differentiable(open_share)
        return out, open_share

    @staticmethod
    @once_differentiable
    def backward(ctx, g, _):
        x, gate = ctx.saved_tensors
        grad_x, grad_gate = torch.empty_like(x), torch.empty_like(gate)
        for i in range(0, x.shape[0], ctx.rows):
            part = slice(i, i + ctx.rows)
            s = torch.sigmoid(gate[part])
            grad_x[part] = g[part] * s
            grad_gate[part] = g[part] * x[part] * s * (1 - s)
        return grad_x, grad_gate, None


class ClampedLogSigmaGaussian(Function):
    """log N(x; mu, exp(s)) with s clamped, in the style of policies; new-style setup_context."""

    @staticmethod
    def forward(x, mu, log_sigma, low, high):
        s = log_sigma.clamp(low, high)
        z = (x - mu) * torch.exp(-s)
        return (-0.5 * z * z - s - 0.5 * math.log(2 * math.pi)).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, mu, log_sigma, low, high = inputs
        ctx.save_for_backward(x, mu, log_sigma)
        ctx.low, ctx.high = low, high

    @staticmethod
    def backward(ctx, g):
        x, mu, log_sigma = ctx.saved_tensors
        s = log_sigma.clamp(ctx.low, ctx.high)
        z = (x - mu) * torch.exp(-s)
        inside = ((log_sigma >= ctx.low) & (log_sigma <= ctx.high)).to(x.dtype)
        g = g.unsqueeze(-1)
        grad_x = -g * z * torch.exp(-s)
        return grad_x, -grad_x, g * (z * z - 1) * inside, None, None


class MomentumStep(Function):
    """One unrolled heavy-ball step (meta-learning): gives the new parameter and the new velocity."""

    @staticmethod
    def forward(ctx, p, v, grad, lr, momentum, decay):
        g = grad + decay * p
        velocity = momentum * v + g
        ctx.save_for_backward(lr, velocity)
        ctx.momentum, ctx.decay = momentum, decay
        return p - lr * velocity, velocity.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gv):
        lr, velocity = ctx.saved_tensors
        total = gv - lr * gp
        return gp + ctx.decay * total, ctx.momentum * total, total, -(gp * velocity).sum(), None, None


class GradientPenaltyNorm(Function):
    """Mean of (|row| - target)^2, the penalty of WGAN-GP on gradients that are given."""

    @staticmethod
    def forward(ctx, grads, target):
        norm = grads.norm(dim=1)
        ctx.save_for_backward(grads)
        ctx.target = target
        return (norm - target).square().mean()

    @staticmethod
    def backward(ctx, g):
        (grads,) = ctx.saved_tensors
        norm = grads.norm(dim=1, keepdim=True)
        return g * 2 * (norm - ctx.target) * grads / norm / len(grads), None


class InverseReversible(Function):
    """y1 = x1 + tanh(x2 A), y2 = x2 + tanh(y1 B): keeps its outputs, and finds the inputs again from them."""

    @staticmethod
    def forward(ctx, x1, x2, A, B):
        y1 = x1 + torch.tanh(x2 @ A)
        y2 = x2 + torch.tanh(y1 @ B)
        ctx.save_for_backward(y1, y2, A, B)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, A, B = ctx.saved_tensors
        tb = torch.tanh(y1 @ B)
        x2 = y2 - tb
        pb = g2 * (1 - tb * tb)
        grad_B = y1.t() @ pb
        g1 = g1 + pb @ B.t()
        ta = torch.tanh(x2 @ A)
        pa = g1 * (1 - ta * ta)
        return g1, g2 + pa @ A.t(), x2.t() @ pa, grad_B
