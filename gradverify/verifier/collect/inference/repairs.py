"""What an error says about the inputs: states in which it would not have been raised, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.complexes import by_refusal
from gradverify.verifier.collect.inference.conditions import demands
from gradverify.verifier.collect.inference.multiples import (
    by_fixed_size,
    by_parts,
    by_split,
    by_sums,
    by_unpacking,
)
from gradverify.verifier.collect.inference.relaxed import squares
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State

MERGE, DERIVE, PIN, RERANK, RETYPE, BOUND = 0.1, 0.35, 0.45, 0.15, 0.1, 0.1
"""What a repair costs: an agreement of two sizes is likelier than a size that is a number of its own."""

LARGEST_RANK = 6
"""Dimensions that an input may get."""

SMALLEST = 2
"""A size of 1 or 0 is broadcast or summed away: forward runs, and little is verified."""

SQUARE = 1.5
"""What a merge costs that gives a tensor two equal dimensions: a transposed gradient fits a square input."""

TOLD = 0.03
"""What an agreement costs that the message itself asks for."""

LOWER = 0.55
"""What one dimension less costs where an index disagrees."""

MOST_NUMBERS = 8
"""Numbers of a message that are looked at."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
_PLACE = re.compile(r"\b(?:dim(?:ension)?|index|position|argument|operand|#)s? ?-?\d+")
"""Where something is wrong: no size."""
_PAIRS = (
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
    re.compile(r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)"),
    re.compile(r"got input \(\d+\), mat \(\d+x(\d+)\), vec \((\d+)\)"),
    re.compile(r"tensor \[(\d+)\] and src \[(\d+)\]"),
    re.compile(r"Expected size (\d+) but got size (\d+)"),
    re.compile(r"to have (\d+) channels, but got (\d+) channels"),
    re.compile(r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"),
    re.compile(r"first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]"),
    re.compile(r"first two dimensions of batch2 tensor to be: \[(\d+), \d+\] but got: \[(\d+), \d+\]"),
    re.compile(r"Number of indices \((\d+)\) should be equal to source\.size\(dim\): \((\d+)\)"),
    re.compile(r"batch_size \((\d+)\) to match target batch_size \((\d+)\)"),
)
"""Messages that name the two sizes that disagree."""

_RANKS = (
    re.compile(r"expected (\d)D\b", re.IGNORECASE),
    re.compile(r"or (\d)D \(batched\)"),
    re.compile(r"must be a (\d)-?D"),
    re.compile(r"must have (\d) dimensions"),
    re.compile(r"expected (\d), got \d\)"),
    re.compile(r"len\(dims\) = (\d)"),
    re.compile(r"unpack \(expected (\d)"),
    re.compile(r"equation \((\d)\) does not match the number of dimensions"),
    re.compile(r"(\d)[- ]?dimensional (?:input|tensor)", re.IGNORECASE),
)
"""Messages that name the rank they want."""

_RESHAPED = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size \d+")
"""A `view` or `reshape` into parts whose number does not divide a dimension."""

_INDEXED = re.compile(r"Number of indices|index_add|[Ee]xpected index|scatter|gather")
_INDEX = re.compile(
    r"scalar type (?:Long|Int)|indices must be (?:long|int)|dtype int(?:32/int)?64|LongTensor"
    r"|to be (?:Long|int64)|index must be|must be (?:of type )?(?:long|int64)"
    r"|applicable to (?:index|integral) tensor"
)
_BOOL = re.compile(
    r"[Bb]ool(?:ean)?(?:Tensor|[- ]type| tensor| mask)|dtype bool|mask dtype|\(operator.invert\)"
)
_DEEPER = re.compile(
    r"Dimension out of range|tuple index out of range|too many indices|not enough values to unpack"
    r"|list index out of range|Dimension specified as"
)
_SCALAR = re.compile(
    r"only one element tensors|cannot be converted to Scalar|Boolean value of Tensor"
    r"|only be called on tensors with one|only tensors with one element|single element can be converted"
)


_DEFINITE = re.compile(
    r"positive[- ]definite|NotPSD|singular|not invertible|must be symmetric|leading minor", re.IGNORECASE
)
_MODULE = re.compile(
    r"'Tensor' object has no attribute '(forward|parameters|modules|children|named_parameters|state_dict"
    r"|train|eval|training|buffers)'"
)
_FUNCTION = re.compile(r"'(Tensor|int|float)' object is not callable")
_SEVERAL = re.compile(
    r"type 'List\[Tensor\]'|'(float|int)' object is not iterable|must be 2-tuple|expected Tensor as element"
)

A_MODULE = Guess(Kind.CALLABLE, 0.0, found=False, path="torch.nn.Tanh", made=True)
A_FUNCTION = Guess(Kind.CALLABLE, 0.0, found=False, path="torch.tanh")


def repairs(state: State, error: RaisedError) -> Iterator[State]:
    """States to try next, each with its own cost."""
    suspects = _suspects(state, error)
    yield from _by_conditions(state, error)
    yield from _by_type(state, error.message, suspects)
    yield from (_more(s, RETYPE) for s in by_refusal(state, error.message, suspects))
    yield from _by_use(state, error, suspects)
    yield from _by_structure(state, error.message, suspects)
    yield from _by_rank(state, error, suspects)
    yield from _by_bound(state, error, suspects)
    yield from _by_parts(state, error.message, suspects)
    yield from (_more(s, cost) for s, cost in by_unpacking(state, error.message, suspects))
    yield from (_more(s, cost) for s, cost in by_fixed_size(state, error.message, suspects))
    yield from (_more(s, cost) for s, cost in by_split(state, error.message))
    yield from _by_size(state, error.message)
    yield from _by_lower_rank(state, error.message, suspects)


def _suspects(state: State, error: RaisedError) -> list[int]:
    """Positions of the arguments that the failing line names; of all where it names none."""
    for frame in reversed(error.frames):
        words = set(re.findall(r"[A-Za-z_]\w*", frame.source))
        found = [k for k, a in enumerate(state.arguments) if a.name in words]
        if found:
            return found
    return list(range(len(state.arguments)))


def _more(state: State, cost: float) -> State:
    return replace(state, cost=state.cost + cost)


def _by_conditions(state: State, error: RaisedError) -> Iterator[State]:
    for number, changed in enumerate(demands(state, error)):
        yield _more(changed, 0.05 + 0.1 * number)


def _by_type(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    wanted = Kind.BOOL if _BOOL.search(message) else Kind.INDEX if _INDEX.search(message) else None
    if wanted is not None:
        for place in suspects:
            argument = state.arguments[place]
            if argument.guess.kind is Kind.FLOAT or (
                argument.guess.kind is Kind.INDEX and wanted is Kind.BOOL
            ):
                bound = Dim(plus=3) if wanted is Kind.INDEX else None
                changed = replace(argument, guess=Guess(wanted, 0.0, found=False), bound=bound)
                yield _more(state.with_argument(place, changed), RETYPE)
    if _SCALAR.search(message):
        for place in suspects:
            argument = state.arguments[place]
            if argument.is_tensor and argument.dims:
                yield _more(state.with_argument(place, replace(argument, dims=())), RERANK)


def _by_use(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What the code does with an argument says that it is a module, a function, or several tensors."""
    module, function = _MODULE.search(error.message), _FUNCTION.search(error.message)
    wanted = A_MODULE if module else A_FUNCTION if function else None
    for place in suspects:
        argument = state.arguments[place]
        if wanted is not None and argument.guess.kind is Kind.FLOAT:
            yield _more(state.with_argument(place, Argument(argument.name, wanted)), RETYPE)
        elif _SEVERAL.search(error.message) and argument.guess.kind in {Kind.LITERAL, Kind.FLOAT}:
            dims = argument.dims or next((a.dims for a in state.arguments if a.is_tensor and a.dims), ())
            guess = Guess(Kind.LIST, 0.0, found=False)
            yield _more(state.with_argument(place, Argument(argument.name, guess, dims, items=2)), RETYPE)


def _by_structure(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """A factorization that refuses a matrix of any kind takes a positive definite one."""
    for place in suspects if _DEFINITE.search(message) else ():
        argument = state.arguments[place]
        if argument.guess.kind is Kind.FLOAT and len(argument.dims) > 1 and not argument.structure:
            *batch, rows, columns = argument.dims
            changed = state.with_argument(
                place, replace(argument, structure="spd", dims=(*batch, rows, rows))
            )
            # The other arguments go on with the size that is left.
            squared = changed.substituted(columns.symbol, rows) if columns.is_plain else changed
            yield from (_more(s, RETYPE) for s in (squared, changed) if s is not None)


def lower_ranks(state: State) -> Iterator[State]:
    """One tensor at a time with one dimension less, one of its own: the first, the last.

    The first argument at last: it is mostly the one that the others are about.
    """
    for place, argument in reversed(list(enumerate(state.arguments))):
        if argument.is_tensor and len(argument.dims) > 1:
            for number, dims in enumerate(dict.fromkeys((argument.dims[:-1], argument.dims[1:]))):
                changed = state.with_argument(place, replace(argument, dims=dims))
                yield _more(changed, 0.01 * (1 + number) - state.cost)


def _by_lower_rank(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After an index that disagrees with what it is used on: a weight of each entry has fewer dimensions."""
    if not _INDEXED.search(message):
        return
    for place in suspects:
        argument = state.arguments[place]
        if argument.guess.kind is Kind.FLOAT and len(argument.dims) > 1:
            yield _more(state.with_argument(place, replace(argument, dims=argument.dims[:-1])), LOWER)


def _by_rank(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    tensors = [k for k in suspects if state.arguments[k].is_tensor]
    wanted = _wanted_ranks(state, error.message, {len(state.arguments[k].dims) for k in tensors})
    for number, rank in enumerate(dict.fromkeys(r for r in wanted if 0 <= r <= LARGEST_RANK)):
        together = _reranked(state, tensors, rank)
        if together is not None and len(tensors) > 1:
            yield _more(together, RERANK + 0.1 * number)
        for place in tensors:
            alone = _reranked(state, [place], rank)
            if alone is not None:
                yield _more(alone, RERANK + 0.05 + 0.1 * number)


def _wanted_ranks(state: State, message: str, current: set[int]) -> list[int]:
    wanted = [int(m[1]) for pattern in _RANKS for m in pattern.finditer(message)]
    if re.search(r"must be a matrix|a matrix expected|expected a matrix|2-D tensor", message):
        wanted.append(2)
    if re.search(r"must be a vector|1D tensors? expected|expected a vector|to be a vector", message):
        wanted.append(1)
    if _DEEPER.search(message):
        wanted += [r + 1 for r in sorted(current)] + [r + 2 for r in sorted(current)]
    if "same number of dimensions" in message:
        ranks = sorted({len(a.dims) for a in state.arguments if a.is_tensor}, reverse=True)
        wanted += [r for r in ranks if {r} != current]
    if re.search(r"<= 2 dimensions|too many values to unpack", message):
        wanted.append(2)
    return wanted


def _reranked(state: State, places: Sequence[int], rank: int) -> State | None:
    """The same with tensors of another rank; dimensions that they share stay shared."""
    changed, extra = state, tuple[Dim, ...]()
    for place in places:
        argument = changed.arguments[place]
        if len(argument.dims) == rank:
            continue
        if len(argument.dims) > rank:
            dims = argument.dims[len(argument.dims) - rank :]
        else:
            missing = rank - len(argument.dims)
            if len(extra) < missing:
                changed, more = changed.fresh(missing - len(extra))
                extra = (*extra, *more)
            dims = (*argument.dims, *extra[:missing])
        changed = changed.with_argument(place, replace(argument, dims=dims))
    return None if changed is state else changed


def _by_bound(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    message = error.message
    if not re.search(r"out of (?:range|bounds)|[Cc]lass values|smaller than|must be in range", message):
        return
    numbers = [int(n) for n in _NUMBER.findall(message)[:MOST_NUMBERS]]
    dims = list(dict.fromkeys(d for a in state.arguments if a.guess.kind is Kind.FLOAT for d in a.dims))
    values = state.values
    dims.sort(key=lambda d: d.value(values) not in numbers)
    places = [k for k, a in enumerate(state.arguments) if a.guess.kind is Kind.INDEX]
    for place in [k for k in places if k in suspects] or places:
        argument = state.arguments[place]
        for number, bound in enumerate([*dims[:6], Dim(plus=2), Dim(plus=1)]):
            if bound != argument.bound:
                yield _more(state.with_argument(place, replace(argument, bound=bound)), BOUND * (1 + number))
    # A size or an axis that is too large.
    for argument in state.arguments:
        if argument.guess.kind is Kind.SIZE:
            for dim in dims[:4]:
                changed = state.substituted(argument.dims[0].symbol, dim)
                if changed is not None and argument.dims[0] != dim:
                    yield _more(_pinned(changed, argument), PIN)


def _by_size(state: State, message: str) -> Iterator[State]:
    values = state.values
    of_size = {values[s]: s for s in reversed(state.symbols())}
    told = [(int(m[1]), int(m[2])) for p in _PAIRS for m in p.finditer(message)]
    numbers = list(dict.fromkeys(int(n) for n in _NUMBER.findall(_PLACE.sub("", message))))[:MOST_NUMBERS]
    pairs = [(a, b) for k, a in enumerate(numbers) for b in numbers[k + 1 :]]
    ordered = dict.fromkeys([*told, *pairs])
    for place, (a, b) in enumerate(ordered):
        cost = TOLD - MERGE if (a, b) in told else 0.15 + 0.05 * place + 0.5 * bool(told)
        if a in of_size and b in of_size and a != b:
            for first, second in ((a, b), (b, a)):
                merged = state.substituted(of_size[second], Dim(of_size[first]))
                if merged is not None:
                    squared = SQUARE if squares(merged) > squares(state) else 0.0
                    yield _more(merged, MERGE + cost + squared)
                    break
        for live, other in ((a, b), (b, a)):
            if live in of_size and other not in of_size and other >= SMALLEST:
                yield from _derived(state, of_size[live], other, cost)
    for further, cost in (*by_parts(state, told), *by_sums(state, told or pairs)):
        yield _more(further, cost)


def _by_parts(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After `reshape(n, groups, -1)`: a dimension that is a multiple of the number that no dimension has."""
    values = state.values
    sizes = {values[s] for s in state.symbols()}
    for found in _RESHAPED.finditer(message):
        parts = [int(n) for n in found[1].split(",")]
        kept = {p for p in parts if p in sizes}
        dims = dict.fromkeys(
            d
            for k in suspects
            for d in (state.arguments[k].dims if state.arguments[k].is_tensor else ())
            if d.is_plain and d.value(values) not in kept
        )
        for part in [p for p in parts if p >= SMALLEST and p not in kept]:
            for number, dim in enumerate(dims):
                changed = state.substituted(dim.symbol, Dim(dim.symbol, times=part))
                if changed is not None:
                    yield _more(changed, DERIVE + 0.05 * number)


def _derived(state: State, symbol: int, wanted: int, cost: float) -> Iterator[State]:
    """A size that must be a number which no dimension has: it follows from one, or is a constant."""
    expressions = [
        dim
        for other in state.symbols()
        if other != symbol
        for dim in (
            *(Dim(other, times=k) for k in (2, 3, 4)),
            *(Dim(other, over=k) for k in (2,)),
            *(Dim(other, plus=k) for k in (-1, 1, -2, 2)),
        )
        if dim.value(state.values) == wanted
    ]
    owners = [a for a in state.arguments if any(d.symbol == symbol for d in a.dims)]
    for number, dim in enumerate([*expressions, Dim(plus=wanted)]):
        changed = state.substituted(symbol, dim)
        if changed is not None:
            for owner in owners:
                changed = _pinned(changed, owner)
            yield _more(changed, (PIN if dim.symbol < 0 else DERIVE) + cost + 0.05 * number)


def _pinned(state: State, argument: Argument) -> State:
    return replace(state, pinned=state.pinned | {argument.name})
