"""A fixed greedy pairwise cover under constraints. It knows levels by number and nothing of tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

Row = tuple[int, ...]
"""One level index for each factor."""
Pair = tuple[tuple[int, int], ...]
"""Two (factor, level) entries that a row must hold together; fewer where fewer factors are swept."""

MAX_ROWS = 1000
"""Cases of one function. Each costs a hundred calls: beyond, a list is too long by mistake."""
MAX_STEPS = 100_000
"""Assignments tried while completing rows: about a second."""


class TooManyError(Exception):
    """The lists are too long to be covered; the message says how long."""


@dataclass(frozen=True)
class Constraint:
    """A condition on some of the factors. Must be pure: its answers are remembered."""

    factors: tuple[int, ...]
    holds: Callable[[Row], bool]
    """Takes the levels of `factors`, in that order."""


@dataclass(frozen=True)
class Cover:
    """Rows that hold every feasible pair."""

    rows: tuple[Row, ...]
    infeasible: int
    """Rows it would take to hold the pairs that no feasible row holds."""


def cover(levels: Sequence[Sequence[int]], constraints: Sequence[Constraint], given: Sequence[Row]) -> Cover:
    """Cover every pair of levels of two factors (every level, if there is one factor).

    Each new row starts from the first pair not yet covered, in lexicographic order, and takes for
    every further factor the level that covers most (the lowest on a tie) and still leads to a
    feasible row. `given` rows are there already and are not returned.
    """
    _refuse_too_many(levels)
    search = _Search(levels, constraints)
    open_pairs = dict.fromkeys(_pairs(levels))
    for row in given:
        _strike(open_pairs, row)
    rows, hopeless = _greedy(search, open_pairs)
    free = _Search(levels, ())
    dropped, _ = _greedy(free, hopeless)
    return Cover(tuple(rows), len(dropped))


def first_row(levels: Sequence[Sequence[int]], constraints: Sequence[Constraint]) -> Row | None:
    """Return the lexicographically first row that keeps every constraint, None if there is none."""
    return _Search(levels, constraints).row_with((), {})


def _greedy(search: _Search, open_pairs: dict[Pair, None]) -> tuple[list[Row], dict[Pair, None]]:
    rows: list[Row] = []
    hopeless: dict[Pair, None] = {}
    while open_pairs:
        pair = next(iter(open_pairs))
        row = search.row_with(pair, open_pairs)
        if row is None:
            hopeless[pair] = None
            del open_pairs[pair]
            continue
        rows.append(row)
        _strike(open_pairs, row)
    return rows, hopeless


class _Search:
    """Completes partial rows; remembers what constraints answered."""

    def __init__(self, levels: Sequence[Sequence[int]], constraints: Sequence[Constraint]) -> None:
        self.levels = levels
        self.constraints = [(one.factors, cache(one.holds)) for one in constraints]
        # Only factors that a constraint mentions can spoil a row.
        self._concerned = sorted({factor for constraint in constraints for factor in constraint.factors})
        self._steps = 0

    def row_with(self, pair: Pair, open_pairs: dict[Pair, None]) -> Row | None:
        """Return the greedy row that holds `pair`, None if no feasible row does."""
        single = {factor: levels[0] for factor, levels in enumerate(self.levels) if len(levels) == 1}
        fixed = single | dict(pair)
        if not self._completable(fixed):
            return None
        for factor, levels in enumerate(self.levels):
            if factor in fixed:
                continue
            ranked = sorted(levels, key=lambda level: -_gain(fixed, factor, level, open_pairs))
            fixed[factor] = next(level for level in ranked if self._completable({**fixed, factor: level}))
        return tuple(fixed[factor] for factor in range(len(self.levels)))

    def _completable(self, fixed: dict[int, int]) -> bool:
        if not self.constraints:
            return True
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooManyError(
                "too many combinations of sizes have no valid inputs to find the others: shorten the lists"
            )
        for used, holds in self.constraints:
            if fixed.keys() >= {*used} and not holds(tuple(fixed[factor] for factor in used)):
                return False
        free = next((factor for factor in self._concerned if factor not in fixed), None)
        if free is None:
            return True
        return any(self._completable({**fixed, free: level}) for level in self.levels[free])


def _pairs(levels: Sequence[Sequence[int]]) -> list[Pair]:
    """Return what has to be covered; factors of one level are in every row and need no pairs."""
    swept = [factor for factor, values in enumerate(levels) if len(values) > 1]
    return [
        tuple(zip(factors, choice, strict=True))
        for factors in itertools.combinations(swept, min(2, len(swept)))
        for choice in itertools.product(*(levels[factor] for factor in factors))
    ]


def _strike(open_pairs: dict[Pair, None], row: Row) -> None:
    entries = tuple(enumerate(row))
    for count in range(3):
        for pair in itertools.combinations(entries, count):
            open_pairs.pop(pair, None)


def _gain(fixed: dict[int, int], factor: int, level: int, open_pairs: dict[Pair, None]) -> int:
    entry = (factor, level)
    return sum(tuple(sorted((entry, other))) in open_pairs for other in fixed.items())


def _refuse_too_many(levels: Sequence[Sequence[int]]) -> None:
    counts = sorted((len(values) for values in levels), reverse=True)
    rows = math.prod(counts[:2])
    if rows > MAX_ROWS:
        raise TooManyError(
            f"the lists need at least {rows} cases, and {MAX_ROWS} are allowed: shorten the longest"
        )
