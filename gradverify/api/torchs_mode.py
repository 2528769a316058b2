"""Which of torch's own two modes decides, where the caller asked for the slow one: by what that would cost.

Slow mode builds the Jacobian, entry by entry. It answers no question whose Jacobian fits in no memory, or
takes hours: fast mode, one random direction, is what torch can say there.
"""

from __future__ import annotations

from torch import Tensor

from gradverify.api.original import Original
from gradverify.verifier.checks.wording import number

MOST_ENTRIES = 10**8
"""Entries of a Jacobian that torch's slow mode is asked for. It keeps four of them at once (columns, joined
columns, gradients, gradients again): 3 GB of float64."""

MOST_VALUES = 10**12
"""Values (of inputs and outputs) that slow mode may have to work out in all: two forwards for each input
entry and two backwards for each output entry. At a billion in a second, about a quarter of an hour."""


def beyond_slow_mode(original: Original) -> str:
    """Why slow mode cannot be asked about a call; empty where it can."""
    columns = sum(_coordinates(x) for x in original.leaves)
    rows = sum(_coordinates(o) for o in original.outputs)
    if columns * rows > MOST_ENTRIES:
        return f"its slow mode would build a Jacobian of {number(columns * rows)} entries"
    if 2 * (columns + rows) ** 2 > MOST_VALUES:
        return f"its slow mode would call the function {number(2 * (columns + rows))} times"
    return ""


def _coordinates(tensor: Tensor) -> int:
    """Real numbers in a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)
