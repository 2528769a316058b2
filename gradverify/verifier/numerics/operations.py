"""What operations of torch a map runs: how many, and the formats of 16 or 8 bits in which some compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Problem

SHORT_BITS = 16
"""Bits of a floating number that has too few digits for any finite difference in float64."""

QUANTISED_BITS = 8
"""Bits of an integer that a number is quantised to; signs and masks are none of more than two levels."""

MOST_OPERATIONS = 300
"""Operations of a forward up to which its backward is still something to read: loops run to more."""


class _Watched(Dispatched):  # type: ignore[no-untyped-call]
    """Counts what runs beneath it, and notes the dtypes of short results."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.short: set[str] = set()

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Note it, and run it."""
        self.count += 1
        result = func(*args, **given)
        tensors = (one for one in _pytree.tree_leaves(result) if isinstance(one, Tensor))
        self.short.update(_short_format(one, args) for one in tensors)
        return result


def _short_format(result: Tensor, args: tuple[Any, ...]) -> str:
    """The format of 16 bits or fewer of a result, by name; of integers, where they are levels of a number."""
    bits = 8 * result.element_size()
    if result.is_floating_point():
        return str(result.dtype).removeprefix("torch.") if bits <= SHORT_BITS else ""
    made_of = args[0] if args else None
    if bits > QUANTISED_BITS or not isinstance(made_of, Tensor) or not made_of.is_floating_point():
        return ""
    levels = bool(result.numel()) and result.dtype is not torch.bool and bool(result.abs().max() > 1)
    return str(result.dtype).removeprefix("torch.") if levels else ""


def operations(problem: Problem, primals: Sequence[Tensor]) -> int | None:
    """How many it runs at these inputs; None where it raises. A loop runs more at a larger size."""
    with _Watched() as seen:
        result = problem.evaluate(primals)
    return None if isinstance(result, Raised) or seen.missed else seen.count


def is_straight(counts: Sequence[int | None]) -> bool:
    """Whether what was counted at different sizes can be written out one by one, for all of them alike."""
    return None not in counts and len(set(counts)) == 1 and max(c or 0 for c in counts) <= MOST_OPERATIONS


def short_format(problem: Problem) -> str:
    """The shortest format of 16 bits or fewer in which forward computes inside, by name; empty if none.

    It makes steps so coarse that no finite difference measures a slope. One forward.
    """
    with _Watched() as seen:
        problem.evaluate(problem.primals)
    return min(seen.short - {""}, key=_unit, default="")


def _unit(name: str) -> tuple[bool, float]:
    """Sorts the coarsest format first, integers before it."""
    dtype = getattr(torch, name)
    return (dtype.is_floating_point, -torch.finfo(dtype).eps if dtype.is_floating_point else 0.0)
