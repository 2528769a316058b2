"""A cause: the name of a mistake, the sentence about it, and the change of backward that takes it back."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import LinePatch


@dataclass(frozen=True)
class InBackward:
    """One change of backward's source after which its gradient is right."""

    file: str
    """Name of the file, without its folder."""
    line: int
    before: str
    """What is there."""
    after: str
    """What should; empty where nothing should."""
    helper: str = ""
    """The function that it stands in, where that is one that backward calls."""
    cause: str = ""
    """The name of the mistake that it takes back."""
    patch: LinePatch | None = None
    """The change as lines of the file; None where no lines say it alone."""


@dataclass(frozen=True)
class Cause:
    """One hypothesis that held at every entry of every point."""

    name: str
    """One of the names of `Finding.cause`."""
    what: str = ""
    """What is wrong, without a capital and a full stop; empty where the change alone is known."""
    advice: str = ""
    """What to try, as whole sentences."""
    is_weak: bool = False
    """Whether the numbers are merely consistent with it: another mistake may give the same ones."""
    factor: float | None = None
    """claimed / true, where it is one number."""
    change: InBackward | None = None
    """The change of backward that takes the mistake back."""
