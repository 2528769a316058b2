"""So little is wrong that a shorter dtype rounded it: the sizes and signs of the differences are its own."""

from __future__ import annotations

import torch

from gradverify.verifier.checks.mismatch import KEEP_THE_DTYPE
from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pairs, wrong_ones
from gradverify.verifier.diagnose.words import of_gradient

LARGEST = 1e-6
"""Differences in units of the largest entry: some eight times float32's half unit in the last place, 6e-8."""

LEAST_DIFFERENCES = 8
"""Fewer have different signs by chance."""

LEAST_OF_A_SIGN = 0.2
"""Share of the differences: rounding goes both ways, a truncated constant mostly one."""


def float32_inside(pairs: Pairs) -> Cause | None:
    """Every difference is of the size of float32's rounding, and they go both ways."""
    larger: list[torch.Tensor] = []
    for pair in wrong_ones(pairs):
        difference = (pair.claimed - pair.true)[pair.wrong]
        if bool((difference.abs() > LARGEST * pair.scale).any()):
            return None
        larger.append(difference * pair.true[pair.wrong] > 0)
    share = torch.cat(larger).double().mean().item()
    is_rounding = LEAST_OF_A_SIGN <= share <= 1 - LEAST_OF_A_SIGN
    enough = sum(signs.numel() for signs in larger) >= LEAST_DIFFERENCES
    what = f"{of_gradient(pairs[0])} is right to float32's digits alone"
    return Cause("float32-inside", what, KEEP_THE_DTYPE, is_weak=True) if is_rounding and enough else None
