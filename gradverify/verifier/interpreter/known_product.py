"""A product whose values are known, by a Triton kernel; loaded only where kernels are interpreted."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LEFT, RIGHT = (0.5, 1.5, -2.0, 3.0), (2.0, 0.5, 1.0, 4.0)
"""Short in every dtype, and so are their products."""


@triton.jit  # type: ignore[untyped-decorator]
def _product(left, right, result, count: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    places = tl.arange(0, count)
    tl.store(result + places, tl.load(left + places) * tl.load(right + places))


def product(dtype: torch.dtype) -> Tensor:
    """What a kernel makes of `LEFT` times `RIGHT` on the CPU."""
    left, right = (torch.tensor(values, dtype=dtype) for values in (LEFT, RIGHT))
    result = torch.zeros_like(left)
    _product[(1,)](left, right, result, len(LEFT))
    return result
