"""How a number follows from sizes and other numbers: the simplest expression that gives it everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import combinations, product

SAME_NUMBER = 1e-12
"""Relative difference of two numbers that are one, computed in another order."""

MOST_SHIFT = 3
"""What is added to a size, or taken from it, at most: a window's ends, a difference of the second order."""

MOST_FACTOR = 4
"""What a size is multiplied with, or divided by, at most: the gates of a recurrent cell."""

MOST_PAIRED = 12
"""Known numbers of which pairs are tried: the first ones, which backward has at hand."""

MOST_SIMPLE = 24
"""Forms that are simple: the first ones."""

MOST_OF_TWO = 5
"""The simplest forms, in which a sum, a difference or a product of two may come: more fit by chance."""


class Search(Enum):
    """How an expression may be made, in the order in which they are tried: what is long fits by chance."""

    SIMPLE = "simple"
    """Of one number."""
    TWO = "two"
    """Of the sum, the difference or the product of two."""
    ANY = "any"
    """Of one number, with whatever is known."""


def expression_of(
    values: Sequence[float], known: Mapping[str, Sequence[float]], search: Search
) -> str | None:
    """What gives these values, one at each recording: of whole numbers a whole number. None for nothing."""
    whole = all(type(v) is int for v in values)
    if whole:
        known = {text: ones for text, ones in known.items() if all(type(v) is int for v in ones)}
    forms = _whole_forms() if whole else _forms()
    if search is Search.TWO:
        forms = forms[: MOST_OF_TWO if whole else MOST_SIMPLE]
        known = dict(_pairs(list(known.items())[:MOST_PAIRED]))
    elif search is Search.SIMPLE:
        forms = forms[:MOST_SIMPLE]
    for form in forms:
        for text, ones in known.items():
            if _gives(form, ones, values):
                bare = text[1:-1] if search is Search.TWO and form == "{}" else text
                return form.format(bare)
    return None


def _pairs(known: Sequence[tuple[str, Sequence[float]]]) -> Iterator[tuple[str, Sequence[float]]]:
    """Every two numbers as one."""
    for (a, x), (b, y) in combinations(known, 2):
        pairs = list(zip(x, y, strict=True))
        yield f"({a} * {b})", [p * q for p, q in pairs]
        yield f"({a} + {b})", [p + q for p, q in pairs]
        yield f"({a} - {b})", [p - q for p, q in pairs]
        yield f"({b} - {a})", [q - p for p, q in pairs]


@cache
def _whole_forms() -> tuple[str, ...]:
    """Whole numbers of whole numbers, the simplest first, as text with `{}` where the other stands."""
    shifts = (0, *(s for size in range(1, MOST_SHIFT + 1) for s in (size, -size)))
    factors = [f for size in range(1, MOST_FACTOR + 1) for f in (size, -size)]
    affine = sorted(product(factors, shifts), key=lambda p: (abs(p[0]) + abs(p[1]), p[0] < 0, p[1] < 0))
    times = {1: "{}", -1: "-{}"}
    multiples = [times.get(f, f"{f} * {{}}") + _plus(s) for f, s in affine]
    divided = [
        f"({{}}{_plus(s)}) // {d}{_plus(e)}" if s else f"{{}} // {d}{_plus(e)}"
        for d, s, e in product(range(2, MOST_FACTOR + 1), shifts, (0, 1))
    ]
    halves = ("{} // 2", "{} // 2 + 1")
    return (*multiples[:MOST_OF_TWO], *halves, *multiples[MOST_OF_TWO:], *divided, "{} ** 2")


@cache
def _forms() -> tuple[str, ...]:
    """Numbers of numbers, the simplest first."""
    kinds = ("{}", "1 / {}", "{} ** 0.5", "{} ** -0.5", "{} ** 2", "{} ** -2")
    inner = ("{}", "({} - 1)", "({} + 1)", "(1 - {})")
    factors = [(f, 1) for f in range(1, MOST_FACTOR + 1)] + [(1, d) for d in range(2, MOST_FACTOR + 1)]
    ways = list(product(factors, (1, -1), inner, kinds))
    ways.sort(key=lambda w: (w[0] != (1, 1)) + (w[1] < 0) + (w[2] != "{}") + (w[3] != "{}"))
    return tuple(_form(*way) for way in ways)


def _form(factor: tuple[int, int], sign: int, inner: str, kind: str) -> str:
    (up, down), text = factor, kind.format(inner)
    if kind == "1 / {}":
        return f"{sign * up}{text[1:]}" if down == 1 else f"{sign} / ({down} * {inner})"
    said = f"{'-' if sign < 0 else ''}{f'{up} * ' if up > 1 else ''}{text}{f' / {down}' if down > 1 else ''}"
    return said[1:-1] if said == inner != "{}" else said


def _plus(shift: int) -> str:
    return "" if not shift else f" {'+' if shift > 0 else '-'} {abs(shift)}"


@cache
def _function(form: str) -> Callable[[float], float]:
    made: Callable[[float], float] = eval(f"lambda v: {form.format('v')}")  # noqa: S307 - a form of ours
    return made


def _gives(form: str, known: Sequence[float], values: Sequence[float]) -> bool:
    apply = _function(form)
    try:
        return all(math.isclose(apply(k), v, rel_tol=SAME_NUMBER) for k, v in zip(known, values, strict=True))
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return False
