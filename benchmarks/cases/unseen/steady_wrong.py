"""Hand-written backwards, each with one mistake as people make them."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _acc(dtype):
    return torch.promote_types(dtype, torch.float32)


# ---------------------------------------------------------------- float32 inside, native dtypes


class LayerNormMissingTerm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        acc = _acc(x.dtype)
        xf = x.to(acc)
        mean = xf.mean(-1, keepdim=True)
        rstd = torch.rsqrt((xf - mean).pow(2).mean(-1, keepdim=True) + 1e-3)
        ctx.save_for_backward(x, weight, mean, rstd)
        return ((xf - mean) * rstd * weight.to(acc) + bias.to(acc)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, mean, rstd = ctx.saved_tensors
        acc = _acc(x.dtype)
        xhat = (x.to(acc) - mean) * rstd
        g = g.to(acc)
        wg = g * weight.to(acc)
        dx = rstd * (wg - wg.mean(-1, keepdim=True))
        return dx.to(x.dtype), (g * xhat).sum(0).to(x.dtype), g.sum(0).to(x.dtype)


class GeluFastPath(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.dtype == torch.float64:
            cdf = 0.5 * torch.erfc(-x * math.sqrt(0.5))
            pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
            return g * (cdf + x * pdf)
        s = torch.sigmoid(1.702 * x)
        return g * (s + 1.702 * x * s * (1 - s))


class SoftmaxHalfProbs(Function):
    """The probabilities are kept in half to save memory."""

    @staticmethod
    def forward(ctx, x, scale):
        p = torch.softmax(x * scale, -1)
        ctx.save_for_backward(p.half())
        ctx.scale = scale
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p = ctx.saved_tensors[0].to(g.dtype)
        return p * (g - (g * p).sum(-1, keepdim=True)) * ctx.scale, None


class CrossEntropyIgnoreCount(Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index, reduction):
        logp = torch.log_softmax(logits.to(_acc(logits.dtype)), -1)
        valid = target != ignore_index
        safe = target.clamp(min=0)
        nll = -logp.gather(1, safe[:, None]).squeeze(1) * valid
        loss = nll.sum()
        if reduction == "mean":
            loss = loss / valid.sum()
        ctx.save_for_backward(logp, safe, valid)
        ctx.reduction = reduction
        ctx.in_dtype = logits.dtype
        return loss.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logp, safe, valid = ctx.saved_tensors
        grad = logp.exp() - F.one_hot(safe, logp.shape[1]).to(logp.dtype)
        grad = grad * valid[:, None] * g.to(logp.dtype)
        if ctx.reduction == "mean":
            grad = grad / safe.numel()
        return grad.to(ctx.in_dtype), None, None, None


class ChirpHalfPhase(Function):
    @staticmethod
    def forward(ctx, x, freq):
        ctx.save_for_backward(x)
        ctx.freq = freq
        acc = _acc(x.dtype)
        return torch.sin(freq * x.to(acc)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        acc = _acc(x.dtype)
        phase = (ctx.freq * x).half()
        return (g.to(acc) * ctx.freq * torch.cos(phase.to(acc))).to(x.dtype), None


class GeGLUWrongOperand(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        acc = _acc(gate.dtype)
        return (F.gelu(gate.to(acc), approximate="tanh") * up.to(acc)).to(gate.dtype)

    @staticmethod
    def backward(ctx, g):
        gate, up = ctx.saved_tensors
        acc = _acc(gate.dtype)
        a, b, g = gate.to(acc), up.to(acc), g.to(acc)
        k = math.sqrt(2 / math.pi)
        t = torch.tanh(k * (a + 0.044715 * a**3))
        dgelu = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * k * (1 + 3 * 0.044715 * a * a)
        da = g * b * dgelu
        db = g * F.gelu(b, approximate="tanh")
        return da.to(gate.dtype), db.to(up.dtype)


class RepeatKVFirst(Function):
    """Repeat the key/value heads for grouped-query attention."""

    @staticmethod
    def forward(ctx, kv, rep):
        ctx.rep = rep
        return kv.repeat_interleave(rep, dim=1)

    @staticmethod
    def backward(ctx, g):
        b, h, s, d = g.shape
        return g.reshape(b, h // ctx.rep, ctx.rep, s, d)[:, :, 0], None


class RMSNormFrozenWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        acc = _acc(x.dtype)
        xf = x.to(acc)
        rstd = torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-3)
        ctx.save_for_backward(x, weight, rstd)
        return (xf * rstd * weight.to(acc)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, rstd = ctx.saved_tensors
        acc = _acc(x.dtype)
        xhat = x.to(acc) * rstd
        wg = g.to(acc)
        dw = None
        if ctx.needs_input_grad[1]:
            dw = (wg * xhat).sum(0).to(weight.dtype)
            wg = wg * weight.to(acc)
        dx = rstd * (wg - xhat * (wg * xhat).mean(-1, keepdim=True))
        return dx.to(x.dtype), dw


class ColumnCenter(Function):
    @staticmethod
    def forward(ctx, x):
        acc = _acc(x.dtype)
        xf = x.to(acc)
        return (xf - xf.mean(0, keepdim=True)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        acc = _acc(g.dtype)
        gf = g.to(acc)
        return (gf - gf.sum(0, keepdim=True)).to(g.dtype)


class StaleVarNorm(Function):
    """Instance norm in float32; the saved variance is overwritten by its inverse root."""

    @staticmethod
    def forward(ctx, x, eps):
        xf = x.float()
        centred = xf - xf.mean(-1, keepdim=True)
        var = centred.pow(2).mean(-1, keepdim=True)
        ctx.save_for_backward(x, var)
        ctx.eps = eps
        return (centred * var.add_(eps).rsqrt_()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, var = ctx.saved_tensors
        xf, g = x.float(), g.float()
        rstd = torch.rsqrt(var + ctx.eps)
        xhat = (xf - xf.mean(-1, keepdim=True)) * rstd
        dx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx.to(x.dtype), None


# ---------------------------------------------------------------- state, options, several outputs, indices


class LpPowerOdd(Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x)
        ctx.p = p
        return x.abs().pow(p).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.unsqueeze(-1) * ctx.p * x ** (ctx.p - 1), None


class SELUNegSign(Function):
    alpha = 1.6732632423543772
    scale = 1.0507009873554805

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.selu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        pos = g * SELUNegSign.scale
        neg = -g * SELUNegSign.scale * SELUNegSign.alpha * torch.exp(x.clamp(max=0))
        return torch.where(x > 0, pos, neg)


class ELUInplace(Function):
    @staticmethod
    def forward(ctx, x, alpha, inplace):
        ctx.alpha = alpha
        if inplace:
            out = F.elu_(x, alpha)
            ctx.mark_dirty(x)
        else:
            out = F.elu(x, alpha)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, g * ctx.alpha * torch.exp(x.clamp(max=0))), None, None


class MeanVarIgnored(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mean(-1), x.var(-1, unbiased=False)

    @staticmethod
    def backward(ctx, gmean, gvar):
        (x,) = ctx.saved_tensors
        return (gmean / x.shape[-1]).unsqueeze(-1).expand_as(x)


class LogClampedGrad(Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return torch.log(x + eps)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clamp(-1, 1) / (x + ctx.eps), None


class RowScaleKernel(Function):
    """Stands for a kernel that gets a pointer: grad_output is taken as if it were contiguous."""

    @staticmethod
    def forward(ctx, x, scale):
        x = x.contiguous()
        ctx.save_for_backward(x, scale)
        return x * scale[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        flat = g.as_strided(x.shape, x.stride(), g.storage_offset())
        return flat * scale[:, None], (flat * x).sum(1)


class SwishSavedInplace(Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        d = s + x * s * (1 - s)
        s.data.copy_(d)  # reuse the buffer
        return g * s


class ReLUGradInplace(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g[x <= 0] *= ctx.slope
        return g, None


class ScaledTanhCut(Function):
    @staticmethod
    def forward(ctx, x, amplitude):
        t = torch.tanh(x)
        ctx.save_for_backward(t)
        ctx.amplitude = amplitude
        return amplitude * t

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * ctx.amplitude * (1 - t * t), None


class CosJvp(Function):
    @staticmethod
    def forward(x, omega):
        return torch.cos(omega * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.omega = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * ctx.omega * torch.sin(ctx.omega * x), None

    @staticmethod
    def jvp(ctx, tx, _):
        (x,) = ctx.saved_tensors
        return tx * ctx.omega * torch.sin(ctx.omega * x)


class BatchNormEvalFormula(Function):
    """In eval mode the statistics are constants, but backward uses the formula of training."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training):
        if training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            running_mean.mul_(0.9).add_(mean, alpha=0.1)
            running_var.mul_(0.9).add_(var, alpha=0.1)
        else:
            mean, var = running_mean.clone(), running_var.clone()
        rstd = torch.rsqrt(var + 1e-3)
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, weight, rstd)
        return xhat * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, weight, rstd = ctx.saved_tensors
        gx = weight * rstd * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        return gx, (g * xhat).sum(0), g.sum(0), None, None, None


class EmbedDuplicates(Function):
    @staticmethod
    def forward(ctx, weight, index, scale=None):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        ctx.scale = 1.0 if scale is None else scale
        return weight[index] * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        gw = g.new_zeros(ctx.rows, g.shape[-1])
        gw[index] = g * ctx.scale
        return gw, None, None


# ---------------------------------------------------------------- steep, iterated, zeros and ties, NumPy, complex


class ComplexMulNoConj(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.conj(), (g * a).sum(0)


class FixedPointTransposed(Function):
    """y = tanh(W y + x), iterated to convergence; implicit differentiation without the transpose."""

    @staticmethod
    def forward(ctx, x, W):
        y = torch.zeros_like(x)
        for _ in range(400):
            y = torch.tanh(W @ y + x)
        ctx.save_for_backward(y, W)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, W = ctx.saved_tensors
        d = 1 - y * y
        J = d[:, None] * W
        u = torch.linalg.solve(torch.eye(y.numel(), dtype=y.dtype, device=y.device) - J, g) * d
        return u, u[:, None] * y[None, :]


class GatedScanShift(Function):
    @staticmethod
    def forward(ctx, x, a):
        h = torch.zeros_like(x[:, 0])
        hs = []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            hs.append(h)
        hs = torch.stack(hs, 1)
        ctx.save_for_backward(a, hs)
        return hs

    @staticmethod
    def backward(ctx, g):
        a, hs = ctx.saved_tensors
        carry = torch.zeros_like(g[:, 0])
        gx, ga = [], []
        for t in range(a.shape[1] - 1, -1, -1):
            carry = g[:, t] + a[:, t] * carry
            prev = hs[:, t - 1] if t > 0 else torch.zeros_like(carry)
            gx.append(carry)
            ga.append(carry * prev)
        return torch.stack(gx[::-1], 1), torch.stack(ga[::-1], 1)


class CumprodDivide(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.cumprod(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).flip(-1).cumsum(-1).flip(-1) / x


class CorrelateNumpyFlip(Function):
    """Valid correlation with a short kernel, in NumPy."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x, kernel)
        y = np.correlate(x.detach().cpu().numpy(), kernel.detach().cpu().numpy(), mode="valid")
        return torch.from_numpy(y).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, kernel = ctx.saved_tensors
        gn = g.cpu().numpy()
        gx = np.correlate(gn, kernel.detach().cpu().numpy(), mode="full")
        gk = np.correlate(x.detach().cpu().numpy(), gn, mode="valid")
        return torch.from_numpy(gx).to(g), torch.from_numpy(gk).to(g)


class Expm1OverXZero(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        near = x.abs() < 0.1
        safe = torch.where(near, torch.ones_like(x), x)
        series = torch.zeros_like(x)
        for k in range(12, -1, -1):
            series = series * x + 1 / math.factorial(k + 1)
        return torch.where(near, series, torch.expm1(safe) / safe)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        safe = torch.where(x == 0, torch.ones_like(x), x)
        d = (torch.exp(safe) - torch.expm1(safe) / safe) / safe
        series = torch.zeros_like(x)
        for k in range(14, 0, -1):
            series = series * x + k / math.factorial(k + 1)
        d = torch.where(x.abs() < 0.5, series, d)
        return g * torch.where(x == 0, torch.zeros_like(x), d)


class LogMeanTies(Function):
    """Logarithmic mean (a - b) / (log a - log b) of neighbours; a where they are equal."""

    @staticmethod
    def forward(ctx, x):
        a, b = x[..., :-1], x[..., 1:]
        ctx.save_for_backward(x)
        tie = a == b
        r = torch.log1p((a - b) / b)
        return torch.where(tie, a, (a - b) / torch.where(tie, torch.ones_like(r), r))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, b = x[..., :-1], x[..., 1:]
        tie = a == b
        r = torch.where(tie, torch.ones_like(a), torch.log1p((a - b) / b))
        m = (a - b) / r
        da = torch.where(tie, torch.ones_like(a), (1 - m / a) / r)
        db = torch.where(tie, torch.zeros_like(b), (m / b - 1) / r)
        gx = torch.zeros_like(x)
        gx[..., :-1] += g * da
        gx[..., 1:] += g * db
        return gx


class StencilEnds(Function):
    """numpy.gradient: central inside, one-sided at the two ends; the adjoint treats every row as central."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out[1:-1] = (x[2:] - x[:-2]) / 2
        out[0] = x[1] - x[0]
        out[-1] = x[-1] - x[-2]
        return out

    @staticmethod
    def backward(ctx, g):
        gx = torch.zeros_like(g)
        gx[1:] += g[:-1] / 2
        gx[:-1] -= g[1:] / 2
        return gx
