"""Two tensors that were guessed to agree in a size, although nothing demands it: the size is two, too.

A gradient that takes the length of one input for that of another is right wherever they are equal. That other
lengths are meant is itself a guess: what is wrong at those alone is no failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State
from gradverify.verifier.collect.inference.trial import Caller, works
from gradverify.verifier.collect.inference.widen import MOST_SWEPT, SECOND, other_choices, rows


@dataclass(frozen=True)
class Apart:
    """Inputs of which some have a size of their own."""

    state: State
    sizes: Mapping[int, tuple[int, ...]]
    """Those to sweep, by symbol."""
    pair: tuple[int, int]
    """The size that was one, and what it is for some tensors by now."""


def apart(caller: Caller, state: State, sizes: Mapping[int, tuple[int, ...]]) -> Apart | None:
    """The same with a size that two tensors shared as two sizes, equal and not; None where that is refused.

    Both must take it, smaller and larger: what reads only as much as there is of both is about one size.
    """
    if state.observed or sum(len(values) > 1 for values in sizes.values()) > MOST_SWEPT:
        return None
    for symbol in state.symbols():
        for places in _groups(state, symbol):
            found = _separated(caller, state, sizes, symbol, places)
            if found is not None:
                return found
    return None


def _groups(state: State, symbol: int) -> Iterator[tuple[int, ...]]:
    """Places of tensors that may have a size of their own: each but the first, then all after one."""
    holders = [k for k, a in enumerate(state.arguments) if any(symbol in d.symbols for d in a.sizes)]
    arguments = [state.arguments[k] for k in holders]
    plain = all(d.is_plain for a in arguments for d in a.sizes if symbol in d.symbols)
    if not plain or any(a.guess.kind is not Kind.FLOAT or a.value is not None for a in arguments):
        return
    yield from ((k,) for k in holders[1:])
    yield from (tuple(holders[k:]) for k in range(1, len(holders) - 1))


def _separated(
    caller: Caller,
    state: State,
    sizes: Mapping[int, tuple[int, ...]],
    symbol: int,
    places: Sequence[int],
) -> Apart | None:
    wider, (own,) = state.fresh(1)
    for place in places:
        argument = wider.arguments[place]
        dims = tuple(own if d == Dim(symbol) else d for d in argument.dims)
        wider = wider.with_argument(place, replace(argument, dims=dims))
    shared, *_ = sizes[symbol]
    those = [wider, *other_choices(wider)]
    if not all(works(caller, wider.at({own.symbol: n})) for n in (shared + 1, max(2, shared - 1))):
        return None
    taken = {n for values in sizes.values() for n in values}
    for size in (n for n in SECOND if n not in taken):
        swept = {**sizes, own.symbol: (shared, size)}
        if all(works(caller, one.at(row)) for row in rows(swept) for one in those):
            return Apart(wider, swept, (symbol, own.symbol))
    return None
