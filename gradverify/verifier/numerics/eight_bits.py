"""Whether forward computes in 8 bits or fewer inside: stairs so coarse that no step measures a slope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.numerics.calling import foreign_kind
from gradverify.verifier.numerics.problem import Problem


def computes_in_eight_bits(problem: Problem) -> str:
    """The dtype in which forward does, by name; empty where it does not. One forward."""
    with _Watched() as seen:
        problem.evaluate(problem.primals)
    return min(seen.dtypes, default="")


class _Watched(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the dtypes of short results."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        result = func(*args, **given)
        for one in _pytree.tree_leaves(result):
            if isinstance(one, Tensor) and (kind := foreign_kind(one)):
                self.dtypes.add(kind)
        return result
