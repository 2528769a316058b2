"""Random grad_outputs, and other vectors to weigh entries by."""

from __future__ import annotations

import torch
from torch import Tensor


def random_signs(count: int, seed: int) -> Tensor:
    """Signed values with magnitudes in [0.5, 1.5): never near zero, never all alike."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    magnitude = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return magnitude * sign
