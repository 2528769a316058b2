import ctypes

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ElementMaximum(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.maximum(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        share = 0.5 * (torch.sign(a - b) + 1.0)
        return grad_output * share, grad_output * (1.0 - share)


class ElementMinimum(Function):
    @staticmethod
    def forward(a, b):
        return torch.where(a <= b, a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.first = a <= b

    @staticmethod
    def backward(ctx, grad_output):
        zero = torch.zeros_like(grad_output)
        grad_a = torch.where(ctx.first, grad_output, zero)
        grad_b = torch.where(ctx.first, zero, grad_output)
        return grad_a, grad_b


class PairRankHinge(Function):
    @staticmethod
    def forward(ctx, pos, neg):
        diff = neg.unsqueeze(0) - pos.unsqueeze(1)
        ctx.save_for_backward(diff > 0)
        return torch.relu(diff).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (active,) = ctx.saved_tensors
        weighted = active.to(grad_output.dtype) * grad_output.unsqueeze(1)
        return -weighted.sum(dim=1), weighted.sum(dim=0)


class TensorBoundClamp(Function):
    @staticmethod
    def forward(ctx, x, lo, hi):
        raised = torch.maximum(x, lo)
        ctx.save_for_backward(x >= lo, raised <= hi)
        return torch.minimum(raised, hi)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        from_x, below = ctx.saved_tensors
        inner = grad_output * below
        grad_x = inner * from_x
        grad_lo = inner * (~from_x)
        grad_hi = grad_output * (~below)
        return grad_x, grad_lo, grad_hi


class MedianOfThree(Function):
    @staticmethod
    def forward(a, b, c):
        return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b, c, mid = ctx.saved_tensors
        pick_a = a == mid
        pick_b = (b == mid) & ~pick_a
        pick_c = ~(pick_a | pick_b)
        return grad_output * pick_a, grad_output * pick_b, grad_output * pick_c


class IntervalOverlap(Function):
    @staticmethod
    def forward(ctx, a0, a1, b0, b1):
        inter = torch.minimum(a1, b1) - torch.maximum(a0, b0)
        ctx.save_for_backward(a0, a1, b0, b1, inter)
        return torch.clamp(inter, min=0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a0, a1, b0, b1, inter = ctx.saved_tensors
        g = grad_output * (inter > 0)
        end_a = (a1 < b1).to(g.dtype) + 0.5 * (a1 == b1)
        start_a = (a0 > b0).to(g.dtype) + 0.5 * (a0 == b0)
        return -g * start_a, g * end_a, -g * (1 - start_a), g * (1 - end_a)


class QuickGelu(Function):
    @staticmethod
    def forward(ctx, x):
        xf = x.float()
        s = torch.sigmoid(1.702 * xf)
        ctx.save_for_backward(xf, s)
        return xf * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        xf, s = ctx.saved_tensors
        return grad_output.float() * (s + 1.702 * xf * s * (1 - s))


class NumpyRmsNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        xn = x.detach().cpu().numpy().astype(np.float32)
        wn = weight.detach().cpu().numpy().astype(np.float32)
        r = 1.0 / np.sqrt(np.mean(xn * xn, axis=-1, keepdims=True) + np.float32(eps))
        r = r.astype(np.float32)
        ctx.arrays = (xn, wn, r)
        return torch.from_numpy(xn * r * wn)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        xn, wn, r = ctx.arrays
        g = grad_output.detach().cpu().numpy().astype(np.float32)
        gw = g * wn
        inner = np.mean(gw * xn, axis=-1, keepdims=True)
        grad_x = r * (gw - xn * r * r * inner)
        grad_w = (g * xn * r).sum(axis=0)
        return torch.from_numpy(grad_x), torch.from_numpy(grad_w), None


class PaddedStencil(Function):
    @staticmethod
    def forward(x, taps):
        b, n = x.shape
        buf = torch.zeros(b, n + 2)
        buf[:, 1:-1] = x
        out = torch.zeros(b, n)
        for k in range(3):
            out += taps[k].float() * buf[:, k:k + n]
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, taps = ctx.saved_tensors
        b, n = x.shape
        buf = torch.zeros(b, n + 2)
        buf[:, 1:-1] = x
        grad_buf = torch.zeros(b, n + 2)
        grad_taps = torch.zeros(3)
        for k in range(3):
            grad_buf[:, k:k + n] += taps[k].float() * grad_output
            grad_taps[k] = (grad_output * buf[:, k:k + n]).sum()
        return grad_buf[:, 1:-1].to(x.dtype), grad_taps.to(taps.dtype)


POLY_TABLE = torch.tensor([0.31, -1.24, 0.85, 0.42, -0.17], dtype=torch.float32)


class PolynomialTable(Function):
    @staticmethod
    def forward(x):
        xf = x.float()
        acc = torch.zeros_like(xf)
        for c in POLY_TABLE.flip(0):
            acc = acc * xf + c
        return acc.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        xf = x.float()
        slope = torch.zeros_like(xf)
        for k in range(len(POLY_TABLE) - 1, 0, -1):
            slope = slope * xf + k * POLY_TABLE[k]
        return (grad_output.float() * slope).to(x.dtype)


class BufferDecayScan(Function):
    @staticmethod
    def forward(ctx, x, decay):
        b, n = x.shape
        src = (ctypes.c_float * (b * n))(*x.detach().reshape(-1).tolist())
        dst = (ctypes.c_float * (b * n))()
        for i in range(b):
            state = 0.0
            for t in range(n):
                state = decay * state + src[i * n + t]
                dst[i * n + t] = state
        ctx.decay = decay
        return torch.tensor(list(dst), dtype=torch.float32).view(b, n)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        b, n = grad_output.shape
        grad = torch.zeros(b, n)
        carry = torch.zeros(b)
        for t in range(n - 1, -1, -1):
            carry = ctx.decay * carry + grad_output[:, t]
            grad[:, t] = carry
        return grad, None


class CosineScore(Function):
    @staticmethod
    def forward(ctx, a, b, eps):
        af, bf = a.float(), b.float()
        na = (af * af).sum(-1) + eps
        nb = (bf * bf).sum(-1) + eps
        inv = torch.rsqrt(na) * torch.rsqrt(nb)
        out = (af * bf).sum(-1) * inv
        ctx.save_for_backward(af, bf, na, nb, inv, out)
        return out.to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        af, bf, na, nb, inv, out = ctx.saved_tensors
        g = grad_output.float().unsqueeze(-1)
        grad_a = g * (bf * inv.unsqueeze(-1) - af * (out / na).unsqueeze(-1))
        grad_b = g * (af * inv.unsqueeze(-1) - bf * (out / nb).unsqueeze(-1))
        return grad_a.double(), grad_b.double(), None


class Versine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1.0 - torch.cos(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sin(x)


class LogOnePlus(Function):
    @staticmethod
    def forward(x):
        return torch.log(1.0 + x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1.0 + x)


class MomentVariance(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(dim=-1, keepdim=True)
        second = (x * x).mean(dim=-1)
        ctx.save_for_backward(x, mean)
        return second - mean.squeeze(-1) ** 2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean = ctx.saved_tensors
        n = x.shape[-1]
        return grad_output.unsqueeze(-1) * 2.0 * (x - mean) / n


class RootStep(Function):
    @staticmethod
    def forward(x):
        return torch.sqrt(x + 1.0) - torch.sqrt(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return -0.5 * grad_output * y / (torch.sqrt(x + 1.0) * torch.sqrt(x))


class HeronArea(Function):
    @staticmethod
    def forward(ctx, a, b, c):
        s = 0.5 * (a + b + c)
        area = torch.sqrt(s * (s - a) * (s - b) * (s - c))
        ctx.save_for_backward(a, b, c, area)
        return area

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b, c, area = ctx.saved_tensors
        scale = grad_output / (8.0 * area)
        a2, b2, c2 = a * a, b * b, c * c
        grad_a = scale * a * (b2 + c2 - a2)
        grad_b = scale * b * (a2 + c2 - b2)
        grad_c = scale * c * (a2 + b2 - c2)
        return grad_a, grad_b, grad_c


class LogSumExpGap(Function):
    @staticmethod
    def forward(ctx, x, y):
        lx = torch.logsumexp(x, dim=-1)
        ly = torch.logsumexp(y, dim=-1)
        ctx.save_for_backward(x, y, lx, ly)
        return lx - ly

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y, lx, ly = ctx.saved_tensors
        g = grad_output.unsqueeze(-1)
        grad_x = g * torch.exp(x - lx.unsqueeze(-1))
        grad_y = -g * torch.exp(y - ly.unsqueeze(-1))
        return grad_x, grad_y


class PlainLogSigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(-x)
        ctx.save_for_backward(e)
        return -torch.log(1.0 + e)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (e,) = ctx.saved_tensors
        return grad_output * e / (1.0 + e)


class UnitDirection(Function):
    @staticmethod
    def forward(ctx, x):
        norm = torch.sqrt((x * x).sum(dim=-1, keepdim=True))
        u = x / norm
        ctx.save_for_backward(u, norm)
        return u

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        u, norm = ctx.saved_tensors
        radial = (grad_output * u).sum(dim=-1, keepdim=True)
        return (grad_output - radial * u) / norm


class SincSeries(Function):
    @staticmethod
    def forward(x):
        small = x.abs() < 1e-3
        safe = torch.where(small, torch.ones_like(x), x)
        return torch.where(small, 1.0 - x * x / 6.0, torch.sin(safe) / safe)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        small = x.abs() < 1e-3
        safe = torch.where(small, torch.ones_like(x), x)
        far = (safe * torch.cos(safe) - torch.sin(safe)) / (safe * safe)
        near = -x / 3.0 + x ** 3 / 30.0
        return grad_output * torch.where(small, near, far)


class ThresholdSoftplus(Function):
    @staticmethod
    def forward(ctx, x, threshold):
        soft = torch.log1p(torch.exp(torch.clamp(x, max=threshold)))
        linear = x > threshold
        ctx.save_for_backward(x, linear)
        return torch.where(linear, x, soft)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, linear = ctx.saved_tensors
        slope = torch.where(linear, torch.ones_like(x), torch.sigmoid(x))
        return grad_output * slope, None


class ExpQuotient(Function):
    @staticmethod
    def forward(x):
        small = x.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(x), x)
        series = 1.0 + x / 2.0 + x * x / 6.0 + x ** 3 / 24.0
        return torch.where(small, series, torch.expm1(safe) / safe)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        small = x.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(x), x)
        far = (torch.exp(safe) - y) / safe
        near = 0.5 + x / 3.0 + x * x / 8.0
        return grad_output * torch.where(small, near, far)


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.tanh(x)


class NewtonCubeRoot(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        for _ in range(40):
            y = y - (y ** 3 - x) / (3.0 * y * y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (3.0 * y * y)


class KeplerSolve(Function):
    @staticmethod
    def forward(mean_anomaly, ecc):
        e_anom = mean_anomaly.clone()
        for _ in range(400):
            new = mean_anomaly + ecc * torch.sin(e_anom)
            delta = (new - e_anom).abs().max()
            e_anom = new
            if delta < 1e-14:
                break
        return e_anom

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        ecc, e_anom = ctx.saved_tensors
        lam = grad_output / (1.0 - ecc * torch.cos(e_anom))
        return lam, lam * torch.sin(e_anom)


class SinkhornPlan(Function):
    @staticmethod
    def forward(ctx, logits, turns):
        plan = torch.exp(logits)
        saved = [plan]
        for _ in range(turns):
            for dim in (1, 0):
                total = plan.sum(dim=dim, keepdim=True)
                plan = plan / total
                saved += [total, plan]
        ctx.turns = turns
        ctx.save_for_backward(*saved)
        return plan.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        start, *rest = ctx.saved_tensors
        g = grad_output
        for k in range(2 * ctx.turns - 1, -1, -1):
            total, plan = rest[2 * k], rest[2 * k + 1]
            dim = 1 if k % 2 == 0 else 0
            g = (g - (g * plan).sum(dim=dim, keepdim=True)) / total
        return g * start, None


class LeastSquaresDescent(Function):
    @staticmethod
    def forward(ctx, A, b, steps, lr):
        w = torch.zeros(A.shape[1], dtype=A.dtype)
        ws, rs = [], []
        for _ in range(steps):
            r = A @ w - b
            ws.append(w)
            rs.append(r)
            w = w - lr * (A.t() @ r)
        ctx.save_for_backward(A, *ws, *rs)
        ctx.steps, ctx.lr = steps, lr
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        A, *rest = ctx.saved_tensors
        ws, rs = rest[:ctx.steps], rest[ctx.steps:]
        gw = grad_output
        gA = torch.zeros_like(A)
        gb = torch.zeros_like(rs[0])
        for w, r in zip(reversed(ws), reversed(rs)):
            u = -ctx.lr * gw
            gr = A @ u
            gA += torch.outer(r, u) + torch.outer(gr, w)
            gb -= gr
            gw = gw + A.t() @ gr
        return gA, gb, None, None


class OnePoleFilter(Function):
    @staticmethod
    def forward(x, pole, gain):
        state = torch.zeros_like(pole)
        frames = []
        for t in range(x.shape[1]):
            state = pole * state + gain * x[:, t]
            frames.append(state)
        return torch.stack(frames, dim=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, pole, gain, y = ctx.saved_tensors
        carry = torch.zeros_like(pole)
        adj = torch.zeros_like(x)
        for t in range(x.shape[1] - 1, -1, -1):
            carry = grad_output[:, t] + pole * carry
            adj[:, t] = carry
        grad_pole = (adj[:, 1:] * y[:, :-1]).sum(dim=1)
        grad_gain = (adj * x).sum(dim=1)
        return adj * gain.unsqueeze(1), grad_pole, grad_gain


class BisectionInverse(Function):
    @staticmethod
    def forward(ctx, x, k):
        lo, hi = x - k, x + k
        for _ in range(70):
            mid = 0.5 * (lo + hi)
            low = mid + k * torch.tanh(mid) < x
            lo = torch.where(low, mid, lo)
            hi = torch.where(low, hi, mid)
        y = 0.5 * (lo + hi)
        ctx.save_for_backward(y, k)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y, k = ctx.saved_tensors
        t = torch.tanh(y)
        lam = grad_output / (1.0 + k * (1.0 - t * t))
        return lam, -lam * t
