"""Sizes that a number in backward fixes: `grad.view(-1, n, 3)` is of points in space."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State

LITERAL = 0.2
"""What it costs to take a number of backward's for a size."""

SIZES = range(2, 10)
"""Numbers that a last dimension may be: coordinates, components, gates. One would be broadcast."""


def by_literal(state: State, error: RaisedError) -> Iterator[State]:
    """States whose last dimensions have the size of a number in the line of backward that raised."""
    if not error.frames:
        return
    lasts = dict.fromkeys(
        a.dims[-1].symbol
        for a in state.arguments
        if a.guess.kind is Kind.FLOAT and a.dims and a.dims[-1].is_plain
    )
    for number in _numbers(error.frames[-1].source):
        for symbol in lasts:
            changed = state.substituted(symbol, Dim(plus=number))
            if changed is not None:
                owners = {a.name for a in state.arguments if any(d.symbol == symbol for d in a.dims)}
                yield replace(
                    changed,
                    cost=state.cost + LITERAL,
                    pinned=state.pinned | owners,
                    by_backward=(*state.by_backward, *((name, number) for name in sorted(owners))),
                )


def _numbers(line: str) -> list[int]:
    """The numbers that may be sizes, in the order in which they stand in a line."""
    try:
        tree = ast.parse(line.strip().rstrip(":"))
    except (SyntaxError, ValueError):
        return []
    found = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int]
    return [n for n in dict.fromkeys(found) if n in SIZES]
