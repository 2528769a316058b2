"""Two numbers that bound a range, `qmin` and `qmax`: between two equal ones nothing is left to vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.candidates import Guess, Kind

ENDS = (("min", "max"), ("lower", "upper"), ("low", "high"))
"""What the names of a lower and of an upper end have in the same place."""

LOWEST, HIGHEST = -2, 3
"""Integers for the two ends: inputs of ordinary size are cut off at neither, or at one."""

LATER = 0.4
"""What the other guesses for an end cost besides."""


def with_bounds(names: Sequence[str], each: Sequence[Sequence[Guess]]) -> list[list[Guess]]:
    """The guesses, with a lower end below zero for an invented number that has an upper one beside it."""
    changed = [list(guesses) for guesses in each]
    for place, name in enumerate(names):
        for low, high in ENDS:
            partner = name.replace(low, high, 1)
            if low in name and partner in names:
                other = names.index(partner)
                if all(_is_invented(g[0]) for g in (changed[place], changed[other]) if g):
                    changed[place] = _first(changed[place], lower=True)
                    changed[other] = _first(changed[other], lower=False)
    return changed


def _is_invented(guess: Guess) -> bool:
    number = guess.kind is Kind.LITERAL and type(guess.choices[0]) in {int, float}
    return not guess.found and (number or guess.kind is Kind.SIZE)


def _first(guesses: Sequence[Guess], *, lower: bool) -> list[Guess]:
    first = guesses[0]
    if first.kind is Kind.LITERAL and isinstance(first.choices[0], float):
        end: float = -first.choices[0] if lower else first.choices[0]
    else:
        end = LOWEST if lower else HIGHEST
    rest = (replace(g, cost=g.cost + LATER) for g in guesses)
    return [Guess(Kind.LITERAL, first.cost, (end,), found=False), *rest]
