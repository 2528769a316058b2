"""Constants of one recording that come from sizes or numbers: found by recording at other ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import combinations, product
from typing import Any

from gradverify.verifier.suggest.graph import Node
from gradverify.verifier.suggest.recording import Cut, Recorded

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

SHAPED = frozenset({"expand", "view", "_unsafe_view", "reshape", "new_zeros", "zeros", "new_full", "full"})
"""Operations that take a whole shape."""

RESHAPING = frozenset({"view", "_unsafe_view", "reshape"})
"""Those of them that find out one size by themselves."""


class Search(Enum):
    """How an expression may be made, in the order in which they are tried: what is long fits by chance."""

    SIMPLE = "simple"
    """Of one number."""
    TWO = "two"
    """Of the sum, the difference or the product of two."""
    ANY = "any"
    """Of one number, with whatever is known."""


@dataclass(frozen=True)
class Recording:
    """One recording with its cut."""

    recorded: Recorded
    cut: Cut


@dataclass(frozen=True)
class Constants:
    """What the constants of a recording stand for."""

    texts: Mapping[int, str]
    """By their number in the order of the recording; the others are what they are."""
    extra_attributes: tuple[tuple[str, str], ...]
    """(attribute, expression in forward) pairs that forward must put on its ctx."""
    fixed: tuple[str, ...]
    """Constants that change with sizes or numbers in a way that was not found, as text."""


def constants_of(node: Node) -> Iterator[Any]:
    """The constants of one operation in the order in which they are printed: numbers and whole shapes."""
    for k, value in enumerate((*node.args, *(v for _, v in node.kwargs))):
        if node.op in SHAPED and isinstance(value, tuple) and k == _shape_at(node):
            yield value
        else:
            yield from _numbers_in(value)


def _shape_at(node: Node) -> int:
    return next((k for k, a in enumerate(node.args) if isinstance(a, tuple)), -1)


def _numbers_in(value: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers_in(item)
    elif _is_number(value):
        yield value


def _is_number(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_program(a: Recording, b: Recording) -> bool:
    """Whether two recordings are the same operations on the same values, but for their constants."""
    return _skeleton(a) == _skeleton(b)


def _skeleton(recording: Recording) -> list[Any]:
    numbers = {node: k for k, node in enumerate(recording.cut.computed)}

    def form(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Node):
            return recording.cut.at_hand.get(value, numbers.get(value))
        if isinstance(value, tuple):
            return tuple(form(v) for v in value)
        return "number" if _is_number(value) else repr(value)

    def argument(node: Node, value: Any) -> Any:  # noqa: ANN401
        return "shape" if node.op in SHAPED and isinstance(value, tuple) else form(value)

    return [
        *((n.op, [argument(n, a) for a in n.args], form(n.kwargs)) for n in recording.cut.computed),
        [(name, form(node)) for name, node in recording.recorded.gradients.items()],
        recording.cut.extra,
    ]


def constants(base: Recording, others: Sequence[Recording]) -> Constants:
    """What each constant of `base` stands for, from recordings of the same program at other sizes."""
    recordings = (base, *others)
    every = [[c for n in r.cut.computed for c in constants_of(n)] for r in recordings]
    at_hand, with_offers = _Known(recordings), _Known(recordings)
    offered = with_offers.offer()
    free = [n.op in RESHAPING for n in base.cut.computed for _ in constants_of(n)]
    texts: dict[int, str] = {}
    fixed: list[str] = []
    for k, values in enumerate(zip(*every, strict=True)):
        if all(v == values[0] for v in values):
            continue
        text = at_hand.text_of(values, Search.SIMPLE) or (free[k] and at_hand.but_for_one(values))
        places = ((place, search) for search in Search for place in (at_hand, with_offers))
        text = text or next((t for place, search in places if (t := place.text_of(values, search))), None)
        if text:
            texts[k] = text
        else:
            fixed.append(str(values[0]))
    used = " ".join(texts.values())
    attributes = tuple((a, e) for a, e in offered.items() if f"ctx.{a}" in used)
    return Constants(texts, attributes, tuple(fixed))


class _Known:
    """Shapes and numbers that backward knows, at every recording, by their text."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._numbers: dict[str, list[float]] = {}
        base = recordings[0]
        used = {*base.cut.used, *base.cut.used_grads, *base.cut.extra}
        saved = {name for name, node in base.recorded.saved if node is not None}
        for name in sorted(set(base.cut.at_hand.values()), key=lambda n: (n not in used, n)):
            if name in used | saved or name.startswith("ctx."):
                shapes = [next(n.shape for n, o in r.cut.at_hand.items() if o == name) for r in recordings]
                self._add_shape(f"{name}.shape", shapes)
                self._numbers.setdefault(f"{name}.numel()", [math.prod(s) for s in shapes])
        for name, value in base.recorded.attributes.items():
            values = [r.recorded.attributes[name] for r in recordings]
            if isinstance(value, tuple):
                self._add_shape(f"ctx.{name}", list(map(tuple, values)))
            elif _is_number(value):
                self._numbers[f"ctx.{name}"] = values

    def offer(self) -> dict[str, str]:
        """Add what forward could put on its ctx: returns the expression for each such attribute."""
        base, offered = self._recordings[0].recorded, {}
        for name, value in base.constants.items():
            if _is_number(value) and name not in base.attributes:
                offered[name] = name
                self._numbers[f"ctx.{name}"] = [r.recorded.constants[name] for r in self._recordings]
        for name in base.inputs:
            if f"{name}_shape" not in base.attributes:
                offered[f"{name}_shape"] = f"{name}.shape"
                self._add_shape(
                    f"ctx.{name}_shape", [r.recorded.inputs[name].shape for r in self._recordings]
                )
        return offered

    def _add_shape(self, text: str, shapes: list[tuple[int, ...]]) -> None:
        self._shapes.setdefault(text, shapes)
        if len({len(s) for s in shapes}) == 1:
            for k in range(len(shapes[0])):
                index = -1 if k == len(shapes[0]) - 1 else k
                self._numbers.setdefault(f"{text}[{index}]", [s[k] for s in shapes])

    def text_of(self, values: Sequence[Any], search: Search) -> str | None:
        """An expression that gives these values, one at each recording."""
        if not isinstance(values[0], tuple):
            return expression_of(values, self._numbers, search)
        whole = next((t for t, shapes in self._shapes.items() if shapes == list(map(tuple, values))), None)
        parts = self._parts(values, search) if whole is None else [None]
        return whole if None in parts else _tuple_of(parts)

    def but_for_one(self, values: Sequence[Any]) -> str | None:
        """A shape of which one size is not found: torch finds it out."""
        parts = self._parts(values, Search.SIMPLE) if isinstance(values[0], tuple) else []
        if parts.count(None) != 1 or "-1" in parts:
            return None
        return _tuple_of(["-1" if p is None else p for p in parts])

    def _parts(self, values: Sequence[tuple[int, ...]], search: Search) -> list[str | None]:
        if len({len(v) for v in values}) > 1:
            return [None, None]
        return [
            repr(column[0]) if len(set(column)) == 1 else expression_of(column, self._numbers, search)
            for column in zip(*values, strict=True)
        ]


def _tuple_of(parts: Sequence[str | None]) -> str:
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


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
    """Whole numbers of whole numbers, the simplest first, as text with `{}` where the other is."""
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
