"""A form as an entry of a spec, and what is to be said about each input.

Recorded dimensions as symbolic sizes: equal in every call means one symbol; then which values to try.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import prod
from typing import Any

from gradverify.cases.inputs import ChoicesSpec, InputSpec, ListSpec, TensorSpec, ValueSpec
from gradverify.cases.sizes import Expression, Size
from gradverify.cases.sweep import FunctionSpec, Sweep
from gradverify.model import ObjectInput
from gradverify.record.reading import COMPLEX, FLOATING, INTEGERS, Form, Note, Place

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
    _fix_sizes(found)
    return found


def _fix_sizes(found: Dimensions) -> None:
    """Write the sizes of tensors whose values are constants as numbers, wherever they occur."""
    constant = [place for place in found.form.tensors() if found.form.constant(place) is not None]
    fixed = {symbol for (place, _), symbol in found.places.items() if place in constant}
    for symbol in fixed & found.vectors.keys():
        (size,) = {size for size in found.vectors.pop(symbol) if size is not None}
        found.places = {at: str(size) if s == symbol else s for at, s in found.places.items()}


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


DIGITS = 3
"""Significant digits of a recorded range: rounded inward, so that every value in it is one that occurred."""

MOST_CHOICES = 4
"""Literals of one argument that become cases."""


TO_FILL_IN = "module:attribute"
"""What stands for the path of an argument that cannot be written."""


class UnwritableError(Exception):
    """An argument that no spec can say; the message is the reason."""


@dataclass(frozen=True)
class Written:
    """An entry, with remarks by input."""

    spec: FunctionSpec
    remarks: tuple[tuple[str, str], ...]
    gaps: tuple[tuple[str, str], ...] = ()
    """(input, reason) pairs: what no spec can say, with `TO_FILL_IN` in its place."""


def entry_of(found: Dimensions, sizing: Sizing) -> Written:
    """The entry of a form at some sizes."""
    writer = _Writer(found, sizing)
    inputs: list[InputSpec] = []
    gaps: list[tuple[str, str]] = []
    for index, name in enumerate(found.form.names):
        try:
            inputs.append(writer.argument((index,), name))
        except UnwritableError as reason:
            inputs.append(ObjectInput(name, TO_FILL_IN))
            gaps.append((name, str(reason)))
    used = tuple((s, tuple(v)) for s, v in sizing.values.items() if s in writer.used)
    said: dict[str, list[str]] = {}
    for name, remark in writer.remarks:
        said.setdefault(name, []).append(remark)
    spec = FunctionSpec(Sweep(tuple(inputs), used))
    return Written(spec, tuple((n, "; ".join(r)) for n, r in said.items()), tuple(gaps))


class _Writer:
    """Writes the arguments of one form, and keeps which sizes they use."""

    def __init__(self, found: Dimensions, sizing: Sizing) -> None:
        self.found, self.form, self.sizing = found, found.form, sizing
        self.used: set[str] = set()
        self.remarks: list[tuple[str, str]] = []

    def argument(self, place: Place, name: str) -> InputSpec:
        notes = self.form.present(place)
        if not notes:
            return ValueSpec(name, None)
        absent = len(notes) < len(self.form.calls)
        kind = notes[0]["kind"]
        if kind == "tensor":
            return self._tensor(place, name, optional=absent)
        if kind == "literal":
            return self._literal(place, name)
        if absent:
            raise UnwritableError(f"is None in some calls, and {_said(notes[0])} in others")
        return self._list(place, name) if kind == "list" else self._object(notes[0], name)

    def _object(self, note: Note, name: str) -> InputSpec:
        if not note["path"]:
            raise UnwritableError(f"is {note['type']}, which cannot be imported by a name")
        return ObjectInput(name, note["path"])

    def _list(self, place: Place, name: str) -> InputSpec:
        notes = self.form.present(place)
        items = notes[0]["items"]
        if all(item["kind"] == "tensor" for item in items) and items:
            tensors = (self._tensor((*place, i), f"{name}[{i}]") for i in range(len(items)))
            return ListSpec(name, tuple(tensors))
        if any(note["kind"] != "literal" for note in items) or notes[0].get("splatted"):
            raise UnwritableError("is a list of tensors and other values")
        if any("value" not in item for note in notes for item in note["items"]):
            raise UnwritableError("is a tuple with numbers that are not finite")
        seen = [tuple(item["value"] for item in note["items"]) for note in notes]
        columns = list(zip(*seen, strict=True))
        sized = [self._size_of(column) for column in columns]
        if len(set(seen)) > 1 and not all(sized):
            raise UnwritableError("is a tuple of other numbers in other calls")
        return ValueSpec(name, tuple(size or column[0] for size, column in zip(sized, columns, strict=True)))

    def _literal(self, place: Place, name: str) -> InputSpec:
        notes = self.form.notes(place)
        values = [None if n is None else float(n["float"]) if "float" in n else n["value"] for n in notes]
        size = self._size_of(values)
        if size is not None:
            return ValueSpec(name, size)
        choices = list({(type(v), repr(v)): v for v in values}.values())
        if len(choices) > MOST_CHOICES:
            said = f"{len(choices)} values were recorded, the first of them here"
            self.remarks.append((self.form.names[place[0]], said))
        if len(choices) > 1:
            return ChoicesSpec(name, tuple(choices[:MOST_CHOICES]))
        return ValueSpec(name, choices[0])

    def _size_of(self, values: Sequence[object]) -> Expression | None:
        """The symbol that an integer always equals; None where it is a number of its own."""
        if any(type(value) is not int for value in values):
            return None
        certain = len(set(values)) > 1 or all(isinstance(v, int) and v > LARGEST_KEPT for v in values)
        for symbol, vector in self.found.vectors.items() if certain else ():
            if all(size == value for size, value in zip(vector, values, strict=True)):
                return self._expression(symbol)
        return None

    def _tensor(self, place: Place, name: str, *, optional: bool = False) -> TensorSpec:
        notes = self.form.present(place)
        dtype = _dtype_of(notes[0])
        constant = dtype in (*FLOATING, *COMPLEX) and not any(note["requires_grad"] for note in notes)
        remarks = "; ".join(_remarks(name, notes, constant, len(place) > 1))
        values = self.form.constant(place)
        if values is not None:
            self.remarks.append((self.form.names[place[0]], remarks))
            own = "float64" if constant else dtype
            wanted = False if constant else None
            return TensorSpec(name, (), own, value=_short(values), requires_grad=wanted)
        made = TensorSpec(
            name,
            tuple(self._dimension(place, d) for d in range(len(notes[0]["shape"]))),
            "complex128" if dtype in COMPLEX else "float64" if dtype in FLOATING else dtype,
            layout="" if notes[0]["layout"] == "strided" else notes[0]["layout"],
            requires_grad=False if constant and self.form.is_differentiated else None,
            optional=optional,
        )
        if dtype in INTEGERS:
            made = self._integers(place, notes, made)
        elif dtype != "bool":
            made = replace(made, range=_range_of(notes))
        self.remarks.append((self.form.names[place[0]], remarks))
        return made

    def _dimension(self, place: Place, dimension: int) -> Size:
        symbol = self.found.places[place, dimension]
        return int(symbol) if symbol.isdecimal() else self._expression(symbol)

    def _expression(self, symbol: str) -> Expression:
        text = self.sizing.derived.get(symbol, symbol)
        self.used |= {word for word in text.split() if word.isidentifier()}
        return Expression(text)

    def _integers(self, place: Place, notes: Sequence[Note], made: TensorSpec) -> TensorSpec:
        """An integer tensor with its range: below the size that it indexes, where one fits."""
        bounds = [(n["low"], n["high"]) for n in notes if "low" in n]
        if not bounds:
            raise UnwritableError("is an integer tensor whose values were not seen")
        low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
        offsets = self._offsets(place, notes)
        if offsets is not None:
            return replace(made, structure="offsets", range=(0, offsets))
        symbol = self._indexed(place) if high >= 0 else ""
        if not symbol:
            return replace(made, range=(low, high + 1))
        if low < 0:
            self.remarks.append((self.form.names[place[0]], f"{low} was recorded too"))
        count = min(math.prod(n["shape"]) for n in notes)
        # By chance some would be equal.
        distinct = all(n.get("distinct") for n in notes) and count * (count - 1) > 8 * (high - low + 1)
        return replace(made, range=(0, self._expression(symbol)), distinct=distinct)

    def _offsets(self, place: Place, notes: Sequence[Note]) -> Expression | None:
        """The size that sorted values from 0 end with; None where they do not."""
        if not all(n.get("sorted") and n["low"] == 0 and n["high"] > 0 for n in notes):
            return None
        lasts = [None if n is None else n["high"] for n in self.form.notes(place)]
        for symbol, vector in self.found.vectors.items():
            if all(a == b for a, b in zip(vector, lasts, strict=True)):
                return self._expression(symbol)
        return None

    def _indexed(self, place: Place) -> str:
        """The symbol just above the largest value: of another tensor, and nearest in most calls."""
        own = {self.found.places[p, d] for p, d in self.found.places if p == place}
        seen = self.form.notes(place)
        best: tuple[float, str] = (-1.0, "")
        for symbol, vector in self.found.vectors.items():
            pairs = [(n["high"], v) for n, v in zip(seen, vector, strict=True) if n and v and "high" in n]
            if not pairs or any(high >= size for high, size in pairs):
                continue
            nearness = max((high + 1) / size for high, size in pairs) - (symbol in own)
            if nearness > best[0]:
                best = (nearness, symbol)
        return best[1]


def _dtype_of(note: Note) -> str:
    """The dtype of a tensor that a spec can say."""
    dtype = str(note["dtype"])
    if dtype not in (*FLOATING, *COMPLEX, *INTEGERS, "bool"):
        raise UnwritableError(f"is a tensor of dtype {dtype}")
    if note["layout"] not in {"strided", "sparse_coo", "sparse_csr"}:
        raise UnwritableError(f"is a tensor of layout {note['layout']}")
    return dtype


def _short(values: Any) -> Any:  # noqa: ANN401 - nested lists
    """Floats as short as float32 tells them apart; integers as they are; nested tuples."""
    if isinstance(values, list):
        return tuple(_short(value) for value in values)
    return float(f"{values:.9g}") if isinstance(values, float) else values


def _range_of(notes: Sequence[Note]) -> tuple[float, float] | None:
    """The recorded range of floats, where it may be that of the values which are valid.

    Values on both sides of [-1, 1] have the reals as their domain; less may be for a reason: a probability,
    a variance, a cosine.
    """
    low, high = _bounds(notes)
    if low is None or high is None or (low < -1 and high > 1):
        return None
    inward = _rounded(low, math.ceil), _rounded(high, math.floor)
    return inward if inward[0] < inward[1] else None


def _bounds(notes: Sequence[Note]) -> tuple[float | None, float | None]:
    lows, highs = [n["low"] for n in notes if "low" in n], [n["high"] for n in notes if "high" in n]
    if len(lows) < len(notes):  # not all were seen, or some were not finite
        return None, None
    return min(lows), max(highs)


def _rounded(value: float, how: Any) -> float:  # noqa: ANN401
    if value == 0:
        return 0.0
    scale = 10.0 ** (DIGITS - 1 - math.floor(math.log10(abs(value))))
    return float(f"{how(value * scale) / scale:.{DIGITS}g}")


def _remarks(name: str, notes: Sequence[Note], constant: bool, in_list: bool) -> Iterator[str]:  # noqa: FBT001
    prefix = f"{name}: " if in_list else ""
    shapes = list(dict.fromkeys(" x ".join(map(str, n["shape"])) or "a number" for n in notes))
    more = f" and {len(shapes) - 2} more" if len(shapes) > 2 else ""
    dtypes = ", ".join(dict.fromkeys(n["dtype"] for n in notes))
    low, high = _bounds(notes)
    values = ""
    if low is not None and high is not None:
        values = f", always {low:.3g}" if low == high else f" in {low:.3g} … {high:.3g}"
    yield f"{prefix}{dtypes} {', '.join(shapes[:2])}{more}{values}"
    if not all(n.get("contiguous", True) for n in notes):
        yield "not contiguous"
    if constant:
        yield "never required grad"


def _said(note: Note) -> str:
    return "a list" if note["kind"] == "list" else str(note.get("type", "a value"))
