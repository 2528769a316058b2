"""One value of a backward, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
"""Operations that make zeros."""


@dataclass(frozen=True, eq=False)
class Node:
    """One value: a named one, or an operation on others. Equal values are the same object."""

    op: str
    """The operation's name without namespace and overload; `name` for a named value, `literal` for a
    constant tensor without dimensions."""
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    target: Any = None
    """The `OpOverload` behind it, which knows the names and defaults of its arguments."""

    @property
    def inputs(self) -> Iterator[Node]:
        """The nodes it is made of, as often as it uses them."""
        return nodes_in((self.args, [value for _, value in self.kwargs]))


def nodes_in(value: Any) -> Iterator[Node]:  # noqa: ANN401 - nested arguments
    """Every node in nested arguments."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)
