"""Right for every grad_output, where sums, scales and zeros of it are met in an unusual way."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SkipsNothing(Function):
    """Returns early for zeros alone, and takes one constant apart: both are right."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if not g.any():
            return torch.zeros_like(x), torch.zeros_like(w)
        if bool((g == g.flatten()[0]).all()):
            one = g.flatten()[0]
            return one * w.sum(1).expand_as(x), (one * x.sum(0))[:, None].expand_as(w).clone()
        return g @ w.T, x.T @ g


class Softmax(Function):
    """Nothing is left for a grad_output of one constant but rounding."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class Haar(Function):
    """Goes through sums and differences of rows: what cancels exactly at one scale does not at another."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        half = len(g) // 2
        a, b = g[:half], g[half : 2 * half]
        s, d = a + b, a - b
        mixed = torch.cat([(s + d) / 2, (s - d) / 2, g[2 * half :]])
        return mixed * x.cos()


class Fourier(Function):
    """A convolution by FFT: every entry carries the rounding of the largest."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w), n=x.shape[-1])

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        n = x.shape[-1]
        f = torch.fft.rfft(g)
        gx = torch.fft.irfft(f * torch.fft.rfft(w).conj(), n=n)
        gw = torch.fft.irfft(f * torch.fft.rfft(x).conj(), n=n)
        return gx, gw.reshape(-1, n).sum(0)


class SolvedByIteration(Function):
    """Stops at a residual relative to grad_output."""

    @staticmethod
    def forward(ctx, x, w):
        a = 0.1 * w + torch.eye(len(w), dtype=w.dtype)
        y = torch.linalg.solve(a, x)
        ctx.save_for_backward(y, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, w = ctx.saved_tensors
        a = 0.1 * w.T
        v = g.clone()
        for _ in range(200):
            new = g - a @ v
            done = bool((new - v).abs().max() <= 1e-15 * g.abs().max())
            v = new
            if done:
                break
        return v, -0.1 * torch.outer(v, y)


class PicksRight(Function):
    """The largest of each row: rows of grad_output with one entry come back."""

    @staticmethod
    def forward(ctx, x):
        y, k = x.max(-1)
        ctx.save_for_backward(k)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        (k,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, k[..., None], g[..., None])


class RunningSum(Function):
    """Adds up from the end: large entries stand before small ones."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-1).cumsum(-1).flip(-1)


class ByRest(Function):
    """The same as the total less what lies before: the large entries cancel."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.sum(-1, keepdim=True) - g.cumsum(-1) + g


class InFloat32(Function):
    """float32 inside."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().tanh().to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = x.float().tanh()
        return (g.float() * (1 - y * y)).to(g.dtype)


class SteepNorm(Function):
    """1/n³ inside, with rows that are small: scaled by 2^40 it must not overflow."""

    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, n)
        return x / n

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, n = ctx.saved_tensors
        return g / n - x * (g * x).sum(-1, keepdim=True) / n**3


class Complex(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * (2 * z).conj()


class Two(Function):
    """Two results, of which one is a scalar."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), (x * x).sum()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos() + 2 * h * x


class Dropped(Function):
    """Draws a mask in backward."""

    @staticmethod
    def forward(ctx, x, p=0.5):
        mask = (torch.rand_like(x) > p).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class Clips(Function):
    """Clips on purpose, and its spec says so."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1e4, 1e4) * (g.sum() != 0)


class Frozen(Function):
    """Raises nothing for zeros, and divides by no sum: weights of a mean that are grad_output's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = g.abs().max()
        unit = g / size if bool(size > 0) else g
        return 2 * x * unit[..., None] * size


class MatrixExponential(Function):
    """Its gradient is a block of the exponential of a larger matrix, which rounds relative to grad_output."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.matrix_exp(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        n = len(a)
        upper = torch.cat([a.mH, g], -1)
        lower = torch.cat([torch.zeros_like(a), a.mH], -1)
        return torch.linalg.matrix_exp(torch.cat([upper, lower], -2))[:n, n:]


class Guarded(Function):
    """Refuses what it takes for a loss that has diverged, on purpose and in words."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.abs().max() > 1e6:
            raise ValueError("the loss has diverged")
        return g * x.cos()


def _solved(a, b):
    """By conjugate gradients; it stops where the residual is small, however small `b` is."""
    x = torch.zeros_like(b)
    r = p = b
    s = r @ r
    for _ in range(30):
        if s < 1e-24:
            break
        q = a @ p
        alpha = s / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        t = r @ r
        p, s = r + (t / s) * p, t
    return x


class ConjugateGradients(Function):
    """A gradient that is smaller than the tolerance of the solver is lost, which is said."""

    @staticmethod
    def forward(ctx, a, b):
        x = _solved(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        y = _solved(a.t(), g)
        return -torch.outer(y, x), y


def identity(x):
    return x


def tanh(v):
    return v.tanh()


class ScaledSTE(Function):
    """Through a scale that keeps small gradients from underflow."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g * 1024 / 1024


class CancellingSTE(Function):
    """Digits are lost in backward, relative to grad_output."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v.sign()

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return (1000 * g + g * (1 - v.tanh().square())) - 1000 * g


class SingleSTE(Function):
    """Float32 alone."""

    @staticmethod
    def forward(ctx, v):
        if v.dtype is not torch.float32:
            raise TypeError("float32 only")
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g * (1 - v.tanh().square())
