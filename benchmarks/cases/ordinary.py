"""Five ordinary Functions with inputs of any size, and the faults that can be planted in their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from faults import FAULTS, Fault, Scope
from planting import Planted, differs
from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.targets.discover import wrapped_backward

Inputs = tuple[Tensor, ...]


class GELU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return g * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(centred * scale, scale, weight)
        return centred * scale * weight

    @staticmethod
    def backward(ctx, g):
        y, scale, weight = ctx.saved_tensors
        h = g * weight
        through = h - h.mean(-1, keepdim=True) - y * (h * y).mean(-1, keepdim=True)
        return scale * through, (g * y).sum(0)


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.mT @ x


class CumulativeSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-1).cumsum(-1).flip(-1)


def drawn(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def subjects(size: int, seed: int = 0) -> Iterator[tuple[type[Function], Inputs]]:
    """Every Function with inputs of about `size` entries."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = max(2, round(math.sqrt(size / 2))), max(3, round(math.sqrt(size * 2)))
    for function in (GELU, Softmax, CumulativeSum):
        yield function, (drawn(rows, columns, generator=generator),)
    weight = drawn(columns, generator=generator)
    yield LayerNorm, (drawn(rows, columns, generator=generator), weight)
    half = max(2, round(math.sqrt(size / 2)))
    yield Linear, (drawn(half, half, generator=generator), drawn(half + 1, half, generator=generator))


TWICE_DIFFERENTIABLE = (GELU, Softmax, CumulativeSum, Linear)
"""LayerNorm keeps an intermediate, which cuts its second derivative: it is no right Function there."""


def twice_differentiable(size: int) -> list[tuple[type[Function], Inputs]]:
    """Those that are right at second order too."""
    return [(f, inputs) for f, inputs in subjects(size) if f in TWICE_DIFFERENTIABLE]


def faults_of(inputs: Inputs) -> Iterator[tuple[Fault, int]]:
    for fault in FAULTS:
        for position, x in enumerate(inputs):
            if fault.scope is Scope.GRADIENT and fault.fits(tuple(x.shape)):
                yield fault, position


def planting(function: type[Function], planted: Planted) -> AbstractContextManager[Any]:
    """Wrap the class's backward while the context lasts: the fault is in what it returns."""

    def wrap(original):
        def backward(ctx, *grad_outputs):
            returned = original(ctx, *grad_outputs)
            right = list(returned) if isinstance(returned, tuple) else [returned]
            wrong = [planted.fault.change(g) if k in planted.positions else g for k, g in enumerate(right)]
            pairs = [(r, w) for r, w in zip(right, wrong, strict=True) if r is not w]
            planted.changed = planted.changed or any(differs(r, w) for r, w in pairs)
            return tuple(wrong)

        return backward

    return wrapped_backward(function, wrap)
