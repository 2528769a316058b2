"""The memory that tensors live in: what fresh memory holds, and freed memory handed back."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils import deterministic

WARNING = 1
"""The deterministic mode that warns and enforces nothing."""

LARGE = 2**17
"""Entries of tensors whose memory is worth handing back: 1 MiB each in float64. It takes milliseconds."""

_switch: Any = deterministic  # its one attribute is a property that type checkers do not see


@contextmanager
def filled_memory(*, fill: bool = True) -> Iterator[None]:
    """Fill what torch allocates (`empty` and its kin) with NaN, integers with their largest value.

    It is a part of torch's deterministic mode, which is on meanwhile without being enforced; with `fill`
    False the mode alone is, to tell what it does by itself. Works on every device, and for memory that
    kernels are given; not for what NumPy or a kernel allocates for itself.
    """
    mode, filled = torch.get_deterministic_debug_mode(), _switch.fill_uninitialized_memory
    with warnings.catch_warnings(action="ignore"):  # each operation without a deterministic kernel warns
        torch.set_deterministic_debug_mode(WARNING)  # the longer known switch loads the compiler (1 s)
        _switch.fill_uninitialized_memory = fill
        try:
            yield
        finally:
            _switch.fill_uninitialized_memory = filled
            torch.set_deterministic_debug_mode(mode)


def hand_back(entries: int) -> None:
    """Hand freed memory back to the system after work on tensors of so many entries, if these are many.

    The C library (glibc) keeps what large tensors leave, and finds too few others that fit into the pieces:
    what it keeps comes to more than half of what is in use. Where another one is used nothing happens.
    """
    trim = _trim() if entries >= LARGE else None
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:  # noqa: ANN401 - a function of the C library
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
