"""Upper bounds of integer tensors: the rows of a table that they read, or a count that is passed.

The search takes the first bound that runs, which may be the size of something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.trial import Caller, Ran, attempt

FAR = 60
"""A count, and a bound, beyond every size that is tried."""


def with_index_bounds(caller: Caller, state: State, ran: Ran, tables: Iterable[tuple[str, str]]) -> State:
    """The inputs with indices below what forward reads with them, where it accepts that.

    `tables` are the pairs of names of `table[index]` in the source.
    """
    if not ran.is_whole:
        return state
    places = {a.name: k for k, a in enumerate(state.arguments)}
    for table, reading in tables:
        if {table, reading} <= places.keys():
            state = _below_rows(caller, state, places[table], places[reading])
    indices = [k for k, a in enumerate(state.arguments) if _has_bound(a)]
    counts = [k for k, a in enumerate(state.arguments) if _is_count(a)]
    for index in indices:
        found = (_below_count(caller, state, count, index) for count in counts)
        state = next((one for one in found if one is not None), state)
    return state


def _has_bound(argument: Argument) -> bool:
    return argument.guess.kind is Kind.INDEX and argument.bound is not None and not argument.structure


def _is_count(argument: Argument) -> bool:
    """Whether it is an integer that was made up."""
    guess = argument.guess
    return guess.kind is Kind.LITERAL and not guess.found and type(guess.choices[0]) is int


def _below_rows(caller: Caller, state: State, table: int, index: int) -> State:
    """With rows of their own, or as many as the index has values already."""
    read, reading = state.arguments[table], state.arguments[index]
    plain = read.is_float and bool(read.dims) and read.dims[0].is_plain
    if not plain or not _has_bound(reading) or read.dims[0] == reading.bound:
        return state
    fresh, (rows,) = state.fresh(1)
    ways = [_with_bound(fresh.with_dim(table, 0, rows), index, rows)]
    if reading.bound is not None and reading.bound.is_plain:
        ways.append(state.with_dim(table, 0, reading.bound))
    return next((way for way in ways if _runs(caller, way)), state)


def _below_count(caller: Caller, state: State, count: int, index: int) -> State | None:
    """With an index below a count, if only a larger count takes a larger index; else None."""
    fresh, (size,) = state.fresh(1)
    argument = fresh.arguments[count]
    # What it counts is known then: it is no guess any more.
    as_size = replace(argument, guess=Guess(Kind.SIZE, argument.guess.cost, found=True)).with_dims([size])
    sized = fresh.with_argument(count, as_size)
    below, past = _with_bound(sized, index, size), _with_bound(sized, index, Dim(plus=FAR))
    follows = _runs(caller, below) and _runs(caller, below.at({size.symbol: FAR}))
    return below if follows and not _runs(caller, past) else None


def _with_bound(state: State, index: int, bound: Dim) -> State:
    return state.with_argument(index, replace(state.arguments[index], bound=bound))


def _runs(caller: Caller, state: State) -> bool:
    result = attempt(caller, state)
    return isinstance(result, Ran) and result.is_whole
