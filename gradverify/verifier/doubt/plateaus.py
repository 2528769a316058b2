"""Where forward is flat: outputs that stay as they are for small moves of an input, and for large ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.meaningless_parts import STEPS
from gradverify.verifier.guard import Raised

FLAT = (1e-5, -1e-5)
"""How far all entries are moved to see whether forward is flat: short beside the distance to a step."""

JUMPS = (*STEPS, 1.1, -1.1, 2.3, -2.3, 61.0, -61.0)
"""How far they are moved to see whether forward is a step: between two bounds there may be one step alone."""


def changed(sample: Sample, place: int, output: int, value: Tensor, step: float) -> Tensor | None:
    """Entries of an output that change when all of an input move, each by another distance.

    None where forward raises.
    """
    moved = [p.clone() for p in sample.problem.primals]
    distance = step * torch.linspace(1.0, 1.5, moved[place].numel(), dtype=torch.float64)
    moved[place] += distance.to(moved[place]).reshape(moved[place].shape)
    result = sample.problem.evaluate(moved)
    return None if isinstance(result, Raised) else result.value[output] != value


def moved_by_any(sample: Sample, place: int, output: int, value: Tensor, steps: Iterable[float]) -> Tensor:
    """Entries of an output that change for any of several moves of an input."""
    moved = torch.zeros_like(value, dtype=torch.bool)
    for step in steps:
        if moved.all():
            break
        here = changed(sample, place, output, value, step)
        moved = moved if here is None else moved | here
    return moved


def is_flat(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output stays as it is when an input moves a little: most of its entries on both sides.

    A few may lie at a step itself, and change on one side of it.
    """
    sides = [changed(sample, place, output, value, step) for step in FLAT]
    ahead, behind = (torch.zeros_like(value, dtype=torch.bool) if s is None else s for s in sides)
    at_a_step = int((ahead | behind).count_nonzero())
    return not bool((ahead & behind).any()) and 2 * at_a_step <= value.numel()
