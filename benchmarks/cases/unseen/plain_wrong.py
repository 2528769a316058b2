import math
from enum import Enum
from typing import Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def assert_shape(t, *shape):
    if t.dim() != len(shape) or any(want is not None and have != want for have, want in zip(t.shape, shape)):
        raise ValueError(f"expected shape {shape}, got {tuple(t.shape)}")


# ---------------------------------------------------------------- dense layers and activations


class WeightNormLinear(Function):
    """y = x W^T + b with W[o] = g[o] * v[o] / |v[o]|; no row of v may be zero."""

    @staticmethod
    def forward(ctx, x, v, g, bias=None):
        assert v.dim() == 2 and g.shape == v.shape[:1]
        assert bias is None or bias.shape == g.shape
        norm = v.norm(dim=1, keepdim=True)
        if (norm == 0).any():
            raise ValueError("zero weight direction")
        direction = v / norm
        weight = g.unsqueeze(1) * direction
        ctx.save_for_backward(x, g, direction, norm)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, g, direction, norm = ctx.saved_tensors
        weight = g.unsqueeze(1) * direction
        g2, x2 = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_w = g2.t() @ x2
        grad_g = (grad_w * direction).sum(1)
        grad_v = g.unsqueeze(1) / norm * grad_w
        grad_b = g2.sum(0) if ctx.has_bias else None
        return grad @ weight, grad_v, grad_g, grad_b


class WNLinear(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.v = nn.Parameter(torch.randn(out_features, in_features) * 0.05)
        self.g = nn.Parameter(torch.ones(out_features))
        self.b = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return WeightNormLinear.apply(x, self.v, self.g, self.b)


class ChannelAffine(Function):
    """Per-channel scale and shift of (N, C, *)."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        c = x.shape[1]
        assert weight.shape == (c,) and bias.shape == (c,)
        shape = [1, c] + [1] * (x.dim() - 2)
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return x * weight.view(shape) + bias.view(shape)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_output * weight.view(ctx.shape)
        grad_weight = (grad_output * x).sum(dim=0)
        grad_bias = grad_output.sum(dim=[d for d in range(x.dim()) if d != 1])
        return grad_x, grad_weight, grad_bias


def scale_feature_map(feat: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """feat is (N, C, H, W)"""
    if feat.dim() != 4:
        raise ValueError("expected a batch of feature maps")
    return ChannelAffine.apply(feat, weight, bias)


class ComplexLinear(Function):
    @staticmethod
    def forward(ctx, z, weight):
        # z: (B, I) complex, weight: (O, I) complex
        assert z.is_complex() and weight.is_complex()
        assert z.dim() == 2 and weight.dim() == 2
        ctx.save_for_backward(z, weight)
        return z @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        z, weight = ctx.saved_tensors
        grad_z = grad @ weight.conj()
        grad_weight = grad.t() @ z
        return grad_z, grad_weight


class LSTMPointwise(Function):
    """The elementwise part of an LSTM cell. gates is (B, 4H) in the order i, f, g, o; c is (B, H)."""

    @staticmethod
    def forward(ctx, gates, c):
        assert_shape(c, None, None)
        assert_shape(gates, c.shape[0], 4 * c.shape[1])
        i, f, g, o = gates.chunk(4, dim=1)
        i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
        g = torch.tanh(g)
        c_new = f * c + i * g
        tanh_c = torch.tanh(c_new)
        ctx.save_for_backward(i, f, g, o, c, c_new, tanh_c)
        return o * tanh_c, c_new

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_h, grad_c):
        i, f, g, o, c, c_new, tanh_c = ctx.saved_tensors
        d_c = grad_c + grad_h * o * (1 - tanh_c ** 2)
        d_i = d_c * g * i * (1 - i)
        d_f = d_c * c_new * f * (1 - f)
        d_g = d_c * i * (1 - g ** 2)
        d_o = grad_h * tanh_c * o * (1 - o)
        return torch.cat([d_i, d_f, d_g, d_o], dim=1), d_c * f


class FusedLSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.ih = nn.Linear(input_size, 4 * hidden_size)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)

    def forward(self, x, state):
        h, c = state
        return LSTMPointwise.apply(self.ih(x) + self.hh(h), c)


class LayerNormStats(Function):
    """Layer norm without affine part; hands out (y, mean, rstd) since the caller regularises the statistics."""

    @staticmethod
    def forward(ctx, x, eps: float = 1e-5):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + eps)
        y = (x - mean) * rstd
        ctx.save_for_backward(y, rstd)
        return y, mean.squeeze(-1), rstd.squeeze(-1).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_y, g_mean, g_rstd):
        y, rstd = ctx.saved_tensors
        n = y.shape[-1]
        gx = rstd * (g_y - g_y.mean(-1, keepdim=True) - y * (g_y * y).mean(-1, keepdim=True))
        gx = gx - g_rstd.unsqueeze(-1) * rstd ** 2 * y / n
        return gx, None


class SharpSoftplus(torch.autograd.Function):
    """Softplus with sharpness ``beta``, as used for signed distance networks."""

    @staticmethod
    def forward(ctx, x, beta=100.0):
        ctx.beta = beta
        ctx.save_for_backward(x)
        return torch.logaddexp(x * beta, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output * ctx.beta * torch.sigmoid(ctx.beta * x), None


def _gelu_and_slope(u):
    cdf = 0.5 * (1 + torch.erf(u / math.sqrt(2)))
    pdf = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    return u * cdf, cdf + u * pdf


class GEGLUFunction(Function):
    @staticmethod
    def forward(ctx, value, gate):
        if value.shape != gate.shape:
            raise ValueError("value and gate must have the same shape")
        ctx.save_for_backward(value, gate)
        return value * _gelu_and_slope(gate)[0]

    @staticmethod
    def backward(ctx, dout):
        value, gate = ctx.saved_tensors
        act, slope = _gelu_and_slope(gate)
        dvalue = dout * act
        dgate = dout * value * slope
        return dgate, dvalue


class GEGLU(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, dim=-1)
        return GEGLUFunction.apply(value, gate)


class BiasAct(Function):
    """act(x + b) * gain for x (N, C, *), b (C,); act is one of linear, relu, lrelu, swish."""

    ACTS = ("linear", "relu", "lrelu", "swish")

    @staticmethod
    def forward(ctx, x, b, act="lrelu", gain=1.4142135623730951):
        if act not in BiasAct.ACTS:
            raise ValueError(f"unknown activation {act}")
        assert x.dim() >= 2 and b.shape == (x.shape[1],)
        pre = x + b.view([1, -1] + [1] * (x.dim() - 2))
        ctx.act, ctx.gain = act, gain
        ctx.save_for_backward(pre)
        if act == "linear":
            return pre * gain
        if act == "relu":
            return F.relu(pre) * gain
        if act == "lrelu":
            return F.leaky_relu(pre, 0.2) * gain
        return pre * torch.sigmoid(pre) * gain

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        pre, = ctx.saved_tensors
        if ctx.act == "linear":
            dx = dy * ctx.gain
        elif ctx.act == "relu":
            dx = dy * ctx.gain * (pre > 0)
        elif ctx.act == "lrelu":
            dx = ctx.gain * torch.where(pre > 0, dy, 0.2 * dy)
        else:
            s = torch.sigmoid(pre)
            dx = dy * s * (1 + pre * (1 - s))
        db = dx.sum([d for d in range(dx.dim()) if d != 1])
        return dx, db, None, None


def bias_act(x, b, act="lrelu", gain=math.sqrt(2)):
    return BiasAct.apply(x, b, act, gain)


class SwishInplace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        x.mul_(torch.sigmoid(x))
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x = ctx.x.detach()
        s = torch.sigmoid(x)
        return grad_output * (s + x * s * (1 - s))


class MemoryEfficientSwish(nn.Module):
    def forward(self, x):
        return SwishInplace.apply(x * 1.0)


class CapsuleSquash(Function):
    """v = |s|^2 / (1 + |s|^2) * s / |s| with the norm along ``dim`` (eps > 0 keeps it smooth at 0).

    The default suits capsules (N, D, H, W), D entries each.
    """

    @staticmethod
    def forward(ctx, s, dim=1, eps=1e-8):
        sq = (s * s).sum(dim=dim, keepdim=True)
        norm = torch.sqrt(sq + eps)
        ctx.save_for_backward(s)
        ctx.dim, ctx.eps = dim, eps
        return s * (sq / (1 + sq) / norm)

    @staticmethod
    def backward(ctx, g):
        s, = ctx.saved_tensors
        sq = (s * s).sum(dim=ctx.dim, keepdim=True)
        norm = torch.sqrt(sq + ctx.eps)
        factor = sq / (1 + sq) / norm
        dfactor = 1 / ((1 + sq) ** 2 * norm) - 0.5 * sq / ((1 + sq) * norm ** 3)
        along = (g * s).sum(dim=-1, keepdim=True)
        return g * factor + 2 * s * dfactor * along, None, None


def primary_capsules(feat: torch.Tensor, capsule_dim: int) -> torch.Tensor:
    n, c, h, w = feat.shape
    caps = feat.view(n, c // capsule_dim, capsule_dim, h, w)
    return CapsuleSquash.apply(caps, 2)


# ---------------------------------------------------------------- losses


class SmoothedCrossEntropy(Function):
    """Cross entropy against (1 - eps) * one_hot + eps / C, averaged over the batch."""

    @staticmethod
    def forward(ctx, logits, labels, eps=0.1):
        assert logits.dim() == 2 and labels.shape == logits.shape[:1]
        logp = F.log_softmax(logits, dim=1)
        nll = -logp.gather(1, labels.unsqueeze(1)).squeeze(1)
        uniform = -logp.mean(1)
        ctx.save_for_backward(logits, labels)
        ctx.eps = eps
        return ((1 - eps) * nll + eps * uniform).mean()

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        n, c = logits.shape
        prob = F.softmax(logits, dim=1)
        target = F.one_hot(labels, c).to(prob.dtype) * (1 - ctx.eps)
        return grad_output * (prob - target) / n, None, None


class PaddedTokenLoss(Function):
    """Sum of token NLLs, padding left out.

    logits: (B, T, V), tokens: (B, T) with values in [0, V), pad_id: the token which does not count
    """

    @staticmethod
    def forward(ctx, logits, tokens, pad_id: int = 0):
        assert tokens.shape == logits.shape[:2]
        logp = torch.log_softmax(logits, -1)
        keep = tokens != pad_id
        picked = logp.gather(-1, tokens[..., None])[..., 0]
        ctx.save_for_backward(logits, tokens)
        ctx.pad_id = pad_id
        return -(picked * keep).sum()

    @staticmethod
    def backward(ctx, grad):
        logits, tokens = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        hot = F.one_hot(tokens, logits.shape[-1])
        return grad * (probs - hot), None, None


def lm_loss(logits, batch):
    return PaddedTokenLoss.apply(logits[:, :-1], batch[:, 1:], 0)


class HuberLossMean(Function):
    @staticmethod
    def forward(ctx, pred, target, delta=1.0):
        assert pred.shape == target.shape
        assert delta > 0
        r = pred - target
        ctx.save_for_backward(r)
        ctx.delta = delta
        a = r.abs()
        return torch.where(a <= delta, 0.5 * r * r, delta * (a - 0.5 * delta)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (r,) = ctx.saved_tensors
        g = grad_output * r.clamp(-ctx.delta, ctx.delta)
        return g, -g, None


class BerHuLoss(Function):
    """Reverse Huber loss of depth maps, summed: |d| up to c, (d^2 + c^2) / 2c beyond."""

    @staticmethod
    def forward(ctx, depth, gt, c: float = 0.2):
        if depth.shape != gt.shape:
            raise ValueError("depth and gt differ in shape")
        if c <= 0:
            raise ValueError("c must be positive")
        d = depth - gt
        ctx.save_for_backward(depth, gt)
        ctx.c = c
        return torch.where(d.abs() <= c, d.abs(), (d * d + c * c) / (2 * c)).sum()

    @staticmethod
    def backward(ctx, grad_output):
        depth, gt = ctx.saved_tensors
        d = depth - gt
        slope = torch.where(d <= ctx.c, d.sign(), d / ctx.c)
        return grad_output * slope, -grad_output * slope, None


class ChamferDistance(Function):
    """Squared nearest neighbour distances between two clouds (B, N, 3) and (B, M, 3), in both directions."""

    @staticmethod
    def forward(ctx, xyz1, xyz2):
        assert_shape(xyz1, None, None, 3)
        assert_shape(xyz2, xyz1.shape[0], None, 3)
        d = (xyz1.unsqueeze(2) - xyz2.unsqueeze(1)).pow(2).sum(-1)
        dist1, idx1 = d.min(2)
        dist2, idx2 = d.min(1)
        ctx.save_for_backward(xyz1, xyz2, idx1, idx2)
        ctx.mark_non_differentiable(idx1, idx2)
        return dist1, dist2, idx1, idx2

    @staticmethod
    def backward(ctx, g1, g2, _idx1, _idx2):
        xyz1, xyz2, idx1, idx2 = ctx.saved_tensors
        pick = lambda pts, idx: pts.gather(1, idx.unsqueeze(-1).expand(-1, -1, 3))
        v1 = 2 * g1.unsqueeze(-1) * (xyz1 - pick(xyz2, idx1))
        v2 = 2 * g2.unsqueeze(-1) * (xyz2 - pick(xyz1, idx2))
        grad1 = v1.scatter_add(1, idx2.unsqueeze(-1).expand(-1, -1, 3), -v2)
        grad2 = v2
        return grad1, grad2


def chamfer(pred, gt):
    d1, d2, _, _ = ChamferDistance.apply(pred, gt)
    return d1.mean() + d2.mean()


class CodingRate(Function):
    """R(Z) = 1/2 logdet(I + d / (m eps^2) Z Z^T) for features Z (d, m), as in MCR^2."""

    @staticmethod
    def forward(ctx, Z, eps=0.5):
        assert Z.dim() == 2 and Z.shape[1] > 0 and eps > 0
        d, m = Z.shape
        scale = d / (m * eps ** 2)
        M = torch.eye(d, dtype=Z.dtype, device=Z.device) + scale * Z @ Z.t()
        ctx.save_for_backward(Z)
        ctx.scale = scale
        return 0.5 * torch.logdet(M)

    @staticmethod
    def backward(ctx, grad):
        Z, = ctx.saved_tensors
        M = torch.eye(Z.shape[0], dtype=Z.dtype, device=Z.device) + ctx.scale * Z @ Z.t()
        return 0.5 * grad * ctx.scale * torch.linalg.solve(M, Z), None


# ---------------------------------------------------------------- probability and kernels


class BatchStd(Function):
    """Per-feature sample standard deviation of a batch (N, D), N >= 2 (minibatch discrimination)."""

    eps = 1e-6

    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2 or x.size(0) < 2:
            raise ValueError("a batch of at least two rows is needed")
        std = torch.sqrt(x.var(dim=0, unbiased=True) + BatchStd.eps)
        ctx.save_for_backward(x, std)
        return std

    @staticmethod
    def backward(ctx, grad):
        x, std = ctx.saved_tensors
        centred = x - x.mean(0)
        return grad * centred / (x.size(0) * std)


class GammaNLL(Function):
    """-log p(x) under Gamma(concentration, rate); all three positive and of one shape."""

    @staticmethod
    def forward(ctx, x, concentration, rate):
        if not (x.shape == concentration.shape == rate.shape):
            raise ValueError("shapes differ")
        for t in (x, concentration, rate):
            if (t <= 0).any():
                raise ValueError("arguments must be positive")
        ctx.save_for_backward(x, concentration, rate)
        return (torch.lgamma(concentration) - concentration * torch.log(rate)
                - (concentration - 1) * torch.log(x) + rate * x)

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        gx = g * (b - (a - 1) / x)
        ga = -g * (torch.log(b) + torch.log(x))
        gb = g * (x - a / b)
        return gx, ga, gb


class RBFKernel(Function):
    @staticmethod
    def forward(ctx, x, y, gamma):
        """exp(-gamma |x_i - y_j|^2) for x (N, D), y (M, D) and a scalar tensor gamma"""
        assert x.dim() == 2 and y.dim() == 2 and x.size(1) == y.size(1)
        assert gamma.dim() == 0
        d2 = (x[:, None] - y[None]).square().sum(-1)
        k = torch.exp(-gamma * d2)
        ctx.save_for_backward(x, y, gamma, k)
        return k

    @staticmethod
    def backward(ctx, grad):
        x, y, gamma, k = ctx.saved_tensors
        w = grad * k
        diff = x[:, None] - y[None]
        gx = -2 * gamma * (w.unsqueeze(-1) * diff).sum(1)
        gy = -2 * gamma * (w.unsqueeze(-1) * diff).sum(0)
        ggamma = -(w * diff.square().sum(-1)).sum()
        return gx, gy, ggamma


def mmd(x, y, bandwidth):
    g = 0.5 / bandwidth ** 2
    kxx, kyy, kxy = RBFKernel.apply(x, x, g), RBFKernel.apply(y, y, g), RBFKernel.apply(x, y, g)
    return kxx.mean() + kyy.mean() - 2 * kxy.mean()


class SinkhornPlan(Function):
    """Entropic transport plan between uniform marginals after ``n_iters`` rounds of Sinkhorn; eps > 0."""

    @staticmethod
    def _scale(cost, eps, n_iters):
        n, m = cost.shape
        log_k = -cost / eps
        f = cost.new_zeros(n, 1)
        g = cost.new_zeros(1, m)
        for _ in range(n_iters):
            f = -math.log(n) - torch.logsumexp(log_k + g, dim=1, keepdim=True)
            g = -math.log(m) - torch.logsumexp(log_k + f, dim=0, keepdim=True)
        return torch.exp(log_k + f + g)

    @staticmethod
    def forward(ctx, cost, eps: float = 0.5, n_iters: int = 20):
        if cost.dim() != 2 or eps <= 0 or n_iters < 1:
            raise ValueError("bad arguments")
        plan = SinkhornPlan._scale(cost, eps, n_iters)
        ctx.save_for_backward(plan)
        ctx.eps = eps
        return plan

    @staticmethod
    def backward(ctx, grad):
        plan, = ctx.saved_tensors
        return -grad * plan / ctx.eps, None, None


class CalibratedSoftmax(Function):
    """Softmax of logits / temperature, the temperature a scalar tensor which is fitted on held-out data."""

    @staticmethod
    def forward(ctx, logits, temperature):
        if temperature.numel() != 1:
            raise ValueError("one temperature expected")
        if float(temperature) == 0:
            raise ValueError("temperature is zero")
        p = torch.softmax(logits / temperature.reshape(()), dim=-1)
        ctx.save_for_backward(p, temperature)
        return p

    @staticmethod
    def backward(ctx, grad_p):
        p, temperature = ctx.saved_tensors
        t = temperature.reshape(())
        grad_logits = p * (grad_p - (grad_p * p).sum(-1, keepdim=True)) / t
        return grad_logits, None


class TemperatureScaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, logits):
        return CalibratedSoftmax.apply(logits, self.temperature)


# ---------------------------------------------------------------- sorting, selection, sequences


class RelativePositionBias(Function):
    """Reads a table (R, heads) at an index matrix (L, L) and returns (heads, L, L), as in windowed attention."""

    @staticmethod
    def forward(ctx, table, index):
        assert table.dim() == 2 and index.dim() == 2
        ctx.save_for_backward(index)
        ctx.table_shape = table.shape
        return table[index].permute(2, 0, 1).contiguous()

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        grad_table = grad.new_zeros(ctx.table_shape)
        grad_table[index] = grad.permute(1, 2, 0)
        return grad_table, None


def window_bias(table, window):
    pos = torch.arange(window, device=table.device)
    return RelativePositionBias.apply(table, pos[:, None] - pos[None, :] + window - 1)


class SortDescending(Function):
    @staticmethod
    def forward(ctx, x):
        order = np.argsort(-x.detach().numpy(), axis=-1, kind="stable")
        order = torch.from_numpy(np.ascontiguousarray(order))
        ctx.save_for_backward(order)
        return x.gather(-1, order)

    @staticmethod
    def backward(ctx, grad):
        order, = ctx.saved_tensors
        return grad.gather(-1, order)


class Sparsemax(Function):
    """Euclidean projection onto the simplex along ``dim``."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        z = x.movedim(dim, -1)
        srt, _ = z.sort(dim=-1, descending=True)
        cum = srt.cumsum(-1) - 1
        ks = torch.arange(1, z.size(-1) + 1, dtype=z.dtype, device=z.device)
        k = (srt * ks > cum).sum(-1, keepdim=True)
        tau = cum.gather(-1, k - 1) / k.to(z.dtype)
        out = (z - tau).clamp(min=0).movedim(-1, dim)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx, grad):
        out, = ctx.saved_tensors
        support = (out > 0).to(grad.dtype)
        inside = grad * support
        mean = inside.mean(dim=ctx.dim, keepdim=True)
        return support * (grad - mean), None


class LogCumsumExp(Function):
    """Running log-sum-exp over the last dimension."""

    @staticmethod
    def forward(ctx, x):
        y = torch.logcumsumexp(x, dim=-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return torch.exp(x) * torch.cumsum(grad * torch.exp(-y), dim=-1)


class LearnableEMA(Function):
    """s[t] = (1 - a) s[t-1] + a x[t] per channel, s[-1] = 0. x: (B, T, C), a: (C,)"""

    @staticmethod
    def forward(ctx, x, a):
        assert_shape(x, None, None, a.shape[0])
        s = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            s = torch.lerp(s, x[:, t], a.expand_as(s))
            states.append(s)
        out = torch.stack(states, 1)
        ctx.save_for_backward(x, a, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, a, out = ctx.saved_tensors
        gx = torch.empty_like(x)
        ga = torch.zeros_like(a)
        carry = torch.zeros_like(grad[:, 0])
        for t in reversed(range(x.shape[1])):
            carry = carry + grad[:, t]
            gx[:, t] = a * carry
            ga += (carry * (x[:, t] - out[:, t])).sum(0)
            carry = (1 - a) * carry
        return gx, ga


class StableLogSumExp(Function):
    @staticmethod
    def forward(ctx, x, dim: int = -1, keepdim: bool = False):
        out = torch.logsumexp(x, dim=dim, keepdim=True)
        ctx.save_for_backward(x, out)
        ctx.dim, ctx.keepdim = dim, keepdim
        return out.clone() if keepdim else out.squeeze(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        if not ctx.keepdim:
            g = g.unsqueeze(ctx.dim)
        p = torch.exp(x.float() - out.float())
        return (g.float() * p).to(x.dtype), None, None


# ---------------------------------------------------------------- signal and image processing


class Preemphasis(Function):
    """y[t] = x[t] - coef * x[t-1] on audio (B, T)."""

    @staticmethod
    def forward(x, coef: float = 0.97):
        assert x.dim() == 2
        return x - coef * F.pad(x, (1, 0))[:, :-1]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.coef = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return grad - ctx.coef * F.pad(grad, (1, 0))[:, :-1], None


class LogMelFrontend(nn.Module):
    def __init__(self, coef=0.97):
        super().__init__()
        self.coef = coef

    def forward(self, wav):
        wav = Preemphasis.apply(wav, self.coef)
        return torch.log1p(wav.abs())


class SpectralFilter(Function):
    """Circular filtering in the frequency domain: irfft(rfft(x) * h); x (*, N) real, h (N // 2 + 1,) complex."""

    @staticmethod
    def forward(ctx, x, h):
        n = x.shape[-1]
        if not h.is_complex() or h.shape != (n // 2 + 1,):
            raise ValueError(f"h must be complex with {n // 2 + 1} bins")
        ctx.save_for_backward(x, h)
        return torch.fft.irfft(torch.fft.rfft(x) * h, n=n)

    @staticmethod
    def backward(ctx, grad):
        x, h = ctx.saved_tensors
        n = x.shape[-1]
        g = torch.fft.rfft(grad)
        gx = torch.fft.irfft(g * h.conj(), n=n)
        gh = (torch.fft.rfft(x).conj() * g / n).reshape(-1, h.numel()).sum(0)
        return gx, gh


class GlobalFilterLayer(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(0.02 * torch.randn(length // 2 + 1, 2))

    def forward(self, x):
        return SpectralFilter.apply(x, torch.view_as_complex(self.weight))


class CausalDepthwiseConv(Function):
    """y[b, c, t] = sum_k w[c, k] x[b, c, t - (K - 1) + k] with zeros before the start."""

    @staticmethod
    def forward(ctx, x, w, bias: Optional[torch.Tensor] = None):
        b, c, t = x.shape
        assert w.dim() == 2 and w.shape[0] == c and w.shape[1] >= 1
        assert bias is None or bias.shape == (c,)
        k = w.shape[1]
        windows = F.pad(x, (k - 1, 0)).unfold(2, k, 1)
        y = torch.einsum("bctk,ck->bct", windows, w)
        ctx.save_for_backward(x, w)
        ctx.use_bias = bias is not None
        return y if bias is None else y + bias[:, None]

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        k = w.shape[1]
        gx = torch.einsum("bctk,ck->bct", F.pad(grad, (0, k - 1)).unfold(2, k, 1), w)
        gw = torch.einsum("bct,bctk->ck", grad, F.pad(x, (k - 1, 0)).unfold(2, k, 1))
        gb = grad.sum((0, 2)) if ctx.use_bias else None
        return gx, gw, gb


class AvgPool2dFn(Function):
    @staticmethod
    def forward(ctx, x, kernel_size: int = 3, stride: int = 2):
        n, c, h, w = x.shape
        if kernel_size < 1 or stride < 1 or kernel_size > min(h, w):
            raise ValueError("bad kernel size or stride")
        ctx.shape = x.shape
        ctx.k, ctx.s = kernel_size, stride
        return x.unfold(2, kernel_size, stride).unfold(3, kernel_size, stride).mean((-2, -1))

    @staticmethod
    def backward(ctx, grad):
        k, s = ctx.k, ctx.s
        share = grad / (s * s)
        rows, cols = grad.shape[2:]
        out = grad.new_zeros(ctx.shape)
        for i in range(k):
            for j in range(k):
                out[:, :, i:i + s * (rows - 1) + 1:s, j:j + s * (cols - 1) + 1:s] += share
        return out, None, None


class PixelShuffleFn(Function):
    """Depth to space: (B, C r r, H, W) -> (B, C, H r, W r)."""

    @staticmethod
    def forward(ctx, x, r: int):
        b, crr, h, w = x.shape
        if r < 1 or crr % (r * r):
            raise ValueError(f"{crr} channels do not divide by {r}^2")
        ctx.r = r
        x = x.reshape(b, crr // (r * r), r, r, h, w)
        return x.permute(0, 1, 4, 2, 5, 3).reshape(b, crr // (r * r), h * r, w * r)

    @staticmethod
    def backward(ctx, grad):
        r = ctx.r
        b, c, hr, wr = grad.shape
        g = grad.reshape(b, c, hr // r, r, wr // r, r)
        g = g.permute(0, 1, 5, 3, 2, 4)
        return g.reshape(b, c * r * r, hr // r, wr // r), None


class Upsampler(nn.Module):
    def __init__(self, channels: int, scale: int = 2):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels * scale ** 2, 3, padding=1)
        self.scale = scale

    def forward(self, x):
        return PixelShuffleFn.apply(self.conv(x), self.scale)


class PadMode(Enum):
    ZERO = "zero"
    EDGE = "edge"


class CenterPad(Function):
    """Pads the last dimension by ``left`` and ``right`` entries, with zeros or with the edge values."""

    @staticmethod
    def forward(ctx, x, left: int, right: int, mode: PadMode = PadMode.ZERO):
        if left < 0 or right < 0 or x.dim() < 1 or x.shape[-1] < 1:
            raise ValueError("cannot pad this")
        mode = PadMode(mode)
        ctx.left, ctx.right, ctx.mode = left, right, mode
        if mode is PadMode.ZERO:
            return F.pad(x, (left, right))
        n = x.shape[-1]
        pos = torch.arange(-left, n + right, device=x.device).clamp(0, n - 1)
        return x.index_select(-1, pos)

    @staticmethod
    def backward(ctx, grad):
        n = grad.shape[-1] - ctx.left - ctx.right
        core = grad[..., ctx.left:ctx.left + n].clone()
        if ctx.mode is PadMode.EDGE:
            core[..., 0] += grad[..., :ctx.left].sum(-1)
            core[..., -1] += grad[..., ctx.left + n:].sum(-1)
        return core, None


def pad_center(x: torch.Tensor, size: int) -> torch.Tensor:
    extra = size - x.shape[-1]
    return CenterPad.apply(x, extra // 2, extra - extra // 2, PadMode.ZERO)


# ---------------------------------------------------------------- geometry, rendering, solvers


class AlphaComposite(Function):
    """Front-to-back compositing: alpha (R, S) in [0, 1), rgb (R, S, 3) -> colour (R, 3), accumulated alpha (R,)."""

    @staticmethod
    def _weights(alpha):
        through = torch.cumprod(1 - alpha, dim=1)
        before = torch.cat([torch.ones_like(alpha[:, :1]), through[:, :-1]], dim=1)
        return alpha * before, before

    @staticmethod
    def forward(ctx, alpha, rgb):
        assert alpha.dim() == 2 and rgb.shape == alpha.shape + (3,)
        if ((alpha < 0) | (alpha >= 1)).any():
            raise ValueError("alpha must be in [0, 1)")
        w, _ = AlphaComposite._weights(alpha)
        ctx.save_for_backward(alpha, rgb)
        return (w.unsqueeze(-1) * rgb).sum(1), w.sum(1)

    @staticmethod
    def backward(ctx, g_rgb, g_acc):
        alpha, rgb = ctx.saved_tensors
        w, before = AlphaComposite._weights(alpha)
        g_w = (g_rgb.unsqueeze(1) * rgb).sum(-1) + g_acc.unsqueeze(1)
        contrib = g_w * w
        behind = contrib.flip(1).cumsum(1).flip(1)
        g_alpha = before * g_w - behind / (1 - alpha)
        return g_alpha, w.unsqueeze(-1) * g_rgb.unsqueeze(1)


def render_rays(sigma, rgb, deltas):
    alpha = 1 - torch.exp(-F.relu(sigma) * deltas)
    return AlphaComposite.apply(alpha, rgb)


def _quat_mul(a, b):
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack((
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    ), dim=-1)


def _quat_conj(q):
    return q * q.new_tensor([1.0, -1.0, -1.0, -1.0])


class QuaternionProduct(Function):
    """Hamilton product of quaternions (..., 4), real part first."""

    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape or a.shape[-1] != 4:
            raise ValueError("expected two (..., 4) tensors of one shape")
        ctx.save_for_backward(a, b)
        return _quat_mul(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return _quat_mul(_quat_conj(b), g), _quat_mul(_quat_conj(a), g)


class CayleyTransform(Function):
    """Orthogonal matrix (I + A)^-1 (I - A) of the skew part A = W - W^T."""

    @staticmethod
    def forward(ctx, W: torch.Tensor) -> torch.Tensor:
        assert W.dim() == 2 and W.size(0) == W.size(1)
        eye = torch.eye(W.size(0), dtype=W.dtype, device=W.device)
        A = W - W.t()
        Q = torch.linalg.solve(eye + A, eye - A)
        ctx.save_for_backward(A, Q)
        return Q

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        A, Q = ctx.saved_tensors
        eye = torch.eye(A.size(0), dtype=A.dtype, device=A.device)
        gA = -torch.linalg.solve(eye + A, G) @ (eye + Q).t()
        return gA - gA.t()


class OrthogonalRNNCell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.raw = nn.Parameter(0.1 * torch.randn(d, d))

    def forward(self, h, x):
        return torch.tanh(h @ CayleyTransform.apply(self.raw) + x)


class SignedVolume(Function):
    """Volume of a closed triangle mesh: vertices (V, 3), faces (F, 3) integer."""

    @staticmethod
    def forward(ctx, vertices, faces):
        if vertices.shape[-1] != 3 or vertices.dim() != 2 or faces.dim() != 2 or faces.shape[-1] != 3:
            raise ValueError("vertices (V, 3) and faces (F, 3) expected")
        if faces.dtype != torch.int64 or (faces < 0).any():
            raise ValueError("faces must hold vertex numbers (int64)")
        v, f = vertices.detach().numpy(), faces.numpy()
        a, b, c = v[f[:, 0]], v[f[:, 1]], v[f[:, 2]]
        ctx.save_for_backward(vertices, faces)
        return vertices.new_tensor(np.einsum("fi,fi->", a, np.cross(b, c)) / 6.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        vertices, faces = ctx.saved_tensors
        v, f = vertices.detach().numpy(), faces.numpy()
        a, b, c = v[f[:, 0]], v[f[:, 1]], v[f[:, 2]]
        out = np.zeros_like(v)
        np.add.at(out, f[:, 0], np.cross(b, c))
        np.add.at(out, f[:, 1], np.cross(a, c))
        np.add.at(out, f[:, 2], np.cross(a, b))
        return grad * torch.from_numpy(out / 6.0).to(vertices), None


class SofteningRoot(Function):
    """Real root z of z + w z^3 = x, w >= 0 and of the shape of x (a spring that stiffens)."""

    @staticmethod
    def forward(ctx, x, w):
        if x.shape != w.shape:
            raise ValueError("x and w must have the same shape")
        if (w < 0).any():
            raise ValueError("w must not be negative")
        z = torch.zeros_like(x)
        lo, hi = -x.abs(), x.abs()
        for _ in range(80):
            z = 0.5 * (lo + hi)
            above = z + w * z ** 3 > x
            hi = torch.where(above, z, hi)
            lo = torch.where(above, lo, z)
        z = z - (z + w * z ** 3 - x) / (1 + 3 * w * z * z)
        ctx.save_for_backward(x, w, z)
        return z

    @staticmethod
    def backward(ctx, grad):
        x, w, z = ctx.saved_tensors
        gx = grad / (1 + 3 * w * x * x)
        gw = -gx * z ** 3
        return gx, gw


# ---------------------------------------------------------------- graphs and quantised weights


class EdgeSoftmaxAggregate(Function):
    """Attention over incoming edges.

    Args:
        scores: (E,) logits of the edges
        feats: (N, F) node features
        edge_index: (2, E), row 0 sources and row 1 targets, entries in [0, N)
    Returns:
        (N, F): out[i] = sum over edges j -> i of softmax_i(score) * feats[j]
    """

    @staticmethod
    def _attend(scores, dst, n):
        top = scores.new_full((n,), float("-inf")).scatter_reduce(0, dst, scores, "amax")
        e = torch.exp(scores - top[dst])
        return e / scores.new_zeros(n).index_add(0, dst, e)[dst]

    @staticmethod
    def forward(ctx, scores, feats, edge_index):
        if scores.dim() != 1 or feats.dim() != 2 or edge_index.shape != (2, scores.numel()):
            raise ValueError("inconsistent shapes")
        if (edge_index < 0).any():
            raise IndexError("negative node index")
        src, dst = edge_index
        att = EdgeSoftmaxAggregate._attend(scores, dst, feats.size(0))
        ctx.save_for_backward(feats, edge_index, att)
        return torch.zeros_like(feats).index_add_(0, dst, att[:, None] * feats[src])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        feats, edge_index, att = ctx.saved_tensors
        src, dst = edge_index
        g_edge = grad[dst]
        g_feats = torch.zeros_like(feats).index_add_(0, src, att[:, None] * g_edge)
        g_att = (g_edge * feats[src]).sum(1)
        mean = att.new_zeros(feats.size(0)).index_add_(0, src, att * g_att)
        g_scores = att * (g_att - mean[src])
        return g_scores, g_feats, None


class GATLayer(nn.Module):
    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.proj = nn.Linear(d_in, d_out, bias=False)
        self.att_src = nn.Parameter(torch.randn(d_out))
        self.att_dst = nn.Parameter(torch.randn(d_out))

    def forward(self, x, edge_index):
        h = self.proj(x)
        s = F.leaky_relu((h @ self.att_src)[edge_index[0]] + (h @ self.att_dst)[edge_index[1]], 0.2)
        return EdgeSoftmaxAggregate.apply(s, h, edge_index)


class GroupDequantLinear(Function):
    """x @ W^T with W = (q - zeros) * scales in groups of ``group_size`` inputs.

    x (*, in), q (out, in) integer, scales and zeros (out, in // group_size)
    """

    @staticmethod
    def forward(ctx, x, q, scales, zeros, group_size: int):
        out_features, in_features = q.shape
        if q.is_floating_point():
            raise TypeError("q must be integer")
        if group_size < 1 or in_features % group_size:
            raise ValueError("in_features must be a multiple of group_size")
        groups = (out_features, in_features // group_size)
        if scales.shape != groups or zeros.shape != groups:
            raise ValueError("one scale and one zero point per group")
        level = q.to(scales.dtype) - zeros.repeat_interleave(group_size, 1)
        weight = level * scales.repeat_interleave(group_size, 1)
        ctx.save_for_backward(x, q, scales, zeros)
        ctx.group_size = group_size
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, q, scales, zeros = ctx.saved_tensors
        gs = ctx.group_size
        level = q.to(scales.dtype) - zeros.repeat_interleave(gs, 1)
        weight = level * scales.repeat_interleave(gs, 1)
        gx = grad @ weight
        gw = grad.reshape(-1, q.shape[0]).t() @ x.reshape(-1, q.shape[1])
        by_group = lambda t: t.unflatten(1, (-1, gs)).sum(2)
        g_scales = by_group(gw * level)
        g_zeros = -by_group(gw)
        return gx, None, g_scales, g_zeros, None


def awq_forward(x, packed, scales, zeros, group_size=128) -> Tuple[torch.Tensor, torch.Size]:
    y = GroupDequantLinear.apply(x, packed, scales, zeros, group_size)
    return y, y.shape
