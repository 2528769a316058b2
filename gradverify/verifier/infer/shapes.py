"""What an error says of the shapes of the inputs: how many dimensions they have, and which sizes agree."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

from gradverify.verifier.infer import costs
from gradverify.verifier.infer.state import Dim, Kind, State, squares

LARGEST_RANK = 6
"""Dimensions that an input may get."""

_NAMED = re.compile(
    r"expected (\d)-?D\b|or (\d)D \(batched\)|(?:must|should|has to) be (?:an? )?(\d)-?D\b"
    r"|must have (\d) dimensions|expected (\d), got \d\)|len\(dims\) = (\d)|unpack \(expected (\d)"
    r"|equation \((\d)\) does not match the number of dimensions|(\d)[- ]?dimensional (?:input|tensor)",
    re.IGNORECASE,
)
"""Messages that name the rank they want."""

_TOO_FEW = re.compile(r"not enough values to unpack \(expected (\d+), got (\d+)\)")
"""Of a whole shape, or of one among other sizes: `b, t, k, v = *x.shape, w.shape[-1]`."""

_MATRIX = re.compile(r"must be a matrix|a matrix expected|expected a matrix|2-D tensor")
_VECTOR = re.compile(r"must be a vector|1D tensors? expected|expected a vector|(?:supposed )?to be a vector")
_AT_MOST_TWO = re.compile(r"<= 2 dimensions|too many values to unpack")
_DEEPER = re.compile(
    r"Dimension out of range|tuple index out of range|too many indices|not enough values to unpack"
    r"|list index out of range|Dimension specified as"
)
_OF_AXES = re.compile(r"Dimension out of range \(expected to be in range of \[-?\d+, \d+\], but got [1-5]\)")
"""An axis that is a number of the author's: so many dimensions, and one more, are meant."""


def names_rank(message: str) -> bool:
    """Whether a message says how many dimensions it wants, and not only that there are too few."""
    of_gradients = "number of gradients" in message  # which are counted, too
    patterns = (_NAMED, _MATRIX, _VECTOR, _OF_AXES)
    return not of_gradients and any(p.search(message) for p in patterns)


def by_rank(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """States in which the `suspects` have the dimensions that the message asks for, all of them or one."""
    tensors = [k for k in suspects if state.arguments[k].is_tensor]
    indices = [k for k in tensors if state.arguments[k].guess.kind is Kind.INDEX]
    wanted = _wanted(state, message, {len(state.arguments[k].dims) for k in tensors})
    for rank in dict.fromkeys(r for r in wanted if 0 <= r <= LARGEST_RANK):
        together = [tensors] if len(tensors) > 1 else []
        alike = [indices] if 1 < len(indices) < len(tensors) else []  # two ends of edges, rows and columns
        several = (reranked(state, places, rank) for places in [*together, *alike, *([k] for k in tensors)])
        yield from filter(None, several)


def _wanted(state: State, message: str, current: set[int]) -> list[int]:
    missing = [int(m[1]) - int(m[2]) for m in _TOO_FEW.finditer(message)]
    wanted = [rank + more for more in missing for rank in sorted(current)]
    wanted += [int(n) for m in _NAMED.finditer(message) for n in m.groups() if n]
    wanted += [2] if _MATRIX.search(message) else []
    wanted += [1] if _VECTOR.search(message) else []
    if _DEEPER.search(message):
        wanted += [r + 1 for r in sorted(current)] + [r + 2 for r in sorted(current)]
    if "same number of dimensions" in message:
        ranks = sorted({len(a.dims) for a in state.arguments if a.is_tensor}, reverse=True)
        wanted += [r for r in ranks if {r} != current]
    return wanted + ([2] if _AT_MOST_TWO.search(message) else [])


def reranked(state: State, places: Sequence[int], rank: int) -> State | None:
    """The same with tensors of another rank, what they share still shared; None if nothing changes."""
    changed, extra = state, tuple[Dim, ...]()
    for place in places:
        dims = changed.arguments[place].dims
        missing = rank - len(dims)
        if missing > len(extra):
            changed, more = changed.fresh(missing - len(extra))
            extra = (*extra, *more)
        if missing:
            changed = changed.with_dims(place, (*dims, *extra[:missing]) if missing > 0 else dims[-missing:])
    return None if changed is state else changed


def lower_ranks(state: State) -> Iterator[State]:
    """One tensor at a time with one dimension less, one of its own: the first, the last.

    The first argument at last: it is mostly the one that the others are about.
    """
    for place, argument in reversed(list(enumerate(state.arguments))):
        if argument.is_tensor and len(argument.dims) > 1:
            for dims in dict.fromkeys((argument.dims[:-1], argument.dims[1:])):
                yield state.with_dims(place, dims)


def one_number(state: State) -> Iterator[State]:
    """One tensor at a time without a dimension, and the others as they are; the first argument at last."""
    for place, argument in reversed(list(enumerate(state.arguments))):
        if argument.is_float and argument.dims:
            yield state.with_dims(place, ())


def without_last(state: State, suspects: Sequence[int]) -> Iterator[State]:
    """After an index that disagrees with what it is used on: a weight of each entry has fewer dimensions."""
    for place in suspects:
        argument = state.arguments[place]
        if argument.is_float and len(argument.dims) > 1:
            yield state.with_dims(place, argument.dims[:-1])


def broadcast(state: State, suspects: Sequence[int]) -> Iterator[State]:
    """After two shapes that do not go together: one of several suspects is a number, or one of each row."""
    several = [k for k in suspects if state.arguments[k].is_float and state.arguments[k].dims]
    for place in reversed(several) if len(several) > 1 else ():
        for dims in dict.fromkeys((state.arguments[place].dims[:-1], ())):
            yield state.with_dims(place, dims)


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

_RESHAPED = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)")
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

MOST_JOINED = 4
"""Tensors of one size that are joined, so that the sizes behind two which disagree are found."""

Priced = Iterator[tuple[State | None, float]]
"""States with what they cost; None for one that cannot be."""


def numbers_in(message: str) -> list[int]:
    """The first numbers of a message that may be sizes."""
    found = _NUMBER.findall(_PLACE.sub("", message))
    return list(dict.fromkeys(map(int, found)))[:MOST_NUMBERS]


def by_size(state: State, message: str) -> Priced:
    """After sizes that disagree: they agree, or one of them follows from another, or is a number.

    First pairs that the message names as such, then any other in it.
    """
    reported = [(int(m[1]), int(m[2])) for p in _STATED for m in p.finditer(message)]
    pairs = list(itertools.combinations(numbers_in(message), 2))
    for place, pair in enumerate(dict.fromkeys([*reported, *pairs])):
        unstated = costs.UNSTATED + costs.NEXT_WAY * place + costs.BESIDE * bool(reported)
        yield from _agreeing(state, *pair, costs.STATED - costs.MERGE if pair in reported else unstated)
    for place, pair in enumerate(reported):
        for part, wanted in (pair, pair[::-1]):
            yield from _of_parts(state, part, wanted, costs.NEXT_PAIR * place)
    for place, pair in enumerate((reported or pairs) if state.joins else ()):
        for total, other in (pair, pair[::-1]):
            yield from _summed(state, total, other, costs.NEXT_PAIR * place)
        for count in range(2, MOST_JOINED + 1):
            if not any(size % count for size in pair):
                yield from _merged(state, pair[0] // count, pair[1] // count, costs.NEXT_PAIR * place)


def _agreeing(state: State, a: int, b: int, cost: float) -> Priced:
    """Two sizes become one; or that of the two which dimensions have follows from others."""
    yield from _merged(state, a, b, cost)
    of_size = _symbols_of_sizes(state)
    for live, other in ((a, b), (b, a)):
        if live in of_size and other not in of_size and other >= SMALLEST:
            yield from _derived(state, of_size[live], other, cost)


def _symbols_of_sizes(state: State) -> dict[int, int]:
    return {state.values[s]: s for s in reversed(state.symbols())}


def _merged(state: State, a: int, b: int, cost: float) -> Priced:
    """Two sizes that dimensions have become one."""
    of_size = _symbols_of_sizes(state)
    if a in of_size and b in of_size and a != b:
        merged = state.substituted(of_size[b], Dim(of_size[a]))
        merged = merged or state.substituted(of_size[a], Dim(of_size[b]))
        squared = merged is not None and squares(merged) > squares(state)
        yield merged, costs.MERGE + cost + costs.SQUARE * squared


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
            price = costs.PIN if dim.symbol < 0 else costs.DERIVE
            yield changed.with_pinned(owners), price + cost + costs.NEXT_WAY * number


def _of_parts(state: State, part: int, wanted: int, cost: float) -> Priced:
    """One size is that of a part: of five columns in four parts, two.

    What is cut up becomes that many times the other one, so that the parts agree with it; or both are parts.
    """
    for whole, count in _wholes(state, part):
        for symbol in state.symbols():
            if state.values[symbol] == wanted and symbol != whole:
                yield state.substituted(whole, Dim(symbol, times=count)), costs.CUT + cost
        for other, parts in _wholes(state, wanted):
            if parts == count and other != whole:
                yield state.substituted(whole, Dim(other)), costs.CUT


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
                yield state.substituted(symbol, Dim(first, added=second)), costs.RELATED + cost


def by_reshape(state: State, message: str, suspects: Sequence[int]) -> Priced:
    """After `reshape(n, groups, -1)`: a dimension that is a multiple of the number that no dimension has."""
    values = state.values
    sizes = {values[s] for s in state.symbols()}
    for found in _RESHAPED.finditer(message):
        parts = [int(n) for n in found[1].split(",")]
        for number, place in enumerate(k for k in suspects if state.arguments[k].is_tensor):
            for further, dims_of in enumerate(_factored(state, place, parts)):
                cost = costs.MERGE + costs.NEXT_WAY * (number + further)
                yield state.with_dims(place, dims_of), cost
        kept = {p for p in parts if p in sizes}
        tensors = (state.arguments[k] for k in suspects if state.arguments[k].is_tensor)
        plain = (d for a in tensors for d in a.dims if d.is_plain and d.value(values) not in kept)
        dims = list(dict.fromkeys(plain))
        for part in (p for p in parts if p >= SMALLEST and p not in kept):
            for number, dim in enumerate(dims):
                multiple = Dim(dim.symbol, times=part)
                yield state.substituted(dim.symbol, multiple), costs.DERIVE + costs.NEXT_WAY * number
        of_size = {values[s]: s for s in reversed(state.symbols())}
        yield from _into_product(state, [of_size[p] for p in parts if p in of_size], dims)


def by_order(state: State, message: str, _: Sequence[int]) -> Priced:
    """After a shape of more entries than there are, by the ratio of two neighbouring sizes: in turn.

    What is reshaped may come from an input that the line does not name. A system of equations has more rows
    than unknowns, of which as many come out as there are.
    """
    found, values = _RESHAPED.search(message), state.values
    asked = math.prod(map(int, found[1].split(","))) if found is not None else 0
    pairs = (
        (first.symbol, second.symbol)
        for argument in (state.arguments if found is not None else ())
        for first, second in itertools.pairwise(argument.dims)
        if first.is_plain and second.is_plain
    )
    for first, second in dict.fromkeys(pairs):
        small, large = values[first], values[second]
        if found is not None and small < large and asked * small == int(found[2]) * large:
            yield state.at({first: large, second: small}), costs.MERGE


def _factored(state: State, place: int, parts: Sequence[int]) -> Iterator[tuple[Dim, ...]]:
    """After `x.reshape(n, d * d)`: dimensions for `x` whose products the parts are, in their order.

    Each is one that `x` has, the part that is left over (-1) what of `x` is in no other one.
    """
    own = list(dict.fromkeys(d for d in state.arguments[place].dims if d.is_plain))
    wanted = [p for p in parts if p != 1]
    products = [[()] if p < 0 else list(_products(state, own, p)) for p in wanted]
    for factors in itertools.product(*products):
        used = [d for several in factors for d in several]
        left = [d for d in own if d not in used][: max(1, len(state.arguments[place].dims) - len(used))]
        whole = (left if p < 0 else several for p, several in zip(wanted, factors, strict=True))
        dims = tuple(d for several in whole for d in several)
        if len(used) > len(set(used)) and len(dims) <= LARGEST_RANK:
            yield dims


def _products(state: State, dims: Sequence[Dim], size: int) -> Iterator[tuple[Dim, ...]]:
    """The dimensions, each as often as it takes, whose sizes have a product; the fewest first."""
    for count in range(1, LARGEST_RANK + 1):
        for several in itertools.combinations_with_replacement(dims, count):
            if math.prod(d.value(state.values) for d in several) == size:
                yield several


def _into_product(state: State, symbols: Sequence[int], dims: Sequence[Dim]) -> Priced:
    """After `x.reshape(-1, n, b)`, where another tensor has n and b: a dimension that is 2 b, and n is 2."""
    for count, width in itertools.pairwise(symbols):
        free = [d for d in dims if d.symbol not in {count, width}]
        for number, dim in enumerate(reversed(free)):
            changed = state.substituted(dim.symbol, Dim(width, times=PARTS))
            fixed = changed.substituted(count, Dim(plus=PARTS)) if changed is not None else None
            yield fixed, costs.DERIVE + costs.NEXT_WAY * number


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
                    cost = costs.RELATED + costs.NEXT_WAY * (number + dearer)
                    yield state.with_dim(place, end, new), cost
                    yield state.substituted(dims[end].symbol, new), cost + costs.NEXT_WAY


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
                    cost = costs.RELATED + costs.NEXT_WAY * number
                    yield state.with_dim(place, end % len(dims), Dim(plus=fixed)), cost
