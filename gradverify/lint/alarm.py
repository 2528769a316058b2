"""What a static rule says of one place of a Function's source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradverify.source import Function, Place


@dataclass(frozen=True)
class Alarm:
    """One place that a rule complains about."""

    place: Place
    message: str
    hint: str


Rule = Callable[[Function], Iterator[Alarm]]


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 gradient`, `3 gradients`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
