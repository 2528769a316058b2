"""What an error says about the inputs: one table of what is seen, what to do, and what that costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradverify.model import RaisedError
from gradverify.verifier.infer import kinds, ranks, sizes
from gradverify.verifier.infer.demands import demanded
from gradverify.verifier.infer.sizes import Priced, numbers_in
from gradverify.verifier.infer.state import Dim, Kind, State
from gradverify.verifier.infer.tracing import suspects_of

MOST_BOUNDS = 6
"""Sizes of tensors that are tried as the bound of an index."""

PIN = 0.45
"""What an integer costs that becomes a size of a tensor, as an axis that is out of range does."""

_OUT_OF_RANGE = re.compile(r"out of (?:range|bounds)|[Cc]lass values|smaller than|must be in range")
_SIGNED = re.compile(
    r"non-?negative|positive|negative values|>=? ?0\b|<=? ?0\b|greater than (?:or equal to )?(?:0|zero)",
    re.IGNORECASE,
)
_SHARES = re.compile(
    r"[\[(]0(?:\.0)?, ?1(?:\.0)?[\])]|between (?:0|zero) and (?:1|one)|probabilit", re.IGNORECASE
)
_INDEXED = re.compile(r"Number of indices|index_add|[Ee]xpected index|scatter|gather")
_ELEMENTWISE = re.compile(r"must match the size of tensor|not broadcastable|could not be broadcast")


@dataclass(frozen=True)
class Row:
    """A repair: what it costs, and what each further way that it offers costs besides."""

    cost: float
    step: float
    repair: Callable[[State, str, Sequence[int]], Iterator[State]]
    """(state, message, places of the suspects) -> states in which the error would not have been raised."""
    seen: re.Pattern[str] = re.compile("")
    """What the message holds."""


def _bounds(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """An index is below another size; the suspects, where one of them is an index."""
    found = numbers_in(message)
    dims = list(dict.fromkeys(d for a in state.arguments if a.is_float for d in a.dims))
    dims.sort(key=lambda d: d.value(state.values) not in found)
    indices = state.places(Kind.INDEX)
    for place in [k for k in indices if k in suspects] or indices:
        argument = state.arguments[place]
        for bound in (*dims[:MOST_BOUNDS], Dim(plus=2), Dim(plus=1)):
            if bound != argument.bound:
                yield state.with_argument(place, replace(argument, bound=bound))


def _axes(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """A size or an axis that is too large is a size of a tensor."""
    del message, suspects
    dims = list(dict.fromkeys(d for a in state.arguments if a.is_float for d in a.dims))
    for place in state.places(Kind.SIZE):
        (own,) = state.arguments[place].dims
        for dim in dims:
            changed = state.substituted(own.symbol, dim) if own != dim and own.is_plain else None
            if changed is not None:
                yield changed.with_pinned([state.arguments[place].name])


TABLE = (
    Row(0.1, 0.0, kinds.by_complex),
    Row(0.1, 0.02, kinds.by_type),
    Row(0.15, 0.0, kinds.by_single_number),
    Row(0.1, 0.0, kinds.by_call),
    Row(0.1, 0.0, kinds.by_iteration),
    Row(0.1, 0.02, kinds.by_attribute),
    Row(0.1, 0.05, kinds.by_sizes),
    Row(0.1, 0.0, kinds.by_structure),
    Row(0.15, 0.05, ranks.by_rank),
    Row(0.1, 0.1, _bounds, _OUT_OF_RANGE),
    Row(PIN, 0.0, _axes, _OUT_OF_RANGE),
    Row(0.55, 0.0, lambda state, _, suspects: ranks.without_last(state, suspects), _INDEXED),
)
"""Of sizes see `sizes.py`, of conditions in the source `demands.py`."""

DEMANDED, DOMAIN = 0.05, 0.1
"""What it costs to keep a condition of the author's, and to draw values in the range that is asked for."""


BROADCAST = Row(0.3, 0.02, lambda state, _, suspects: ranks.broadcast(state, suspects), _ELEMENTWISE)
"""Among all else that shapes may be this finds what hides mistakes, so it is for a second search."""


def repairs(state: State, error: RaisedError, further: Sequence[Row] = ()) -> Iterator[State]:
    """States to try next, each with its own cost; by `further` rows as well."""
    suspects, message = suspects_of(state, error), error.message
    if error.deliberate:
        for number, changed in enumerate(demanded(state, error)):
            yield changed.dearer(DEMANDED + 0.1 * number)
        for number, changed in enumerate(_of_domain(state, error, suspects)):
            yield changed.dearer(DOMAIN + 0.05 * number)
    for row in (*TABLE, *further):
        if row.seen.search(message):
            for number, changed in enumerate(row.repair(state, message, suspects)):
                yield changed.dearer(row.cost + row.step * number)
    for several in (sizes.by_reshape, sizes.by_unpacking, sizes.by_fixed_size):
        yield from _priced(several(state, message, suspects))
    yield from _priced(sizes.by_size(state, message))


def _priced(several: Priced) -> Iterator[State]:
    yield from (state.dearer(cost) for state, cost in several if state is not None)


def _of_domain(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What the author refuses for its sign, or for not being a share: all suspects are in that range."""
    said = " ".join((error.message, *(f.source for f in error.frames[-1:])))
    domain = "unit" if _SHARES.search(said) else "positive" if _SIGNED.search(said) else ""
    real = [k for k, a in enumerate(state.arguments) if a.is_real and domain]
    for places in dict.fromkeys((tuple(k for k in suspects if k in real), tuple(real))):
        changed = state
        for place in places:
            changed = changed.with_argument(place, replace(changed.arguments[place], domain=domain))
        if places:
            yield changed


_REFUSED = re.compile(
    r"invalid gradient at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]"
)


@dataclass(frozen=True)
class RefusedGradient:
    """A gradient that the engine refused for its shape."""

    name: str
    """Of the parameter."""
    got: tuple[int, ...]
    expected: tuple[int, ...]


def refused_gradient(message: str, names: Sequence[str]) -> RefusedGradient | None:
    """What `invalid gradient` says; None for every other message."""
    found = _REFUSED.search(message)
    if found is None or int(found[1]) >= len(names):
        return None
    got, expected = (tuple(int(n) for n in found[k].split(",") if n.strip()) for k in (2, 3))
    return RefusedGradient(names[int(found[1])], got, expected)


def unbroadcast(state: State, message: str, names: Sequence[str]) -> State | None:
    """After `invalid gradient`: the input shaped like the gradient that backward returned for it.

    Only a gradient of fewer numbers says that the input was broadcast. One of as many numbers is a mistake
    of backward's, which another shape would hide.
    """
    refused = refused_gradient(message, names)
    place = next((k for k, a in enumerate(state.arguments) if refused and a.name == refused.name), None)
    if refused is None or place is None or math.prod(refused.got) >= math.prod(refused.expected):
        return None
    left, dims = list(state.arguments[place].dims), []
    if len(refused.got) == len(left):
        pairs = zip(refused.got, left, strict=True)
        dims = [Dim(plus=1) if got == 1 else dim for got, dim in pairs]
        return (
            state.with_dims(place, dims) if [d.value(state.values) for d in dims] == [*refused.got] else None
        )
    for size in refused.got:
        dim = next((d for d in left if d.value(state.values) == size), None)
        if dim is None:
            return None
        dims.append(dim)
        left.remove(dim)
    return state.with_dims(place, dims)
