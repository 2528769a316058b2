"""Floating formats: their unit roundoff, the spacing of their numbers, their largest number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SINGLE_UNIT = 2.0**-24
"""Unit roundoff of float32 (IEEE 754): what careful kernels compute with inside."""

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Format:
    """One floating dtype; a complex one is judged by its parts."""

    dtype: torch.dtype
    """Real."""
    unit: float
    """Unit roundoff u, relative: half the distance from 1 to the next larger number."""
    tiny: float
    """Half the spacing of subnormal numbers, absolute."""
    largest: float

    @property
    def is_short(self) -> bool:
        """Whether it has 16 bits or fewer: then float32 inside is far more exact than the result."""
        return self.unit > SINGLE_UNIT

    @property
    def name(self) -> str:
        """`bfloat16`."""
        return str(self.dtype).removeprefix("torch.")


def format_of(dtype: torch.dtype) -> Format:
    """The format of a floating dtype, or of the parts of a complex one."""
    real = _REAL.get(dtype, dtype)
    info = torch.finfo(real)
    return Format(real, info.eps / 2, info.smallest_normal * info.eps / 2, info.max)


def half_ulp(size: Tensor, form: Format) -> Tensor:
    """How far a correctly rounded value may be from the exact one of that magnitude (float64, its shape).

    Half the distance between two neighbours of the binade, or of the subnormal numbers.
    """
    exponent = torch.frexp(size).exponent.to(torch.float64)  # size = m * 2^exponent, m in [1/2, 1)
    return torch.where(size > 0, torch.exp2(exponent - 1) * form.unit, 0.0).clamp_min(form.tiny)


def as_real(x: Tensor) -> Tensor:
    """The values in float64 on the CPU, the parts of complex ones along a last dimension of 2."""
    plain = x.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.to(device="cpu", dtype=torch.float64)
