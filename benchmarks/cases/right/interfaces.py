"""Right Functions by how they use autograd: what is saved and returned, who differentiates twice."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Affine(Function):
    """setup_context with a keyword's default, rules for vmap and forward mode."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, shift: float = 0.5) -> Tensor:
        return x * w + shift

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, w, _ = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx, g: Tensor):
        x, w = ctx.saved_tensors
        gx = g * w if ctx.needs_input_grad[0] else None
        gw = (g * x).sum_to_size(w.shape) if ctx.needs_input_grad[1] else None
        return gx, gw, None

    @staticmethod
    def jvp(ctx, tx, tw, _):
        x, w = ctx.saved_tensors
        tx = torch.zeros_like(x) if tx is None else tx
        tw = torch.zeros_like(w) if tw is None else tw
        return tx * w + x * tw

    @staticmethod
    def vmap(info, in_dims, x, w, shift):
        dx, dw, _ = in_dims
        x = x.movedim(dx, 0) if dx is not None else x.unsqueeze(0)
        w = w.movedim(dw, 0) if dw is not None else w.unsqueeze(0)
        if w.dim() < x.dim():
            w = w.view(w.shape[0], *[1] * (x.dim() - w.dim()), *w.shape[1:])
        return (x * w + shift), 0


class Generated(Function):
    """vmap by torch's generated rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor):
        s = torch.sigmoid(x)
        return s * y, s

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, s = output
        ctx.save_for_backward(s, inputs[1])

    @staticmethod
    def backward(ctx, g: Tensor, gs: Tensor):
        s, y = ctx.saved_tensors
        return (g * y + gs) * s * (1 - s), g * s


class LogAbs(Function):
    """log |z| of complex numbers: a real output, so the gradient is 1 / conj(z)."""

    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.abs().log()

    @staticmethod
    def backward(ctx, g: Tensor):
        (z,) = ctx.saved_tensors
        return g / z.conj()


class Polar(Function):
    """r exp(i phi) of two real tensors."""

    @staticmethod
    def forward(ctx, r: Tensor, phi: Tensor) -> Tensor:
        ctx.save_for_backward(r, phi)
        return torch.polar(r, phi)

    @staticmethod
    def backward(ctx, g: Tensor):
        r, phi = ctx.saved_tensors
        along = g.real * phi.cos() + g.imag * phi.sin()
        across = g.imag * phi.cos() - g.real * phi.sin()
        return along, across * r


class ComplexMul(Function):
    """z w, either of which may be real."""

    @staticmethod
    def forward(ctx, z: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(z, w)
        return z * w

    @staticmethod
    def backward(ctx, g: Tensor):
        z, w = ctx.saved_tensors
        gz, gw = g * w.conj(), g * z.conj()
        return gz if z.is_complex() else gz.real, gw if w.is_complex() else gw.real


class Spectrum(Function):
    """Squared magnitudes of the real Fourier transform."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        f = torch.fft.rfft(x)
        ctx.save_for_backward(x)
        return f.real.square() + f.imag.square()

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        weighted = 2 * g * torch.fft.rfft(x)
        middle = torch.full_like(g, 0.5)
        middle[..., 0] = 1.0
        if n % 2 == 0:
            middle[..., -1] = 1.0
        return torch.fft.irfft(weighted * middle, n=n) * n


class SparseRows(Function):
    """A sparse matrix, given by its parts, times a dense one."""

    @staticmethod
    def forward(ctx, values: Tensor, index: Tensor, dense: Tensor, rows: int) -> Tensor:
        matrix = torch.sparse_coo_tensor(index, values, (rows, dense.shape[0]))
        ctx.save_for_backward(values, index, dense)
        return torch.sparse.mm(matrix, dense)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        values, index, dense = ctx.saved_tensors
        row, col = index
        gv = (g[row] * dense[col]).sum(-1) if ctx.needs_input_grad[0] else None
        gd = None
        if ctx.needs_input_grad[2]:
            gd = torch.zeros_like(dense).index_add_(0, col, g[row] * values.unsqueeze(-1))
        return gv, None, gd, None


class Diagonal(Function):
    """A view of its input."""

    @staticmethod
    def forward(ctx, x: Tensor, offset: int = 0) -> Tensor:
        ctx.shape, ctx.offset = x.shape, offset
        return x.diagonal(offset)

    @staticmethod
    def backward(ctx, g: Tensor):
        out = g.new_zeros(ctx.shape)
        return out.diagonal_scatter(g, ctx.offset), None


class Chunks(Function):
    """Two copies of parts of the input, either of which may go unused."""

    @staticmethod
    def forward(ctx, x: Tensor):
        ctx.set_materialize_grads(False)
        ctx.size = x.shape[-1]
        half = ctx.size // 2
        return x[..., :half].clone(), x[..., half:].clone()

    @staticmethod
    def backward(ctx, a: Tensor | None, b: Tensor | None):
        if a is None and b is None:
            return None
        half = ctx.size // 2
        a = b.new_zeros(*b.shape[:-1], half) if a is None else a
        b = a.new_zeros(*a.shape[:-1], ctx.size - half) if b is None else b
        return torch.cat([a, b], -1)


WEIGHTS = (0.5, -1.5)


class Variadic(Function):
    """A weighted sum of as many tensors as come."""

    @staticmethod
    def forward(ctx, weights: tuple[float, ...], *xs: Tensor) -> Tensor:
        ctx.weights = weights
        return sum(w * x for w, x in zip(weights, xs, strict=False))

    @staticmethod
    def backward(ctx, g: Tensor):
        return None, *(
            w * g if n else None for w, n in zip(ctx.weights, ctx.needs_input_grad[1:], strict=False)
        )


class Optionals(Function):
    """None in the middle of its arguments."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        ctx.has = scale is not None, shift is not None
        ctx.save_for_backward(x, scale)
        y = x if scale is None else x * scale
        return y.clone() if shift is None else y + shift

    @staticmethod
    def backward(ctx, g: Tensor):
        x, scale = ctx.saved_tensors
        has_scale, has_shift = ctx.has
        gx = g * scale if has_scale else g
        gs = (g * x).sum(0) if has_scale and ctx.needs_input_grad[1] else None
        return gx, gs, g.sum(0) if has_shift else None


@dataclass(frozen=True)
class Settings:
    """What a layer is configured with."""

    power: int = 3
    scale: float = 0.5


SETTINGS = Settings()


class Configured(Function):
    """Its settings are an object."""

    @staticmethod
    def forward(ctx, x: Tensor, settings: Settings) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = settings
        return settings.scale * x**settings.power

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        s = ctx.settings
        return g * s.scale * s.power * x ** (s.power - 1), None


class Pair(NamedTuple):
    """What a Function returns as one tuple with names."""

    value: Tensor
    rank: Tensor


class NamedOutputs(Function):
    """A float and an integer output in a named tuple."""

    @staticmethod
    def forward(ctx, x: Tensor):
        value, order = x.sort(-1)
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(order)
        return Pair(value, order)

    @staticmethod
    def backward(ctx, g: Tensor, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g)


class _Elementwise(Function):
    """A base class: what is computed stands in the classes below."""

    @staticmethod
    def value(x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def slope(x: Tensor) -> Tensor:
        raise NotImplementedError

    @classmethod
    def of(cls, ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = cls.slope
        return cls.value(x)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        return g * ctx.slope(x)


class Sine(_Elementwise):
    """Inherits its backward."""

    value, slope = staticmethod(torch.sin), staticmethod(torch.cos)

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return Sine.of(ctx, x)


class Gaussian(_Elementwise):
    """Inherits its backward."""

    @staticmethod
    def value(x: Tensor) -> Tensor:
        return torch.exp(-x * x / 2)

    @staticmethod
    def slope(x: Tensor) -> Tensor:
        return -x * torch.exp(-x * x / 2)

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return Gaussian.of(ctx, x)


class SwishGradient(Function):
    """The backward of Swish, with a backward of its own."""

    @staticmethod
    def forward(ctx, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))

    @staticmethod
    @once_differentiable
    def backward(ctx, gg: Tensor):
        g, x = ctx.saved_tensors
        s = torch.sigmoid(x)
        curve = s * (1 - s) * (2 + x * (1 - 2 * s))
        return gg * s * (1 + x * (1 - s)), gg * g * curve


class Swish(Function):
    """Differentiated twice by two Functions."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        return SwishGradient.apply(g, x)


class Recomputed(Function):
    """Backward runs forward again under autograd and asks it, also for the second derivative."""

    @staticmethod
    def run(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).square() @ w.T

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return Recomputed.run(x, w)

    @staticmethod
    def backward(ctx, g: Tensor):
        is_double = torch.is_grad_enabled()
        with torch.enable_grad():
            x, w = (
                t if is_double and t.requires_grad else t.detach().requires_grad_() for t in ctx.saved_tensors
            )
            y = Recomputed.run(x, w)
            return torch.autograd.grad(y, (x, w), g, create_graph=is_double)


@functools.lru_cache
def cosine_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, dtype=torch.float64)
    basis = torch.cos(math.pi / n * (k + 0.5).unsqueeze(0) * k.unsqueeze(1))
    return basis.to(dtype=dtype, device=device)


class CosineTransform(Function):
    """Its table is kept for each length, dtype and device."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x @ cosine_basis(x.shape[-1], x.dtype, x.device).T

    @staticmethod
    def backward(ctx, g: Tensor):
        return g @ cosine_basis(g.shape[-1], g.dtype, g.device)


class DropPath(Function):
    """Drops whole samples; backward draws the mask again from the saved state."""

    @staticmethod
    def keep(shape, p: float, like: Tensor) -> Tensor:
        size = (shape[0], *[1] * (len(shape) - 1))
        return (torch.rand(size, dtype=like.dtype, device=like.device) >= p).to(like.dtype) / (1 - p)

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.state, ctx.p, ctx.shape = torch.get_rng_state(), p, x.shape
        return x * DropPath.keep(x.shape, p, x)

    @staticmethod
    def backward(ctx, g: Tensor):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            mask = DropPath.keep(ctx.shape, ctx.p, g)
        return g * mask, None


class PackedToNumpy(Function):
    """What is saved goes through saved-tensor hooks of its own inner graph."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy),
        ):
            leaf = x.detach().requires_grad_()
            y = (leaf.exp() * leaf.sin()).sum(-1)
        ctx.leaf, ctx.inner = leaf, y
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        (found,) = torch.autograd.grad(ctx.inner, ctx.leaf, g, retain_graph=True)
        return found


class Reduce(Function):
    """Sums over any dimensions, kept or not."""

    @staticmethod
    def forward(ctx, x: Tensor, dims: tuple[int, ...], keepdim: int) -> Tensor:
        ctx.shape, ctx.dims, ctx.keepdim = x.shape, dims, keepdim
        return x.sum(dims, keepdim=bool(keepdim))

    @staticmethod
    def backward(ctx, g: Tensor):
        if not ctx.keepdim:
            for d in sorted(d % len(ctx.shape) for d in ctx.dims):
                g = g.unsqueeze(d)
        return g.expand(ctx.shape), None, None


class SavesItsOutput(Function):
    """exp with the output saved, whichever way it is called."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g: Tensor):
        (y,) = ctx.saved_tensors
        return g * y


class ScaleInPlace(Function):
    """Writes into its input, declares it, and saves what it was."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone(), w)
        ctx.mark_dirty(x)
        return x.mul_(w)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        old, w = ctx.saved_tensors
        return g * w, (g * old).sum(0)


class MaskAndCount(Function):
    """Outputs of every kind: floats, a mask, integers."""

    @staticmethod
    def forward(ctx, x: Tensor, level: float):
        mask = x > level
        ctx.save_for_backward(mask)
        y, count = x * mask, mask.sum(-1)
        ctx.mark_non_differentiable(mask, count)
        return y, mask, count

    @staticmethod
    def backward(ctx, g: Tensor, *_):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class Sign(Function):
    """Straight-through within [-1, 1]."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x))

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


def hard_tanh(x: Tensor) -> Tensor:
    """What Sign is differentiated as."""
    return x.clamp(-1, 1)


class FixedPoint(Function):
    """z = tanh(w z + x) for a contraction, its gradient by the implicit function theorem."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        w = w / (1 + w.abs().sum())
        z = torch.zeros_like(x)
        for _ in range(500):
            new = torch.tanh(z @ w.T + x)
            if (new - z).abs().max() < 1e-15:
                break
            z = new
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        inner = eye - slope.unsqueeze(-1) * w
        u = torch.linalg.solve(inner.mT, g.unsqueeze(-1)).squeeze(-1) * slope
        of_w = u.T @ z
        # w = v / (1 + |v|), so v = w / (1 - |w|)
        spread = 1 - w.abs().sum()
        return u, spread * (of_w - (of_w * w).sum() * w.sign())


class Kepler(Function):
    """E - e sin E = M by Newton, its gradient from the equation."""

    @staticmethod
    def forward(ctx, mean: Tensor, e: Tensor) -> Tensor:
        x = mean + e * mean.sin()
        for _ in range(60):
            x = x - (x - e * x.sin() - mean) / (1 - e * x.cos())
        ctx.save_for_backward(x, e)
        return x

    @staticmethod
    def backward(ctx, g: Tensor):
        x, e = ctx.saved_tensors
        inner = g / (1 - e * x.cos())
        return inner, inner * x.sin()


class RungeKutta(Function):
    """Four stages a step of a linear oscillator with a cubic spring; backward replays the steps."""

    @staticmethod
    def slope(y: Tensor, k: Tensor) -> Tensor:
        return torch.stack([y[1], -k * y[0] - y[0] ** 3])

    @staticmethod
    def step(y: Tensor, k: Tensor, h: float) -> Tensor:
        f = RungeKutta.slope
        a = f(y, k)
        b = f(y + h / 2 * a, k)
        c = f(y + h / 2 * b, k)
        d = f(y + h * c, k)
        return y + h / 6 * (a + 2 * b + 2 * c + d)

    @staticmethod
    def forward(ctx, y: Tensor, k: Tensor, h: float, steps: int) -> Tensor:
        states = [y]
        for _ in range(steps):
            states.append(RungeKutta.step(states[-1], k, h))
        ctx.save_for_backward(k, *states)
        ctx.h = h
        return states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        k, *states = ctx.saved_tensors
        total = torch.zeros_like(k)
        for state in reversed(states[:-1]):
            with torch.enable_grad():
                y, leaf = state.detach().requires_grad_(), k.detach().requires_grad_()
                after = RungeKutta.step(y, leaf, ctx.h)
            g, more = torch.autograd.grad(after, (y, leaf), g)
            total = total + more
        return g, total, None, None


class ConjugateGradients(Function):
    """a x = b to a tolerance, by matrix products alone."""

    @staticmethod
    def solve(a: Tensor, b: Tensor) -> Tensor:
        x = torch.zeros_like(b)
        r = b - a @ x
        p, rr = r, r @ r
        for _ in range(20 * b.numel()):
            if rr <= 1e-30 * (b @ b):
                break
            ap = a @ p
            alpha = rr / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            new = r @ r
            p, rr = r + new / rr * p, new
        return x

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        x = ConjugateGradients.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        a, x = ctx.saved_tensors
        u = ConjugateGradients.solve(a, g)
        return -torch.outer(u, x), u


class MatrixExponential(Function):
    """Its gradient is a block of the exponential of a larger matrix."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return torch.linalg.matrix_exp(a)

    @staticmethod
    def backward(ctx, g: Tensor):
        (a,) = ctx.saved_tensors
        n = a.shape[-1]
        upper = torch.cat([a.mH, g], -1)
        lower = torch.cat([torch.zeros_like(a), a.mH], -1)
        return torch.linalg.matrix_exp(torch.cat([upper, lower], -2))[..., :n, n:]


class MatrixRoot(Function):
    """The root of a symmetric positive matrix; backward solves Sylvester's equation in its eigenbasis."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(a)
        roots = values.sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors * roots) @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        roots, q = ctx.saved_tensors
        inner = q.mT @ ((g + g.mT) / 2) @ q
        return q @ (inner / (roots.unsqueeze(-1) + roots.unsqueeze(-2))) @ q.mT


class Sinkhorn(Function):
    """Balances a kernel in the log domain; backward differentiates its steps anew."""

    @staticmethod
    def run(cost: Tensor, eps: float, rounds: int) -> Tensor:
        kernel = -cost / eps
        for _ in range(rounds):
            kernel = kernel - kernel.logsumexp(-1, keepdim=True)
            kernel = kernel - kernel.logsumexp(-2, keepdim=True)
        return kernel.exp()

    @staticmethod
    def forward(ctx, cost: Tensor, eps: float, rounds: int) -> Tensor:
        ctx.save_for_backward(cost)
        ctx.how = eps, rounds
        return Sinkhorn.run(cost, eps, rounds)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        (cost,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = cost.detach().requires_grad_()
            (found,) = torch.autograd.grad(Sinkhorn.run(leaf, *ctx.how), leaf, g)
        return found, None, None
