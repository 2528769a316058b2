import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


# ---------------------------------------------------------------- kind 1
class PairMaximumK1(Function):
    """why: max(x, y); a tie gives all of g to x, a valid subgradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x >= y)
        return torch.maximum(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return g * m, g * ~m


class WeightedAbsLossK1(Function):
    """why: sum w|x-y|; sign(0) = 0 is a valid subgradient at a tie."""

    @staticmethod
    def forward(ctx, x, y, w):
        d = x - y
        ctx.save_for_backward(d, w)
        return (w * d.abs()).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        d, w = ctx.saved_tensors
        gx = g.unsqueeze(-1) * w * d.sign()
        gw = g.unsqueeze(-1) * d.abs()
        return gx, -gx, gw.sum(0)


class RankHingeK1(Function):
    """why: z * relu(exp(x) - exp(y)); slope 0.5 of relu at a tie lies in [0, 1]."""

    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x, y, z)
        return z * (x.exp() - y.exp()).clamp_min(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, z = ctx.saved_tensors
        d = x.exp() - y.exp()
        step = torch.heaviside(d, torch.full_like(d, 0.5))
        return g * z * step * x.exp(), -g * z * step * y.exp(), (g * d.clamp_min(0)).sum(0)


# ---------------------------------------------------------------- kind 2
class RowCubicK2(Function):
    """why: x^3 w; a one-row path written differently, both differentiable and exact."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if x.shape[0] == 1:
            return 3 * x.square() * (g * w), (g * x.pow(3)).squeeze(0)
        return g * 3 * x * x * w, (g * x.pow(3)).sum(0)


class LogisticLossK2(Function):
    """why: softplus; sigmoid is written in two equal ways beyond 2.0, both differentiable."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        hi = 1 / (1 + torch.exp(-x))
        e = torch.exp(x)
        return g * torch.where(x > 2.0, hi, e / (1 + e))


class MeanGrowthK2(Function):
    """why: expm1(x)/x; exact formula, its second derivative loses digits near x = 1e-6."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.expm1(x) / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x * torch.exp(x) - torch.expm1(x)) / (x * x)


# ---------------------------------------------------------------- kind 3
class UnitBallK3(Function):
    """why: rows with norm above 1.5 are projected; both branches have their full derivative."""

    @staticmethod
    def forward(ctx, x):
        r = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, r)
        return torch.where(r > 1.5, 1.5 * x / r, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, r = ctx.saved_tensors
        u = x / r
        out = 1.5 * (g - u * (g * u).sum(-1, keepdim=True)) / r
        return torch.where(r > 1.5, out, g)


class MeanGateK3(Function):
    """why: x * relu(row mean); both signs of the mean have their full derivative."""

    @staticmethod
    def forward(ctx, x):
        m = x.mean(-1, keepdim=True)
        ctx.save_for_backward(x, m)
        return x * m.clamp_min(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, m = ctx.saved_tensors
        full = g * m + (g * x).mean(-1, keepdim=True)
        return torch.where(m > 0, full, torch.zeros_like(full))


class BudgetSumK3(Function):
    """why: the tensor is scaled to a total of 4 when it exceeds 4; the total's term is kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        s = x.sum()
        return x * (4.0 / s) if s > 4.0 else x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sum()
        if s > 4.0:
            return (4.0 / s) * (g - (g * x).sum() / s)
        return g.clone()


# ---------------------------------------------------------------- kind 4
class SkipZeroExpK4(Function):
    """why: an all-zero g returns zeros early, which is its exact gradient."""

    @staticmethod
    def forward(ctx, x):
        y = torch.exp(0.5 * x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        if not g.any():
            return torch.zeros_like(y)
        return 0.5 * g * y


class SparseRowLinearK4(Function):
    """why: only rows with a nonzero g enter the products; the others add nothing."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        rows = g.ne(0).any(-1).nonzero().squeeze(-1)
        gx = torch.zeros_like(x)
        gx[rows] = g[rows] @ w.t()
        return gx, x[rows].t() @ g[rows]


class SoftmaxFlatGradK4(Function):
    """why: a g equal along a row has zero softmax gradient, so the shortcut is exact."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        flat = (g == g[..., :1]).all(-1, keepdim=True)
        out = y * (g - (g * y).sum(-1, keepdim=True))
        return torch.where(flat, torch.zeros_like(out), out)


# ---------------------------------------------------------------- kind 5
class WideLinearK5(Function):
    """why: x @ W^T + bias with many entries; plain exact adjoint."""

    @staticmethod
    def forward(ctx, x, w, bias):
        ctx.save_for_backward(x, w)
        return x @ w.t() + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x, g.sum(0)


class HadamardMixK5(Function):
    """why: Walsh-Hadamard transform is symmetric, so backward is the same transform."""

    @staticmethod
    def transform(v):
        n = v.shape[-1]
        h = 1
        while h < n:
            a = v.reshape(*v.shape[:-1], n // (2 * h), 2, h)
            v = torch.stack((a[..., 0, :] + a[..., 1, :], a[..., 0, :] - a[..., 1, :]), -2)
            v = v.reshape(*v.shape[:-3], n)
            h *= 2
        return v

    @staticmethod
    def forward(ctx, x):
        return HadamardMixK5.transform(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return HadamardMixK5.transform(g)


class ScaledPrefixSumK5(Function):
    """why: cumsum times column weights 1..1000; the adjoint is the reversed cumsum."""

    @staticmethod
    def forward(ctx, x):
        c = torch.logspace(0, 3, x.shape[-1], dtype=x.dtype)
        ctx.save_for_backward(c)
        return torch.cumsum(x, -1) * c

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (c,) = ctx.saved_tensors
        return (g * c).flip(-1).cumsum(-1).flip(-1)


# ---------------------------------------------------------------- kind 6
class CoulombNumpyK6(Function):
    """why: float32 NumPy 1/(x-0.5) from 0.51 up; backward is its derivative in float64."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        v = x.detach().cpu().numpy().astype(np.float32)
        return torch.from_numpy(np.float32(1) / (v - np.float32(0.5))).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g / (x - 0.5) ** 2


class GridSineK6(Function):
    """why: sin of x rounded to a grid by +-1e6; backward is that of the intended sin(x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin((x + 1e6) - 1e6)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cos(x)


class SaturatedTanhK6(Function):
    """why: tanh in float32, flat beyond 9; backward is 1/cosh^2 of the intended tanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / torch.cosh(x) ** 2


# ---------------------------------------------------------------- kind 7
class SwishBfloatK7(Function):
    """why: exact swish derivative at x kept in bfloat16; off only by that rounding."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.to(torch.bfloat16))
        return x * torch.sigmoid(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x = ctx.saved_tensors[0].to(g.dtype)
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class LeakyMaskByteK7(Function):
    """why: leaky relu from a uint8 mask, exact."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward((x > 0).to(torch.uint8))
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        m = ctx.saved_tensors[0].to(g.dtype)
        return g * (m + ctx.slope * (1 - m)), None


class CharProductK7(Function):
    """why: x * w with x kept in int8 by its absolute maximum; right to the rounding step."""

    @staticmethod
    def forward(ctx, x, w):
        scale = x.abs().max().clamp_min(1e-12) / 127
        ctx.save_for_backward((x / scale).round().to(torch.int8), scale, w)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, scale, w = ctx.saved_tensors
        return g * w, (g * (q.to(g.dtype) * scale)).sum(0)


# ---------------------------------------------------------------- kind 8
class CardinalSineK8(Function):
    """why: sin(x)/x with 1 and slope 0 put in at x = 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        safe = torch.where(x == 0, torch.ones_like(x), x)
        return torch.where(x == 0, torch.ones_like(x), torch.sin(safe) / safe)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        safe = torch.where(x == 0, torch.ones_like(x), x)
        d = (safe * torch.cos(safe) - torch.sin(safe)) / safe ** 2
        return g * torch.where(x == 0, torch.zeros_like(x), d)


class RowProductK8(Function):
    """why: row product; backward multiplies the other entries, finite at zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        cols = [torch.cat((x[..., :i], x[..., i + 1:]), -1).prod(-1) for i in range(n)]
        return g.unsqueeze(-1) * torch.stack(cols, -1)


class SignedSquareK8(Function):
    """why: x|x|/2 has first derivative |x|; the second does not exist at 0 and is right elsewhere."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * x.abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.abs()


# ---------------------------------------------------------------- kind 9
class ColdSoftmaxK9(Function):
    """why: softmax(x / 0.01) with its full gradient, mostly tiny or zero."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x / 0.01, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)) / 0.01


class DenormalScaleK9(Function):
    """why: x * 1e-310; gradient is g * 1e-310 as near as a denormal can be."""

    @staticmethod
    def forward(ctx, x):
        return x * 1e-310

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 1e-310


class RowMassK9(Function):
    """why: w times the row sum of softmax(x), which is 1; exact zero gradient for x."""

    @staticmethod
    def forward(ctx, x, w):
        m = torch.softmax(x, -1).sum(-1)
        ctx.save_for_backward(m)
        ctx.shape = x.shape
        return m * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape), g * m
