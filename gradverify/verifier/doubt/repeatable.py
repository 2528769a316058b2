"""Whether forward gives the same for the same inputs: a kernel that reads past an end does not.

Torch and NumPy refuse an index that is out of bounds; a compiled kernel takes whatever lies there in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised

CALLS = 4
"""Calls that are compared."""


def is_repeatable(sample: Sample) -> bool:
    """Whether forward gives the same at each of several calls, between which memory is used otherwise."""
    problem, kept = sample.problem, []
    first = problem.evaluate(problem.primals)
    for call in range(CALLS - 1):
        kept += [torch.full_like(p, 7.5 + call) for p in problem.primals for _ in range(1 + call)]
        again = problem.evaluate([p.clone() for p in problem.primals])
        if isinstance(first, Raised) or isinstance(again, Raised):
            return isinstance(first, Raised) and isinstance(again, Raised)
        if not all(map(_are_same, first.value, again.value)):
            return False
    return True


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
