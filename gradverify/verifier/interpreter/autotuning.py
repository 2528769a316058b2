"""Autotuned kernels without a driver: each runs in the first configuration that its author left.

Timing configurations needs a GPU's benchmarker, and would say nothing about one in Python. Needed by dyt of
liger-kernel 0.8.5 and by the layer norms of fla-core 0.6.0, which have several configurations.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "triton.runtime.autotuner"

_SAME_FOR_ALL = [0.0, 0.0, 0.0]
"""Median and quantiles of a configuration's time: of equal ones, Triton takes the first."""


def install() -> None:
    """Have the autotuner of this process time nothing."""
    autotuner: Any = sys.modules.get(_MODULE)
    if autotuner is not None:
        autotuner.Autotuner._bench = _untimed  # noqa: SLF001 - there is no public name for it


def _untimed(*_: Any, **__: Any) -> list[float]:  # noqa: ANN401 - the autotuner, arguments and options
    return _SAME_FOR_ALL
