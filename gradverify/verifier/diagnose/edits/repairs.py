"""What is known of the changes of one backward: each is made once, and what repaired it is tried first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradverify.verifier.diagnose.edits.edit import Edit

MOST_EDITS = 4000
"""Changes that are tried for one gradient."""


@dataclass
class Listed:
    """Changes in their order, made as they are asked for and kept for who asks again."""

    source: Iterator[Edit]
    made: list[Edit] = field(default_factory=list)

    def __iter__(self) -> Iterator[Edit]:
        """From the first one on."""
        place = 0
        while place < len(self.made) or self._makes_another():
            yield self.made[place]
            place += 1

    def _makes_another(self) -> bool:
        another = next(self.source, None)
        if another is not None:
            self.made.append(another)
        return another is not None


@dataclass(frozen=True)
class Repair:
    """A change that makes backward right."""

    edit: Edit
    scene: Any
    """The run of backward whose source it changes."""
    is_whole: bool = False
    """Whether it leaves no gradient wrong: one mistake has many gradients."""


@dataclass
class Repairs:
    """Of one target, at all of its points."""

    most: int = MOST_EDITS
    """Changes that may be tried for one gradient; 0 where those alone are tried that are known."""
    found: list[Repair] = field(default_factory=list)
    forward: list[Any] = field(default_factory=list)
    """Changes of forward (`ForwardEdit`) whose gradient is backward's."""
    further: Sequence[Any] = ()
    """Places (`FurtherPlace`) at which a change must hold before it is offered."""
