"""The faults that are planted: each changes what a right backward returns in one known way.

A fault of one gradient gets that gradient and gives another; a fault of a pair changes two; a fault of the
call changes what backward gets, or all that it returns. To add one, write it and list it in `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

SMALL = 1e-6
"""Relative error of the smallest fault that is planted; the default tolerance is a tenth of it."""


class Scope(StrEnum):
    """What a fault changes."""

    GRADIENT = "gradient"
    """The gradient of one input."""
    PAIR = "pair"
    """The gradients of two inputs of one shape."""
    GRAD_OUTPUT = "grad_output"
    """What backward gets."""
    CALL = "call"
    """Every gradient at once."""


@dataclass(frozen=True)
class Fault:
    """One known way to be wrong."""

    name: str
    scope: Scope
    change: Callable[[Tensor], Tensor]
    """Of a gradient, or of a grad_output; the identity for a pair, whose gradients change places."""
    fits: Callable[[tuple[int, ...]], bool] = lambda _: True
    """Whether the fault means anything for a gradient of that shape."""
    place: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None
    """The index that it changes, where it is a single one."""
    of_second_order: bool = False
    """The gradient keeps its value and loses or changes its own derivative."""


def _middle(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // 2 for size in shape)


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size - 1 for size in shape)


def _scaled(gradient: Tensor, place: tuple[Any, ...], factor: float) -> Tensor:
    changed = gradient.clone()
    changed[place] *= factor
    return changed


def _one_off(gradient: Tensor) -> Tensor:
    return _scaled(gradient, _last(gradient.shape), 1 + SMALL)


def _single_precision(gradient: Tensor) -> Tensor:
    low = torch.complex64 if gradient.is_complex() else torch.float32
    return gradient.to(low).to(gradient.dtype)


def _several(shape: tuple[int, ...]) -> bool:
    return len(shape) > 0 and shape[-1] > 1


def _square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] > 1


FAULTS: tuple[Fault, ...] = (
    Fault("factor 1 + 1e-6", Scope.GRADIENT, lambda g: g * (1 + SMALL)),
    Fault("factor 2", Scope.GRADIENT, lambda g: 2 * g),
    Fault("sign", Scope.GRADIENT, lambda g: -g),
    Fault("zero gradient", Scope.GRADIENT, torch.zeros_like),
    Fault("one entry zero", Scope.GRADIENT, lambda g: _scaled(g, _middle(g.shape), 0), place=_middle),
    Fault(
        "one entry off by 1e-6", Scope.GRADIENT, lambda g: _scaled(g, _last(g.shape), 1 + SMALL), place=_last
    ),
    Fault("tail dropped", Scope.GRADIENT, lambda g: _scaled(g, (..., -1), 0), _several),
    Fault("transposed", Scope.GRADIENT, lambda g: g.mT, _square),
    Fault("float32 inside", Scope.GRADIENT, _single_precision),
    Fault("gradients swapped", Scope.PAIR, lambda g: g),
    Fault("grad_output ignored", Scope.GRAD_OUTPUT, torch.ones_like),
    Fault("grad_output squared", Scope.GRAD_OUTPUT, torch.square),
    Fault("detached", Scope.CALL, lambda g: g.detach(), of_second_order=True),
    Fault("second derivative, sign", Scope.CALL, lambda g: 2 * g.detach() - g, of_second_order=True),
)
"""What is planted, in the order of the table."""


def fault_named(name: str) -> Fault:
    """The fault of that name. Raises `StopIteration` for none: both processes run the same version."""
    return next(fault for fault in FAULTS if fault.name == name)
