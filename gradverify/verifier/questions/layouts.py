"""The same values in another layout of memory, and values that are one slice repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

OFFSET = 3
"""Elements that lie before a tensor with a storage offset."""

PADDING = 2
"""Entries by which the last dimension of the larger tensor exceeds the one narrowed out of it."""

JUNK = 0.75
"""What is added to a tensor's values to fill the memory around it: finite, near them, never the same."""


@dataclass(frozen=True)
class Arrangement:
    """A layout: the words for it, and how a tensor is put into it."""

    name: str
    arrange: Callable[[Tensor], Tensor | None]
    """A fresh tensor, no view of another; None where this shape has no such layout."""
    repeats: bool = False
    """It holds one slice in place of all: other values."""


def _transposed(x: Tensor) -> Tensor | None:
    if sum(n > 1 for n in x.shape) < 2:
        return None
    return _placed(x, [math.prod(x.shape[:k]) for k in range(x.dim())])


def _every_second(x: Tensor) -> Tensor | None:
    return _placed(x, [2]) if x.dim() == 1 and x.numel() > 1 else None


def _narrowed(x: Tensor) -> Tensor | None:
    if x.dim() < 2 or not x.numel() or all(n == 1 for n in x.shape[:-1]):
        return None
    return _placed(x, _strides((*x.shape[:-1], x.shape[-1] + PADDING)), offset=1)


def _offset(x: Tensor) -> Tensor | None:
    return _placed(x, _strides(x.shape), offset=OFFSET) if x.numel() else None


def _channels_last(x: Tensor) -> Tensor | None:
    if x.dim() not in {4, 5} or x.shape[1] < 2 or math.prod(x.shape[2:]) < 2:
        return None
    inner = [x.shape[1] * stride for stride in _strides(x.shape)[2:]]
    return _placed(x, [math.prod(x.shape[1:]), 1, *inner])


def _conjugated(x: Tensor) -> Tensor | None:
    """A lazy conjugate, as the gradient of z.conj() is: in memory lies the conjugate of every value."""
    return x.detach().conj().resolve_conj().conj() if x.is_complex() and x.numel() else None


def _one_value(x: Tensor) -> Tensor | None:
    return _repeated(x, range(x.dim())) if x.numel() > 1 else None


def _one_row(x: Tensor) -> Tensor | None:
    return _repeated(x, [0]) if x.dim() > 1 else None


def _one_column(x: Tensor) -> Tensor | None:
    return _repeated(x, [x.dim() - 1]) if x.dim() > 1 else None


TRANSPOSED = Arrangement("transposed", _transposed)
EVERY_SECOND = Arrangement("every second entry of a larger tensor", _every_second)
NARROWED = Arrangement("narrowed out of a larger tensor", _narrowed)
AT_AN_OFFSET = Arrangement("at an offset into its storage", _offset)
CHANNELS_LAST = Arrangement("channels-last", _channels_last)
CONJUGATED = Arrangement("lazily conjugated", _conjugated)
"""Of a complex grad_output alone: there is no such tensor but as a view."""


FROM_SUMS = (
    Arrangement("expanded from one value, as .sum().backward() sends it", _one_value, repeats=True),
    Arrangement("one row expanded, as .sum(0) sends it", _one_row, repeats=True),
    Arrangement("one column expanded, as .sum(-1) sends it", _one_column, repeats=True),
)
"""Of a grad_output."""


def described(x: Tensor) -> str:
    """`strides (1, 3)`, with the storage offset where there is one."""
    strides = f"strides {tuple(x.stride())}"
    return f"{strides}, storage offset {x.storage_offset()}" if x.storage_offset() else strides


def arranged(x: Tensor, arrangement: Arrangement) -> Tensor | None:
    """An argument in another layout, joined to its graph; None where its shape has no such layout."""
    if x.layout is not torch.strided or arrangement.arrange(x.detach()) is None:
        return None
    if not x.requires_grad:
        return arrangement.arrange(x)
    result: Tensor = _Arranged.apply(x, arrangement)  # type: ignore[no-untyped-call]
    return result


def _strides(shape: Sequence[int]) -> list[int]:
    """Those of a contiguous tensor."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _repeated(x: Tensor, dims: Sequence[int]) -> Tensor | None:
    """The first slice along some dimensions in place of all, by strides of 0."""
    if not x.numel() or all(x.shape[d] < 2 for d in dims):
        return None
    first = x[tuple(slice(0, 1) if d in dims else slice(None) for d in range(x.dim()))]
    strides = [0 if d in dims else stride for d, stride in enumerate(_strides(x.shape))]
    return _placed(first.expand(x.shape), strides, room=x.numel())


def _placed(x: Tensor, strides: list[int], offset: int = 0, room: int = 0) -> Tensor:
    """Copy values into memory laid out by these strides; the gaps and the surroundings hold junk.

    Junk, so that code which reads them as if they were the tensor's gets a wrong value and no crash.
    """
    reach = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
    count = offset + max(reach, room) + PADDING
    junk = x.detach().flatten()
    junk = junk[torch.arange(count, device=x.device) % junk.numel()].flip(0)
    if junk.is_floating_point() or junk.is_complex():
        junk = junk + JUNK
    with torch.no_grad():
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        made.set_(junk.contiguous().untyped_storage(), offset, tuple(x.shape), tuple(strides))
        kept = tuple(
            slice(None) if s or n == 1 else slice(0, 1) for n, s in zip(x.shape, strides, strict=True)
        )
        made[kept].copy_(x.detach()[kept])
    return made


class _Arranged(Function):
    """Identity that lays its result out otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arrangement: Arrangement) -> Any:  # noqa: ANN401, ARG004
        return arrangement.arrange(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401, ARG004
        return grads[0], None
