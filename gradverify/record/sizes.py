"""Recorded dimensions as symbolic sizes: equal in every call means one symbol; then which values to try."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import prod

from gradverify.record.reading import Form, Place

NAMES = ("n", "d", "m", "k", "h", "w", "p", "q", "r", "s", "t", "u")
"""Sizes in the order they are named; what follows is s1, s2, …"""

LARGEST_KEPT = 5
"""Sizes up to this one stay as recorded: 3 may be three coordinates, and a small size costs nothing."""

SMALLEST_SHRUNK = 3
"""A larger one becomes at least this: 1 broadcasts, and 2 hides what an order of summation does."""

Vector = tuple[int | None, ...]
"""A dimension's size in each call; None where its tensor is not given."""


@dataclass(frozen=True)
class Sizing:
    """The sizes of an entry: values by symbol, and those symbols that are expressions of others."""

    values: Mapping[str, Sequence[int]]
    derived: Mapping[str, str]


@dataclass
class Dimensions:
    """The dimensions of a form in symbols."""

    form: Form
    base: int
    """Which call has the fewest entries."""
    vectors: dict[str, Vector] = field(default_factory=dict)
    """By symbol, in order of appearance."""
    places: dict[tuple[Place, int], str] = field(default_factory=dict)
    """By tensor and dimension: a symbol, or 0 or 1."""

    def recorded(self, call: int) -> dict[str, int]:
        """The sizes of one call; where its tensor was absent, those of the first call that has it."""
        return {s: next(v for v in (vec[call], *vec) if v is not None) for s, vec in self.vectors.items()}


def dimensions_of(form: Form, taken: Collection[str]) -> Dimensions:
    """Name the dimensions of a form; `taken` are names that sizes must not have."""
    names = (name for name in (*NAMES, *(f"s{i}" for i in range(1, 1000))) if name not in taken)
    found = Dimensions(form, _smallest(form))
    for place in form.tensors():
        notes = form.notes(place)
        rank = next(len(note["shape"]) for note in notes if note is not None)
        for dimension in range(rank):
            vector = tuple(None if note is None else int(note["shape"][dimension]) for note in notes)
            found.places[place, dimension] = _symbol(found, vector, names)
    return found


def _symbol(found: Dimensions, vector: Vector, names: Iterator[str]) -> str:
    sizes = {size for size in vector if size is not None}
    if sizes in ({0}, {1}):
        return str(sizes.pop())
    for symbol, known in found.vectors.items():
        pairs = [(a, b) for a, b in zip(known, vector, strict=True) if a is not None and b is not None]
        if pairs and all(a == b for a, b in pairs):
            merged = tuple(a if a is not None else b for a, b in zip(known, vector, strict=True))
            found.vectors[symbol] = merged
            return symbol
    symbol = next(names)
    found.vectors[symbol] = vector
    return symbol


def _smallest(form: Form) -> int:
    def entries(call: int) -> int:
        notes = (form.notes(place)[call] for place in form.tensors())
        return sum(prod(note["shape"]) for note in notes if note is not None)

    return min(range(len(form.calls)), key=lambda call: (-_given(form, call), entries(call)))


def _given(form: Form, call: int) -> int:
    """Arguments that are not None: the base case has them all, where some call does."""
    return sum(form.notes((index,))[call] is not None for index in range(len(form.names)))


def shrunk(sizes: Collection[int]) -> dict[int, int]:
    """Small sizes instead of the recorded ones: as many distinct ones, in the same order, even ones even."""
    small: dict[int, int] = {}
    last = 0
    for size in sorted(set(sizes)):
        least = size if size <= LARGEST_KEPT else max(last + 1, SMALLEST_SHRUNK)
        least += (least - size) % 2
        small[size] = last = min(size, max(least, last + 1))
    return small


def relations(found: Dimensions) -> dict[str, str]:
    """Symbols that are an expression of others in every call: by symbol, the expression.

    With one call, or with calls of one size, a relation may be chance: it is for sizes that cannot be free.
    """
    derived: dict[str, str] = {}
    for symbol, vector in sorted(found.vectors.items(), key=lambda item: -_largest(item[1])):
        if _largest(vector) <= LARGEST_KEPT or _uses(derived, symbol):
            continue
        free = {s: v for s, v in found.vectors.items() if s != symbol and s not in derived}
        expression = next(_expressions(vector, free), None)
        if expression is not None:
            derived[symbol] = expression
    return derived


def strong_relations(found: Dimensions) -> dict[str, str]:
    """Those relations that hold for three sizes or more, which chance does not give."""
    return {s: e for s, e in relations(found).items() if len({v for v in found.vectors[s] if v}) >= 3}


def _largest(vector: Vector) -> int:
    return max(size or 0 for size in vector)


def _uses(derived: Mapping[str, str], symbol: str) -> bool:
    return any(symbol in expression.replace("*", " ").split() for expression in derived.values())


def _expressions(vector: Vector, others: Mapping[str, Vector]) -> Iterator[str]:
    for symbol, other in others.items():
        for factor in (2, 3, 4):
            if _equal(vector, [None if size is None else factor * size for size in other]):
                yield f"{factor} * {symbol}"
        for term in (1, -1, 2, -2):
            if _equal(vector, [None if size is None else size + term for size in other]):
                yield f"{symbol} {'+' if term > 0 else '-'} {abs(term)}"
    for (a, one), (b, two) in combinations_with_replacement(others.items(), 2):
        pairs = list(zip(one, two, strict=True))
        if _equal(vector, [None if x is None or y is None else x * y for x, y in pairs]):
            yield f"{a} * {b}"
        if a != b and _equal(vector, [None if x is None or y is None else x + y for x, y in pairs]):
            yield f"{a} + {b}"


def _equal(vector: Vector, other: Sequence[int | None]) -> bool:
    """Whether two sizes agree in every call that has the first."""
    rows = [(a, b) for a, b in zip(vector, other, strict=True) if a is not None]
    return bool(rows) and all(a == b for a, b in rows)


def sizings(found: Dimensions) -> Iterator[Sizing]:
    """Yield sizes to be tried; the last ones are as recorded, in the call with the fewest entries."""
    base, strong = found.recorded(found.base), strong_relations(found)
    small = {symbol: shrunk(base.values())[size] for symbol, size in base.items()}
    other = _another(found, base)
    both = shrunk([*base.values(), *other.values()])
    if other != base:
        values = {s: tuple(dict.fromkeys((both[base[s]], both[other[s]]))) for s in base}
        yield _sizing(values, strong)
    yield _sizing({s: (size,) for s, size in small.items()}, strong)
    related = relations(found)
    if related != strong:
        yield _sizing({s: (size,) for s, size in small.items()}, related)
    for symbol, size in base.items():
        if size != small[symbol]:
            yield _sizing({**{s: (v,) for s, v in small.items()}, symbol: (size,)}, {})
    yield as_recorded(found)


def as_recorded(found: Dimensions) -> Sizing:
    """The sizes of the smallest call."""
    return _sizing({s: (size,) for s, size in found.recorded(found.base).items()}, {})


def _another(found: Dimensions, base: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes of the call in which most of them differ."""
    calls = [found.recorded(call) for call in range(len(found.form.calls))]
    return max(calls, key=lambda sizes: sum(sizes[s] != base[s] for s in base), default=base)


def _sizing(values: Mapping[str, tuple[int, ...]], derived: Mapping[str, str]) -> Sizing:
    return Sizing({s: v for s, v in values.items() if s not in derived}, derived)
