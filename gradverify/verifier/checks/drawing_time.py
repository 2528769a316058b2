"""How long drawing a sample takes: the one place behind the front that reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SLOW = 0.2
"""Seconds for drawing a sample and running its forward, from which on some evidence is looked for first: it
counts where the run is ended before it is through, and nowhere else."""


def timed(do: Callable[P, T], *given: P.args, **named: P.kwargs) -> tuple[T, float]:
    """What a function gives, and its seconds by the clock, which counts waiting for kernels too."""
    begun = time.perf_counter()
    result = do(*given, **named)
    return result, time.perf_counter() - begun
