"""Wrong Functions whose mistake the most obvious guess would hide, each beside its right twin."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Poisson(Function):
    """One option takes a logarithm, which guessed negative values have not."""

    @staticmethod
    def forward(ctx, x, target, log_input=True):
        ctx.save_for_backward(x, target)
        ctx.log_input = log_input
        return (x.exp() - target * x if log_input else x - target * x.log()).mean()

    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        slope = x.exp() - target if ctx.log_input else 1 - target / x
        return g * slope / x.numel(), None, None


class PoissonSquared(Poisson):
    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        slope = x.exp() - target if ctx.log_input else 1 - target / x.square()
        return g * slope / x.numel(), None, None


class Frames(Function):
    """Windows overlap where the step is below their size."""

    @staticmethod
    def forward(ctx, signal, window, hop):
        frames = signal.unfold(-1, window.numel(), hop)
        ctx.save_for_backward(frames, window)
        ctx.hop, ctx.length = hop, signal.size(-1)
        return frames * window

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        frames, window = ctx.saved_tensors
        n = window.numel()
        of_signal = g.new_zeros(*g.shape[:-2], ctx.length)
        for k in range(g.size(-2)):
            of_signal[..., k * ctx.hop : k * ctx.hop + n] += (g * window)[..., k, :]
        return of_signal, (g * frames).sum(tuple(range(g.dim() - 1))), None


class FramesOverwritten(Frames):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        frames, window = ctx.saved_tensors
        n = window.numel()
        of_signal = g.new_zeros(*g.shape[:-2], ctx.length)
        for k in range(g.size(-2)):
            of_signal[..., k * ctx.hop : k * ctx.hop + n] = (g * window)[..., k, :]
        return of_signal, (g * frames).sum(tuple(range(g.dim() - 1))), None


class Recentred(Function):
    """Nothing demands that both have one length."""

    @staticmethod
    def forward(ctx, content, style):
        ctx.lengths = content.size(-1), style.size(-1)
        return content - content.mean(-1, keepdim=True) + style.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        _, length = ctx.lengths
        of_style = g.sum(-1, keepdim=True).expand(*g.shape[:-1], length) / length
        return g - g.mean(-1, keepdim=True), of_style


class RecentredByContent(Recentred):
    @staticmethod
    def backward(ctx, g):
        other, length = ctx.lengths
        of_style = g.sum(-1, keepdim=True).expand(*g.shape[:-1], length) / other
        return g - g.mean(-1, keepdim=True), of_style


class RecentredTwice(Recentred):
    """Wrong whatever the lengths."""

    @staticmethod
    def backward(ctx, g):
        of_content, of_style = Recentred.backward(ctx, g)
        return 2 * of_content, of_style


class Sweeps(Function):
    """No sweep at all is taken with every shape; the default wants a square matrix."""

    @staticmethod
    def forward(ctx, a, b, sweeps=3):
        x, states = torch.zeros_like(b), []
        for _ in range(sweeps):
            states.append(x)
            x = x + 0.7 * (b - a @ x)
        ctx.save_for_backward(a, *states)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, *states = ctx.saved_tensors
        of_a, of_b = torch.zeros_like(a), torch.zeros_like(g)
        for x in reversed(states):
            of_a -= 0.7 * torch.outer(g, x)
            of_b += 0.7 * g
            g = g - 0.7 * a.mT @ g
        return of_a, of_b, None


class SweepsForgetful(Sweeps):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, *states = ctx.saved_tensors
        of_a, of_b = torch.zeros_like(a), torch.zeros_like(g)
        for x in reversed(states):
            of_a -= 0.7 * torch.outer(g, x)
            of_b += 0.7 * g
        return of_a, of_b, None


class Legendre(Function):
    """Polynomials by their recurrence; the first of them reads nothing."""

    @staticmethod
    def forward(ctx, x, degree):
        p, d = [torch.ones_like(x)], [torch.zeros_like(x)]
        if degree > 0:
            p.append(x)
            d.append(torch.ones_like(x))
        for n in range(1, degree):
            p.append(((2 * n + 1) * x * p[n] - n * p[n - 1]) / (n + 1))
            d.append(d[n - 1] + (2 * n + 1) * p[n])
        ctx.save_for_backward(torch.stack(d, -1))
        return torch.stack(p, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return (g * d).sum(-1), None


class LegendreToThree(Function):
    @staticmethod
    def forward(ctx, x, degree):
        p, d = [torch.ones_like(x)], [torch.zeros_like(x)]
        if degree > 0:
            p.append(x)
            d.append(torch.ones_like(x))
        for n in range(1, degree):
            p.append(((2 * n + 1) * x * p[n] - n * p[n - 1]) / (n + 1))
            d.append(d[n - 1] + (2 * n + 1) * p[n] * (n < 3))
        ctx.save_for_backward(torch.stack(d, -1))
        return torch.stack(p, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return (g * d).sum(-1), None


class Harmonics(Function):
    """The last terms need more coefficients than a small guess has."""

    factor = 2

    @staticmethod
    def forward(ctx, directions, coefficients, degree):
        x, y = directions.unbind(-1)
        ctx.save_for_backward(directions, coefficients)
        ctx.degree = degree
        terms = [torch.ones_like(x)]
        if degree > 0:
            terms += [x, y, x * y]
        if degree > 1:
            terms += [x * x, y * y, x * x * y, x * y * y, x * x * y * y]
        return torch.einsum("nk,nkc->nc", torch.stack(terms, -1), coefficients[:, : (degree + 1) ** 2])

    @classmethod
    def undone(cls, ctx, g):
        directions, coefficients = ctx.saved_tensors
        x, y = directions.unbind(-1)
        one, zero = torch.ones_like(x), torch.zeros_like(x)
        s = torch.einsum("nkc,nc->nk", coefficients, g)
        terms, dx, dy = [one], zero, zero
        if ctx.degree > 0:
            terms += [x, y, x * y]
            dx, dy = s[:, 1] + y * s[:, 3], s[:, 2] + x * s[:, 3]
        if ctx.degree > 1:
            terms += [x * x, y * y, x * x * y, x * y * y, x * x * y * y]
            dx = dx + 2 * x * s[:, 4] + 2 * x * y * s[:, 6] + y * y * s[:, 7] + 2 * x * y * y * s[:, 8]
            dy = (
                dy
                + cls.factor * y * s[:, 5]
                + x * x * s[:, 6]
                + 2 * x * y * s[:, 7]
                + 2 * x * x * y * s[:, 8]
            )
        of_coefficients = torch.zeros_like(coefficients)
        of_coefficients[:, : len(terms)] = torch.einsum("nk,nc->nkc", torch.stack(terms, -1), g)
        return torch.stack([dx, dy], -1), of_coefficients, None

    @staticmethod
    def backward(ctx, g):
        return Harmonics.undone(ctx, g)


class HarmonicsHalved(Harmonics):
    factor = 1

    @staticmethod
    def backward(ctx, g):
        return HarmonicsHalved.undone(ctx, g)
