"""What fresh memory holds: torch can fill every tensor it allocates, so that a read before a write shows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

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
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        _switch.fill_uninitialized_memory = fill
        try:
            yield
        finally:
            _switch.fill_uninitialized_memory = filled
            torch.set_deterministic_debug_mode(mode)
