"""What operations of torch a map runs: how many, and whether some compute in 8 bits or fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import foreign_kind
from gradverify.verifier.numerics.problem import Problem

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
        self.short.update(filter(None, map(foreign_kind, tensors)))
        return result


def operations(problem: Problem, primals: Sequence[Tensor]) -> int | None:
    """How many it runs at these inputs; None where it raises. A loop runs more at a larger size."""
    with _Watched() as seen:
        result = problem.evaluate(primals)
    return None if isinstance(result, Raised) else seen.count


def is_straight(counts: Sequence[int | None]) -> bool:
    """Whether what was counted at different sizes can be written out one by one, for all of them alike."""
    return None not in counts and len(set(counts)) == 1 and max(c or 0 for c in counts) <= MOST_OPERATIONS


def short_dtype(problem: Problem) -> str:
    """The dtype of 8 bits or fewer in which forward computes inside, by name; empty where there is none.

    It makes steps so coarse that no finite difference measures a slope. One forward.
    """
    with _Watched() as seen:
        problem.evaluate(problem.primals)
    return min(seen.short, default="")
