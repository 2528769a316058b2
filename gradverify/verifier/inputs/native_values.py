"""Arguments rounded to a native dtype, and the same rounded values in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.inputs.arguments import Argument

NATIVE = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
"""The dtypes in which targets are judged beside float64."""

_COMPLEX = {"float32": torch.complex64}
_EXACT = frozenset({torch.float64, torch.complex128})

Change = Callable[[Argument], Tensor]
"""An argument's value in another range of values, in float64."""


def drawn_value(argument: Argument) -> Tensor:
    """The value as it was drawn."""
    value: Tensor = argument.value
    return value


def native_arguments(
    arguments: Sequence[Argument], dtype: str, change: Change
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]] | None:
    """The arguments rounded to a dtype, and the same values in float64.

    None where there is nothing to round, or no such dtype: a complex one of 16 bits, a sparse layout.
    """
    native, exact = [], []
    rounded = False
    for argument in arguments:
        value = argument.value
        if not isinstance(value, Tensor) or value.dtype not in _EXACT:
            native.append(argument)
            exact.append(argument)
            continue
        to = _COMPLEX.get(dtype) if value.is_complex() else NATIVE[dtype]
        if to is None or value.layout is not torch.strided or _changes_layout(argument):
            return None
        given = change(argument)
        short = given.to(to)
        if not short.isfinite().all() or ((short == 0) & (given != 0)).any():
            return None
        native.append(replace(argument, value=short, step=_gradient_of(argument)))
        exact.append(replace(argument, value=short.to(value.dtype), step=_gradient_of(argument)))
        rounded = True
    return (tuple(native), tuple(exact)) if rounded else None


def _changes_layout(argument: Argument) -> bool:
    if argument.step is None:
        return False
    with torch.no_grad():
        moved: Tensor = argument.step(argument.value)
    return moved.layout is not torch.strided


def _gradient_of(argument: Argument) -> Callable[[Tensor], Tensor] | None:
    """The value as it was rounded, with the gradient of the step: only the tangential part is compared."""
    step = argument.step
    if step is None:
        return None
    wide = argument.value.dtype

    def tangential(x: Tensor) -> Tensor:
        moved = step(x.to(wide)).to(x.dtype)
        return x.detach() + (moved - moved.detach())

    return tangential
