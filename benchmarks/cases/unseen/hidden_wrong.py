"""Fused losses, norms, attention, scans and small geometric kernels."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class FocalCrossEntropy(Function):
    """mean of (1 - p_t)^gamma * -log p_t over the batch."""

    @staticmethod
    def forward(ctx, logits, target, gamma):
        logp = torch.log_softmax(logits, dim=1)
        logpt = logp.gather(1, target[:, None]).squeeze(1)
        weight = (1 - logpt.exp().detach()) ** gamma
        ctx.save_for_backward(logp, target, weight)
        return -(weight * logpt).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logp, target, weight = ctx.saved_tensors
        b, c = logp.shape
        onehot = F.one_hot(target, c).to(logp.dtype)
        grad = (logp.exp() - onehot) * weight[:, None] / b
        return grad_output * grad, None, None


class RmsNormAffine(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        with torch.no_grad():
            inv_rms = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
        normed = x * inv_rms
        ctx.save_for_backward(normed, weight, inv_rms)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        normed, weight, inv_rms = ctx.saved_tensors
        grad_x = grad_output * weight * inv_rms
        grad_weight = (grad_output * normed).sum(dim=0)
        return grad_x, grad_weight, None


class TemperedAttention(Function):
    """Single-head attention, scores divided by their standard deviation."""

    @staticmethod
    def forward(ctx, query, key, value):
        scores = query @ key.t()
        temperature = scores.std().item()
        attn = torch.softmax(scores / temperature, dim=-1)
        ctx.temperature = temperature
        ctx.save_for_backward(query, key, value, attn)
        return attn @ value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        query, key, value, attn = ctx.saved_tensors
        grad_value = attn.t() @ grad_output
        grad_attn = grad_output @ value.t()
        grad_scores = attn * (grad_attn - (grad_attn * attn).sum(-1, keepdim=True))
        grad_scores = grad_scores / ctx.temperature
        return grad_scores @ key, grad_scores.t() @ query, grad_value


class LogCoshLoss(Function):
    """Elementwise log cosh, evaluated in the asymptotic form for large arguments."""

    @staticmethod
    def forward(x, cutoff):
        y = torch.log(torch.cosh(x))
        large = x.abs() > cutoff
        if bool(large.any()):
            mag = np.abs(x.detach().numpy())
            tail = mag + np.log1p(np.exp(-2.0 * mag)) - math.log(2.0)
            y = torch.where(large, torch.from_numpy(tail), y)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, cutoff = inputs
        ctx.cutoff = cutoff
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        inner = x.abs() <= ctx.cutoff
        return torch.where(inner, grad_output * torch.tanh(x), torch.zeros_like(x)), None


class SiluGate(Function):
    @staticmethod
    def forward(x, y):
        gate = torch.sigmoid(x.detach())
        return x * gate * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad_output * gate * y, grad_output * x * gate


class GeluTanhCubic(Function):
    C = math.sqrt(2.0 / math.pi)

    @staticmethod
    def forward(x):
        cubic = 0.044715 * x.data ** 3
        t = torch.tanh(GeluTanhCubic.C * (x + cubic))
        return 0.5 * x * (1 + t)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.tanh(GeluTanhCubic.C * (x + 0.044715 * x ** 3))
        slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GeluTanhCubic.C
        return grad_output * slope


class HuberResidual(Function):
    @staticmethod
    def forward(ctx, pred, target, delta, reduction):
        diff = pred - target
        small = diff.abs() <= delta
        loss = 0.5 * diff * diff
        if not bool(small.all()):
            tail = delta * (diff.detach().abs() - 0.5 * delta)
            loss = torch.where(small, loss, tail)
        ctx.scale = 1.0 / diff.numel() if reduction == "mean" else 1.0
        ctx.save_for_backward(diff, small)
        return loss.sum() * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        diff, small = ctx.saved_tensors
        grad = grad_output * ctx.scale * diff * small.to(diff.dtype)
        return grad, -grad, None, None


class SoftplusLinearTail(Function):
    """log(1 + exp(x)); above the threshold as x + log1p(exp(-x))."""

    @staticmethod
    def forward(ctx, x, threshold):
        ctx.threshold = threshold
        ctx.save_for_backward(x)
        above = x > threshold
        out = torch.log1p(torch.exp(x.clamp(max=threshold)))
        if above.any():
            out = torch.where(above, x.data + torch.log1p(torch.exp(-x)), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        above = x > ctx.threshold
        slope = torch.where(above, -torch.sigmoid(-x), torch.sigmoid(x))
        return grad_output * slope, None


class DecayScan(Function):
    """h_t = a * h_{t-1} + x_t, all states returned."""

    @staticmethod
    def forward(ctx, x, a):
        h = torch.zeros_like(x[0])
        states = []
        for t in range(x.shape[0]):
            h = a * h.detach() + x[t]
            states.append(h)
        out = torch.stack(states)
        ctx.save_for_backward(out, a)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        out, a = ctx.saved_tensors
        previous = torch.cat([torch.zeros_like(out[:1]), out[:-1]])
        grad_x = grad_output.clone()
        grad_a = (grad_output * previous).sum(dim=0)
        return grad_x, grad_a


class ElmanLayer(Function):
    @staticmethod
    def forward(ctx, x, w_ih, w_hh):
        state = x.new_zeros(w_hh.shape[0])
        outs = []
        for t in range(x.shape[0]):
            state = torch.tanh(w_ih @ x[t] + w_hh @ state.data)
            outs.append(state)
        hs = torch.stack(outs)
        ctx.save_for_backward(x, w_ih, w_hh, hs)
        return hs

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w_ih, w_hh, hs = ctx.saved_tensors
        grad_pre = grad_output * (1 - hs * hs)
        prev = torch.cat([torch.zeros_like(hs[:1]), hs[:-1]])
        grad_x = grad_pre @ w_ih
        grad_w_ih = grad_pre.t() @ x
        grad_w_hh = grad_pre.t() @ prev
        return grad_x, grad_w_ih, grad_w_hh


class HeronArea(Function):
    """Area of triangles from their side lengths."""

    @staticmethod
    def forward(a, b, c):
        half = [0.5 * (p + q + r) for p, q, r in zip(a.tolist(), b.tolist(), c.tolist())]
        s = torch.tensor(half, dtype=a.dtype)
        return torch.sqrt(s * (s - a) * (s - b) * (s - c))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b, c, area = ctx.saved_tensors
        s = 0.5 * (a + b + c)
        scaled = -0.5 * grad_output * area
        return scaled / (s - a), scaled / (s - b), scaled / (s - c)


class CentroidDistance(Function):
    """Distance of each point to the centroid of the cloud."""

    @staticmethod
    def forward(points):
        centroid = torch.from_numpy(points.detach().numpy().mean(axis=0))
        return (points - centroid).pow(2).sum(dim=1).sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        points, dist = ctx.saved_tensors
        direction = (points - points.mean(dim=0)) / dist[:, None]
        return grad_output[:, None] * direction


class ExponentialSampler(Function):
    """Inverse-CDF draw from exponentials whose rates are normalised to sum to one."""

    @staticmethod
    def forward(ctx, rate, u):
        total = float(rate.sum())
        p = rate / total
        sample = -torch.log1p(-u) / p
        ctx.save_for_backward(rate, u, p, sample)
        return sample

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        rate, u, p, sample = ctx.saved_tensors
        grad_rate = -grad_output * sample / rate
        grad_u = grad_output / ((1 - u) * p)
        return grad_rate, grad_u


class RobustScale(Function):
    @staticmethod
    def forward(ctx, x):
        arr = x.detach().cpu().numpy()
        q1, med, q3 = np.quantile(arr, [0.25, 0.5, 0.75], axis=0)
        center = torch.from_numpy(np.ascontiguousarray(med))
        spread = torch.from_numpy(np.ascontiguousarray(q3 - q1))
        ctx.save_for_backward(spread)
        return (x - center) / spread

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (spread,) = ctx.saved_tensors
        return grad_output / spread


class WinsorMean(Function):
    """Mean after pulling the k smallest and k largest entries to their neighbours."""

    @staticmethod
    def forward(x, k):
        ordered = sorted(x.tolist())
        lo, hi = ordered[k], ordered[-k - 1]
        return x.clamp(lo, hi).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        ctx.k = k
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        ordered, _ = x.sort()
        lo, hi = ordered[ctx.k], ordered[-ctx.k - 1]
        inside = ((x >= lo) & (x <= hi)).to(x.dtype)
        return grad_output * inside / x.numel(), None


class LocalContrastConv(Function):
    """Valid correlation along the last axis, divided by the local energy."""

    @staticmethod
    def forward(ctx, x, kernel, eps):
        k = kernel.shape[0]
        windows = x.unfold(1, k, 1)
        with torch.no_grad():
            energy = torch.empty(windows.shape[:2], dtype=x.dtype)
            for j in range(windows.shape[1]):
                energy[:, j] = x[:, j:j + k].pow(2).mean(dim=1)
            scale = 1.0 / torch.sqrt(energy + eps)
        ctx.save_for_backward(x, kernel, scale)
        return (windows @ kernel) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, kernel, scale = ctx.saved_tensors
        k = kernel.shape[0]
        g = grad_output * scale
        grad_kernel = torch.einsum("bo,bok->k", g, x.unfold(1, k, 1))
        grad_x = torch.zeros_like(x)
        for i in range(k):
            grad_x[:, i:i + g.shape[1]] += g * kernel[i]
        return grad_x, grad_kernel, None


class _RowMoments(Function):
    @staticmethod
    def forward(ctx, w):
        ctx.shape = w.shape
        mean = w.mean(dim=1, keepdim=True)
        return mean, (w - mean).pow(2).mean(dim=1, keepdim=True).sqrt()

    @staticmethod
    def backward(ctx, g_mean, g_std):
        return g_mean.new_zeros(ctx.shape)


class WeightStandardLinear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        mean, std = _RowMoments.apply(weight)
        w_hat = (weight - mean) / std
        ctx.save_for_backward(x, w_hat, std)
        ctx.has_bias = bias is not None
        out = x @ w_hat.t()
        return out + bias if ctx.has_bias else out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w_hat, std = ctx.saved_tensors
        grad_x = grad_output @ w_hat
        grad_w = (grad_output.t() @ x) / std
        grad_b = grad_output.sum(dim=0) if ctx.has_bias else None
        return grad_x, grad_w, grad_b


class _Saturate(Function):
    @staticmethod
    def forward(ctx, w):
        return torch.tanh(2.0 * w)

    @staticmethod
    def backward(ctx, g):
        return g


class SoftBinaryLinear(Function):
    """Linear map with weights pushed towards +-1, per-row magnitude alpha."""

    @staticmethod
    def forward(x, weight, alpha):
        return (x @ _Saturate.apply(weight).t()) * alpha

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, alpha = ctx.saved_tensors
        w = torch.tanh(2.0 * weight)
        g = grad_output * alpha
        grad_alpha = (grad_output * (x @ w.t())).sum(dim=0)
        return g @ w, g.t() @ x, grad_alpha


class EmbeddingMaxNorm(Function):
    """Table lookup; rows longer than max_norm are shrunk to it."""

    @staticmethod
    def forward(ctx, weight, index, max_norm):
        rows = weight[index]
        factors = []
        for row in rows:
            length = float(row.norm())
            factors.append(max_norm / length if length > max_norm else 1.0)
        factor = rows.new_tensor(factors)[:, None]
        ctx.save_for_backward(index, factor)
        ctx.table_shape = weight.shape
        return rows * factor

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        index, factor = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.table_shape)
        grad.index_add_(0, index, grad_output * factor)
        return grad, None, None


class SegmentSoftmax(Function):
    @staticmethod
    def forward(scores, segment, num_segments):
        den = [0.0] * num_segments
        for v, i in zip(scores.tolist(), segment.tolist()):
            den[i] += math.exp(v)
        return torch.exp(scores) / torch.tensor(den, dtype=scores.dtype)[segment]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (out,) = ctx.saved_tensors
        return grad_output * out, None, None


class RbfGram(Function):
    """Gaussian kernel matrix with the median heuristic for the bandwidth."""

    @staticmethod
    def forward(ctx, x, y):
        diff = x[:, None, :] - y[None, :, :]
        d2 = diff.pow(2).sum(dim=-1)
        gamma = 1.0 / d2.median().item()
        gram = torch.exp(-gamma * d2)
        ctx.gamma = gamma
        ctx.save_for_backward(diff, gram)
        return gram

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        diff, gram = ctx.saved_tensors
        w = (-2.0 * ctx.gamma) * (grad_output * gram)[..., None] * diff
        return w.sum(dim=1), -w.sum(dim=0)


class SinkhornCost(Function):
    """Transport cost <P, C> under the entropic plan with uniform marginals."""

    @staticmethod
    def forward(ctx, cost, reg, iters):
        n, m = cost.shape
        with torch.no_grad():
            kernel = torch.exp(-cost / reg)
            v = cost.new_full((m,), 1.0 / m)
            for _ in range(iters):
                u = (1.0 / n) / (kernel @ v)
                v = (1.0 / m) / (kernel.t() @ u)
            plan = u[:, None] * kernel * v[None, :]
        ctx.save_for_backward(plan)
        return (plan * cost).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (plan,) = ctx.saved_tensors
        return grad_output * plan, None, None


class BalancedSoftmaxLoss(Function):
    """Cross entropy with logits shifted by the log of the batch's mean class share."""

    @staticmethod
    def forward(ctx, logits, target):
        share = torch.softmax(logits, dim=1).mean(dim=0)
        prior = logits.new_tensor([math.log(float(s)) for s in share])
        logp = torch.log_softmax(logits + prior, dim=1)
        ctx.save_for_backward(logp, target)
        return -logp.gather(1, target[:, None]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logp, target = ctx.saved_tensors
        grad = logp.exp()
        grad[torch.arange(target.shape[0]), target] -= 1.0
        return grad_output * grad, None


class InverseVarianceMean(Function):
    """Combine k repeated series, each weighted by one over its variance."""

    @staticmethod
    def forward(ctx, series):
        w = torch.tensor([1.0 / float(row.var()) for row in series], dtype=series.dtype)
        w = w / w.sum()
        ctx.save_for_backward(w)
        return (w[:, None] * series).sum(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (w,) = ctx.saved_tensors
        return w[:, None] * grad_output[None, :]


class QuaternionRotate(Function):
    """Rotate points by the quaternion q = (w, x, y, z), normalised first."""

    @staticmethod
    def forward(ctx, q, points):
        length = math.sqrt(sum(c * c for c in q.tolist()))
        qn = q / length
        w, u = qn[0], qn[1:].expand_as(points)
        cross = torch.cross(u, points, dim=1)
        ctx.length = length
        ctx.save_for_backward(qn, points)
        return points + 2 * w * cross + 2 * torch.cross(u, cross, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        qn, v = ctx.saved_tensors
        g = grad_output
        w, u = qn[0], qn[1:].expand_as(v)
        gxu = torch.cross(g, u, dim=1)
        grad_v = g + 2 * w * gxu + 2 * torch.cross(u, torch.cross(u, g, dim=1), dim=1)
        dot = lambda p, r: (p * r).sum(dim=1, keepdim=True)
        grad_w = 2 * (g * torch.cross(u, v, dim=1)).sum().reshape(1)
        grad_u = 2 * w * torch.cross(v, g, dim=1)
        grad_u = grad_u + 2 * (g * dot(u, v) + v * dot(g, u) - 2 * u * dot(g, v))
        return torch.cat([grad_w, grad_u.sum(dim=0)]) / ctx.length, grad_v


class HardNegativeLoss(Function):
    """softplus(neg - pos), negatives weighted by their softmax."""

    @staticmethod
    def forward(ctx, pos, neg):
        rows = []
        for r in neg.tolist():
            e = [math.exp(v - max(r)) for v in r]
            rows.append([v / sum(e) for v in e])
        weight = torch.tensor(rows, dtype=neg.dtype)
        margin = neg - pos[:, None]
        ctx.save_for_backward(weight, margin)
        return (weight * F.softplus(margin)).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        weight, margin = ctx.saved_tensors
        g = grad_output[:, None] * weight * torch.sigmoid(margin)
        return -g.sum(dim=1), g


class CenteredSoftsign(Function):
    @staticmethod
    def forward(x):
        shift = torch.empty_like(x).copy_(x.data.mean(dim=-1, keepdim=True))
        z = x - shift
        return z / (1 + z.abs())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y.abs()) ** 2


class SpectralLinear(Function):
    """x W^T / sigma_max(W), sigma by power iteration."""

    @staticmethod
    def forward(ctx, x, weight, n_iter):
        with torch.no_grad():
            v = F.normalize(torch.ones_like(weight[0]), dim=0)
            for _ in range(n_iter):
                u = F.normalize(weight @ v, dim=0)
                v = F.normalize(weight.t() @ u, dim=0)
            sigma = torch.dot(u, weight @ v)
        w_sn = weight / sigma
        ctx.save_for_backward(x, w_sn, sigma)
        return x @ w_sn.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w_sn, sigma = ctx.saved_tensors
        return grad_output @ w_sn, grad_output.t() @ x / sigma, None


class CapsuleSquash(Function):
    @staticmethod
    def forward(s):
        arr = s.detach().numpy()
        sq = (arr ** 2).sum(axis=-1, keepdims=True)
        return s * torch.from_numpy(np.sqrt(sq) / (1.0 + sq))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (s,) = ctx.saved_tensors
        sq = s.pow(2).sum(dim=-1, keepdim=True)
        return grad_output * sq.sqrt() / (1 + sq)


class PeakNormalize(Function):
    """Scale each channel of a signal so that its largest magnitude is one."""

    @staticmethod
    def forward(signal):
        raw = torch.empty_like(signal).set_(signal.detach())
        peak = raw.abs().amax(dim=-1, keepdim=True)
        return signal / peak

    @staticmethod
    def setup_context(ctx, inputs, output):
        (signal,) = inputs
        ctx.save_for_backward(signal.abs().amax(dim=-1, keepdim=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (peak,) = ctx.saved_tensors
        return grad_output / peak
