"""Careful elementwise mathematics, bases, splines and random draws."""

import functools
import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class BCEWithPosWeight(Function):
    """The stable form: max(x, 0), log1p(exp(-|x|))."""

    @staticmethod
    def forward(ctx, x, y, pos_weight):
        w = 1 + (pos_weight - 1) * y
        softplus = torch.log1p(torch.exp(-x.abs())) + (-x).clamp(min=0)
        ctx.save_for_backward(x, y, pos_weight)
        return (1 - y) * x + w * softplus

    @staticmethod
    def backward(ctx, g):
        x, y, pos_weight = ctx.saved_tensors
        w = 1 + (pos_weight - 1) * y
        return g * ((1 - y) - w * torch.sigmoid(-x)), None, None


class LogSubExp(Function):
    """log(exp(a) - exp(b)) for a > b, with log1p or log(-expm1) by how far apart they are."""

    @staticmethod
    def forward(ctx, a, b):
        d = a - b
        near = d < math.log(2)
        log1mexp = torch.where(near, torch.log(-torch.expm1(-d)), torch.log1p(-torch.exp(-d)))
        ctx.save_for_backward(a, b)
        return a + log1mexp

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = a - b
        return g / -torch.expm1(-d), -g / torch.expm1(d)


class RelativeExp(Function):
    """(exp(x) - 1) / x, by its series near zero."""

    @staticmethod
    def forward(ctx, x):
        small = x.abs() < 1e-3
        safe = torch.where(small, torch.ones_like(x), x)
        series = 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))
        y = torch.where(small, series, torch.expm1(safe) / safe)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        small = x.abs() < 0.05
        safe = torch.where(small, torch.ones_like(x), x)
        series = sum(x**k * ((k + 1) / math.factorial(k + 2)) for k in range(9))
        exact = (safe * torch.exp(safe) - torch.expm1(safe)) / safe**2
        return g * torch.where(small, series, exact)


class LambertW(Function):
    """Principal branch by Halley's iteration; w' = w / (x (1 + w))."""

    @staticmethod
    def forward(ctx, x):
        w = torch.log1p(x)
        for _ in range(20):
            e = torch.exp(w)
            f = w * e - x
            w = w - f / (e * (w + 1) - (w + 2) * f / (2 * w + 2))
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * torch.exp(-w) / (1 + w)


class _PolyGamma(Function):
    """Derivative n of the log-gamma function, whose own derivative is the next one."""

    @staticmethod
    def forward(ctx, order, x):
        ctx.order = order
        ctx.save_for_backward(x)
        return torch.lgamma(x) if order == 0 else torch.polygamma(order - 1, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return None, g * _PolyGamma.apply(ctx.order + 1, x)


class LogBinomial(Function):
    """log C(n, k) for real n and k, through `_PolyGamma` so that it can be differentiated again."""

    @staticmethod
    def forward(ctx, n, k):
        ctx.save_for_backward(n, k)
        return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)

    @staticmethod
    def backward(ctx, g):
        n, k = ctx.saved_tensors
        psi = functools.partial(_PolyGamma.apply, 1)
        rest = psi(n - k + 1)
        return g * (psi(n + 1) - rest), g * (rest - psi(k + 1))


class LegendreBasis(Function):
    """P_0 … P_k at x by the three-term recurrence; derivatives by the same recurrence."""

    @staticmethod
    def forward(ctx, x, degree):
        p, d = [torch.ones_like(x)], [torch.zeros_like(x)]
        if degree > 0:
            p.append(x)
            d.append(torch.ones_like(x))
        for n in range(1, degree):
            p.append(((2 * n + 1) * x * p[n] - n * p[n - 1]) / (n + 1))
            d.append(d[n - 1] + (2 * n + 1) * p[n])
        ctx.save_for_backward(torch.stack(d, -1))
        return torch.stack(p, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return (g * d).sum(-1), None


class BSplineActivation(Function):
    """A cubic B-spline on uniform knots over [-2, 2], as in Kolmogorov-Arnold layers."""

    @staticmethod
    def weights(t):
        return (
            torch.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], -1)
            / 6
        )

    @staticmethod
    def slopes(t):
        return torch.stack([-((1 - t) ** 2), 3 * t**2 - 4 * t, -3 * t**2 + 2 * t + 1, t**2], -1) / 2

    @staticmethod
    def forward(ctx, x, coefficients):
        cells = coefficients.numel() - 3
        u = (x.clamp(-2, 2) + 2) / 4 * cells
        cell = u.floor().clamp(0, cells - 1)
        t = u - cell
        index = cell.long().unsqueeze(-1) + torch.arange(4)
        ctx.save_for_backward(x, t, index, coefficients)
        return (BSplineActivation.weights(t) * coefficients[index]).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, t, index, coefficients = ctx.saved_tensors
        cells = coefficients.numel() - 3
        inside = (x > -2) & (x < 2)
        dx = g * (BSplineActivation.slopes(t) * coefficients[index]).sum(-1) * cells / 4 * inside
        dc = torch.zeros_like(coefficients)
        dc.index_add_(0, index.reshape(-1), (g.unsqueeze(-1) * BSplineActivation.weights(t)).reshape(-1))
        return dx, dc


class PadeActivation(Function):
    """Σ aᵢ xⁱ / (1 + |Σ bⱼ x^(j+1)|), evaluated by Horner's rule."""

    @staticmethod
    def forward(ctx, x, a, b):
        top, bottom = torch.zeros_like(x), torch.zeros_like(x)
        for c in a.flip(0):
            top = top * x + c
        for c in b.flip(0):
            bottom = (bottom + c) * x
        q = 1 + bottom.abs()
        ctx.save_for_backward(x, a, b, top, bottom)
        return top / q

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a, b, top, bottom = ctx.saved_tensors
        q, sign = 1 + bottom.abs(), bottom.sign()
        d_top = torch.zeros_like(x)
        for i in range(len(a) - 1, 0, -1):
            d_top = d_top * x + i * a[i]
        d_bottom = torch.zeros_like(x)
        for j in range(len(b) - 1, -1, -1):
            d_bottom = d_bottom * x + (j + 1) * b[j]
        dx = g * (d_top / q - top / q**2 * sign * d_bottom)
        powers_a = torch.stack([x**i for i in range(len(a))])
        powers_b = torch.stack([x ** (j + 1) for j in range(len(b))])
        outer_sum = tuple(range(1, x.dim() + 1))
        da = (powers_a * (g / q)).sum(outer_sum)
        db = (powers_b * (-g * top / q**2 * sign)).sum(outer_sum)
        return dx, da, db


class HermiteSpline(Function):
    """Cubic Hermite interpolation of (xs, ys, slopes) at points, found by bisection."""

    @staticmethod
    def forward(ctx, points, xs, ys, slopes):
        i = (torch.searchsorted(xs, points, right=True) - 1).clamp(0, len(xs) - 2)
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        ctx.save_for_backward(points, xs, i, ys, slopes)
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        return h00 * ys[i] + h * h10 * slopes[i] + h01 * ys[i + 1] + h * h11 * slopes[i + 1]

    @staticmethod
    def backward(ctx, g):
        points, xs, i, ys, slopes = ctx.saved_tensors
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        rise = (ys[i + 1] - ys[i]) * 6 * t * (1 - t) / h
        d_points = g * (rise + (1 - t) * (1 - 3 * t) * slopes[i] + t * (3 * t - 2) * slopes[i + 1])
        d_ys = torch.zeros_like(ys).index_add(0, i, g * h00).index_add(0, i + 1, g * h01)
        d_slopes = torch.zeros_like(slopes).index_add(0, i, g * h * h10).index_add(0, i + 1, g * h * h11)
        return d_points, None, d_ys, d_slopes


class RationalQuadraticCell(Function):
    """One cell of a neural spline flow: y and log|dy/dx| for x in [0, 1], slopes at both ends positive."""

    @staticmethod
    def forward(ctx, x, d0, d1):
        t = x * (1 - x)
        den = 1 + (d0 + d1 - 2) * t
        top = x * x + d0 * t
        slope_top = d1 * x * x + 2 * t + d0 * (1 - x) ** 2
        ctx.save_for_backward(x, d0, d1)
        return top / den, slope_top.log() - 2 * den.log()

    @staticmethod
    def backward(ctx, gy, gl):
        x, d0, d1 = ctx.saved_tensors
        t = x * (1 - x)
        dt = 1 - 2 * x
        s = d0 + d1 - 2
        den = 1 + s * t
        top = x * x + d0 * t
        slope_top = d1 * x * x + 2 * t + d0 * (1 - x) ** 2
        dx = gy * slope_top / den**2
        dx = dx + gl * ((2 * d1 * x + 2 * dt - 2 * d0 * (1 - x)) / slope_top - 2 * s * dt / den)
        both = -gy * top * t / den**2 - gl * 2 * t / den
        dd0 = gy * t / den + gl * (1 - x) ** 2 / slope_top + both
        dd1 = gl * x * x / slope_top + both
        return dx, dd0, dd1


class Snake(Function):
    """x + sin²(a x) / a with a = exp(log_alpha) per channel."""

    @staticmethod
    def forward(ctx, x, log_alpha):
        a = log_alpha.exp().view(1, -1, *[1] * (x.dim() - 2))
        ctx.save_for_backward(x, log_alpha)
        return x + torch.sin(a * x) ** 2 / a

    @staticmethod
    def backward(ctx, g):
        x, log_alpha = ctx.saved_tensors
        a = log_alpha.exp().view(1, -1, *[1] * (x.dim() - 2))
        twice = torch.sin(2 * a * x)
        dx = g * (1 + twice)
        d_log = g * (x * twice - torch.sin(a * x) ** 2 / a)
        return dx, d_log.sum([i for i in range(x.dim()) if i != 1])


class ReplayedDropout(Function):
    """Dropout whose mask is drawn again in backward from the saved state of the generator."""

    @staticmethod
    def forward(ctx, x, p=0.3, training=True):
        ctx.p, ctx.training = p, training
        if not training or p == 0:
            return x.clone()
        ctx.state = torch.get_rng_state()
        keep = torch.rand(x.shape, dtype=x.dtype) >= p
        return x * keep / (1 - p)

    @staticmethod
    def backward(ctx, g):
        if not ctx.training or ctx.p == 0:
            return g, None, None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            keep = torch.rand(g.shape, dtype=g.dtype) >= ctx.p
        return g * keep / (1 - ctx.p), None, None


class SeededGumbelSoftmax(Function):
    """Softmax of noisy logits; the noise comes from a generator with the given seed."""

    @staticmethod
    def forward(ctx, logits, tau, seed):
        generator = torch.Generator(device=logits.device).manual_seed(seed)
        u = torch.rand(logits.shape, generator=generator, dtype=logits.dtype).clamp(1e-9, 1 - 1e-9)
        noisy = logits - torch.log(-torch.log(u))
        y = torch.softmax(noisy / tau, -1)
        ctx.save_for_backward(y, logits, noisy - logits, tau)
        return y

    @staticmethod
    def backward(ctx, g):
        y, logits, noise, tau = ctx.saved_tensors
        d = y * (g - (g * y).sum(-1, keepdim=True))
        return d / tau, -(d * (logits + noise)).sum() / tau**2, None


class SeluInPlace(Function):
    ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        negative = x < 0
        x[negative] = SeluInPlace.ALPHA * torch.expm1(x[negative])
        x.mul_(SeluInPlace.SCALE)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        scale, alpha = SeluInPlace.SCALE, SeluInPlace.ALPHA
        return g * torch.where(y < 0, y + scale * alpha, torch.full_like(y, scale))
