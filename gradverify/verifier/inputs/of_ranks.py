"""Arguments that only a rank has: another value on each, or an object that each looks up for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OfRanks:
    """A number or a tuple that each rank has another of."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        """As reports show it."""
        return f"{', '.join(map(repr, self.values))} on the ranks"


@dataclass(frozen=True)
class OnEachRank:
    """An object that every rank looks up for itself: a function, a module, the group."""

    path: str
    init: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        """As reports show it."""
        return f"{self.path}, on each rank"

    def __call__(self, *init: Any) -> OnEachRank:  # noqa: ANN401
        """The same, called with arguments on each rank."""
        return OnEachRank(self.path, init)
