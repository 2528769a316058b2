"""Two tensors that were guessed to agree in a size, although nothing demands it: the size is two, too.

A gradient that takes the length of one input for that of another is right wherever they are equal. That other
lengths are meant is itself a guess: what is wrong at those alone is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State
from gradverify.verifier.collect.inference.trial import Caller, works
from gradverify.verifier.collect.inference.widen import MOST_SWEPT, other_choices, rows, second_of

MULTIPLES = (4, 2)
"""What two sizes are of which forward takes no others than multiples of one another."""


@dataclass(frozen=True)
class Apart:
    """Inputs of which some have a size of their own."""

    state: State
    sizes: Mapping[int, tuple[int, ...]]
    """Those to sweep, by symbol."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Of each size that was one: the size, and what it is for some tensors by now."""


_Splitting = Callable[[Caller, Apart, Dim, Dim], Apart | None]
"""(target, inputs with a second size in the place of another for some tensors, both) -> with their values."""


def apart(caller: Caller, state: State, sizes: Mapping[int, tuple[int, ...]]) -> Apart:
    """The same with a size that two tensors shared as two sizes, equal and not, wherever forward takes that.

    First of any sizes, then of multiples, as heads are that share keys in groups.
    """
    found = Apart(state, sizes)
    for splitting in (_of_any_sizes, _of_multiples):
        found = next(_split(caller, found, splitting), found)
    return found


def _split(caller: Caller, given: Apart, splitting: _Splitting) -> Iterator[Apart]:
    if given.state.observed or sum(len(values) > 1 for values in given.sizes.values()) > MOST_SWEPT:
        return
    for symbol in given.state.symbols():
        for places in _groups(given.state, symbol):
            wider, (own,) = given.state.fresh(1)
            for place in places:
                argument = wider.arguments[place]
                dims = tuple(own if d == Dim(symbol) else d for d in argument.dims)
                wider = wider.with_argument(place, replace(argument, dims=dims))
            found = splitting(caller, replace(given, state=wider), Dim(symbol), own)
            if found is not None:
                yield replace(found, pairs=(*given.pairs, (symbol, own.symbol)))


def _groups(state: State, symbol: int) -> Iterator[tuple[int, ...]]:
    """Places of tensors that may have a size of their own: each but the first, then all after one."""
    holders = [k for k, a in enumerate(state.arguments) if any(symbol in d.symbols for d in a.sizes)]
    arguments = [state.arguments[k] for k in holders]
    plain = all(d.is_plain for a in arguments for d in a.sizes if symbol in d.symbols)
    if not plain or any(a.guess.kind is not Kind.FLOAT or a.value is not None for a in arguments):
        return
    yield from ((k,) for k in holders[1:])
    yield from (tuple(holders[k:]) for k in range(1, len(holders) - 1))


def _of_any_sizes(caller: Caller, given: Apart, first: Dim, own: Dim) -> Apart | None:
    """Both must take it, smaller and larger: what reads as much as there is of both is about one size."""
    wider, sizes = given.state, given.sizes
    shared, *_ = sizes[first.symbol]
    if not all(works(caller, wider.at({own.symbol: n})) for n in (shared + 1, max(2, shared - 1))):
        return None
    several = ({**sizes, own.symbol: (shared, n)} for n in second_of(sizes, shared))
    swept = next((s for s in several if _all_work(caller, wider, s)), None)
    return None if swept is None else Apart(wider, swept)


def _of_multiples(caller: Caller, given: Apart, first: Dim, own: Dim) -> Apart | None:
    """One of them twice the other, and both alike."""
    for values in (MULTIPLES, MULTIPLES[::-1]):
        swept = {**given.sizes, first.symbol: values[:1], own.symbol: values}
        if _all_work(caller, given.state, swept):
            return Apart(given.state.at({first.symbol: values[0], own.symbol: values[0]}), swept)
    return None


def _all_work(caller: Caller, state: State, sizes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether forward and backward take every combination of sizes, the last ones first, and of choices."""
    those = [state, *other_choices(state)]
    return all(works(caller, one.at(row)) for row in reversed(rows(sizes)) for one in those)
