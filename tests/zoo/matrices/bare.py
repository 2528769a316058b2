"""Functions of matrices of one structure, which neither says so nor refuses others; and wrong ones of any."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RootOfSpectrum(Function):
    """Right for a diagonal `s`: u @ sqrt(s) @ u.T."""

    @staticmethod
    def forward(ctx, u, s):
        ctx.save_for_backward(u, s)
        return u @ s.sqrt() @ u.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, s = ctx.saved_tensors
        of_u = (g + g.mT) @ u @ s.sqrt()
        diagonal = torch.diagonal(u.mT @ g @ u, dim1=-2, dim2=-1)
        root = torch.diagonal(s, dim1=-2, dim2=-1).sqrt()
        return of_u, torch.diag_embed(0.5 * diagonal / root)


class LowerSolve(Function):
    """Right for a lower triangular `lower`: solves lower x = b; its gradient is lower triangular."""

    @staticmethod
    def forward(ctx, lower, b):
        x = torch.linalg.solve(lower, b)
        ctx.save_for_backward(lower, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lower, x = ctx.saved_tensors
        y = torch.linalg.solve_triangular(lower.mT, g, upper=True)
        return -(y @ x.mT).tril(), y


class LogDetOfFactor(Function):
    """Right for a triangular `r`: the sum of logarithms of its diagonal squared is log det r^T r."""

    @staticmethod
    def forward(ctx, r):
        ctx.save_for_backward(r)
        return torch.linalg.slogdet(r.mT @ r)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (r,) = ctx.saved_tensors
        return torch.diag_embed(2 * g[..., None] / torch.diagonal(r, dim1=-2, dim2=-1))


class RotatedBack(Function):
    """Right for an orthogonal `q`: solves by the transpose in backward alone."""

    @staticmethod
    def forward(ctx, q, x):
        ctx.save_for_backward(q, x)
        return torch.linalg.inv(q) @ x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, x = ctx.saved_tensors
        of_x = q @ g
        return -of_x @ (q.mT @ x).mT, of_x


class ConvergedRoot(Function):
    """Right for positive definite matrices near the identity: a root by few terms of its series."""

    @staticmethod
    def forward(ctx, a):
        gap = torch.eye(a.shape[-1], dtype=a.dtype) - a
        power, factor, root = gap, 0.5, torch.eye(a.shape[-1], dtype=a.dtype)
        for k in range(1, 13):
            root = root - factor * power
            power, factor = power.mm(gap), factor * (2 * k - 1) / (2 * k + 2)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        n = root.shape[-1]
        eye = torch.eye(n, dtype=root.dtype)
        system = torch.kron(root.mT, eye) + torch.kron(eye, root)
        return torch.linalg.solve(system, g.mT.reshape(-1)).reshape(n, n).mT


class Heading(Function):
    """Right for a symmetric `m` and a column `v`: rounds of a power iteration."""

    @staticmethod
    def forward(ctx, m, v):
        steps = [v]
        for _ in range(3):
            w = m.mm(steps[-1])
            steps.append(w / w.norm())
        ctx.save_for_backward(m, *steps)
        return steps[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        m, *steps = ctx.saved_tensors
        of_m = torch.zeros_like(m)
        for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
            inner = (g - after.mm(after.mT).mm(g)) / m.mm(before).norm()
            of_m = of_m + inner.mm(before.mT)
            g = m.mm(inner)
        return of_m, g


class Lower(Function):
    """The other triangle."""

    @staticmethod
    def forward(ctx, x):
        return x.tril()

    @staticmethod
    def backward(ctx, g):
        return g.triu()


class Trace(Function):
    """All entries, not those of the diagonal."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.trace(x)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)


class SquaredTrace(Function):
    """Half of it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x @ x).diagonal().sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


class ProductOfDiagonal(Function):
    """Twice the gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.diagonal().prod()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = x.diagonal()
        return 2 * torch.diag(g * d.prod() / d)


class Equilibrium(Function):
    """Right where its rounds converge, as at moderate weights: forward and backward repeat a step."""

    @staticmethod
    def forward(ctx, w, x):
        z = torch.zeros_like(x)
        for _ in range(60):
            z = torch.tanh(z.mm(w.mT) * 0.1 + x)
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, z = ctx.saved_tensors
        slope = 1 - z * z
        u = g
        for _ in range(60):
            u = g + 0.1 * (u * slope).mm(w)
        return 0.1 * (u * slope).mT.mm(z), u * slope


class LowerProduct(Function):
    """Right for a lower triangular factor, whose gradient is one."""

    @staticmethod
    def forward(ctx, factor, x):
        ctx.save_for_backward(factor, x)
        return factor @ x

    @staticmethod
    def backward(ctx, g):
        factor, x = ctx.saved_tensors
        return (g @ x.mT).tril(), factor.mT @ g


def _conjugate_gradients(a, b):
    x, r = torch.zeros_like(b), b
    p, rr = r, r @ r
    for _ in range(20 * b.numel()):
        if rr <= 1e-30 * (b @ b):
            break
        ap = a @ p
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        p, rr = r + (r @ r) / rr * p, r @ r
    return x


class SolvedByProducts(Function):
    """Right for a positive definite matrix: at any other one its rounds are not linear in grad_output."""

    @staticmethod
    def forward(ctx, a, b):
        x = _conjugate_gradients(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        u = _conjugate_gradients(a, g)
        return -torch.outer(u, x), u
