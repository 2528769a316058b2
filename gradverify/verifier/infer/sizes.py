"""What an error says of the sizes of the inputs: two that agree, one that follows from others, a number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradverify.verifier.infer.state import Dim, State, squares

MERGE, DERIVE, PIN = 0.1, 0.35, 0.45
"""What a repair costs: an agreement of two sizes is likelier than a size that is a number of its own."""

STATED = 0.03
"""What an agreement costs that the message itself asks for."""

UNSTATED, BESIDE = 0.15, 0.5
"""What is added for two numbers that are merely in a message, and where the message names two others."""

SQUARE = 1.5
"""What a merge costs that gives a tensor two equal dimensions: a transposed gradient fits a square input."""

CUT = 0.06
"""What a multiple costs where the source cuts into so many parts, and the message names one of them."""

RELATED = 0.2
"""What a sum costs, less than a number of its own, more than that two sizes agree."""

NEXT, NEXT_PAIR = 0.05, 0.1
"""What each further way costs, and each further pair of sizes."""

SMALLEST = 2
"""A size of 1 or 0 is broadcast or summed away: forward runs, and little is verified."""

MOST_NUMBERS = 8
"""Numbers of a message that are looked at."""

PARTS = 2
"""How many blocks there are where a size is their number times their width: the fewest of them."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
_PLACE = re.compile(r"\b(?:dim(?:ension)?|index|position|argument|operand|#)s? ?-?\d+")
"""Where something is wrong: no size."""

_STATED = tuple(
    re.compile(pattern)
    for pattern in (
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
        r"got input \(\d+\), mat \(\d+x(\d+)\), vec \((\d+)\)",
        r"tensor \[(\d+)\] and src \[(\d+)\]",
        r"Expected size (\d+) but got size (\d+)",
        r"to have (\d+) channels, but got (\d+) channels",
        r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)",
        r"first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]",
        r"first two dimensions of batch2 tensor to be: \[(\d+), \d+\] but got: \[(\d+), \d+\]",
        r"Number of indices \((\d+)\) should be equal to source\.size\(dim\): \((\d+)\)",
        r"normalized_shape=\[(?:[\d, ]+, )?(\d+)\], .* but got input of size\s?\[(?:[\d, ]*, )?(\d+)\]",
        r"batch_size \((\d+)\) to match target batch_size \((\d+)\)",
    )
)
"""Messages that name the two sizes that disagree."""

_RESHAPED = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size \d+")
"""A `view` or `reshape` into parts whose number does not divide a dimension."""

_UNPACKED = re.compile(r"values to unpack \(expected (\d+)")
_LAST = (
    re.compile(r"have size (\d+) in (?:the )?last dimension"),
    re.compile(r"last dimension (?:of |must be |should be |to be )(?:of )?(?:size |a )*(\d+)"),
    re.compile(r"dimension -1 must have length (\d+)"),
)
"""Messages that name the size of a last dimension."""

_GOT = re.compile(r"must have length (\d+)\. Got (\d+)(?: and (\d+))?")

_OUTSIDE = re.compile(r"index (\d+) is out of bounds for dimension (\d+) with size \d+")

Priced = Iterator[tuple[State | None, float]]
"""States with what they cost; None for one that cannot be."""


def numbers_in(message: str) -> list[int]:
    """The first numbers of a message that may be sizes."""
    found = _NUMBER.findall(_PLACE.sub("", message))
    return list(dict.fromkeys(map(int, found)))[:MOST_NUMBERS]


def by_size(state: State, message: str) -> Priced:
    """After sizes that disagree: they agree, or one of them follows from another, or is a number."""
    reported = [(int(m[1]), int(m[2])) for p in _STATED for m in p.finditer(message)]
    pairs = list(itertools.combinations(numbers_in(message), 2))
    yield from _Disagreement(state, reported, pairs).repairs()


@dataclass(frozen=True)
class _Disagreement:
    """Pairs of sizes that do not go together: those that the message names as such, and any other in it."""

    state: State
    reported: Sequence[tuple[int, int]]
    pairs: Sequence[tuple[int, int]]

    def repairs(self) -> Priced:
        """All that would make them agree."""
        state, values = self.state, self.state.values
        of_size = {values[s]: s for s in reversed(state.symbols())}
        for place, (a, b) in enumerate(dict.fromkeys([*self.reported, *self.pairs])):
            reported = (a, b) in self.reported
            cost = STATED - MERGE if reported else UNSTATED + NEXT * place + BESIDE * bool(self.reported)
            if a in of_size and b in of_size and a != b:
                merged = state.substituted(of_size[b], Dim(of_size[a]))
                merged = merged or state.substituted(of_size[a], Dim(of_size[b]))
                squared = merged is not None and squares(merged) > squares(state)
                yield merged, MERGE + cost + SQUARE * squared
            for live, other in ((a, b), (b, a)):
                if live in of_size and other not in of_size and other >= SMALLEST:
                    yield from _derived(state, of_size[live], other, cost)
        for place, pair in enumerate(self.reported):
            for part, wanted in (pair, pair[::-1]):
                yield from _of_parts(state, part, wanted, NEXT_PAIR * place)
        for place, pair in enumerate((self.reported or self.pairs) if state.joins else ()):
            for total, other in (pair, pair[::-1]):
                yield from _summed(state, total, other, NEXT_PAIR * place)


def _derived(state: State, symbol: int, wanted: int, cost: float) -> Priced:
    """A size that must be a number which no dimension has: it follows from one, or is a constant."""
    forms = (
        dim
        for other in state.symbols()
        if other != symbol
        for dim in (
            *(Dim(other, times=k) for k in (2, 3, 4)),
            Dim(other, over=2),
            *(Dim(other, plus=k) for k in (-1, 1, -2, 2)),
        )
    )
    own = [dim for dim in forms if dim.value(state.values) == wanted]
    owners = [a.name for a in state.arguments if any(d.symbol == symbol for d in a.dims)]
    for number, dim in enumerate([*own, Dim(plus=wanted)]):
        changed = state.substituted(symbol, dim)
        if changed is not None:
            price = PIN if dim.symbol < 0 else DERIVE
            yield changed.with_pinned(owners), price + cost + NEXT * number


def _of_parts(state: State, part: int, wanted: int, cost: float) -> Priced:
    """One size is that of a part: of five columns in four parts, two.

    What is cut up becomes that many times the other one, so that the parts agree with it; or both are parts.
    """
    for whole, count in _wholes(state, part):
        for symbol in state.symbols():
            if state.values[symbol] == wanted and symbol != whole:
                yield state.substituted(whole, Dim(symbol, times=count)), CUT + cost
        for other, parts in _wholes(state, wanted):
            if parts == count and other != whole:
                yield state.substituted(whole, Dim(other)), CUT


def _wholes(state: State, part: int) -> Iterator[tuple[int, int]]:
    """(symbol, number of parts) pairs that give parts of a size."""
    for count, symbol in itertools.product(sorted(state.parts), state.symbols()):
        size = state.values[symbol]
        if part in {-(-size // count), size // count} and size != part:
            yield symbol, count


def _summed(state: State, total: int, other: int, cost: float) -> Priced:
    """Where something is concatenated, one of two sizes is the sum of two others."""
    values, symbols = state.values, state.symbols()
    for symbol in (s for s in symbols if values[s] == other):
        for first, second in itertools.combinations(symbols, 2):
            if values[first] + values[second] == total and symbol not in {first, second}:
                yield state.substituted(symbol, Dim(first, added=second)), RELATED + cost


def by_reshape(state: State, message: str, suspects: Sequence[int]) -> Priced:
    """After `reshape(n, groups, -1)`: a dimension that is a multiple of the number that no dimension has."""
    values = state.values
    sizes = {values[s] for s in state.symbols()}
    for found in _RESHAPED.finditer(message):
        parts = [int(n) for n in found[1].split(",")]
        kept = {p for p in parts if p in sizes}
        tensors = (state.arguments[k] for k in suspects if state.arguments[k].is_tensor)
        plain = (d for a in tensors for d in a.dims if d.is_plain and d.value(values) not in kept)
        dims = list(dict.fromkeys(plain))
        for part in (p for p in parts if p >= SMALLEST and p not in kept):
            for number, dim in enumerate(dims):
                multiple = Dim(dim.symbol, times=part)
                yield state.substituted(dim.symbol, multiple), DERIVE + NEXT * number
        of_size = {values[s]: s for s in reversed(state.symbols())}
        yield from _into_product(state, [of_size[p] for p in parts if p in of_size], dims)


def _into_product(state: State, symbols: Sequence[int], dims: Sequence[Dim]) -> Priced:
    """After `x.reshape(-1, n, b)`, where another tensor has n and b: a dimension that is 2 b, and n is 2."""
    for count, width in itertools.pairwise(symbols):
        free = [d for d in dims if d.symbol not in {count, width}]
        for number, dim in enumerate(reversed(free)):
            changed = state.substituted(dim.symbol, Dim(width, times=PARTS))
            fixed = changed.substituted(count, Dim(plus=PARTS)) if changed is not None else None
            yield fixed, DERIVE + NEXT * number


def by_unpacking(state: State, message: str, suspects: Sequence[int]) -> Priced:
    """After `not enough values to unpack (expected 4, got 3)`: so many slices, or parts, of a suspect."""
    found = _UNPACKED.search(message)
    count = int(found[1]) if found is not None else 0
    tensors = [k for k in suspects if state.arguments[k].is_tensor and state.arguments[k].dims]
    for number, place in enumerate(tensors if count else ()):
        dims = state.arguments[place].dims
        for end in dict.fromkeys((0, len(dims) - 1)):
            if dims[end].is_plain:
                # Parts of one entry each would be broadcast: forward runs, and little is verified.
                parts = [Dim(dims[end].symbol, times=count)] if count in state.parts else []
                for dearer, new in enumerate((*parts, Dim(plus=count))):
                    cost = RELATED + NEXT * (number + dearer)
                    yield state.with_dim(place, end, new), cost
                    yield state.substituted(dims[end].symbol, new), cost + NEXT


def by_fixed_size(state: State, message: str, suspects: Sequence[int]) -> Priced:
    """After a message, or an index, that fixes one dimension of a suspect: of that one alone.

    Of a slice that has another length than is wanted (`q[..., 1:]`), what it is cut from differs by as much.
    """
    wanted = [(-1, int(m[1])) for p in _LAST for m in p.finditer(message)]
    wanted += [(int(m[2]), int(m[1]) + 1) for m in _OUTSIDE.finditer(message)]
    got = {int(n) for m in _GOT.finditer(message) for n in m.groups()[1:] if n}
    for number, place in enumerate(k for k in suspects if state.arguments[k].is_tensor):
        dims = state.arguments[place].dims
        for end, size in ((e, s) for e, s in wanted if -len(dims) <= e < len(dims)):
            length = dims[end].value(state.values)
            for fixed in (size, *(size + length - n for n in sorted(got) if n < length)):
                if dims[end] != Dim(plus=fixed):
                    yield state.with_dim(place, end % len(dims), Dim(plus=fixed)), RELATED + NEXT * number
