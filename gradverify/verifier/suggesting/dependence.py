"""How a number follows from sizes and other numbers: the simplest expression that gives it everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Form:
    """One way to compute a number from another."""

    text: str
    """With `{}` where the other stands."""
    apply: Callable[[float], float]


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
        return _of_two(values, known, forms[: MOST_OF_TWO if whole else MOST_SIMPLE])
    for form in forms[: MOST_SIMPLE if search is Search.SIMPLE else None]:
        for text, ones in known.items():
            if _gives(form, ones, values):
                return form.text.format(text)
    return None


def _of_two(
    values: Sequence[float], known: Mapping[str, Sequence[float]], forms: Sequence[Form]
) -> str | None:
    first = dict(list(known.items())[:MOST_PAIRED])
    for form in forms:
        for (a, x), (b, y) in combinations(first.items(), 2):
            for text, both in _together(a, x, b, y):
                if _gives(form, both, values):
                    return form.text.format(text[1:-1] if form.text == "{}" else text)
    return None


def _together(
    a: str, x: Sequence[float], b: str, y: Sequence[float]
) -> Iterator[tuple[str, Sequence[float]]]:
    """Two numbers as one."""
    pairs = list(zip(x, y, strict=True))
    yield f"({a} * {b})", [p * q for p, q in pairs]
    yield f"({a} + {b})", [p + q for p, q in pairs]
    yield f"({a} - {b})", [p - q for p, q in pairs]
    yield f"({b} - {a})", [q - p for p, q in pairs]


@cache
def _whole_forms() -> tuple[Form, ...]:
    """Whole numbers of whole numbers, the simplest first."""
    shifts = [s for size in range(MOST_SHIFT + 1) for s in ({size, -size})]
    factors = [f for size in range(1, MOST_FACTOR + 1) for f in (size, -size)]
    affine = sorted(product(factors, shifts), key=lambda p: (abs(p[0]) + abs(p[1]), p[0] < 0, p[1] < 0))
    divided = product(range(2, MOST_FACTOR + 1), shifts, (0, 1))
    halves = (Form("{} // 2", lambda v: v // 2), Form("{} // 2 + 1", lambda v: v // 2 + 1))
    multiples = [Form(_shifted(_times(f), s), lambda v, f=f, s=s: f * v + s) for f, s in affine]  # type: ignore[misc]
    return (
        *multiples[:MOST_OF_TWO],
        *halves,
        *multiples[MOST_OF_TWO:],
        *(
            Form(
                f"{_bracketed(_shifted('{}', s))} // {d}" + (f" + {e}" if e else ""),
                lambda v, d=d, s=s, e=e: (v + s) // d + e,  # type: ignore[misc]
            )
            for d, s, e in divided
        ),
        Form("{} ** 2", lambda v: v * v),
    )


@cache
def _forms() -> tuple[Form, ...]:
    """Numbers of numbers, the simplest first."""
    kinds: list[tuple[str, Callable[[float], float]]] = [
        ("{}", lambda v: v),
        ("1 / {}", lambda v: 1 / v),
        ("{} ** 0.5", math.sqrt),
        ("{} ** -0.5", lambda v: 1 / math.sqrt(v)),
        ("{} ** 2", lambda v: v * v),
        ("{} ** -2", lambda v: 1 / (v * v)),
    ]
    inner: list[tuple[str, Callable[[float], float]]] = [
        ("{}", lambda v: v),
        ("({} - 1)", lambda v: v - 1),
        ("({} + 1)", lambda v: v + 1),
        ("(1 - {})", lambda v: 1 - v),
    ]
    factors = [(f, 1) for f in range(1, MOST_FACTOR + 1)] + [(1, d) for d in range(2, MOST_FACTOR + 1)]
    ways = list(product(factors, (1, -1), inner, kinds))
    ways.sort(key=lambda w: (w[0] != (1, 1)) + (w[1] < 0) + (w[2][0] != "{}") + (w[3][0] != "{}"))
    return tuple(_form(*way) for way in ways)


def _form(
    factor: tuple[int, int],
    sign: int,
    inner: tuple[str, Callable[[float], float]],
    kind: tuple[str, Callable[[float], float]],
) -> Form:
    (up, down), (shape, shift), (outside, apply) = factor, inner, kind
    text = outside.format(shape)
    if text.startswith("1 / ") and down == 1:
        text = f"{sign * up}{text[1:]}"
    elif text.startswith("1 / "):
        text = f"{sign} / ({down} * {shape})"
    else:
        text = (
            f"{'-' if sign < 0 else ''}{f'{up} * ' if up > 1 else ''}{text}{f' / {down}' if down > 1 else ''}"
        )
    text = text[1:-1] if text == shape and shape != "{}" else text
    return Form(text, lambda v: sign * up * apply(shift(v)) / down)


def _times(factor: int) -> str:
    return {1: "{}", -1: "-{}"}.get(factor, f"{factor} * {{}}")


def _shifted(text: str, shift: int) -> str:
    return text if not shift else f"{text} {'+' if shift > 0 else '-'} {abs(shift)}"


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text else text


def _gives(form: Form, known: Sequence[float], values: Sequence[float]) -> bool:
    try:
        return all(
            math.isclose(form.apply(k), v, rel_tol=SAME_NUMBER) for k, v in zip(known, values, strict=True)
        )
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return False
