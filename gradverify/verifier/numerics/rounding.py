"""How far rounding alone moves what backward returns: measured by moving its inputs by a few ulps."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import VjpProblem

def gradient_noise(second: VjpProblem) -> Tensor:
    """Noise of the first-order gradients, absolute, one for each."""
    x, u = second.first_order.primals, second.cotangents
    inputs = Layout.of(x)
    flat, generator = inputs.flatten(x), torch.Generator().manual_seed(5)
    base: Tensor | None = None
    spread = torch.zeros(inputs.size, dtype=torch.float64)
    for scale in (1.0, 1.1, 1.37, 0.83):
        ulps = (
            torch.randint(-2, 3, flat.shape, generator=generator)
            if base is not None
            else torch.zeros_like(flat)
        )
        moved = inputs.unflatten(flat * (1 + ulps * EPSILON))
        result = second.evaluate((*moved, *(t * scale for t in u)))
        if isinstance(result, Raised):
            return spread
        gradient = inputs.flatten(result.value) / scale
        if base is None:
            base = gradient
        spread = torch.maximum(spread, (gradient - base).abs())
    return spread.nan_to_num(0.0, 0.0, 0.0)
