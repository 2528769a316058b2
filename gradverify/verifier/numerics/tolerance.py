"""How far two derivatives may be apart: measured errors, round-off and the tolerance that was asked for.

All safety factors on measured errors are here; who measures an error states it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.problem import Layout

EPSILON = torch.finfo(torch.float64).eps

SAFETY = 10.0
"""Two values differ where they are further apart than this many measured errors, or round-offs, of both."""


UNDERFLOW = torch.finfo(torch.float64).tiny / EPSILON
"""Differences below this (1e-292) may be what denormal numbers are rounded by."""

KNOWN = 0.1
"""Share of a derivative, or of what is claimed of it, up to which its error may go: beyond, the measurement
has no digits."""


def distance(one: Tensor, other: Tensor) -> Tensor:
    """|one - other|, and zero where denormal numbers may be rounded by as much.

    They have no relative precision: what is compared with a share of itself is compared by this.
    """
    off = (one - other).abs()
    return torch.where(off <= UNDERFLOW, 0.0, off)


@dataclass(frozen=True)
class Tolerance:
    """How far an entry of the Jacobian that backward claims may be off."""

    rtol: float
    atol: float = 0.0
    round_off: Tensor | None = None
    """That of backward, absolute, M × N; None where it was not measured."""

    def explained(self, error: Tensor) -> Tensor:
        """Differences that a measured error of forward's derivative and round-off explain."""
        return SAFETY * (error if self.round_off is None else error + self.round_off)

    def allowed(self, numerical: Tensor, inputs: Layout) -> Tensor:
        """Atol + rtol · (|numerical| + median |numerical| of the row's part in the same input), M × N."""
        median = torch.zeros_like(numerical)
        for columns in inputs.slices:
            median[:, columns] = numerical[:, columns].abs().median(dim=1, keepdim=True).values
        return self.atol + self.rtol * (numerical.abs() + median)
