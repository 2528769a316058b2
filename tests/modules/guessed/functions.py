"""Right and wrong Functions whose inputs have to be guessed, where the guess may be what is wrong."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Shifted(Function):
    """Its shift is its own inverse for even sizes, which are the ones that a transform is used with."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return torch.fft.fftshift(x, -1) * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return torch.fft.fftshift(g * w, -1), None


class ShiftedTwice(Function):
    """Wrong for every size."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return torch.fft.fftshift(x, -1) * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return 2 * torch.fft.fftshift(g * w, -1), None


class Recurrence(Function):
    """The first factor of each row is never read: nothing comes before it."""

    @staticmethod
    def forward(ctx, a, x):
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = x[:, t] if t == 0 else a[:, t] * h + x[:, t]
            states.append(h)
        states = torch.stack(states, 1)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        carried, of_a, of_x = torch.zeros_like(g[:, 0]), [], []
        for t in reversed(range(g.shape[1])):
            carried = carried + g[:, t]
            of_x.append(carried)
            of_a.append(carried * states[:, t - 1] if t else torch.zeros_like(carried))
            carried = carried * a[:, t]
        return torch.stack(of_a[::-1], 1), torch.stack(of_x[::-1], 1)


class Reduced(Function):
    """Wrong for one way of reducing, which only a table and the ctx name: by the half of the number."""

    @staticmethod
    def forward(ctx, x, reduction="none"):
        ctx.save_for_backward(x)
        ctx.reduction = reduction
        return {"none": torch.clone, "sum": torch.sum, "mean": torch.mean}[reduction](x.exp())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.exp() * (2 * g / x.numel() if ctx.reduction == "mean" else g), None


class LastBlock(Function):
    """Wrong past a block, at a size that nobody lists."""

    @staticmethod
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w)
        y = x @ w.t()
        return y if b is None else y + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_w = g.t() @ x
        of_w = torch.cat([of_w[:64], torch.zeros_like(of_w[64:])])
        return g @ w, of_w, g.sum(0) if ctx.needs_input_grad[2] else None


class Cross(Function):
    """Three entries are meant, of however many more: the shape of the gradient says so."""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.stack([w[0] * w[1], w[1] * w[2], (w * w).sum()])

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        products = torch.stack([g[0] * w[1], g[0] * w[0] + g[1] * w[2], g[1] * w[1]])
        return products + 2 * g[2] * w[:3]


class OfRows(Function):
    """Rows of vectors and a matrix are meant; forward takes two vectors as well."""

    @staticmethod
    def forward(ctx, x, w):
        y = torch.tanh(x @ w.T + x) + (w * w).sum() / 2
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        u = g * (1 - torch.tanh(x @ w.T + x) ** 2)
        return u @ w + u, u.T @ x + g.sum() * w


class Kept(Function):
    """Right wherever a row keeps something; a mask that was guessed keeps nothing of some."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        p = x.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.where(mask.any(-1, keepdim=True), p, torch.zeros_like(p))

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        p = x.masked_fill(~mask, -torch.inf).softmax(-1)
        return p * (g - (g * p).sum(-1, keepdim=True)), None


class Emptied(Function):
    """Nothing of it can be verified: there is no output to differentiate."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return 2 * x[:0]

    @staticmethod
    def backward(ctx, g):
        return g.new_zeros(ctx.shape)


class NewtonRoot(Function):
    """Right where there is a root: at zero and below the iteration never settles, and its slope is chance."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=1.0)
        for _ in range(60):
            after = 0.5 * (y + x / y)
            if torch.equal(after, y):
                break
            y = after
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


class Rounded(Function):
    """With the bits that its caller passes nothing is done; with fewer, its gradient is twice the right one."""

    @staticmethod
    def forward(ctx, x, bits):
        ctx.bits = bits
        ctx.save_for_backward(x)
        return x.clone() if bits >= 16 else x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g.clone() if ctx.bits >= 16 else 4 * x * g), None


def rounded(x):
    return Rounded.apply(x, 16)


def _trace_of_cube(a):
    _same_sides(a.detach())
    return (a @ a @ a).diagonal().sum()


def _same_sides(matrix):
    assert len(matrix.shape) == 2
    assert matrix.shape[0] == matrix.shape[1]


class CubeTrace(Function):
    """What it asks of its matrix stands two calls away, under another name; two of three factors count."""

    @staticmethod
    def forward(ctx, m):
        ctx.save_for_backward(m)
        return _trace_of_cube(m)

    @staticmethod
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return 2 * g * (m @ m).mT


class AbsoluteSquare(Function):
    """Right for real and imaginary part in the last dimension."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z[..., 0] ** 2 + z[..., 1] ** 2

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return 2 * g[..., None] * z


class Points(Function):
    """Right for points of a plane: moves them by an offset."""

    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        d = p - q
        return d[:, 0] ** 2 + d[:, 1] ** 2

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        d = 2 * g[:, None] * (p - q)
        return d, -d


class PointsOfSpace(Function):
    """Right for points of space, whose coordinates are read one by one."""

    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        d = p - q
        return d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        d = 2 * g[:, None] * (p - q)
        return d, -d


class PointsOfSpaceTwice(PointsOfSpace):
    """Wrong for these, too."""

    @staticmethod
    def backward(ctx, g):
        return tuple(2 * one for one in PointsOfSpace.backward(ctx, g))


class PowerTrace(Function):
    """Right for one square matrix; numpy adds up another diagonal of a stack of them."""

    @staticmethod
    def forward(ctx, m):
        ctx.save_for_backward(m)
        return torch.as_tensor(np.trace((m @ m).detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return 2 * g * m.mT


class PowerTraceUntransposed(Function):
    """The same without the transpose, which one matrix shows."""

    @staticmethod
    def forward(ctx, m):
        ctx.save_for_backward(m)
        return torch.as_tensor(np.trace((m @ m).detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return 2 * g * m


class DiagonalSum(Function):
    """Right for one square matrix; torch takes the first two dimensions of a stack of them."""

    @staticmethod
    def forward(ctx, m):
        ctx.save_for_backward(m)
        return (m @ m).diagonal().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return 2 * g * m.mT


class InverseOfStack(Function):
    """Wrong for a stack of matrices alone, of which it means to be the inverses: one factor for all."""

    @staticmethod
    def forward(ctx, m):
        inverse = torch.linalg.inv(m)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return -inverse.mT @ g @ inverse.mT * (len(g) / g.shape[-1])


def _ranks(x):
    return x.argsort(-1).argsort(-1).to(x)


class Ranks(Function):
    """Gives the difference that a step against grad_output makes in the ranks: a choice, linear in nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _ranks(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (_ranks(x + 2.0 * g) - _ranks(x)) / 2.0


class LogDet(Function):
    """numpy asks for square matrices in words, and names no sizes."""

    @staticmethod
    def forward(ctx, covariance):
        ctx.save_for_backward(covariance)
        return torch.as_tensor(np.linalg.slogdet(covariance.detach().numpy())[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (covariance,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(covariance).mT


def _conjugate_gradients(a, b, rounds=30):
    x, r = torch.zeros_like(b), b
    d = r
    for _ in range(rounds):
        if r.norm() <= 1e-14 * b.norm():
            break
        moved = a @ d
        step = (r @ r) / (d @ moved)
        x, new = x + step * d, r - step * moved
        r, d = new, new + (new @ new) / (r @ r) * d
    return x


class RandomStart(Function):
    """Solves from a random start, on which nothing hangs where it converges: at definite matrices."""

    @staticmethod
    def forward(ctx, a, b):
        start = torch.randn_like(b)
        x = start + _conjugate_gradients(a, b - a @ start)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        start = torch.randn_like(g)
        adjoint = start + _conjugate_gradients(a, g - a @ start)
        return -torch.outer(adjoint, x), adjoint


class RoundedDropout(Function):
    """Rounds the gradient up or down at random, beside a mask that forward has drawn."""

    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.3).to(x)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return (16 * g * mask + torch.rand_like(g)).floor() / 16


class KeptNorm(Function):
    """Wrong in rows that keep several entries, which no row of a small square matrix may do."""

    @staticmethod
    def forward(ctx, x):
        kept = torch.where(x >= x.amax(-1, keepdim=True) - 0.7, x, torch.zeros_like(x))
        ctx.save_for_backward(kept)
        return kept.norm(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g[..., None] * kept.sign()


class OneForTwo(Function):
    """Returns one gradient, and has a flag that may be given: torch refuses it then."""

    @staticmethod
    def forward(ctx, x, inplace=False):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class AsMany(Function):
    """Returns as many gradients as it was called with arguments."""

    @staticmethod
    def forward(ctx, x, inplace=False):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x, None)[: len(ctx.needs_input_grad)]


class Pooled(Function):
    """Windows that may overlap."""

    @staticmethod
    def forward(ctx, x, k, s):
        y, at = torch.nn.functional.max_pool1d(x, k, s, return_indices=True)
        ctx.save_for_backward(at)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        (at,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add_(-1, at, g), None, None


class PooledApart(Pooled):
    """Wrong where they do, which a longer input alone shows, and how they lie is a guess."""

    @staticmethod
    def backward(ctx, g):
        (at,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_(-1, at, g), None, None
