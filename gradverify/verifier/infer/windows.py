"""Windows that cannot slide: a filter of the size of its input gives one output, and no overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradverify.verifier.infer.state import Dim, State
from gradverify.verifier.infer.trial import MOST_JACOBIAN, Caller, Ran, attempt

WINDOWS = (3, 2, 4)
"""Lengths of windows along several dimensions: different ones, so that a transposed window shows."""

SMALLEST = 2
"""Of a window: one entry is no window."""


def with_windows(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a size of its own for each dimension in which one tensor slides over another.

    That a tensor is a window shows in what forward gives: the less there is of it, the more comes out.
    """
    here = _entries(caller, state)
    for place, argument in enumerate(state.arguments if here else ()):
        if not argument.is_float:
            continue
        along = [k for k in range(len(argument.dims)) if _slides(caller, state, here, place, k)]
        for wider in _roomy(state, place, along) if 0 < len(along) <= len(WINDOWS) else ():
            if _entries(caller, wider) > here:
                again = attempt(caller, wider)
                return (wider, again) if isinstance(again, Ran) else (state, ran)
    return state, ran


def _entries(caller: Caller, state: State) -> int:
    """Numbers that forward gives where it runs well; none where it does not."""
    ran = attempt(caller, state)
    good = isinstance(ran, Ran) and ran.finite and ran.connected and ran.jacobian <= MOST_JACOBIAN
    return sum(o.numel() for o in ran.outputs) if isinstance(ran, Ran) and good else 0


def _slides(caller: Caller, state: State, here: int, place: int, along: int) -> bool:
    """Whether forward gives more where a tensor has less of a size that others share."""
    dims = state.arguments[place].dims
    dim = dims[along]
    shared = any(dim in a.dims for k, a in enumerate(state.arguments) if k != place and a.is_float)
    if not (dim.is_plain and shared and dims.count(dim) == 1):
        return False
    shorter, (own,) = _with_own(state, place, [along])
    return _entries(caller, shorter.at({own.symbol: dim.value(state.values) - 1})) > here


def _roomy(state: State, place: int, along: Sequence[int]) -> Iterator[State]:
    """Windows of different lengths, with room for every second entry of theirs, then with less."""
    wider, own = _with_own(state, place, along)
    shared = [state.arguments[place].dims[k] for k in along]
    lengths = WINDOWS[: len(along)]
    for windows, room in (
        (lengths, [2 * n - 1 for n in lengths]),
        (lengths, [n + 1 for n in lengths]),
        ([SMALLEST] * len(along), [SMALLEST + 1 + k for k in range(len(along))]),
    ):
        pairs = [*zip(own, windows, strict=True), *zip(shared, room, strict=True)]
        yield wider.at({dim.symbol: size for dim, size in pairs})


def _with_own(state: State, place: int, along: Sequence[int]) -> tuple[State, tuple[Dim, ...]]:
    """The same with sizes of its own for some dimensions of a tensor."""
    wider, own = state.fresh(len(along))
    for k, dim in zip(along, own, strict=True):
        wider = wider.with_dim(place, k, dim)
    return wider, own
