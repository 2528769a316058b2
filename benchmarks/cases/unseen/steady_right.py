"""Hand-written backwards that are right, in the styles in which such code is published."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _acc(dtype):
    return torch.promote_types(dtype, torch.float32)


# ---------------------------------------------------------------- float32 inside, native dtypes


class RMSNormFp32(Function):
    """Llama style: statistics in float32, rounded once at the end."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        xf = x.float()
        rstd = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (xf * rstd * weight.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        dx = dw = None
        xhat = x.float() * rstd
        dyf = dy.float()
        if ctx.needs_input_grad[0]:
            wdy = dyf * weight.float()
            dx = ((wdy - xhat * (wdy * xhat).mean(-1, keepdim=True)) * rstd).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dw = (dyf * xhat).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        return dx, dw, None


class SwiGLUFn(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        acc = _acc(gate.dtype)
        a = gate.to(acc)
        return (a * torch.sigmoid(a) * up.to(acc)).to(gate.dtype)

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        acc = _acc(gate.dtype)
        a, b, dy = gate.to(acc), up.to(acc), dy.to(acc)
        s = torch.sigmoid(a)
        silu = a * s
        da = dy * b * (s * (1 - silu) + silu)
        db = dy * silu
        return da.to(gate.dtype), db.to(up.dtype)


class SmoothedCrossEntropy(Function):
    """Liger style: the gradient is computed in forward and scaled in backward."""

    @staticmethod
    def forward(ctx, logits, target, ignore_index, label_smoothing, reduction):
        acc = _acc(logits.dtype)
        logp = torch.log_softmax(logits.to(acc), dim=-1)
        n, c = logits.shape
        valid = target != ignore_index
        safe = torch.where(valid, target, torch.zeros_like(target))
        nll = -logp.gather(1, safe[:, None]).squeeze(1)
        loss = (1 - label_smoothing) * nll - label_smoothing / c * logp.sum(-1)
        loss = torch.where(valid, loss, torch.zeros_like(loss))
        grad = logp.exp() - label_smoothing / c
        grad.scatter_add_(1, safe[:, None], torch.full((n, 1), -(1 - label_smoothing), dtype=acc, device=grad.device))
        grad.masked_fill_(~valid[:, None], 0.0)
        if reduction == "mean":
            count = valid.sum().clamp(min=1)
            loss = loss.sum() / count
            grad = grad / count
        elif reduction == "sum":
            loss = loss.sum()
        ctx.save_for_backward(grad)
        ctx.reduction = reduction
        ctx.in_dtype = logits.dtype
        return loss.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        g = g.to(grad.dtype)
        if ctx.reduction == "none":
            g = g[:, None]
        return (grad * g).to(ctx.in_dtype), None, None, None, None


def _rotate(x, cos, sin, interleaved):
    acc = _acc(x.dtype)
    cos = cos.to(acc)[None, :, None, :]
    sin = sin.to(acc)[None, :, None, :]
    xf = x.to(acc)
    if interleaved:
        a, b = xf[..., 0::2], xf[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = xf.chunk(2, dim=-1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return out.to(x.dtype)


class RotaryEmbed(Function):
    """x: (batch, seq, heads, 2*half); cos and sin are constants (seq, half)."""

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved=False):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _rotate(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        return _rotate(dy, cos, -sin, ctx.interleaved), None, None, None


class ScaledMaskedSoftmax(Function):
    """Megatron's fused scale + mask + softmax (True = masked), float32 inside."""

    @staticmethod
    def forward(ctx, scores, mask, scale):
        z = (scores.float() * scale).masked_fill(mask, -10000.0)
        z = z - z.amax(-1, keepdim=True)
        e = z.exp()
        p = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(p, mask)
        ctx.scale = scale
        ctx.in_dtype = scores.dtype
        return p.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, mask = ctx.saved_tensors
        g = g.float()
        dz = p * (g - (g * p).sum(-1, keepdim=True))
        dz = dz.masked_fill(mask, 0.0) * ctx.scale
        return dz.to(ctx.in_dtype), None, None


class BiasGelu(Function):
    """The bias' gradient is returned unsummed, as in Megatron: autograd reduces it to the bias' shape."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        acc = _acc(x.dtype)
        u = x.to(acc) + bias.to(acc)
        return (0.5 * u * torch.erfc(-u * math.sqrt(0.5))).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, bias = ctx.saved_tensors
        acc = _acc(x.dtype)
        u = x.to(acc) + bias.to(acc)
        cdf = 0.5 * torch.erfc(-u * math.sqrt(0.5))
        pdf = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
        d = g.to(acc) * (cdf + u * pdf)
        db = d.sum(0).to(bias.dtype) if bias.dtype in (torch.bfloat16, torch.float16) else d
        return d.to(x.dtype), db


class LogSigmoidTail(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        xf = x.to(_acc(x.dtype))
        return (xf.clamp(max=0) - torch.log1p(torch.exp(-xf.abs()))).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        acc = _acc(x.dtype)
        return (g.to(acc) / (1 + torch.exp(x.to(acc)))).to(x.dtype)


class SquaredReLU(Function):
    """Primer's activation."""

    @staticmethod
    def forward(ctx, x):
        r = x.clamp(min=0)
        ctx.save_for_backward(x)
        return r * r

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * torch.relu(x)


class BiasDropoutAdd(Function):
    """residual + keep * (x + bias) / (1 - p), the mask drawn by the caller."""

    @staticmethod
    def forward(ctx, x, bias, residual, keep, p):
        acc = _acc(x.dtype)
        ctx.save_for_backward(keep)
        ctx.p = p
        ctx.bias_shape = bias.shape
        out = residual.to(acc) + keep.to(acc) * (x.to(acc) + bias.to(acc)) / (1 - p)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        acc = _acc(g.dtype)
        dx = db = dr = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            d = g.to(acc) * keep.to(acc) / (1 - ctx.p)
            if ctx.needs_input_grad[0]:
                dx = d.to(g.dtype)
            if ctx.needs_input_grad[1]:
                db = d.sum(dim=tuple(range(d.dim() - 1))).to(g.dtype)
        if ctx.needs_input_grad[2]:
            dr = g
        return dx, db, dr, None, None


class SoftcapFp32(Function):
    """Gemma 2: cap * tanh(x / cap), in float32 whatever comes in."""

    @staticmethod
    def forward(ctx, x, cap):
        ctx.save_for_backward(x)
        ctx.cap = cap
        return (cap * torch.tanh(x.float() / cap)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        c = torch.cosh(x.float() / ctx.cap)
        return (g.float() / (c * c)).to(x.dtype), None


# ---------------------------------------------------------------- state, options, several outputs, indices


class InplaceLeakyReLU(Function):
    @staticmethod
    def forward(ctx, x, slope, inplace):
        if inplace:
            ctx.mark_dirty(x)
            out = F.leaky_relu_(x, slope)
        else:
            out = F.leaky_relu(x, slope)
        ctx.slope = slope
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, g, g * ctx.slope), None, None


class BinaryEntropy(Function):
    @staticmethod
    def forward(ctx, p, base2=False):
        ctx.save_for_backward(p)
        ctx.scale = 1.0 / math.log(2.0) if base2 else 1.0
        return -(p * torch.log(p) + (1 - p) * torch.log1p(-p)) * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g * (torch.log1p(-p) - torch.log(p)) * ctx.scale, None


class ScatterReduce(Function):
    @staticmethod
    def forward(ctx, src, index, dim_size, reduce):
        out = src.new_zeros(dim_size, src.shape[1]).index_add_(0, index, src)
        count = None
        if reduce == "mean":
            count = torch.bincount(index, minlength=dim_size).clamp_(min=1).to(src.dtype)[:, None]
            out = out / count
        ctx.save_for_backward(index, count)
        return out

    @staticmethod
    def backward(ctx, g):
        index, count = ctx.saved_tensors
        if count is not None:
            g = g / count
        return g.index_select(0, index), None, None, None


class MinMaxArg(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.set_materialize_grads(False)
        hi, i = x.max(dim, keepdim=True)
        lo, j = x.min(dim, keepdim=True)
        ctx.dim, ctx.shape = dim, x.shape
        ctx.save_for_backward(i, j)
        i = i.squeeze(dim)
        ctx.mark_non_differentiable(i)
        return hi.squeeze(dim), lo.squeeze(dim), i

    @staticmethod
    def backward(ctx, ghi, glo, _):
        i, j = ctx.saved_tensors
        if ghi is None and glo is None:
            return None, None
        some = ghi if ghi is not None else glo
        gx = torch.zeros(ctx.shape, dtype=some.dtype, device=some.device)
        if ghi is not None:
            gx = gx.scatter_add(ctx.dim, i, ghi.unsqueeze(ctx.dim))
        if glo is not None:
            gx = gx.scatter_add(ctx.dim, j, glo.unsqueeze(ctx.dim))
        return gx, None


class LogSumExpProbs(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.set_materialize_grads(False)
        m = x.amax(dim, keepdim=True)
        e = (x - m).exp()
        s = e.sum(dim, keepdim=True)
        p = e / s
        ctx.dim = dim
        ctx.save_for_backward(p)
        return (m + s.log()).squeeze(dim), p

    @staticmethod
    def backward(ctx, glse, gp):
        (p,) = ctx.saved_tensors
        gx = None
        if glse is not None:
            gx = p * glse.unsqueeze(ctx.dim)
        if gp is not None:
            d = p * (gp - (gp * p).sum(ctx.dim, keepdim=True))
            gx = d if gx is None else gx + d
        return gx, None


class OffsetsPool(Function):
    """Pool the rows of a packed batch; segment k is values[cu[k]:cu[k+1]]."""

    @staticmethod
    def forward(ctx, values, cu, mode):
        lengths = (cu[1:] - cu[:-1]).long()
        seg = torch.repeat_interleave(torch.arange(lengths.numel(), device=values.device), lengths)
        out = values.new_zeros(lengths.numel(), values.shape[1]).index_add(0, seg, values)
        if mode == "mean":
            out = out / lengths.clamp(min=1)[:, None]
        ctx.mode = mode
        ctx.save_for_backward(lengths)
        return out

    @staticmethod
    def backward(ctx, g):
        (lengths,) = ctx.saved_tensors
        if ctx.mode == "mean":
            g = g / lengths.clamp(min=1)[:, None]
        return torch.repeat_interleave(g, lengths, dim=0), None, None


class PReLUFn(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        w = weight.view(1, -1, 1)
        return torch.where(x > 0, x, w * x)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(x > 0, g, g * weight.view(1, -1, 1))
        if ctx.needs_input_grad[1]:
            gw = torch.where(x > 0, torch.zeros_like(g), g * x).sum((0, 2))
        return gx, gw


class PReLULayer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.25))

    def forward(self, x):
        return PReLUFn.apply(x, self.weight)


class BatchNormTrain(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        n = x.shape[0] * x.shape[2]
        mean = x.mean((0, 2))
        centred = x - mean[None, :, None]
        var = (centred * centred).mean((0, 2))
        invstd = torch.rsqrt(var + eps)
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(var, alpha=momentum * n / (n - 1))
        ctx.save_for_backward(x, weight, mean, invstd)
        xhat = centred * invstd[None, :, None]
        return xhat * weight[None, :, None] + bias[None, :, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, mean, invstd = ctx.saved_tensors
        n = x.shape[0] * x.shape[2]
        xhat = (x - mean[None, :, None]) * invstd[None, :, None]
        sum_g = g.sum((0, 2))
        sum_gx = (g * xhat).sum((0, 2))
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            k = (weight * invstd / n)[None, :, None]
            gx = k * (n * g - sum_g[None, :, None] - xhat * sum_gx[None, :, None])
        if ctx.needs_input_grad[1]:
            gw = sum_gx
        if ctx.needs_input_grad[2]:
            gb = sum_g
        return gx, gw, gb, None, None, None, None


# ---------------------------------------------------------------- steep, oscillating, iterated, NumPy, complex


class SineLayer(Function):
    """SIREN; works under torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, omega):
        return torch.sin(omega * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, omega = inputs
        ctx.omega = omega
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.omega * torch.cos(ctx.omega * x), None

    @staticmethod
    def jvp(ctx, tx, _):
        (x,) = ctx.saved_tensors
        return tx * ctx.omega * torch.cos(ctx.omega * x)


class LambertW(Function):
    """Principal branch by Halley's iteration, to machine precision."""

    @staticmethod
    def forward(ctx, x):
        w = torch.log1p(x)
        for _ in range(20):
            ew = torch.exp(w)
            f = w * ew - x
            step = f / (ew * (w + 1) - (w + 2) * f / (2 * w + 2))
            w = w - step
            if bool((step.abs() <= 1e-16 * (1 + w.abs())).all()):
                break
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * torch.exp(-w) / (1 + w)


class KeplerSolve(Function):
    """E with E - ecc*sin(E) = M; one eccentricity for each row."""

    @staticmethod
    def forward(ctx, M, ecc):
        E = M + 0.85 * ecc * torch.sign(torch.sin(M))
        for _ in range(30):
            E = E - (E - ecc * torch.sin(E) - M) / (1 - ecc * torch.cos(E))
        ctx.save_for_backward(E, ecc)
        return E

    @staticmethod
    def backward(ctx, g):
        E, ecc = ctx.saved_tensors
        gM = g / (1 - ecc * torch.cos(E))
        gecc = (gM * torch.sin(E)).sum(-1, keepdim=True) if ctx.needs_input_grad[1] else None
        return gM, gecc


class SqrtmSPD(Function):
    """Matrix square root; backward solves the Lyapunov equation S X + X S = G in the eigenbasis."""

    @staticmethod
    def forward(ctx, A):
        lam, V = torch.linalg.eigh(A)
        root = lam.sqrt()
        ctx.save_for_backward(root, V)
        return (V * root.unsqueeze(-2)) @ V.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        root, V = ctx.saved_tensors
        G = 0.5 * (G + G.mT)
        X = (V.mT @ G @ V) / (root.unsqueeze(-1) + root.unsqueeze(-2))
        return V @ X @ V.mT


class GatedScan(Function):
    """h_t = a_t * h_{t-1} + x_t; returns all states and the last one."""

    @staticmethod
    def forward(ctx, x, a, h0=None):
        h = torch.zeros_like(x[:, 0]) if h0 is None else h0
        hs = []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            hs.append(h)
        hs = torch.stack(hs, 1)
        ctx.save_for_backward(a, hs, h0)
        return hs, hs[:, -1].clone()

    @staticmethod
    def backward(ctx, ghs, glast):
        a, hs, h0 = ctx.saved_tensors
        T = a.shape[1]
        carry = glast
        gx, ga = [], []
        for t in range(T - 1, -1, -1):
            d = ghs[:, t] + carry
            if t > 0:
                prev = hs[:, t - 1]
            else:
                prev = h0 if h0 is not None else torch.zeros_like(d)
            gx.append(d)
            ga.append(d * prev)
            carry = d * a[:, t]
        gh0 = carry if h0 is not None and ctx.needs_input_grad[2] else None
        return torch.stack(gx[::-1], 1), torch.stack(ga[::-1], 1), gh0


class CumprodZeros(Function):
    """Cumulative product along the last dimension, without a division, so zeros are fine."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cumprod(x, -1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        before = torch.cat((torch.ones_like(x[..., :1]), torch.cumprod(x[..., :-1], -1)), -1)
        r = g[..., n - 1]
        rs = [r]
        for i in range(n - 2, -1, -1):
            r = g[..., i] + x[..., i + 1] * r
            rs.append(r)
        return before * torch.stack(rs[::-1], -1)


def _dsinc(x):
    u = np.pi * x
    near = np.abs(u) < 1.0
    v = np.where(near, u, 0.0)
    series = np.zeros_like(v)
    for k in range(10, 0, -1):
        series = series + (-1) ** k * 2 * k * v ** (2 * k - 1) / math.factorial(2 * k + 1)
    w = np.where(near, 1.0, u)
    return np.pi * np.where(near, series, (np.cos(w) - np.sin(w) / w) / w)


class SincNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sinc(x.detach().double().cpu().numpy())).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.from_numpy(_dsinc(x.detach().double().cpu().numpy())).to(g)


class CircConvNumpy(Function):
    """Circular convolution of each row with one kernel, by NumPy's FFT."""

    @staticmethod
    def forward(ctx, x, kernel):
        xn, kn = x.detach().cpu().numpy(), kernel.detach().cpu().numpy()
        n = xn.shape[-1]
        y = np.fft.irfft(np.fft.rfft(xn) * np.fft.rfft(kn), n=n)
        ctx.save_for_backward(x, kernel)
        return torch.from_numpy(np.ascontiguousarray(y)).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, kernel = ctx.saved_tensors
        n = x.shape[-1]
        G = np.fft.rfft(g.cpu().numpy())
        gx = gk = None
        if ctx.needs_input_grad[0]:
            K = np.fft.rfft(kernel.detach().cpu().numpy())
            gx = torch.from_numpy(np.fft.irfft(G * K.conj(), n=n)).to(g)
        if ctx.needs_input_grad[1]:
            X = np.fft.rfft(x.detach().cpu().numpy())
            gk = torch.from_numpy(np.fft.irfft((G * X.conj()).sum(0), n=n)).to(g)
        return gx, gk


class ComplexExpGain(Function):
    """gain * exp(z), both complex, the gain shared by all rows."""

    @staticmethod
    def forward(ctx, z, gain):
        ctx.save_for_backward(z, gain)
        return gain * torch.exp(z)

    @staticmethod
    def backward(ctx, g):
        z, gain = ctx.saved_tensors
        ge = g * torch.exp(z).conj()
        return ge * gain.conj(), ge.sum(0)


class SoftplusBeta(Function):
    @staticmethod
    def forward(x, beta):
        return x.clamp(min=0) + torch.log1p(torch.exp(-beta * x.abs())) / beta

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.beta = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        # the sigmoid through its logarithm: the derivative of that keeps its digits in the tail
        return g * torch.exp(F.logsigmoid(ctx.beta * x)), None

    @staticmethod
    def jvp(ctx, tx, _):
        (x,) = ctx.saved_tensors
        return tx * torch.sigmoid(ctx.beta * x)

    @staticmethod
    def vmap(info, in_dims, x, beta):
        return SoftplusBeta.apply(x, beta), in_dims[0]


class LogCumSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        run = x[..., 0]
        out = [run]
        for t in range(1, x.shape[-1]):
            run = torch.logaddexp(run, x[..., t])
            out.append(run)
        y = torch.stack(out, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        n = x.shape[-1]
        later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu()
        d = (x.unsqueeze(-1) - y.unsqueeze(-2)).masked_fill(~later, float("-inf"))
        return (torch.exp(d) * g.unsqueeze(-2)).sum(-1)
