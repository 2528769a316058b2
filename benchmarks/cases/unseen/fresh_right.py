"""Forty right Functions of many kinds."""

import math

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def wide(dtype):
    """The dtype to accumulate in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


# ------------------------------------------------------------------ kernels that run in short dtypes
class GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        v = x.to(wide(x.dtype))
        u = math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)
        return (v * torch.sigmoid(2 * u)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        v = x.to(wide(x.dtype))
        k = math.sqrt(2 / math.pi)
        u = k * (v + 0.044715 * v * v * v)
        du = k * (1 + 3 * 0.044715 * v * v)
        gate = torch.sigmoid(2 * u)
        return (dy * (gate + 2 * v * gate * torch.sigmoid(-2 * u) * du)).to(x.dtype)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(gate, up):
        acc = wide(gate.dtype)
        g = gate.to(acc)
        return (g * torch.sigmoid(g) * up.to(acc)).to(gate.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        acc = wide(gate.dtype)
        g, u, dy = gate.to(acc), up.to(acc), dy.to(acc)
        s = torch.sigmoid(g)
        d_gate = dy * u * (s + g * s * torch.sigmoid(-g))
        d_up = dy * g * s
        return d_gate.to(gate.dtype), d_up.to(up.dtype)


class FusedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        acc = wide(x.dtype)
        xf = x.to(acc)
        mean = xf.mean(-1, keepdim=True)
        rstd = torch.rsqrt((xf - mean).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        y = (xf - mean) * rstd * weight.to(acc) + bias.to(acc)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        acc = wide(x.dtype)
        dy = dy.to(acc)
        xhat = (x.to(acc) - mean) * rstd
        h = dy * weight.to(acc)
        dx = rstd * (h - h.mean(-1, keepdim=True) - xhat * (h * xhat).mean(-1, keepdim=True))
        rows = tuple(range(x.dim() - 1))
        d_weight = (dy * xhat).sum(rows).to(weight.dtype)
        d_bias = dy.sum(rows).to(weight.dtype)
        return dx.to(x.dtype), d_weight, d_bias, None


class RMSNormOffset(torch.autograd.Function):
    """RMS norm whose gain is 1 + weight."""

    @staticmethod
    def forward(x, weight, eps):
        acc = wide(x.dtype)
        xf = x.to(acc)
        r = torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
        return (xf * r * (1 + weight.to(acc))).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        acc = wide(x.dtype)
        xf, dy = x.to(acc), dy.to(acc)
        r = torch.rsqrt(xf.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = xf * r
        h = dy * (1 + weight.to(acc))
        dx = r * (h - xhat * (h * xhat).mean(-1, keepdim=True))
        dw = (dy * xhat).sum_to_size(weight.shape)
        return dx.to(x.dtype), dw.to(weight.dtype), None


class RotaryHalf(torch.autograd.Function):
    """Rotates the two halves of the last dimension; the tables are constants."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.to(wide(x.dtype)).chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        a, b = dy.to(wide(dy.dtype)).chunk(2, dim=-1)
        dx = torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)
        return dx.to(dy.dtype), None, None


class FusedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy with smoothing; the gradient is made in forward, while the logits are at hand."""

    @staticmethod
    def forward(ctx, logits, target, smoothing=0.1):
        z = logits.to(wide(logits.dtype))
        logp = z - torch.logsumexp(z, dim=-1, keepdim=True)
        goal = torch.full_like(logp, smoothing / logp.shape[-1])
        goal.scatter_add_(1, target.unsqueeze(1), torch.full_like(logp[:, :1], 1 - smoothing))
        ctx.save_for_backward((logp.exp() - goal) / logp.shape[0])
        return -(goal * logp).sum(-1).mean().to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        (ready,) = ctx.saved_tensors
        return (ready * dloss).to(dloss.dtype), None, None


class SoftCap(torch.autograd.Function):
    @staticmethod
    def forward(x, cap):
        return (cap * torch.tanh(x.to(wide(x.dtype)) / cap)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, cap = inputs
        ctx.save_for_backward(x)
        ctx.cap = cap

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        z = x.to(wide(x.dtype)) / ctx.cap
        sech2 = 4 * torch.sigmoid(2 * z) * torch.sigmoid(-2 * z)
        return (dy * sech2).to(x.dtype), None


class SquaredReluLinear(torch.autograd.Function):
    """relu(x W^T + b) squared, accumulated in float32 at least."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        acc = wide(x.dtype)
        z = x.to(acc) @ weight.to(acc).T
        if bias is not None:
            z = z + bias.to(acc)
        ctx.save_for_backward(x, weight, bias)
        return z.clamp(min=0).square().to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        acc = wide(x.dtype)
        xf, wf = x.to(acc), weight.to(acc)
        z = xf @ wf.T
        if bias is not None:
            z = z + bias.to(acc)
        dz = dy.to(acc) * 2 * z.clamp(min=0)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = (dz @ wf).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dw = (dz.T @ xf).to(weight.dtype)
        if bias is not None and ctx.needs_input_grad[2]:
            db = dz.sum(0).to(bias.dtype)
        return dx, dw, db


class LogSoftmaxRows(torch.autograd.Function):
    @staticmethod
    def forward(x):
        z = x.to(wide(x.dtype))
        return (z - torch.logsumexp(z, dim=-1, keepdim=True)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        acc = wide(x.dtype)
        p = torch.softmax(x.to(acc), dim=-1)
        dy = dy.to(acc)
        return (dy - p * dy.sum(-1, keepdim=True)).to(x.dtype)


class DistillLoss(torch.autograd.Function):
    """Temperature-scaled KL from a fixed teacher."""

    @staticmethod
    def forward(ctx, student, teacher, temperature):
        acc = wide(student.dtype)
        t = temperature
        logs = torch.log_softmax(student.to(acc) / t, dim=-1)
        logt = torch.log_softmax(teacher.to(acc) / t, dim=-1)
        ctx.save_for_backward(student, teacher)
        ctx.temperature = temperature
        loss = (logt.exp() * (logt - logs)).sum(-1).mean() * t * t
        return loss.to(student.dtype)

    @staticmethod
    def backward(ctx, dloss):
        student, teacher = ctx.saved_tensors
        acc, t = wide(student.dtype), ctx.temperature
        ps = torch.softmax(student.to(acc) / t, dim=-1)
        pt = torch.softmax(teacher.to(acc) / t, dim=-1)
        ds = dloss.to(acc) * t * (ps - pt) / student.shape[0]
        return ds.to(student.dtype), None, None


class SegmentMean(torch.autograd.Function):
    """Means of consecutive rows between offsets."""

    @staticmethod
    def forward(ctx, x, cu):
        acc = wide(x.dtype)
        lengths = (cu[1:] - cu[:-1]).long()
        owner = torch.repeat_interleave(torch.arange(lengths.numel(), device=x.device), lengths)
        sums = torch.zeros(lengths.numel(), x.shape[1], dtype=acc, device=x.device)
        sums = sums.index_add(0, owner, x.to(acc))
        ctx.save_for_backward(owner, lengths)
        return (sums / lengths.clamp(min=1).unsqueeze(1)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        owner, lengths = ctx.saved_tensors
        share = dy / lengths.clamp(min=1).unsqueeze(1)
        return share[owner], None


class GatedBias(torch.autograd.Function):
    """tanh(x + bias) * gate, bias over the last dimension."""

    @staticmethod
    def forward(x, bias, gate):
        acc = wide(x.dtype)
        return (torch.tanh(x.to(acc) + bias.to(acc)) * gate.to(acc)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        x, bias, gate = ctx.saved_tensors
        acc = wide(x.dtype)
        z = x.to(acc) + bias.to(acc)
        dy = dy.to(acc)
        d_gate = dy * torch.tanh(z)
        dz = dy * gate.to(acc) * 4 * torch.sigmoid(2 * z) * torch.sigmoid(-2 * z)
        d_bias = dz.sum_to_size(bias.shape)
        return dz.to(x.dtype), d_bias.to(bias.dtype), d_gate.to(gate.dtype)


class CosineRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, eps=1e-3):
        acc = wide(a.dtype)
        af, bf = a.to(acc), b.to(acc)
        ra = torch.rsqrt(af.square().sum(-1) + eps)
        rb = torch.rsqrt(bf.square().sum(-1) + eps)
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return ((af * bf).sum(-1) * ra * rb).to(a.dtype)

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        acc = wide(a.dtype)
        af, bf, dc = a.to(acc), b.to(acc), dc.to(acc).unsqueeze(-1)
        ra = torch.rsqrt(af.square().sum(-1, keepdim=True) + ctx.eps)
        rb = torch.rsqrt(bf.square().sum(-1, keepdim=True) + ctx.eps)
        dot = (af * bf).sum(-1, keepdim=True)
        da = dc * ra * rb * (bf - af * dot * ra * ra)
        db = dc * ra * rb * (af - bf * dot * rb * rb)
        return da.to(a.dtype), db.to(b.dtype), None


def cosine_rows(a, b, *, eps=1e-3):
    return CosineRows.apply(a, b, eps)


def make_cosine(generator, device, dtype, n, d):
    """Arguments of cosine_rows: a tuple and keywords."""
    a = torch.randn(n, d, generator=generator, dtype=dtype, device=device)
    b = torch.randn(n, d, generator=generator, dtype=dtype, device=device)
    return (a.requires_grad_(), b.requires_grad_()), {"eps": 1e-3}


# ------------------------------------------------------------------ in place, state, modules, options
class LeakyReluInplace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope=0.2):
        F.leaky_relu_(x, slope)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        # the sign survives a positive slope
        return torch.where(y > 0, dy, ctx.slope * dy), None


class AxpyInplace(torch.autograd.Function):
    """y += alpha * x"""

    @staticmethod
    def forward(y, x, alpha):
        y.add_(x, alpha=alpha)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        y, _, ctx.alpha = inputs
        ctx.mark_dirty(y)

    @staticmethod
    def backward(ctx, dy):
        return dy, ctx.alpha * dy, None


class ExpInplace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * y


class BatchNormRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training=True, momentum=0.1, eps=1e-3):
        if training:
            mean = x.mean(0)
            var = (x - mean).square().mean(0)
            with torch.no_grad():
                running_mean.lerp_(mean.detach(), momentum)
                running_var.lerp_(var.detach(), momentum)
        else:
            mean, var = running_mean.clone(), running_var.clone()
        ctx.training, ctx.eps = training, eps
        ctx.save_for_backward(x, weight, mean, var)
        return (x - mean) * torch.rsqrt(var + eps) * weight + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, var = ctx.saved_tensors
        if ctx.training:
            # recomputed, so that it can be differentiated again
            mean = x.mean(0)
            var = (x - mean).square().mean(0)
        r = torch.rsqrt(var + ctx.eps)
        xhat = (x - mean) * r
        h = dy * weight
        if ctx.training:
            dx = r * (h - h.mean(0) - xhat * (h * xhat).mean(0))
        else:
            dx = r * h
        return dx, (dy * xhat).sum(0), dy.sum(0), None, None, None, None, None


class LinearFn(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias):
        return x @ weight.T + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        dw = dy.T @ x if ctx.needs_input_grad[1] else None
        db = dy.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db


class ScaledLinear(torch.nn.Module):
    """A layer around LinearFn: parameters of a module."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return LinearFn.apply(x, self.weight, self.bias)


def mix(x, y):
    """Something smooth to recompute."""
    return torch.sin(x) * y + x * y.square()


class Recompute(torch.autograd.Function):
    """Runs a callable again in backward instead of keeping its intermediates."""

    @staticmethod
    def forward(ctx, fn, x, y):
        ctx.fn = fn
        ctx.save_for_backward(x, y)
        return fn(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, dz):
        x, y = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            z = ctx.fn(x, y)
        dx, dy = torch.autograd.grad(z, (x, y), dz)
        return None, dx, dy


class PoolRows(torch.autograd.Function):
    @staticmethod
    def forward(x, reduce):
        if reduce == "sum":
            return x.sum(0)
        if reduce == "mean":
            return x.mean(0)
        return torch.logsumexp(x, dim=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.reduce = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if ctx.reduce == "sum":
            return dy.expand(x.shape), None
        if ctx.reduce == "mean":
            return dy.expand(x.shape) / x.shape[0], None
        return dy * torch.softmax(x, dim=0), None


class PNormRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        norm = x.abs().pow(p).sum(-1, keepdim=True).pow(1 / p)
        ctx.save_for_backward(x)
        ctx.p = p
        return norm

    @staticmethod
    def backward(ctx, dn):
        (x,) = ctx.saved_tensors
        p = ctx.p
        if p == 1:
            return dn * torch.sign(x), None
        norm = x.abs().pow(p).sum(-1, keepdim=True).pow(1 / p)
        return dn * torch.sign(x) * (x.abs() / norm).pow(p - 1), None


class PadEnds(torch.autograd.Function):
    """Pads the last dimension by one value on each side."""

    @staticmethod
    def forward(ctx, x, mode="zeros"):
        ctx.mode = mode
        if mode == "zeros":
            left, right = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
        elif mode == "replicate":
            left, right = x[..., :1], x[..., -1:]
        else:
            left, right = x[..., -1:], x[..., :1]
        return torch.cat((left, x, right), dim=-1)

    @staticmethod
    def backward(ctx, dy):
        left, dx, right = dy[..., :1], dy[..., 1:-1].clone(), dy[..., -1:]
        if ctx.mode == "replicate":
            dx[..., :1] += left
            dx[..., -1:] += right
        elif ctx.mode == "circular":
            dx[..., -1:] += left
            dx[..., :1] += right
        return dx, None


class WeightedMSE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pred, target, weight=None, reduction="mean"):
        ctx.save_for_backward(pred, target, weight)
        ctx.reduction = reduction
        loss = (pred - target).square()
        if weight is not None:
            loss = loss * weight
        if reduction == "mean":
            return loss.mean()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    def backward(ctx, dloss):
        pred, target, weight = ctx.saved_tensors
        if ctx.reduction == "mean":
            dloss = dloss / pred.numel()
        diff = pred - target
        d_pred = 2 * diff * dloss
        d_weight = None
        if weight is not None:
            d_pred = d_pred * weight
            d_weight = (diff.square() * dloss).sum_to_size(weight.shape)
        return d_pred, -d_pred, d_weight, None


class StridedConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, stride, padding):
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv1d(x, weight, stride=stride, padding=padding)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        s, p, k = ctx.stride, ctx.padding, weight.shape[-1]
        rest = x.shape[-1] + 2 * p - k - s * (dy.shape[-1] - 1)
        dx = F.conv_transpose1d(dy, weight, stride=s, padding=p, output_padding=rest)
        windows = F.pad(x, (p, p)).unfold(2, k, s)
        dw = torch.einsum("bol,bclk->ock", dy, windows)
        return dx, dw, None, None


def convolve(x, weight, stride, padding):
    return F.conv1d(x, weight, None, stride, padding)


class DecayScan(torch.autograd.Function):
    """h_t = decay * h_(t-1) + x_t, from either end."""

    @staticmethod
    def forward(ctx, x, decay, reverse=False):
        steps = list(x.unbind(0))
        if reverse:
            steps.reverse()
        h, out = torch.zeros_like(steps[0]), []
        for step in steps:
            h = decay * h + step
            out.append(h)
        if reverse:
            out.reverse()
        y = torch.stack(out)
        ctx.save_for_backward(y, decay)
        ctx.reverse = reverse
        return y

    @staticmethod
    def backward(ctx, dy):
        y, decay = ctx.saved_tensors
        grads, states = list(dy.unbind(0)), list(y.unbind(0))
        if ctx.reverse:
            grads.reverse()
            states.reverse()
        carry, d_decay, dx = torch.zeros_like(decay), torch.zeros_like(decay), []
        for t in range(len(grads) - 1, -1, -1):
            carry = grads[t] + decay * carry
            dx.append(carry)
            if t > 0:
                d_decay = d_decay + carry * states[t - 1]
        if not ctx.reverse:
            dx.reverse()
        return torch.stack(dx), d_decay, None


_BASES = {}


def cosine_basis(n, dtype, device):
    """The DCT-II matrix, made once for each size, dtype and device."""
    key = (n, dtype, device)
    if key not in _BASES:
        t = torch.arange(n, dtype=torch.float64, device=device)
        _BASES[key] = torch.cos(math.pi / n * (t.unsqueeze(1) + 0.5) * t).to(dtype)
    return _BASES[key]


class CosineTransform(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(x):
        CosineTransform.calls += 1
        return x @ cosine_basis(x.shape[-1], x.dtype, x.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        return dy @ cosine_basis(dy.shape[-1], dy.dtype, dy.device).T


# ------------------------------------------------------------------ everything else
class LogDet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        factor = torch.linalg.cholesky(a)
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx, dy):
        (a,) = ctx.saved_tensors
        return dy[..., None, None] * torch.linalg.inv(a)


class TriangularSolve(torch.autograd.Function):
    """X with L X = B, L lower triangular."""

    @staticmethod
    def forward(lower, b):
        return torch.linalg.solve_triangular(lower, b, upper=False)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, dx):
        lower, x = ctx.saved_tensors
        db = torch.linalg.solve_triangular(lower.mT, dx, upper=True)
        return -(db @ x.mT).tril(), db


class SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        diff = x.unsqueeze(1) - y.unsqueeze(0)
        return diff.square().sum(-1)

    @staticmethod
    def backward(ctx, dd):
        x, y = ctx.saved_tensors
        dx = 2 * (dd.sum(1, keepdim=True) * x - dd @ y)
        dy = 2 * (dd.sum(0).unsqueeze(1) * y - dd.T @ x)
        return dx, dy


class TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(table, index):
        return table[index]

    @staticmethod
    def setup_context(ctx, inputs, output):
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dt = torch.zeros((ctx.rows,) + dy.shape[1:], dtype=dy.dtype, device=dy.device)
        return dt.index_add(0, index, dy), None


class ScatterMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, src, index, size):
        count = torch.bincount(index, minlength=size).clamp(min=1).to(src.dtype)
        out = torch.zeros(size, src.shape[1], dtype=src.dtype, device=src.device)
        ctx.save_for_backward(index, count)
        return out.index_add(0, index, src) / count.unsqueeze(1)

    @staticmethod
    def backward(ctx, dy):
        index, count = ctx.saved_tensors
        return (dy / count.unsqueeze(1)).index_select(0, index), None, None


class PaddedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, index, padding_idx):
        ctx.save_for_backward(index)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return weight.index_select(0, index)

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dy = dy.masked_fill((index == ctx.padding_idx).unsqueeze(1), 0)
        dw = dy.new_zeros(ctx.rows, dy.shape[1])
        return dw.index_add(0, index, dy), None, None


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, causal):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, causal = inputs
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        scores = q @ k.mT * scale
        if ctx.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        p = torch.softmax(scores, dim=-1)
        dp = do @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
        return ds @ k, ds.mT @ q, p.mT @ do, None


class Reflect(torch.autograd.Function):
    """Householder reflection of rows."""

    @staticmethod
    def forward(ctx, x, v):
        ctx.save_for_backward(x, v)
        return x - 2 * (x @ v).unsqueeze(-1) * v / (v @ v)

    @staticmethod
    def backward(ctx, dy):
        x, v = ctx.saved_tensors
        vv = v @ v
        xv, gv = x @ v, dy @ v
        dx = dy - 2 * gv.unsqueeze(-1) * v / vv
        dv = -2 * (xv @ dy + gv @ x) / vv + 4 * (xv @ gv) * v / vv.square()
        return dx, dv


class LogSumExpDims(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dims, keepdim=False):
        ctx.save_for_backward(x)
        ctx.dims, ctx.keepdim = tuple(dims), keepdim
        return torch.logsumexp(x, dim=ctx.dims, keepdim=keepdim)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        lse = torch.logsumexp(x, dim=ctx.dims, keepdim=True)
        return dy.reshape(lse.shape) * torch.exp(x - lse), None, None


class ScaledCat(torch.autograd.Function):
    """Any number of tensors side by side, times a scale."""

    @staticmethod
    def forward(ctx, scale, *xs):
        ctx.save_for_backward(scale, *xs)
        return torch.cat(xs, dim=-1) * scale

    @staticmethod
    def backward(ctx, dy):
        scale, *xs = ctx.saved_tensors
        d_scale = (dy * torch.cat(xs, dim=-1)).sum()
        parts = (dy * scale).split([x.shape[-1] for x in xs], dim=-1)
        return (d_scale, *parts)


class Polar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.hypot(x, y), torch.atan2(y, x)

    @staticmethod
    def backward(ctx, dr, da):
        x, y = ctx.saved_tensors
        r = torch.hypot(x, y)
        c, s = x / r, y / r
        return dr * c - da * s / r, dr * s + da * c / r


class Moments(torch.autograd.Function):
    """Mean, variance and the place of the largest entry of each row."""

    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        var = (x - mean.unsqueeze(-1)).square().mean(-1)
        peak = x.argmax(-1)
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(peak)
        return mean, var, peak

    @staticmethod
    def backward(ctx, d_mean, d_var, _):
        (x,) = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        return (d_mean.unsqueeze(-1) + 2 * centred * d_var.unsqueeze(-1)) / x.shape[-1]


class BilinearForm(torch.autograd.Function):
    @staticmethod
    def forward(x, w, y):
        return torch.einsum("bi,ij,bj->b", x, w, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, ds):
        x, w, y = ctx.saved_tensors
        gx = ds.unsqueeze(1) * x
        return ds.unsqueeze(1) * (y @ w.T), gx.T @ y, gx @ w


class ConjProduct(torch.autograd.Function):
    """a times the conjugate of b."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.conj()

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return dy * b, dy.conj() * a
