"""The same values in another layout of memory, and values that are one slice repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

PADDING = 2
"""Entries by which the last dimension of the larger tensor exceeds the one narrowed out of it."""

JUNK = 0.75
"""What is added to a tensor's values to fill the memory around it: finite, near them, never the same."""

Strides = Callable[[Sequence[int]], Sequence[int] | None]
"""The strides of a shape, 0 where one slice stands for all; None where it has no such layout."""


@dataclass(frozen=True)
class Arrangement:
    """A layout: the words for it, and how a tensor is put into it."""

    name: str
    strides: Strides | None
    """None: those of a contiguous tensor, whose values are lazily conjugated."""
    offset: int = 0
    """Elements that lie before it."""

    def arrange(self, x: Tensor) -> Tensor | None:
        """A fresh tensor, no view of another; None where this shape has no such layout.

        The gaps and the surroundings hold junk, so that code which reads them as if they were the tensor's
        gets a wrong value and no crash.
        """
        if not x.numel() or x.layout is not torch.strided:
            return None
        if self.strides is None:  # in memory lies the conjugate of every value
            return x.detach().conj().resolve_conj().conj() if x.is_complex() else None
        strides = self.strides(x.shape)
        if strides is None:
            return None
        reach = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
        count = self.offset + max(reach, x.numel()) + PADDING
        junk = x.detach().flatten()[torch.arange(count, device=x.device) % x.numel()].flip(0)
        if junk.is_floating_point() or junk.is_complex():
            junk = junk + JUNK
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        made.set_(junk.contiguous().untyped_storage(), self.offset, tuple(x.shape), tuple(strides))
        kept = tuple(slice(None if s else 1) for s in strides)
        made[kept].copy_(x.detach()[kept])
        return made


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _transposed(shape: Sequence[int]) -> list[int] | None:
    return [math.prod(shape[:k]) for k in range(len(shape))] if sum(n > 1 for n in shape) > 1 else None


def _sliced(shape: Sequence[int]) -> list[int]:
    return [2] if len(shape) == 1 else _contiguous((*shape[:-1], *(n + PADDING for n in shape[-1:])))


def _channels_last(shape: Sequence[int]) -> list[int] | None:
    if len(shape) not in {4, 5} or shape[1] < 2 or math.prod(shape[2:]) < 2:
        return None
    return [math.prod(shape[1:]), 1, *(shape[1] * stride for stride in _contiguous(shape[2:]))]


def _repeated(dims: slice, shape: Sequence[int]) -> list[int] | None:
    """One slice along some dimensions in place of all."""
    repeated = range(len(shape))[dims]
    if all(shape[d] < 2 for d in repeated) or (len(shape) < 2 and dims != slice(None)):
        return None
    return [0 if d in repeated else stride for d, stride in enumerate(_contiguous(shape))]


TRANSPOSED = Arrangement("transposed", _transposed)
SLICED = Arrangement("sliced out of a larger tensor", _sliced, offset=1)
"""Of a vector every second entry."""
CHANNELS_LAST = Arrangement("channels-last", _channels_last)
CONJUGATED = Arrangement("lazily conjugated", None)
"""Of a complex grad_output alone: there is no such tensor but as a view."""

FROM_SUMS = (
    Arrangement("expanded from one value, as .sum().backward() sends it", partial(_repeated, slice(None))),
    Arrangement("expanded from one row, as .sum(0) sends it", partial(_repeated, slice(1))),
    Arrangement("expanded from one column, as .sum(-1) sends it", partial(_repeated, slice(-1, None))),
)
"""Of a grad_output: other values."""


def arranged(x: Tensor, arrangement: Arrangement) -> Tensor:
    """An argument in another layout that its shape has, joined to its graph."""
    result: Tensor = _Arranged.apply(x, arrangement)  # type: ignore[no-untyped-call]
    return result


class _Arranged(Function):
    """Identity that lays its result out otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arrangement: Arrangement) -> Any:  # noqa: ANN401, ARG004
        return arrangement.arrange(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401, ARG004
        return grads[0], None
