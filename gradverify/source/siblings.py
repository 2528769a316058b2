"""Which function beside a Function is meant as its plain version: `foo_ref`, `naive_chunk_foo`."""

from __future__ import annotations

import re
from collections.abc import Sequence

MARKS = ("ref", "reference", "torch", "pytorch", "naive", "composite", "slow", "python", "native", "eager")
"""What authors add to the name of the plain version."""


def is_sibling(name: str, parameters: Sequence[str], target: str, own: Sequence[str]) -> bool:
    """Whether a marked function has the name of a Function, or takes the same parameters.

    `parameters` are the function's, `own` those of the Function, which is called `target`.
    """
    words = [w for w in name.lower().split("_") if w]
    rest = [w for w in words if w not in MARKS]
    if len(rest) == len(words):
        return False
    takes_the_same = len(own) > 1 and list(parameters[: len(own)]) == list(own)
    return "".join(rest) in _stems(target) or takes_the_same


def _stems(class_name: str) -> set[str]:
    """`SoftmaxFunction` -> `softmax`."""
    plain = class_name.replace("_", "").lower()
    return {plain, re.sub(r"(autograd|custom)?(function|func|fn|op|impl|backward)$", "", plain)} - {""}
