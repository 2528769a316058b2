"""Without a spec: right at a neighbour of what is guessed, or wrong at every one."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SharedBase(Function):
    """Right where every row has the one base that a constant holds; it was guessed to hold one for each."""

    @staticmethod
    def forward(ctx, base, scale, gamma):
        ctx.save_for_backward(base, scale, gamma)
        return scale[:, :, None] * base * gamma[None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        base, scale, gamma = ctx.saved_tensors
        of_scale = torch.einsum("kbj,kvj,bj->kb", g, base, gamma)
        return None, of_scale, torch.einsum("kbj,kvj,kb->bj", g, base, scale)


class SharedBaseTwice(SharedBase):
    """Wrong, however many the base holds."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        base, scale, gamma = ctx.saved_tensors
        of_scale = 2 * torch.einsum("kbj,kvj,bj->kb", g, base, gamma)
        return None, of_scale, torch.einsum("kbj,kvj,kb->bj", g, base, scale)


class RootOfGap(Function):
    """Right where one input is above the other."""

    @staticmethod
    def forward(ctx, high, low):
        gap = (high - low).clamp(min=1e-10)
        ctx.save_for_backward(gap)
        return gap.sqrt()

    @staticmethod
    def backward(ctx, g):
        (gap,) = ctx.saved_tensors
        half = g / (2 * gap.sqrt())
        return half, -half


class RootOfGapWhole(RootOfGap):
    """Wrong by a factor there."""

    @staticmethod
    def backward(ctx, g):
        (gap,) = ctx.saved_tensors
        whole = g / gap.sqrt()
        return whole, -whole



class AngleOfRotation(Function):
    """Of one rotation: its sine is that of the part which is antisymmetric, and the gradient has its shape."""

    @staticmethod
    def forward(ctx, rotation):
        ctx.save_for_backward(rotation)
        return torch.acos(((rotation.diagonal().sum() - 1) / 2).clamp(-1, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (rotation,) = ctx.saved_tensors
        rows = rotation[:3]
        sine = (rows - rows.t()).norm() / 8**0.5
        return torch.eye(3, dtype=g.dtype) * (-0.5 * g / sine)


class AngleOfRotationTwice(AngleOfRotation):
    """Twice of it."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (rotation,) = ctx.saved_tensors
        rows = rotation[:3]
        sine = (rows - rows.t()).norm() / 8**0.5
        return torch.eye(3, dtype=g.dtype) * (-g / sine)


class LogBessel(Function):
    """Of positive numbers, as it stands: i0e is even, and what is added is not."""

    @staticmethod
    def forward(ctx, k):
        ctx.save_for_backward(k)
        return torch.special.i0e(k).log() + k

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (k,) = ctx.saved_tensors
        return g * torch.special.i1e(k) / torch.special.i0e(k)


class LogBesselTwice(LogBessel):
    """Twice of it."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (k,) = ctx.saved_tensors
        return 2 * g * torch.special.i1e(k) / torch.special.i0e(k)


class SlopeBelow(Function):
    """Right of positive numbers, and wrong where forward takes the other path, which it asks for."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, x.exp() - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, g * (x.exp() - 1))


class RootOfDiagonal(Function):
    """The root of a matrix by its eigenvectors, and its eigenvalues on a diagonal: nothing else of it is there."""

    @staticmethod
    def forward(ctx, vectors, eigenvalues):
        ctx.save_for_backward(vectors, eigenvalues)
        return vectors @ eigenvalues.sqrt() @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        vectors, eigenvalues = ctx.saved_tensors
        roots = eigenvalues.diagonal(dim1=-2, dim2=-1).sqrt()
        of_roots = (vectors.mT @ g @ vectors).diagonal(dim1=-2, dim2=-1)
        of_values = torch.diag_embed(of_roots / (2 * roots))
        return (g + g.mT) @ vectors @ torch.diag_embed(roots), of_values
