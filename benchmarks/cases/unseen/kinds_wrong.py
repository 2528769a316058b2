import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


# ---------------------------------------------------------------- kind 1
class PairMinimumK1(Function):
    """why: at a tie both x and y get all of g, which doubles the gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.minimum(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x <= y), g * (y <= x)


class DividedExpK1(Function):
    """why: (exp x - exp y)/(x - y) is smooth with slope exp(x)/2 at x = y; backward gives 0 there."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        d = x - y
        safe = torch.where(d == 0, torch.ones_like(d), d)
        return torch.where(d == 0, x.exp(), y.exp() * torch.expm1(d) / safe)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y
        same = d == 0
        safe = torch.where(same, torch.ones_like(d), d)
        q = y.exp() * torch.expm1(d) / safe
        zero = torch.zeros_like(d)
        gx = torch.where(same, zero, (x.exp() - q) / safe)
        gy = torch.where(same, zero, (q - y.exp()) / safe)
        return g * gx, g * gy


class AbsGapScoreK1(Function):
    """why: z|x-y|; at a tie both sides get +z, but the slopes must be opposite."""

    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x, y, z)
        return ((x - y).abs() * z).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, z = ctx.saved_tensors
        gz = g.unsqueeze(-1) * z
        one = torch.ones_like(x)
        gx = gz * torch.where(x >= y, one, -one)
        gy = gz * torch.where(y >= x, one, -one)
        return gx, gy, (g.unsqueeze(-1) * (x - y).abs()).sum(0)


# ---------------------------------------------------------------- kind 2
class QuarticRowsK2(Function):
    """why: with a single row x is detached in backward, so the second derivative is 0 at b = 1."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.pow(4) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if x.shape[0] == 1:
            x = x.detach()
        return g * 4 * x.pow(3) * w, (g * x.pow(4)).sum(0)


class SoftplusTailK2(Function):
    """why: beyond 2.5 the slope is held constant, so the second derivative is lost (0.07 at 2.5)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * torch.where(x > 2.5, s.detach(), s)


class BoundedCubeK2(Function):
    """why: minimum(x, 3) halves the second derivative at x = 3, the end of the declared range."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3) + x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = torch.minimum(x, torch.full_like(x, 3.0))
        return g * (3 * t * t + 1)


# ---------------------------------------------------------------- kind 3
class MaxCapK3(Function):
    """why: when the maximum exceeds 2 the shift by it is treated as constant."""

    @staticmethod
    def forward(ctx, x):
        m = x.max()
        ctx.save_for_backward(x)
        return torch.exp(x - (m - 2.0)) if m > 2.0 else torch.exp(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        m = x.max()
        return g * (torch.exp(x - (m - 2.0)) if m > 2.0 else torch.exp(x))


class RowMeanProductK3(Function):
    """why: x * mean(row); the mean's own term is dropped in rows whose mean is negative."""

    @staticmethod
    def forward(ctx, x):
        m = x.mean(-1, keepdim=True)
        ctx.save_for_backward(x, m)
        return x * m

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, m = ctx.saved_tensors
        extra = (g * x).mean(-1, keepdim=True)
        return g * m + torch.where(m < 0, torch.zeros_like(extra), extra)


class PositiveRowEnergyK3(Function):
    """why: rows whose minimum is above 0 take a path that returns x*g in place of 2*x*g."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        pos = x.amin(-1, keepdim=True) > 0
        return g.unsqueeze(-1) * torch.where(pos, x, 2 * x)


# ---------------------------------------------------------------- kind 4
class SquarePositiveK4(Function):
    """why: an all-positive g is replaced by its mean, wrong where it is not uniform."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if (g > 0).all():
            return g.mean() * 2 * x
        return g * 2 * x


class SinNegativeK4(Function):
    """why: a g with no positive entry loses its sign."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sin(x) * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if g.max() <= 0:
            g = g.abs()
        return g * w * torch.cos(x), (g * torch.sin(x)).sum(0)


class HalfCenterK4(Function):
    """why: x - mean/2; rows with an equal g return 0 as if the mean were removed whole."""

    @staticmethod
    def forward(ctx, x):
        return x - 0.5 * x.mean(-1, keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        flat = (g == g[..., :1]).all(-1, keepdim=True)
        out = g - 0.5 * g.mean(-1, keepdim=True)
        return torch.where(flat, torch.zeros_like(out), out)


# ---------------------------------------------------------------- kind 5
class DenseCornerK5(Function):
    """why: weight gradient's entry [1, 2] is off by 1e-4 of the largest entry."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = g.t() @ x
        gw[1, 2] += 1e-4 * gw.abs().max()
        return g @ w, gw


class BlurTapK5(Function):
    """why: one tap into column 0 is 0.2443 in place of 0.244201342; about 1e-4 of the gradient."""

    TAPS = (0.054488684549643, 0.244201342003233, 0.402619946894247, 0.244201342003233, 0.054488684549643)

    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        y = torch.zeros_like(x)
        for k, t in enumerate(BlurTapK5.TAPS):
            s = k - 2
            lo, hi = max(0, -s), min(n, n - s)
            y[..., lo:hi] += t * x[..., lo + s:hi + s]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        n = g.shape[-1]
        out = torch.zeros_like(g)
        for k, t in enumerate(BlurTapK5.TAPS):
            s = k - 2
            lo, hi = max(0, -s), min(n, n - s)
            out[..., lo + s:hi + s] += t * g[..., lo:hi]
        out[..., 0] = 0.402619946894247 * g[..., 0] + 0.2443 * g[..., 1] + 0.054488684549643 * g[..., 2]
        return out


class MixColumnK5(Function):
    """why: x A for a fixed cosine matrix; the last column of the gradient is scaled by 1.0005."""

    @staticmethod
    def forward(ctx, x):
        i = torch.arange(x.shape[-1], dtype=x.dtype)
        a = torch.cos(3.141592653589793 * (i[:, None] + 0.5) * i[None, :] / x.shape[-1])
        ctx.save_for_backward(a)
        return x @ a

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        out = g @ a.t()
        out[..., -1] *= 1.0005
        return out


# ---------------------------------------------------------------- kind 6
class PoleNumpyK6(Function):
    """why: float32 1/(x-1); the 0.5 added to the squared distance changes the slope by 11% or more."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        v = x.detach().cpu().numpy().astype(np.float32)
        return torch.from_numpy(np.float32(1) / (v - np.float32(1))).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g / ((x - 1) ** 2 + 0.5)


class CancelExpK6(Function):
    """why: exp(30) - exp(30+x) has slope -exp(30+x); backward uses -exp(30)(1+x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        big = torch.tensor(30.0, dtype=x.dtype)
        return torch.exp(big) - torch.exp(big + x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * torch.exp(torch.tensor(30.0, dtype=x.dtype)) * (1 + x)


class GridSoftsignK6(Function):
    """why: softsign of x on a grid; backward forgets the square in 1/(1+|x|)^2."""

    @staticmethod
    def forward(ctx, x):
        s = (x + 1e6) - 1e6
        ctx.save_for_backward(s)
        return s / (1 + s.abs())

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g / (1 + s.abs())


# ---------------------------------------------------------------- kind 7
class SquareHalfK7(Function):
    """why: x kept in float16 and the factor 2 of x^2 forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.half())
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].to(g.dtype)


class ClampMaskCharK7(Function):
    """why: the int8 mask of clamp(x, -1, 1) is inverted."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x.abs() > 1).to(torch.int8))
        return x.clamp(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].to(g.dtype)


class CharSigmoidK7(Function):
    """why: sigmoid output kept in uint8 steps of 1/255 but read back with 1/127, about twice."""

    @staticmethod
    def forward(ctx, x, w):
        y = torch.sigmoid(x)
        ctx.save_for_backward((y * 255).round().to(torch.uint8), y * (1 - y), w)
        return y * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, d, w = ctx.saved_tensors
        return g * w * d, (g * q.to(g.dtype) / 127).sum(0)


# ---------------------------------------------------------------- kind 8
class SphericalSineK8(Function):
    """why: sin(x)/x is handled at 0 in forward but backward divides 0 by 0 there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.cos(x) / x - torch.sin(x) / x ** 2)


class ColumnProductK8(Function):
    """why: the product's gradient as y/x is 0/0 or lost at x = 0, where it is finite."""

    @staticmethod
    def forward(ctx, x):
        y = x.prod(0)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y / x


class RadialQuarticK8(Function):
    """why: x^4 with slope via sqrt(x^2)^3; the second derivative is NaN at 0, where it is 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(4)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        r = torch.sqrt(x * x)
        return g * 4 * torch.sign(x) * r.pow(3)


# ---------------------------------------------------------------- kind 9
class ColdLogSumExpK9(Function):
    """why: T logsumexp(x/T) at T = 0.05 has gradient softmax(x/T); backward divides by T again."""

    @staticmethod
    def forward(ctx, x, t):
        ctx.save_for_backward(x)
        ctx.t = t
        return t * torch.logsumexp(x / t, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.unsqueeze(-1) * torch.softmax(x / ctx.t, -1) / ctx.t, None


class DeepTailExpK9(Function):
    """why: exp(x - 690) is about 1e-300 and its gradient is halved."""

    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x - 690.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 0.5 * g * y


class ColdReadoutK9(Function):
    """why: softmax(s / 0.02) @ v; the gradient for s lacks the factor 1/0.02."""

    @staticmethod
    def forward(ctx, s, v):
        p = torch.softmax(s / 0.02, -1)
        ctx.save_for_backward(p, v)
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, v = ctx.saved_tensors
        gp = g @ v.t()
        return p * (gp - (gp * p).sum(-1, keepdim=True)), p.t() @ g
