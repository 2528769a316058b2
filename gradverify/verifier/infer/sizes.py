"""What is done where an error names sizes: two agree, one follows from others, or is a number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.infer.state import Dim, Kind, State, squares

MERGE, DERIVE, PIN = 0.1, 0.35, 0.45
"""What a repair costs: an agreement of two sizes is likelier than a size that is a number of its own."""

TOLD = 0.03
"""What an agreement costs that the message itself asks for."""

UNTOLD, BESIDE = 0.15, 0.5
"""What is added for two numbers that merely stand in a message, and for these where two others are told."""

SQUARE = 1.5
"""What a merge costs that gives a tensor two equal dimensions: a transposed gradient fits a square input."""

CUT = 0.06
"""What a multiple costs where the source cuts into so many parts, and the message names one of them."""

RELATED = 0.2
"""What a size of one tensor alone costs, less than a number that stands for it everywhere."""

NEXT, NEXT_PAIR = 0.05, 0.1
"""What each further way costs, and each further pair of sizes."""

SMALLEST = 2
"""A size of 1 or 0 is broadcast or summed away: forward runs, and little is verified."""

MOST_BOUNDS = 6
"""Sizes of tensors that are tried as the bound of an index."""

MOST_NUMBERS = 8
"""Numbers of a message that are looked at."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
_PLACE = re.compile(r"\b(?:dim(?:ension)?|index|position|argument|operand|#)s? ?-?\d+")
"""Where something is wrong: no size."""

_TOLD = tuple(
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

States = Iterator[State | None]
"""With what they cost; None for one that cannot be."""


def numbers_in(message: str) -> list[int]:
    """The first numbers of a message that may be sizes."""
    found = _NUMBER.findall(_PLACE.sub("", message))
    return list(dict.fromkeys(map(int, found)))[:MOST_NUMBERS]


def by_size(state: State, found: re.Match[str], _suspects: Sequence[int]) -> States:
    """After sizes that disagree: they agree, or one of them follows from another, or is a number.

    Those that a message of torch tells to disagree come first, then any that stand in it.
    """
    values, message = state.values, found.string
    told = [(int(m[1]), int(m[2])) for p in _TOLD for m in p.finditer(message)]
    pairs = list(itertools.combinations(numbers_in(message), 2))
    of_size = {values[s]: s for s in reversed(state.symbols())}
    for place, (a, b) in enumerate(dict.fromkeys([*told, *pairs])):
        cost = TOLD - MERGE if (a, b) in told else UNTOLD + NEXT * place + BESIDE * bool(told)
        if a in of_size and b in of_size and a != b:
            merged = state.substituted(of_size[b], Dim(of_size[a]))
            merged = merged or state.substituted(of_size[a], Dim(of_size[b]))
            squared = merged is not None and squares(merged) > squares(state)
            yield merged and merged.dearer(MERGE + cost + SQUARE * squared)
        for live, other in ((a, b), (b, a)):
            if live in of_size and other not in of_size and other >= SMALLEST:
                yield from _derived(state, of_size[live], other, cost)
    for place, pair in enumerate(told):
        for part, wanted in (pair, pair[::-1]):
            yield from _of_parts(state, part, wanted, NEXT_PAIR * place)


def _derived(state: State, symbol: int, wanted: int, cost: float) -> States:
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
        price = PIN if dim.symbol < 0 else DERIVE
        yield changed and changed.with_pinned(owners).dearer(price + cost + NEXT * number)


def _of_parts(state: State, part: int, wanted: int, cost: float) -> States:
    """One size is that of a part: of five columns in four parts, two.

    What is cut up becomes that many times the other one, so that the parts agree with it; or both are parts.
    """
    for whole, count in _wholes(state, part):
        for symbol in state.symbols():
            if state.values[symbol] == wanted and symbol != whole:
                yield state.dearer(CUT + cost).substituted(whole, Dim(symbol, times=count))
        for other, parts in _wholes(state, wanted):
            if parts == count and other != whole:
                yield state.dearer(CUT).substituted(whole, Dim(other))


def _wholes(state: State, part: int) -> Iterator[tuple[int, int]]:
    """(symbol, number of parts) pairs that give parts of a size."""
    for count, symbol in itertools.product(sorted(state.parts), state.symbols()):
        size = state.values[symbol]
        if part in {-(-size // count), size // count} and size != part:
            yield symbol, count


def by_reshape(state: State, found: re.Match[str], suspects: Sequence[int]) -> States:
    """After `reshape(n, groups, -1)`: a dimension that is a multiple of the number that no dimension has."""
    values = state.values
    sizes = {values[s] for s in state.symbols()}
    parts = [int(n) for n in found[1].split(",")]
    kept = {p for p in parts if p in sizes}
    tensors = (state.arguments[k] for k in suspects if state.arguments[k].is_tensor)
    plain = (d for a in tensors for d in a.dims if d.is_plain and d.value(values) not in kept)
    dims = list(dict.fromkeys(plain))
    for part in (p for p in parts if p >= SMALLEST and p not in kept):
        for number, dim in enumerate(dims):
            multiple = Dim(dim.symbol, times=part)
            yield state.dearer(DERIVE + NEXT * number).substituted(dim.symbol, multiple)


def by_unpacking(state: State, found: re.Match[str], suspects: Sequence[int]) -> States:
    """After `not enough values to unpack (expected 4, got 3)`: so many slices, or parts, of a suspect."""
    count = int(found[1])
    tensors = [k for k in suspects if state.arguments[k].is_tensor and state.arguments[k].dims]
    for number, place in enumerate(tensors):
        dims = state.arguments[place].dims
        for end in dict.fromkeys((0, len(dims) - 1)):
            if dims[end].is_plain:
                # Parts of one entry each would be broadcast: forward runs, and little is verified.
                new = Dim(dims[end].symbol, times=count) if count in state.parts else Dim(plus=count)
                yield state.with_dim(place, end, new).dearer(RELATED + NEXT * number)
                yield state.dearer(RELATED + NEXT * (number + 1)).substituted(dims[end].symbol, new)


def by_last_size(state: State, found: re.Match[str], suspects: Sequence[int]) -> States:
    """After a message that fixes the last dimension: that of one suspect alone."""
    return _fixed(state, suspects, -1, int(found[1] or found[2]))


def by_index(state: State, found: re.Match[str], suspects: Sequence[int]) -> States:
    """After an index that is out of bounds: one suspect is so long."""
    return _fixed(state, suspects, int(found[2]), int(found[1]) + 1)


def _fixed(state: State, suspects: Sequence[int], along: int, size: int) -> States:
    for number, place in enumerate(k for k in suspects if state.arguments[k].is_tensor):
        dims = state.arguments[place].dims
        if -len(dims) <= along < len(dims) and dims[along] != Dim(plus=size):
            yield state.with_dim(place, along % len(dims), Dim(plus=size)).dearer(RELATED + NEXT * number)


def by_condition(state: State, found: re.Match[str], _suspects: Sequence[int]) -> States:
    """After a condition such as `x.shape[1] == 3`, `x.size(0) != w.shape[1]` or `x.shape[-1] % 2 == 0`."""
    dim, other = (_dim_of(state, found[f"of{k}"], found[f"at{k}"]) for k in (1, 2))
    if dim is None or not dim.is_plain:
        return
    if found["divisor"]:
        wanted = Dim(dim.symbol, times=int(found["divisor"])) if found["number"] == "0" else None
    else:
        wanted = Dim(plus=int(found["number"])) if found["number"] else other
    if wanted is not None and wanted != dim:
        yield state.substituted(dim.symbol, wanted)


def _dim_of(state: State, name: str | None, along: str | None) -> Dim | None:
    dims = next((a.dims for a in state.arguments if a.name == name and a.is_tensor), ())
    at = int(along) if along else 0
    return dims[at] if -len(dims) <= at < len(dims) else None


def bounds(state: State, found: re.Match[str], suspects: Sequence[int]) -> States:
    """An index is below another size; the suspects, where one of them is an index."""
    named = numbers_in(found.string)
    dims = list(dict.fromkeys(d for a in state.arguments if a.is_float for d in a.dims))
    dims.sort(key=lambda d: d.value(state.values) not in named)
    indices = state.places(Kind.INDEX)
    for place in [k for k in indices if k in suspects] or indices:
        argument = state.arguments[place]
        for bound in (*dims[:MOST_BOUNDS], Dim(plus=2), Dim(plus=1)):
            if bound != argument.bound:
                yield state.with_argument(place, replace(argument, bound=bound))
