"""What no inputs are found for: the furthest attempt is told, and what is known of each argument."""

import torch
from torch.autograd import Function


class Late(Function):
    """Refuses all but three dimensions, and rows that do not fit; then something is missing."""

    @staticmethod
    def forward(ctx, x, w):
        if x.ndim != 3:
            raise ValueError("expected (batch, time, channels)")
        if w.shape[0] != x.shape[2]:
            raise ValueError("weight must have as many rows as channels")
        try:
            {}["backend"]
        except KeyError as error:
            raise RuntimeError("no backend for this") from error

    @staticmethod
    def backward(ctx, g):
        return g, g


class Solved(Function):
    """An object, a word and a group of ranks are no tensors."""

    @staticmethod
    def forward(ctx, group, solver, y0, method):
        if method not in ("euler", "midpoint"):
            raise ValueError(method)
        return solver.integrate(group.allreduce_coalesced(y0), method=method)

    @staticmethod
    def backward(ctx, g):
        return None, None, g, None


class Outdated(Function):
    """Square matrices, for a function that torch no longer has."""

    @staticmethod
    def forward(ctx, A, B):
        assert A.shape[-1] == A.shape[-2]
        return torch.gesv(B, A)[0]

    @staticmethod
    def backward(ctx, g):
        return g, g
