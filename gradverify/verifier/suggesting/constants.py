"""Constants of one recording that come from sizes or numbers: found by recording at other ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradverify.verifier.suggesting.cutting import Cut
from gradverify.verifier.suggesting.dependence import Search, expression_of
from gradverify.verifier.suggesting.node import Node
from gradverify.verifier.suggesting.recording import Recorded

SHAPED = frozenset({"expand", "view", "_unsafe_view", "reshape", "new_zeros", "zeros", "new_full", "full"})
"""Operations that take a whole shape."""

RESHAPING = frozenset({"view", "_unsafe_view", "reshape"})
"""Those of them that find out one size by themselves."""


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
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def same_program(a: Recording, b: Recording) -> bool:
    """Whether two recordings are the same operations on the same values, but for their constants."""
    return _skeleton(a) == _skeleton(b)


def _skeleton(recording: Recording) -> list[Any]:
    numbers = {node: k for k, node in enumerate(recording.cut.computed)}
    gradients = recording.recorded.gradients

    def form(value: Any, shaped: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
        if isinstance(value, Node):
            return recording.cut.at_hand.get(value, numbers.get(value))
        if isinstance(value, tuple):
            return "shape" if shaped else tuple(form(v) for v in value)
        return "number" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)

    return [
        *((n.op, [form(a, n.op in SHAPED) for a in n.args], form(n.kwargs)) for n in recording.cut.computed),
        [(name, form(node)) for name, node in gradients.items()],
        recording.cut.extra,
    ]


def constants(base: Recording, others: Sequence[Recording]) -> Constants:
    """What each constant of `base` stands for, from recordings of the same program at other sizes."""
    every = [[c for n in r.cut.computed for c in constants_of(n)] for r in (base, *others)]
    free = [n.op in RESHAPING for n in base.cut.computed for _ in constants_of(n)]
    at_hand, with_offers = _Environment([base, *others]), _Environment([base, *others])
    offered = with_offers.offer([base, *others])
    texts: dict[int, str] = {}
    fixed: list[str] = []
    for k, values in enumerate(zip(*every, strict=True)):
        if all(v == values[0] for v in values):
            continue
        ways = [
            (at_hand, Search.SIMPLE, False),
            (at_hand, Search.SIMPLE, free[k]),
            *((place, search, False) for search in Search for place in (at_hand, with_offers)),
        ]
        text = next((t for place, search, one in ways if (t := place.text_of(values, search, one))), None)
        if text is None:
            fixed.append(str(values[0]))
        else:
            texts[k] = text
    used = " ".join(texts.values())
    attributes = tuple((a, e) for a, e in offered.items() if f"ctx.{a}" in used)
    return Constants(texts, attributes, tuple(fixed))


class _Environment:
    """Sizes and numbers that backward knows, at every recording."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._numbers: dict[str, list[float]] = {}
        base = recordings[0]
        used = {*base.cut.used, *base.cut.used_grads, *base.cut.extra}
        saved = {name for name, node in base.recorded.saved if node is not None}
        for name in sorted(set(base.cut.at_hand.values()), key=lambda n: (n not in used, n)):
            if name in used | saved or name.startswith("ctx."):
                self._add_tensor(name, [_shape_of(r, name) for r in recordings])
        for name, value in base.recorded.attributes.items():
            if isinstance(value, tuple):
                self._add_tensor_shape(
                    f"ctx.{name}", [tuple(r.recorded.attributes[name]) for r in recordings]
                )
            elif isinstance(value, int | float) and not isinstance(value, bool):
                self._numbers[f"ctx.{name}"] = [r.recorded.attributes[name] for r in recordings]

    def offer(self, recordings: Sequence[Recording]) -> dict[str, str]:
        """Add what forward could put on its ctx: returns the expression for each such attribute."""
        base, offered = recordings[0].recorded, {}
        for name, value in base.constants.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in base.attributes:
                offered[name] = name
                self._numbers[f"ctx.{name}"] = [r.recorded.constants[name] for r in recordings]
        for name in base.inputs:
            if f"{name}_shape" not in base.attributes:
                offered[f"{name}_shape"] = f"{name}.shape"
                shapes = [r.recorded.inputs[name].shape for r in recordings]
                self._add_tensor_shape(f"ctx.{name}_shape", shapes)
        return offered

    def _add_tensor(self, name: str, shapes: list[tuple[int, ...]]) -> None:
        self._add_tensor_shape(f"{name}.shape", shapes)
        self._numbers.setdefault(f"{name}.numel()", [math.prod(s) for s in shapes])

    def _add_tensor_shape(self, text: str, shapes: list[tuple[int, ...]]) -> None:
        self._shapes.setdefault(text, shapes)
        if len({len(s) for s in shapes}) == 1:
            rank = len(shapes[0])
            for k in range(rank):
                index = -1 if k == rank - 1 else k
                self._numbers.setdefault(f"{text}[{index}]", [s[k] for s in shapes])

    def text_of(self, values: Sequence[Any], search: Search, free: bool) -> str | None:  # noqa: FBT001
        """An expression that gives these values, one at each recording.

        Where one size is `free`, torch finds it out.
        """
        if not isinstance(values[0], tuple):
            return expression_of(values, self._numbers, search)
        whole = next((t for t, shapes in self._shapes.items() if all(map(_equal, shapes, values))), None)
        if whole is not None:
            return whole
        if len({len(v) for v in values}) > 1:
            return None
        parts = [
            repr(column[0]) if len(set(column)) == 1 else expression_of(column, self._numbers, search)
            for column in zip(*values, strict=True)
        ]
        if free and parts.count(None) == 1 and "-1" not in parts:
            parts[parts.index(None)] = "-1"
        return None if None in parts else f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


def _shape_of(recording: Recording, name: str) -> tuple[int, ...]:
    return next(node.shape for node, other in recording.cut.at_hand.items() if other == name)


def _equal(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return tuple(a) == tuple(b)
