"""What an error says of how many dimensions the inputs have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradverify.verifier.infer.state import Dim, Kind, State

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
