"""How many operations of torch a map runs: a loop over a size runs more where that is larger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Problem

MOST_OPERATIONS = 300
"""Operations of a forward up to which its backward is still something to read: loops run to more."""


class _Counting(Dispatched):  # type: ignore[no-untyped-call]
    """Counts what runs beneath it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Count it, and run it."""
        self.count += 1
        return func(*args, **given)


def operations(problem: Problem, primals: Sequence[Tensor]) -> int | None:
    """How many it runs at these inputs; None where it raises."""
    with _Counting() as counting:
        result = problem.evaluate(primals)
    return None if isinstance(result, Raised) else counting.count


def is_straight(counts: Sequence[int | None]) -> bool:
    """Whether what was counted at different sizes can be written out one by one, for all of them alike."""
    return None not in counts and len(set(counts)) == 1 and max(c or 0 for c in counts) <= MOST_OPERATIONS
