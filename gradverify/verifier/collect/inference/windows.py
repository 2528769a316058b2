"""Windows that were guessed as large as what they slide over: smaller ones, with room to slide.

A filter of its input's own size gives one output, where strides, dilations and flips say nothing. That a
tensor is a window shows in what forward gives: the less there is of it, the more comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State
from gradverify.verifier.collect.inference.trial import MOST_JACOBIAN, Caller, Ran, attempt

LENGTHS = (3, 2, 4)
"""Of windows along several dimensions: different ones, so that a transposed window shows."""

SMALLEST = 2
"""Of a window: one entry is no window."""


def with_windows(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a size of its own for each dimension in which one tensor slides over another."""
    here = None if state.observed else _run(caller, state)
    if here is None:
        return state, ran
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is not Kind.FLOAT or argument.value is not None or argument.parts:
            continue
        along = [k for k in range(len(argument.dims)) if _slides(caller, state, here, place, k)]
        for wider in _roomy(state, place, along):
            again = _run(caller, wider)
            if again is not None and _elements(again) > _elements(here):
                return wider, again
    return state, ran


def _slides(caller: Caller, state: State, ran: Ran, place: int, along: int) -> bool:
    """Whether forward gives more where a tensor has less of a size that others share."""
    dims = state.arguments[place].dims
    dim = dims[along]
    shared = any(
        dim in a.dims for k, a in enumerate(state.arguments) if k != place and a.guess.kind is Kind.FLOAT
    )
    if not (dim.is_plain and shared and dims.count(dim) == 1):
        return False
    shorter, own = _with_own(state, place, [along])
    again = _run(caller, shorter.at({own[0].symbol: dim.value(state.values) - 1}))
    return again is not None and _elements(again) > _elements(ran)


def _roomy(state: State, place: int, along: Sequence[int]) -> Iterator[State]:
    """Windows of different lengths, with room for every second entry of theirs, then with less."""
    if not along or len(along) > len(LENGTHS):
        return
    wider, own = _with_own(state, place, along)
    shared = [state.arguments[place].dims[k] for k in along]
    lengths = LENGTHS[: len(along)]
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
    argument = wider.arguments[place]
    dims = list(argument.dims)
    for k, dim in zip(along, own, strict=True):
        dims[k] = dim
    return wider.with_argument(place, replace(argument, dims=tuple(dims))), own


def _run(caller: Caller, state: State) -> Ran | None:
    ran = attempt(caller, state)
    good = isinstance(ran, Ran) and ran.finite and ran.connected and ran.jacobian <= MOST_JACOBIAN
    return ran if good and isinstance(ran, Ran) else None


def _elements(ran: Ran) -> int:
    return sum(o.numel() for o in ran.outputs)
