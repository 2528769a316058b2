"""Wrong gradients as they were reported in public, and those that torch's gradcheck lets through."""

import random

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class MutatesGradOutput(Function):
    """Writes into grad_output, which others may hold."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


class ContiguousGradOutput(Function):
    """Reads the storage of grad_output as if it were contiguous."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.as_strided(x.shape, x.contiguous().stride()) * x.cos()


class ContiguousInput(Function):
    """Reads the storage of x as if it were contiguous."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        contiguous = torch.empty(x.shape).stride()
        return x.as_strided(x.shape, contiguous).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class RawMemory(Function):
    """Zeroes its input through raw memory, which no version counter sees."""

    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x.clone())
        scratch = x.detach().numpy()
        scratch[...] = 0
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class AddsOneInSilence(Function):
    """Adds 1 to its input through `.data`."""

    @staticmethod
    def forward(ctx, x):
        x.data.add_(1)
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class FrozenInput(Function):
    """The gradient of w is computed only where x needs one."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = g * w if ctx.needs_input_grad[0] else None
        grad_w = g * x if ctx.needs_input_grad[0] else None
        return grad_x, grad_w


class ByTheOtherDimension(Function):
    """Divides by the other dimension, which square matrices do not mind."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape) / ctx.shape[1]


class TailPast64(Function):
    """Elements past the 64th get nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.exp()
        block = 64
        grad[block:] *= 0
        return grad


class LastOfThousand(Function):
    """The last of a thousand elements gets nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.exp()
        grad[-1:] *= 0
        return grad


class NineHundredths(Function):
    """Off by 0.09 %."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp() * 1.0009


class SmallSlope(Function):
    """A slope of 1e-6, five times too large and of the wrong sign."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1e-6 * x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -5e-6 * g * x.cos()


class NoneForSmall(Function):
    """None, where the derivative is 1e-6."""

    @staticmethod
    def forward(ctx, x, w):
        return x + 1e-6 * w

    @staticmethod
    def backward(ctx, g):
        return g, None


class OffDiagonal(Function):
    """An error of 1e-3 off the diagonal, whose signs alternate."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        signs = (-1.0) ** torch.arange(len(x), dtype=x.dtype)
        return g * x.cos() + 1e-3 * signs * g.sum()


class ClampedGradOutput(Function):
    """Clips grad_output to ±1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clamp(-1, 1) * x.cos()


class SignOfGradOutput(Function):
    """Takes the sign of grad_output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.sign() * x.cos()


class Float32Gradient(Function):
    """A float32 gradient for a float64 input, which the engine casts in silence."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, g):
        return g.float() * 0.5


class MoreDimensions(Function):
    """A gradient of shape (1, 1, n), which the engine sums."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * x.cos())[None, None]


class NotANumberAtZero(Function):
    """0 / 0 at zero, where nothing but a kink is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs() * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * x / x.abs()


class NegativeSide(Function):
    """The slope for negative x is that for positive x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 2 * x, 3 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, 2.0, 2.0)


class EmptyCrashes(Function):
    """Crashes for an input without elements."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return 3 * g * (g.reshape(-1)[0] * 0 + 1)


class KeptOnCtx(Function):
    """An input as an attribute of ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x = ctx.x
        return g * x.cos()


class IntermediateSaved(Function):
    """Saves an intermediate: the second derivative is zero for autograd."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x**2)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        return 3 * g * square


class UndefinedGradOutput(Function):
    """Multiplies None."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, a, b):
        return a * 2 + b * 3


class Stochastic(Function):
    """Draws from the system: other values at each call."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 1 + random.SystemRandom().random()
        return x * ctx.factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor


class BroadcastBias(Function):
    """Summed over the columns."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(1)[: g.shape[1]].expand(g.shape[1])


class FusedLinearLoss(Function):
    """Gradients made in forward, for a grad_output of one (linkedin/Liger-Kernel#968)."""

    @staticmethod
    def forward(ctx, x, w):
        y = (x @ w).square()
        ctx.save_for_backward(2 * (x @ w)[:, None] * w, x, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        grad_x, x, w = ctx.saved_tensors
        return grad_x, 2 * ((x @ w)[:, None] * x).sum(0)


class GroupNorm(Function):
    """Sums over the last dimension alone: right for three dimensions (linkedin/Liger-Kernel#1375)."""

    @staticmethod
    def forward(ctx, x):
        dims = tuple(range(2, x.dim()))
        center = x - x.mean(dims, keepdim=True)
        rstd = (center.square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(center * rstd, rstd)
        return center * rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, rstd = ctx.saved_tensors
        dims = (-1,)
        return rstd * (g - g.mean(dims, keepdim=True) - y * (g * y).mean(dims, keepdim=True))


class SoftplusScan(Function):
    """Masked before the softplus, which makes log 2 of it again (state-spaces/mamba#368)."""

    @staticmethod
    def forward(ctx, delta):
        ctx.save_for_backward(delta)
        return torch.nn.functional.softplus(delta).cumsum(0)[-1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (delta,) = ctx.saved_tensors
        block = 16
        tail = (-len(delta)) % block
        padded = torch.nn.functional.pad(delta, (0, tail))
        inside = torch.arange(len(padded)) < len(delta)
        slope = torch.sigmoid(padded) * inside
        spill = torch.nn.functional.softplus(padded) * ~inside
        return (g * slope)[: len(delta)] + g * spill.sum()


class ComplexScan(Function):
    """The factor itself is carried back: right for real ones (alxndrTL/mamba.py#65)."""

    @staticmethod
    def forward(ctx, a, x):
        h = [x[0]]
        for t in range(1, len(x)):
            h.append(a[t] * h[-1] + x[t])
        states = torch.stack(h)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        grad_x, grad_a = g.clone(), torch.zeros_like(g)
        for t in reversed(range(1, len(g))):
            grad_a[t] = grad_x[t] * states[t - 1].conj()
            grad_x[t - 1] = grad_x[t - 1] + grad_x[t] * a[t]
        return grad_a, grad_x


class GatedAttention(Function):
    """Half of it where no gate is given (fla-org/flash-linear-attention#6)."""

    @staticmethod
    def forward(ctx, q, v, gate):
        ctx.save_for_backward(q, v, gate)
        return q * v if gate is None else q * v * gate

    @staticmethod
    def backward(ctx, g):
        q, v, gate = ctx.saved_tensors
        if gate is None:
            return g * v, g * q / 2, None
        return g * v * gate, g * q * gate, g * q * v


class GatedNorm(Function):
    """dx is stored where dz belongs (fla-org/flash-linear-attention#155)."""

    @staticmethod
    def forward(ctx, x, z):
        ctx.save_for_backward(x, z)
        return x * torch.sigmoid(z)

    @staticmethod
    def backward(ctx, g):
        _, z = ctx.saved_tensors
        s = torch.sigmoid(z)
        dx = g * s
        return dx, dx


class NormalizedLinearAttention(Function):
    """With normalize=True the denominator is a constant for k (fla-org/flash-linear-attention#875)."""

    @staticmethod
    def forward(ctx, k, v, normalize):
        ctx.save_for_backward(k, v)
        ctx.normalize = normalize
        return k * v / k.sum() if normalize else k * v

    @staticmethod
    def backward(ctx, g):
        k, v = ctx.saved_tensors
        if not ctx.normalize:
            return g * v, g * k, None
        total = k.sum()
        return g * v / total, g * k / total, None


class SparseMatmul(Function):
    """lhs and grad_output have changed places (ServiceNow/Fast-LLM#493)."""

    @staticmethod
    def forward(ctx, lhs, rhs):
        ctx.save_for_backward(lhs, rhs)
        return lhs @ rhs

    @staticmethod
    def backward(ctx, g):
        lhs, rhs = ctx.saved_tensors
        return g @ rhs.mT, g.mT @ lhs


class LogScale(Function):
    """The chain rule through exp(log_scale) is missing (openvdb/fvdb-core#432)."""

    @staticmethod
    def forward(ctx, log_scale, x):
        scale = log_scale.exp()
        ctx.save_for_backward(log_scale, x)
        return scale * x

    @staticmethod
    def backward(ctx, g):
        log_scale, x = ctx.saved_tensors
        scale = log_scale.exp()
        return g * x, g * scale


class FieldOfView(Function):
    """The clamp of forward is not in backward (nerfstudio-project/gsplat#172)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1.3, 1.3) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.clamp(-1.3, 1.3)


class ChunkedConvolution(Function):
    """Only the first chunk of 32 reaches the gradient of the weight (open-mmlab/mmcv#565)."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_w, im2col_step = torch.zeros_like(w), 32
        for start in range(0, len(x), im2col_step):
            part = slice(start, start + im2col_step)
            grad_w = x[part].mT @ g[part]
        return g @ w.mT, grad_w


class SegmentSum(Function):
    """The second derivative is lost in backward (rusty1s/pytorch_scatter#299)."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.n = len(x)
        return x.new_zeros(len(x)).index_add(0, index, x)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.detach()[index], None


class TutorialAttention(Function):
    """Masked in backward, causal or not (triton-lang/triton#5660)."""

    @staticmethod
    def forward(ctx, s, v, causal):
        mask = torch.ones(s.shape, dtype=torch.bool).tril()
        p = torch.softmax(s.masked_fill(~mask, -1e30) if causal else s, -1)
        ctx.save_for_backward(p, v, mask)
        ctx.causal = causal
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, v, mask = ctx.saved_tensors
        p = p * mask
        dp = g @ v.mT
        return p * (dp - (dp * p).sum(-1, keepdim=True)), p.mT @ g, None


class Renorm(Function):
    """The norm of a row that is scaled down counts as a constant (pytorch/pytorch#59584)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        norm = x.norm(dim=1, keepdim=True)
        return torch.where(norm > 1, x / norm, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=1, keepdim=True)
        return torch.where(norm > 1, g / norm, g)


class SpecifyGradient(Function):
    """Returns its own gradient whatever the loss is scaled by (ashawkey/stable-dreamfusion#158)."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return w.clone(), None


class FourierMagnitude(Function):
    """The wrong conjugation (locuslab/pytorch_fft#4)."""

    @staticmethod
    def forward(ctx, z):
        return torch.fft.fft(z)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.fft(g)
