"""Words of the messages."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 gradient`, `3 gradients`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
