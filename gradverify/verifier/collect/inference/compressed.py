"""Compressed rows: where each row begins, the columns of the entries, what it is multiplied with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.cuts import Cuts
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State

BEFORE = -0.2
"""What it costs beside the same guesses in other shapes: offsets and an index belong together."""

VARIANT = 0.02
"""What each further arrangement costs."""

OFFSETS, COLUMNS, WIDTH = (0, 2, 5), (1, 2, 0, 1, 3), 4
"""Two rows of four columns: of different lengths, no column twice in a row, one that occurs in both."""


def compressed(names: Sequence[str], combination: Sequence[Guess], cuts: Cuts) -> Iterator[State]:
    """States in which offsets, an index and entries are one sparse matrix; none without all three.

    The first real tensor holds the entries, of one matrix or of several with the same pattern; the others
    have a dimension of its columns, or of its rows where it is multiplied from the left.
    """
    kinds = [(g.kind, g.structure) for g in combination]
    if not {(Kind.INDEX, "offsets"), (Kind.INDEX, ""), (Kind.FLOAT, "")} <= set(kinds):
        return
    base = math.fsum(g.cost for g in combination) + BEFORE
    state, (free,) = State((), (), cuts=cuts).fresh(1)
    state = state.at({free.symbol: WIDTH - 1})  # a size that neither rows, columns nor entries have
    rows, columns = Dim(plus=len(OFFSETS) - 1), Dim(plus=WIDTH)
    for number, (batched, met) in enumerate(itertools.product((False, True), (columns, rows))):
        arguments: list[Argument] = []
        for name, guess in zip(names, combination, strict=True):
            first = not any(a.guess.kind is Kind.FLOAT for a in arguments)
            entries = Dim(plus=len(COLUMNS))
            dims = (free, entries if first else met) if batched else (entries,) if first else (met, free)
            arguments.append(_argument(name, guess, dims))
        yield replace(state, arguments=tuple(arguments), cost=base + VARIANT * number)


def _argument(name: str, guess: Guess, dims: tuple[Dim, ...]) -> Argument:
    """One argument; `dims` are its dimensions if it is a real tensor."""
    counts = guess.kind is Kind.LITERAL and not guess.found and type(guess.choices[0]) is int
    of_entries = (Dim(plus=len(COLUMNS)),)
    match guess.kind:
        case Kind.INDEX if guess.structure:
            plain = replace(guess, structure="")
            return Argument(name, plain, (Dim(plus=len(OFFSETS)),), value=OFFSETS)
        case Kind.INDEX:
            return Argument(name, guess, of_entries, value=COLUMNS)
        case Kind.FLOAT:
            return Argument(name, guess, dims)
        case Kind.SIZE | Kind.LITERAL if counts or guess.kind is Kind.SIZE:
            return Argument(name, replace(guess, kind=Kind.LITERAL, choices=(WIDTH,)))
        case Kind.BOOL | Kind.LIST:
            return Argument(name, guess, of_entries, items=2 if guess.kind is Kind.LIST else 0)
        case _:
            return Argument(name, guess)
