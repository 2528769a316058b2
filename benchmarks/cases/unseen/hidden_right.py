"""Numerically careful special functions, solvers, statistics and layers."""
import math

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class StableLogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        shift = x.amax(dim=-1, keepdim=True).detach()
        out = (x - shift).exp().sum(dim=-1).log() + shift.squeeze(-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        x, out = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * torch.exp(x - out.unsqueeze(-1))


class RowSoftmax(Function):
    @staticmethod
    def forward(x):
        rows = torch.empty_like(x).set_(x.detach())
        e = torch.exp(x - rows.amax(dim=-1, keepdim=True))
        return e / e.data.sum(dim=-1, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (p,) = ctx.saved_tensors
        return p * (grad_output - (grad_output * p).sum(dim=-1, keepdim=True))


class ErrorFunction(Function):
    @staticmethod
    def forward(x):
        values = [math.erf(v) for v in x.flatten().tolist()]
        return torch.tensor(values, dtype=x.dtype).view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (2.0 / math.sqrt(math.pi)) * torch.exp(-x * x)


class LogBeta(Function):
    """log B(a, b) elementwise."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        out = [math.lgamma(float(p)) + math.lgamma(float(q)) - math.lgamma(float(p + q))
               for p, q in zip(a, b)]
        return torch.tensor(out, dtype=a.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        both = torch.digamma(a + b)
        return grad_output * (torch.digamma(a) - both), grad_output * (torch.digamma(b) - both)


class NormClip(Function):
    """Rescale x to max_norm if it is longer than that."""

    @staticmethod
    def forward(ctx, x, max_norm):
        length = x.norm().item()
        ctx.clipped = length > max_norm
        ctx.max_norm = max_norm
        ctx.length = length
        ctx.save_for_backward(x)
        return x * (max_norm / length) if ctx.clipped else x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if not ctx.clipped:
            return grad_output.clone(), None
        unit = x / ctx.length
        radial = (grad_output * unit).sum() * unit
        return (grad_output - radial) * (ctx.max_norm / ctx.length), None


class DepressedCubic(Function):
    """Real root y of y^3 + y = x."""

    @staticmethod
    def forward(x):
        with torch.no_grad():
            y = torch.sign(x) * x.abs().pow(1.0 / 3.0)
            for _ in range(40):
                y = y - (y ** 3 + y - x) / (3 * y * y + 1)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (3 * y * y + 1)


class KeplerAnomaly(Function):
    """Eccentric anomaly E with E - e sin E = M."""

    @staticmethod
    def forward(ctx, mean_anomaly, ecc):
        with torch.no_grad():
            E = mean_anomaly.clone()
            for _ in range(60):
                E -= (E - ecc * torch.sin(E) - mean_anomaly) / (1 - ecc * torch.cos(E))
        ctx.save_for_backward(E, ecc)
        return E

    @staticmethod
    def backward(ctx, grad_output):
        E, ecc = ctx.saved_tensors
        g = grad_output / (1 - ecc * torch.cos(E))
        return g, g * torch.sin(E)


class LambertW(Function):
    @staticmethod
    def forward(z):
        arr = z.detach().numpy()
        w = np.log1p(arr)
        for _ in range(30):
            ew = np.exp(w)
            f = w * ew - arr
            w = w - f / (ew * (w + 1) - (w + 2) * f / (2 * w + 2))
        return torch.from_numpy(w)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (w,) = ctx.saved_tensors
        return grad_output * torch.exp(-w) / (1 + w)


class RmsNormRows(Function):
    @staticmethod
    def forward(ctx, x, gain, eps):
        arr = x.detach().numpy()
        inv = torch.from_numpy(1.0 / np.sqrt((arr * arr).mean(axis=-1, keepdims=True) + eps))
        normed = x * inv
        ctx.save_for_backward(normed, gain, inv)
        return normed * gain

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        normed, gain, inv = ctx.saved_tensors
        g = grad_output * gain
        grad_x = inv * (g - normed * (g * normed).mean(dim=-1, keepdim=True))
        return grad_x, (grad_output * normed).sum(dim=0), None


class LayerNormAffine(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        with torch.no_grad():
            mean = x.mean(dim=-1, keepdim=True)
            rstd = torch.rsqrt(x.var(dim=-1, unbiased=False, keepdim=True) + eps)
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, weight, rstd)
        ctx.has_bias = bias is not None
        y = xhat * weight
        return y + bias if ctx.has_bias else y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        xhat, weight, rstd = ctx.saved_tensors
        g = grad_output * weight
        grad_x = g - g.mean(dim=-1, keepdim=True)
        grad_x = rstd * (grad_x - xhat * (g * xhat).mean(dim=-1, keepdim=True))
        grad_b = grad_output.sum(dim=0) if ctx.has_bias else None
        return grad_x, (grad_output * xhat).sum(dim=0), grad_b, None


class SampleCovariance(Function):
    @staticmethod
    def forward(x):
        return torch.from_numpy(np.atleast_2d(np.cov(x.detach().numpy(), rowvar=False)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        centered = x - x.mean(dim=0)
        return centered @ (grad_output + grad_output.t()) / (x.shape[0] - 1)


class MedianAbsDeviation(Function):
    """Median of |x - median(x)| for an odd number of entries."""

    @staticmethod
    def forward(ctx, x):
        vals = x.tolist()
        mid = len(vals) // 2
        i_med = sorted(range(len(vals)), key=vals.__getitem__)[mid]
        dev = [abs(v - vals[i_med]) for v in vals]
        i_dev = sorted(range(len(dev)), key=dev.__getitem__)[mid]
        ctx.where = (i_med, i_dev, math.copysign(1.0, vals[i_dev] - vals[i_med]))
        ctx.n = len(vals)
        return x.new_tensor(dev[i_dev])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        i_med, i_dev, sign = ctx.where
        grad = grad_output.new_zeros(ctx.n)
        grad[i_dev] += sign * grad_output
        grad[i_med] -= sign * grad_output
        return grad


class AffineRecurrence(Function):
    """h_t = a_t h_{t-1} + b_t from h_{-1} = h0."""

    @staticmethod
    def forward(ctx, a, b, h0):
        a_, b_, h = a.detach().numpy(), b.detach().numpy(), h0.detach().numpy()
        states = np.empty((a_.shape[0] + 1,) + h.shape)
        states[0] = h
        for t in range(a_.shape[0]):
            states[t + 1] = a_[t] * states[t] + b_[t]
        states = torch.from_numpy(states)
        ctx.save_for_backward(a, states)
        return states[1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, states = ctx.saved_tensors
        grad_a, grad_b = torch.empty_like(a), torch.empty_like(a)
        carry = torch.zeros_like(a[0])
        for t in reversed(range(a.shape[0])):
            carry = carry + grad_output[t]
            grad_a[t] = carry * states[t]
            grad_b[t] = carry
            carry = carry * a[t]
        return grad_a, grad_b, carry


class SoftplusClipped(Function):
    """log(1 + exp(x)), rewritten above the threshold to avoid overflow."""

    @staticmethod
    def forward(ctx, x, threshold):
        ctx.save_for_backward(x)
        above = x > threshold
        out = torch.log1p(torch.exp(x.clamp(max=threshold)))
        if above.any():
            out = out.clone()
            tail = x.detach()[above]
            out[above] = tail + torch.log1p(torch.exp(-tail))
        return out

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x), None


class HuberTotal(Function):
    @staticmethod
    def forward(ctx, pred, target, delta, reduction):
        diff = pred - target
        ctx.save_for_backward(diff)
        ctx.delta = delta
        ctx.scale = 1.0 / diff.numel() if reduction == "mean" else 1.0
        inside = diff[diff.abs() <= delta]
        total = 0.5 * (inside * inside).sum()
        for d in diff[diff.abs() > delta]:
            total = total + delta * (abs(d.item()) - 0.5 * delta)
        return total * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (diff,) = ctx.saved_tensors
        grad = grad_output * ctx.scale * diff.clamp(-ctx.delta, ctx.delta)
        return grad, -grad, None, None


class CosineScore(Function):
    @staticmethod
    def forward(ctx, x, y):
        nx, ny = float(x.norm()), float(y.norm())
        score = torch.dot(x, y) / (nx * ny)
        ctx.norms = nx, ny
        ctx.save_for_backward(x, y, score)
        return score

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y, score = ctx.saved_tensors
        nx, ny = ctx.norms
        ux, uy = x / nx, y / ny
        grad_x = grad_output * (uy - score * ux) / nx
        grad_y = grad_output * (ux - score * uy) / ny
        return grad_x, grad_y


class EntropicTransport(Function):
    """min_P <P, C> + reg * sum P log P over couplings of two uniform marginals."""

    @staticmethod
    def forward(ctx, cost, reg):
        n, m = cost.shape
        with torch.no_grad():
            f, g = cost.new_zeros(n, 1), cost.new_zeros(1, m)
            for _ in range(300):
                f = -reg * (torch.logsumexp((g - cost) / reg, 1, keepdim=True) + math.log(n))
                g = -reg * (torch.logsumexp((f - cost) / reg, 0, keepdim=True) + math.log(m))
            plan = torch.exp((f + g - cost) / reg)
            value = (plan * cost).sum() + reg * (plan * plan.log()).sum()
        ctx.save_for_backward(plan)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (plan,) = ctx.saved_tensors
        return grad_output * plan, None


class SimplexProjection(Function):
    """Euclidean projection of a vector onto the probability simplex."""

    @staticmethod
    def forward(ctx, v):
        total, tau = 0.0, 0.0
        for k, value in enumerate(sorted(v.tolist(), reverse=True), start=1):
            total += value
            if value - (total - 1.0) / k > 0:
                tau = (total - 1.0) / k
        out = torch.clamp(v - tau, min=0.0)
        ctx.save_for_backward(out > 0)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (support,) = ctx.saved_tensors
        s = support.to(grad_output.dtype)
        return s * (grad_output - (grad_output * s).sum() / s.sum())


class EquilibriumTanh(Function):
    """Fixed point z = tanh(W z + x)."""

    @staticmethod
    def forward(ctx, weight, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(200):
                z = torch.tanh(weight @ z + x)
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        weight, z = ctx.saved_tensors
        slope = 1 - z * z
        eye = torch.eye(z.shape[0], dtype=z.dtype)
        lam = torch.linalg.solve(eye - (slope[:, None] * weight).t(), grad_output)
        grad_x = slope * lam
        return torch.outer(grad_x, z), grad_x


class RidgeFit(Function):
    """Coefficients (X^T X + lam I)^{-1} X^T y."""

    @staticmethod
    def forward(ctx, X, y, lam):
        a, t = X.detach().numpy(), y.detach().numpy()
        gram = a.T @ a + lam * np.eye(a.shape[1])
        coef = torch.from_numpy(np.linalg.solve(gram, a.T @ t))
        ctx.lam = lam
        ctx.save_for_backward(X, y, coef)
        return coef

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        X, y, coef = ctx.saved_tensors
        gram = X.t() @ X + ctx.lam * torch.eye(X.shape[1], dtype=X.dtype)
        u = torch.linalg.solve(gram, grad_output)
        Xu = X @ u
        grad_X = torch.outer(y - X @ coef, u) - torch.outer(Xu, coef)
        return grad_X, Xu, None


class LogAbsDet(Function):
    @staticmethod
    def forward(a):
        return torch.tensor(float(np.linalg.slogdet(a.detach().numpy())[1]), dtype=a.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        return grad_output * torch.linalg.inv(a).t()


class InterpolatedQuantile(Function):
    """Linear-interpolation quantile of every column."""

    @staticmethod
    def forward(ctx, x, q):
        arr = x.detach().numpy()
        order = np.argsort(arr, axis=0)
        pos = q * (arr.shape[0] - 1)
        lo = int(math.floor(pos))
        hi = min(lo + 1, arr.shape[0] - 1)
        ctx.frac = pos - lo
        ctx.shape = arr.shape
        ctx.save_for_backward(torch.from_numpy(order[lo]), torch.from_numpy(order[hi]))
        return torch.from_numpy(np.quantile(arr, q, axis=0))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        lo, hi = ctx.saved_tensors
        cols = torch.arange(ctx.shape[1])
        grad = grad_output.new_zeros(ctx.shape)
        grad[lo, cols] += (1 - ctx.frac) * grad_output
        grad[hi, cols] += ctx.frac * grad_output
        return grad, None


class CausalAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        t, d = q.shape
        scores = q.data @ k.data.t() / math.sqrt(d)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        scores.masked_fill_(mask, float("-inf"))
        attn = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(q, k, v, attn)
        return attn @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        q, k, v, attn = ctx.saved_tensors
        grad_attn = grad_output @ v.t()
        row = (grad_attn * attn).sum(dim=-1, keepdim=True)
        grad_scores = attn * (grad_attn - row) / math.sqrt(q.shape[1])
        return grad_scores @ k, grad_scores.t() @ q, attn.t() @ grad_output


class Conv1dValid(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        k = weight.shape[2]
        steps = x.shape[2] - k + 1
        with torch.no_grad():
            out = x.new_empty(x.shape[0], weight.shape[0], steps)
            for j in range(steps):
                out[:, :, j] = torch.einsum("bik,oik->bo", x[:, :, j:j + k], weight)
        return out + bias[:, None] if ctx.has_bias else out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        k, steps = weight.shape[2], grad_output.shape[2]
        grad_x, grad_w = torch.zeros_like(x), torch.zeros_like(weight)
        for j in range(steps):
            g = grad_output[:, :, j]
            grad_x[:, :, j:j + k] += torch.einsum("bo,oik->bik", g, weight)
            grad_w += torch.einsum("bo,bik->oik", g, x[:, :, j:j + k])
        grad_b = grad_output.sum(dim=(0, 2)) if ctx.has_bias else None
        return grad_x, grad_w, grad_b


class GumbelSoftmaxSample(Function):
    """Relaxed categorical sample from given uniforms."""

    @staticmethod
    def forward(ctx, logits, u, tau):
        noise = torch.from_numpy(-np.log(-np.log(u.detach().numpy())))
        y = torch.softmax((logits + noise) / tau, dim=-1)
        ctx.tau = tau
        ctx.save_for_backward(u, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        u, y = ctx.saved_tensors
        g = y * (grad_output - (grad_output * y).sum(dim=-1, keepdim=True)) / ctx.tau
        return g, -g / (u * torch.log(u)), None


class RunningProduct(Function):
    @staticmethod
    def forward(x):
        out = torch.empty_like(x).copy_(x.data)
        for j in range(1, x.shape[-1]):
            out[..., j] = out[..., j] * out[..., j - 1]
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, out = ctx.saved_tensors
        suffix = (grad_output * out).flip(-1).cumsum(-1).flip(-1)
        return suffix / x


class TriangleArea2d(Function):
    """Unsigned area of triangles with vertices p, q, r in the plane."""

    @staticmethod
    def forward(ctx, p, q, r):
        twice = []
        for (px, py), (qx, qy), (rx, ry) in zip(p.tolist(), q.tolist(), r.tolist()):
            twice.append((qx - px) * (ry - py) - (rx - px) * (qy - py))
        twice = p.new_tensor(twice)
        ctx.save_for_backward(p, q, r, torch.sign(twice))
        return 0.5 * twice.abs()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        p, q, r, sign = ctx.saved_tensors
        g = (0.5 * grad_output * sign)[:, None]
        rot = lambda e: torch.stack([e[:, 1], -e[:, 0]], dim=1)
        return g * rot(q - r), g * rot(r - p), g * rot(p - q)


class _Magnitude(Function):
    @staticmethod
    def forward(ctx, x, power):
        return x.abs() ** power

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g), None


class SignedPower(Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.power = power
        ctx.save_for_backward(x)
        return torch.sign(x) * _Magnitude.apply(x, power)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.power * x.abs() ** (ctx.power - 1), None


class _Ripple(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(2 * math.pi * x) / (2 * math.pi)

    @staticmethod
    def backward(ctx, g):
        return g


class SmoothRounding(Function):
    """x - sharp * sin(2 pi x) / (2 pi)."""

    @staticmethod
    def forward(x, sharp):
        return x - sharp * _Ripple.apply(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.sharp = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (1 - ctx.sharp * torch.cos(2 * math.pi * x)), None


class WeightedBag(Function):
    """Sum of table rows per bag, every row with its own weight."""

    @staticmethod
    def forward(table, index, weight, bag, num_bags):
        out = table.new_zeros(num_bags, table.shape[1])
        rows = table.detach()
        for i, w, b in zip(index.tolist(), weight.tolist(), bag.tolist()):
            out[b] += w * rows[i]
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, index, weight, bag, _ = inputs
        ctx.save_for_backward(table, index, weight, bag)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        table, index, weight, bag = ctx.saved_tensors
        g = grad_output[bag]
        grad_table = torch.zeros_like(table).index_add_(0, index, g * weight[:, None])
        grad_weight = (g * table[index]).sum(dim=1)
        return grad_table, None, grad_weight, None, None
