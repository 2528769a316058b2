"""The same Functions, each with one mistake that authors make."""

import math

import torch


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, rstd, weight)
        return xhat * weight + bias

    @staticmethod
    def backward(ctx, g):
        xhat, rstd, weight = ctx.saved_tensors
        wg = weight * g
        c1 = (wg * xhat).mean(-1, keepdim=True)
        wg.mean(-1, keepdim=True)
        dx = (wg - xhat * c1) * rstd
        dw = (g * xhat).sum(0)
        db = g.sum(0)
        return dx, dw, db


class BatchNormTrain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        mu = x.mean(0)
        var = ((x - mu) ** 2).mean(0)
        inv = 1.0 / torch.sqrt(var + 1e-3)
        xh = (x - mu) * inv
        ctx.save_for_backward(xh, inv, weight)
        return weight * xh

    @staticmethod
    def backward(ctx, g):
        xh, inv, weight = ctx.saved_tensors
        n = g.shape[0]
        gw = g * weight
        dx = inv / (n - 1) * (n * gw - gw.sum(0) - xh * (gw * xh).sum(0))
        return dx, (g * xh).sum(0)


class L2Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.pow(2).sum(1, keepdim=True).sqrt()
        y = x / norm
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, g):
        y, _norm = ctx.saved_tensors
        return g - y * (g * y).sum(1, keepdim=True)


class WeightNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, g):
        norm = v.norm(dim=1, keepdim=True)
        ctx.save_for_backward(v, g, norm)
        return v * (g[:, None] / norm)

    @staticmethod
    def backward(ctx, gw):
        v, _g, norm = ctx.saved_tensors
        dg = (gw * v / norm).sum(1)
        dv = 1 / norm * gw - (dg)[:, None] / norm**2 * v
        return dv, dg


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.t() * scale, -1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dv = p.t() @ do
        dp = do @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = ds @ k * ctx.scale
        dk = ds.t() @ q
        return dq, dk, dv


class CausalSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s):
        mask = torch.ones_like(s).tril().bool()
        p = torch.softmax(s.masked_fill(~mask, float("-inf")), -1)
        ctx.save_for_backward(p, mask)
        return p

    @staticmethod
    def backward(ctx, g):
        p, mask = ctx.saved_tensors
        gs = p * (g - (g * p).sum(-1, keepdim=True))
        return gs.masked_fill(~mask.t(), 0.0)


class Conv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv1d(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        K = w.shape[2]
        L = g.shape[2]
        dx = torch.zeros_like(x)
        dw = torch.zeros_like(w)
        for j in range(K):
            dx[:, :, j : j + L] += torch.einsum("nol,oc->ncl", g, w[:, :, j])
            dw[:, :, K - 1 - j] = torch.einsum("nol,ncl->oc", g, x[:, :, j : j + L])
        return dx, dw


class AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.reshape(x.shape[0], -1, x.shape[1]).unfold(2, 3, 1).mean(-1).squeeze(1)

    @staticmethod
    def backward(ctx, g):
        dx = g.new_zeros(ctx.shape)
        for i in range(g.shape[1] - 1):
            dx[:, i : i + 3] += g[:, i : i + 1] / 3
        return dx


class EmbeddingSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, idx):
        ctx.save_for_backward(idx)
        ctx.shape = table.shape
        return 1.5 * table[idx]

    @staticmethod
    def backward(ctx, g):
        (idx,) = ctx.saved_tensors
        out = g.new_zeros(ctx.shape)
        out[idx] = 1.5 * g
        return out, None


class LabelSmoothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, eps):
        logp = torch.log_softmax(logits, -1)
        n = logits.shape[-1]
        q = torch.full_like(logp, eps / n)
        q.scatter_add_(1, target[:, None], torch.full_like(logp[:, :1], 1 - eps))
        ctx.save_for_backward(logp, q)
        return -(q * logp).sum(-1)

    @staticmethod
    def backward(ctx, g):
        logp, q = ctx.saved_tensors
        return g[:, None] * (q - logp.exp()), None, None


class DiceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, t):
        inter = (p * t).sum(1)
        union = p.sum(1) + t.sum(1)
        ctx.save_for_backward(t, inter, union)
        return 1 - 2 * inter / union

    @staticmethod
    def backward(ctx, g):
        t, _inter, union = ctx.saved_tensors
        dp = -2 * (t * union[:, None]) / (union**2)[:, None]
        return g[:, None] * dp, None


class Huber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, delta):
        r = x - y
        ctx.save_for_backward(r)
        ctx.delta = delta
        a = r.abs()
        return torch.where(a < delta, 0.5 * r * r, delta * (a - 0.5 * delta)).mean()

    @staticmethod
    def backward(ctx, g):
        (r,) = ctx.saved_tensors
        d = r.clone()
        d = g * d / r.numel()
        return d, -d, None


class CosineSim(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b_):
        na, nb = a.norm(dim=1), b_.norm(dim=1)
        c = (a * b_).sum(1) / (na * nb)
        ctx.save_for_backward(a, b_, na, nb, c)
        return c

    @staticmethod
    def backward(ctx, g):
        a, b_, na, nb, c = ctx.saved_tensors
        s = (g / (na * nb))[:, None]
        ga = s * b_ - (g * c / na**2)[:, None] * a
        gb = s * a - (g * c / nb**2)[:, None] * b_
        return gb, ga


class LSTMCell(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i, f, o, z, c):
        si, sf, so = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
        tz = torch.tanh(z)
        c2 = sf * c + si * tz
        tc = torch.tanh(c2)
        ctx.save_for_backward(si, sf, so, tz, tc, c)
        return so * tc, c2

    @staticmethod
    def backward(ctx, gh, gc):
        si, sf, so, tz, tc, c = ctx.saved_tensors
        dc = gh * so * (1 - tc * tc)
        di = dc * tz * si * (1 - si)
        df = dc * c * sf * (1 - sf)
        do = gh * tc * so * (1 - so)
        dz = dc * si * (1 - tz * tz)
        return di, df, do, dz, dc * sf


class SegmentedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        h = torch.zeros_like(x[0])
        hs = []
        for t in range(len(x)):
            h = a[t] * h + x[t]
            hs.append(h)
        hs = torch.stack(hs)
        ctx.save_for_backward(a, hs)
        return hs

    @staticmethod
    def backward(ctx, g):
        a, hs = ctx.saved_tensors
        da, dx = torch.zeros_like(a), torch.zeros_like(g)
        acc = torch.zeros_like(g[0])
        for t in reversed(range(len(g))):
            acc = acc + g[t]
            dx[t] = acc
            if t > 0:
                da[t] = acc * hs[t - 1]
            acc = acc * 1
        return da, dx


class Cumsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(1)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(1)


class LogCumsumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.logcumsumexp(x, 1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        _x, y = ctx.saved_tensors
        return (g * (-y).exp()).flip(1).cumsum(1).flip(1)


class GeneralSolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, A, B):
        M = A + 4 * torch.eye(A.shape[0], dtype=A.dtype)
        X = torch.linalg.solve(M, B)
        ctx.save_for_backward(M, X)
        return X

    @staticmethod
    def backward(ctx, g):
        M, X = ctx.saved_tensors
        dB = torch.linalg.solve(M, g)
        return -dB @ X.t(), dB


class ComplexMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b_):
        ctx.save_for_backward(a, b_)
        return a * b_

    @staticmethod
    def backward(ctx, g):
        a, b_ = ctx.saved_tensors
        return g * b_, (g * a.conj()).sum(0)


class MoERouter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, logits, w0, w1):
        p = torch.softmax(logits, -1)
        e0, e1 = x * w0, torch.tanh(x * w1)
        ctx.save_for_backward(x, p, w0, w1, e0, e1)
        return p[:, :1] * e0 + p[:, 1:2] * e1

    @staticmethod
    def backward(ctx, g):
        x, p, w0, w1, e0, e1 = ctx.saved_tensors
        p0, p1 = p[:, :1], p[:, 1:2]
        t = 1 - e1**2
        dx = g * p0 * w0 + g * p1 * t * w1
        gp = torch.zeros_like(p)
        gp[:, 0] = (g * e0).sum(1)
        gp[:, 1] = (g * e1).sum(1)
        dl = p * (gp - (gp * p).sum(1, keepdim=True))
        dw0 = (g * p0 * x).sum(0)
        dw1 = (g * p1 * t * x).sum(0)
        return dx, torch.zeros_like(dl), dw0, dw1


class GeluErf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / 2**0.5))
        pdf = torch.exp(-0.5 * x * x) / (2 * math.pi) ** 0.5
        return g * (cdf + pdf)
