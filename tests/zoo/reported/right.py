"""Right twins of what was reported of wrong gradients, and of what torch's gradcheck lets through."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class MutatesGradOutput(Function):
    """A new tensor."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul(2)


class ContiguousGradOutput(Function):
    """Takes grad_output as it lies."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.contiguous() * x.cos()


class ContiguousInput(Function):
    """Takes x as it lies."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.contiguous().as_strided(x.shape, x.contiguous().stride()).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class RawMemory(Function):
    """Works on a copy."""

    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x.clone())
        scratch = x.detach().clone().numpy()
        scratch[...] = 0
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class AddsOneInSilence(Function):
    """Adds to a copy."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        x.data.add_(1)
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class FrozenInput(Function):
    """Each gradient has its own condition."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = g * w if ctx.needs_input_grad[0] else None
        grad_w = g * x if ctx.needs_input_grad[1] else None
        return grad_x, grad_w


class ByTheOtherDimension(Function):
    """The mean over rows."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape) / ctx.shape[0]


class TailPast64(Function):
    """Every element."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.exp()
        block = 64
        grad[block:] *= 1
        return grad


class LastOfThousand(Function):
    """Every element."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.exp()
        grad[-1:] *= 1
        return grad


class NineHundredths(Function):
    """Exact."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp() * 1.0


class SmallSlope(Function):
    """A slope of 1e-6."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1e-6 * x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 1e-6 * g * x.cos()


class NoneForSmall(Function):
    """A slope of 1e-6."""

    @staticmethod
    def forward(ctx, x, w):
        return x + 1e-6 * w

    @staticmethod
    def backward(ctx, g):
        return g, 1e-6 * g


class OffDiagonal(Function):
    """Element by element."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        signs = (-1.0) ** torch.arange(len(x), dtype=x.dtype)
        return g * x.cos() + 0 * signs * g.sum()


class ClampedGradOutput(Function):
    """Linear in grad_output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class SignOfGradOutput(Function):
    """Linear in grad_output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Float32Gradient(Function):
    """A gradient of the input's dtype."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


class MoreDimensions(Function):
    """The shape of x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class NotANumberAtZero(Function):
    """The sign of x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs() * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.abs()


class NegativeSide(Function):
    """Slopes 2 and 3."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 2 * x, 3 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, 2.0, 3.0)


class EmptyCrashes(Function):
    """Empty inputs too."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class KeptOnCtx(Function):
    """Saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class IntermediateSaved(Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class UndefinedGradOutput(Function):
    """None is taken for a grad_output."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, a, b):
        first = 0 if a is None else 2 * a
        return None if a is None and b is None else first + (0 if b is None else 3 * b)


class Stochastic(Function):
    """Draws from torch's generator, which is replayed."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 1 + torch.rand(()).item()
        return x * ctx.factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor


class BroadcastBias(Function):
    """Summed over the rows."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(0)


class FusedLinearLoss(Function):
    """The gradients made in forward are weighted by grad_output."""

    @staticmethod
    def forward(ctx, x, w):
        y = (x @ w).square()
        ctx.save_for_backward(2 * (x @ w)[:, None] * w, x, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        grad_x, x, w = ctx.saved_tensors
        return g[:, None] * grad_x, 2 * ((g * (x @ w))[:, None] * x).sum(0)


class GroupNorm(Function):
    """Statistics over all that follows the group."""

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
        dims = tuple(range(2, y.dim()))
        return rstd * (g - g.mean(dims, keepdim=True) - y * (g * y).mean(dims, keepdim=True))


class SoftplusScan(Function):
    """What lies past the end is masked after the softplus."""

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
        spill = torch.nn.functional.softplus(padded) * ~inside * 0
        return (g * slope)[: len(delta)] + g * spill.sum()


class ComplexScan(Function):
    """The conjugate of the factor is carried back."""

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
            grad_x[t - 1] = grad_x[t - 1] + grad_x[t] * a[t].conj()
        return grad_a, grad_x


class GatedAttention(Function):
    """The gradient of v, gated or not."""

    @staticmethod
    def forward(ctx, q, v, gate):
        ctx.save_for_backward(q, v, gate)
        return q * v if gate is None else q * v * gate

    @staticmethod
    def backward(ctx, g):
        q, v, gate = ctx.saved_tensors
        if gate is None:
            return g * v, g * q, None
        return g * v * gate, g * q * gate, g * q * v


class GatedNorm(Function):
    """dx for x and dz for z."""

    @staticmethod
    def forward(ctx, x, z):
        ctx.save_for_backward(x, z)
        return x * torch.sigmoid(z)

    @staticmethod
    def backward(ctx, g):
        x, z = ctx.saved_tensors
        s = torch.sigmoid(z)
        dx, dz = g * s, g * x * s * (1 - s)
        return dx, dz


class NormalizedLinearAttention(Function):
    """k enters by the denominator too."""

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
        return g * v / total - (g * k * v).sum() / total**2, g * k / total, None


class SparseMatmul(Function):
    """lhs is transposed, and comes first."""

    @staticmethod
    def forward(ctx, lhs, rhs):
        ctx.save_for_backward(lhs, rhs)
        return lhs @ rhs

    @staticmethod
    def backward(ctx, g):
        lhs, rhs = ctx.saved_tensors
        return g @ rhs.mT, lhs.mT @ g


class LogScale(Function):
    """The chain rule through exp."""

    @staticmethod
    def forward(ctx, log_scale, x):
        scale = log_scale.exp()
        ctx.save_for_backward(log_scale, x)
        return scale * x

    @staticmethod
    def backward(ctx, g):
        log_scale, x = ctx.saved_tensors
        scale = log_scale.exp()
        return g * x * scale, g * scale


class FieldOfView(Function):
    """The clamp is in backward too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1.3, 1.3) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * (x.abs() < 1.3)


class ChunkedConvolution(Function):
    """Every chunk of the batch."""

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
            grad_w += x[part].mT @ g[part]
        return g @ w.mT, grad_w


class SegmentSum(Function):
    """Its backward can be differentiated."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.n = len(x)
        return x.new_zeros(len(x)).index_add(0, index, x)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g[index], None


class TutorialAttention(Function):
    """Masked only where it is causal."""

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
        if ctx.causal:
            p = p * mask
        dp = g @ v.mT
        return p * (dp - (dp * p).sum(-1, keepdim=True)), p.mT @ g, None


class Renorm(Function):
    """Rows within the limit pass unchanged."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        norm = x.norm(dim=1, keepdim=True)
        return torch.where(norm > 1, x / norm, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=1, keepdim=True)
        along = x * (g * x).sum(1, keepdim=True) / norm**2
        return torch.where(norm > 1, (g - along) / norm, g)


class SpecifyGradient(Function):
    """grad_output scales the gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * w, None


class FourierMagnitude(Function):
    """The conjugate, and the transpose of the transform."""

    @staticmethod
    def forward(ctx, z):
        return torch.fft.fft(z)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g, norm="forward")
