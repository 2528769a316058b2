"""What an error says of how many dimensions the inputs have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State, dearer

RERANK = 0.15
"""What another number of dimensions costs."""

LARGEST_RANK = 6
"""Dimensions that an input may get."""

LOWER = 0.55
"""What one dimension less costs where an index disagrees."""

_RANKS = (
    re.compile(r"expected (\d)-?D\b", re.IGNORECASE),
    re.compile(r"or (\d)D \(batched\)"),
    re.compile(r"(?:must|should|has to) be (?:an? )?(\d)-?D\b", re.IGNORECASE),
    re.compile(r"must have (\d) dimensions"),
    re.compile(r"expected (\d), got \d\)"),
    re.compile(r"len\(dims\) = (\d)"),
    re.compile(r"unpack \(expected (\d)"),
    re.compile(r"equation \((\d)\) does not match the number of dimensions"),
    re.compile(r"(\d)[- ]?dimensional (?:input|tensor)", re.IGNORECASE),
)
"""Messages that name the rank they want."""

BROADCAST = 0.3
"""What one input costs that is a number, or has a dimension less: more than that two sizes agree."""

FEWER = 0.4
"""What one dimension less costs where nothing is said of dimensions."""

OPAQUE = frozenset({"TypingError", "CompilationError"})
"""Exceptions of compilers: what they say is of their own types."""

_ELEMENTWISE = re.compile(r"must match the size of tensor|not broadcastable|could not be broadcast")
_MATRIX = re.compile(r"must be a matrix|a matrix expected|expected a matrix|2-D tensor")
_VECTOR = re.compile(r"must be a vector|1D tensors? expected|expected a vector|(?:supposed )?to be a vector")
_INDEXED = re.compile(r"Number of indices|index_add|[Ee]xpected index|scatter|gather")
_DEEPER = re.compile(
    r"Dimension out of range|tuple index out of range|too many indices|not enough values to unpack"
    r"|list index out of range|Dimension specified as"
)


_OF_AXES = re.compile(r"Dimension out of range \(expected to be in range of \[-?\d+, \d+\], but got [1-5]\)")
"""An axis that is a number of the author's: so many dimensions, and one more, are meant."""


def lower_ranks(state: State) -> Iterator[State]:
    """One tensor at a time with one dimension less, one of its own: the first, the last.

    The first argument at last: it is mostly the one that the others are about.
    """
    for place, argument in reversed(list(enumerate(state.arguments))):
        if argument.is_tensor and len(argument.dims) > 1:
            for number, dims in enumerate(dict.fromkeys((argument.dims[:-1], argument.dims[1:]))):
                changed = state.with_argument(place, replace(argument, dims=dims))
                yield dearer(changed, 0.01 * (1 + number) - state.cost)


def by_lower_rank(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After an index that disagrees with what it is used on: a weight of each entry has fewer dimensions."""
    if not _INDEXED.search(message):
        return
    for place in suspects:
        argument = state.arguments[place]
        if argument.guess.kind is Kind.FLOAT and len(argument.dims) > 1:
            yield dearer(state.with_argument(place, replace(argument, dims=argument.dims[:-1])), LOWER)


def by_broadcast(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After two shapes that do not go together: one of several suspects is a number, or one of each row."""
    several = [k for k in suspects if state.arguments[k].guess.kind is Kind.FLOAT and state.arguments[k].dims]
    if len(several) < 2 or not _ELEMENTWISE.search(message):
        return
    for number, place in enumerate(reversed(several)):
        argument = state.arguments[place]
        for dims in dict.fromkeys((argument.dims[:-1], ())):
            changed = state.with_argument(place, replace(argument, dims=dims))
            yield dearer(changed, BROADCAST + 0.02 * number)


def by_fewer(state: State, error: RaisedError) -> Iterator[State]:
    """After an error that says nothing of inputs: one dimension less for one tensor, or for all but one."""
    if error.message.strip() and error.type not in OPAQUE:
        return
    places = [k for k, a in enumerate(state.arguments) if a.guess.kind is Kind.FLOAT and a.dims]
    for number, place in enumerate(reversed(places)):
        yield dearer(_without_last(state, [place]), FEWER + 0.02 * number)
    if len(places) > 2:
        yield dearer(_without_last(state, places[1:]), FEWER)


def _without_last(state: State, places: Sequence[int]) -> State:
    for place in places:
        argument = state.arguments[place]
        state = state.with_argument(place, replace(argument, dims=argument.dims[:-1]))
    return state


def by_rank(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """States in which the `suspects` have the dimensions that the message asks for, all of them or one."""
    tensors = [k for k in suspects if state.arguments[k].is_tensor]
    wanted = _wanted_ranks(state, error.message, {len(state.arguments[k].dims) for k in tensors})
    for number, rank in enumerate(dict.fromkeys(r for r in wanted if 0 <= r <= LARGEST_RANK)):
        together = _reranked(state, tensors, rank)
        if together is not None and len(tensors) > 1:
            yield dearer(together, RERANK + 0.1 * number)
        indices = [k for k in tensors if state.arguments[k].guess.kind is Kind.INDEX]
        alike = _reranked(state, indices, rank) if 1 < len(indices) < len(tensors) else None
        if alike is not None:  # two ends of edges, rows and columns of entries
            yield dearer(alike, RERANK + 0.1 * number)
        for place in tensors:
            alone = _reranked(state, [place], rank)
            if alone is not None:
                yield dearer(alone, RERANK + 0.05 + 0.1 * number)


def names_rank(message: str) -> bool:
    """Whether a message says how many dimensions it wants, and not only that there are too few."""
    of_gradients = "number of gradients" in message  # which are counted, too
    return not of_gradients and any(p.search(message) for p in (*_RANKS, _MATRIX, _VECTOR, _OF_AXES))


def _wanted_ranks(state: State, message: str, current: set[int]) -> list[int]:
    wanted = [int(m[1]) for pattern in _RANKS for m in pattern.finditer(message)]
    wanted += [2] if _MATRIX.search(message) else []
    wanted += [1] if _VECTOR.search(message) else []
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
