"""How a native call computes: the dtype of its inputs, what operations round to, whether under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

AUTOCAST = ("bfloat16", "float16")
"""The dtypes to which `torch.autocast` casts."""


@dataclass(frozen=True)
class Arithmetic:
    """Inputs in one dtype, operations in one that is as short or shorter."""

    inputs: str
    rounds_to: str
    autocast_on: str = ""
    """The kind of device whose autocast is on during forward; empty for none."""

    @property
    def name(self) -> str:
        """`bfloat16`, or `autocast bfloat16`."""
        return f"autocast {self.rounds_to}" if self.autocast_on else self.rounds_to

    @property
    def said(self) -> str:
        """`in bfloat16`, or `under autocast to bfloat16`."""
        return f"under autocast to {self.rounds_to}" if self.autocast_on else f"in {self.rounds_to}"

    @property
    def dtype(self) -> torch.dtype:
        """What operations round to."""
        made: torch.dtype = getattr(torch, self.rounds_to)
        return made

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this arithmetic calls it: backward comes after autocast, as in training."""
        if not self.autocast_on:
            return function

        @functools.wraps(function)
        def called(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
            with torch.autocast(self.autocast_on, dtype=self.dtype):
                return function(*arguments)

        return called


def plainly(dtype: str, inside: str = "") -> Arithmetic:
    """Inputs and operations in one dtype; those inside in a shorter format, if it is one."""
    formats = (dtype, inside) if inside else (dtype,)
    return Arithmetic(dtype, max(formats, key=lambda name: torch.finfo(getattr(torch, name)).eps))


def under_autocast(kind: str, dtype: str) -> Arithmetic:
    """Inputs in float32 and `torch.autocast` of a kind of device to a dtype."""
    return Arithmetic("float32", dtype, kind)
