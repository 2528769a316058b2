"""From inputs that ran to those worth verifying: small sizes, a second size of each, pairs distinguished."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradverify.model import RaisedError
from gradverify.verifier.infer.state import Dim, Kind, State
from gradverify.verifier.infer.trial import MOST_JACOBIAN, Caller, Ran, attempt, works

SEVERAL = (2, 3, 4, 5, 6, 7, 8)
"""Sizes where there are more than two: the Jacobian grows with the product of all."""

BASES = ((4, 3, 5, 2, 7, 6, 8), (3, 4, 5, 6, 7, 8, 9), (4, 6, 8, 10, 12, 14, 16), (8, 4, 12, 16, 6, 10, 14))
"""Sizes to verify at, in order of appearance: pairwise different, small; even ones where halves are taken."""

LEAST_ELEMENTS = 60
"""Numbers in the arguments up to which no smaller inputs are needed."""

SECOND = (2, 5, 3, 6, 7, 8, 4, 9, 10, 12)
"""Second sizes to try that no other size has."""

MULTIPLES = (4, 2)
"""What two sizes are of which forward takes no others than multiples of one another."""

WINDOWS = (3, 2, 4)
"""Lengths of windows along several dimensions: different ones, so that a transposed window shows."""

MOST_ENTRIES = 20_000
"""Entries of all Jacobians of a sweep, roughly: some seconds of work."""

MOST_SWEPT = 3
"""Sizes that get a second value: two values each make eight combinations, all of which are run here."""

Sizes = Mapping[int, tuple[int, ...]]
"""Those to sweep, by symbol."""


@dataclass(frozen=True)
class Sweeping:
    """A target, and how the inputs ran that were found for it."""

    caller: Caller
    ran: Ran
    avoided: list[tuple[State, RaisedError]] = field(default_factory=list)
    """Inputs that forward accepted on the way, and what backward raised there."""

    def runs(self, state: State, *, raises: bool = False) -> bool:
        """Whether forward accepts it, and what comes back is as good as before; with `raises`, no better."""
        result, ran = attempt(self.caller, state), self.ran
        if isinstance(result, RaisedError):
            return False
        if ran.is_whole and result.fails_in_backward and result.backward is not None:
            self.avoided.append((state, result.backward))
        return (
            (result.finite or not ran.finite)
            and (result.connected or not ran.connected)
            and (result.backward is None or ran.backward is not None)
            and not (raises and ran.backward is not None and result.backward is None)
            and result.jacobian <= MOST_JACOBIAN
        )

    def all_run(self, those: Sequence[State], at: Sequence[Mapping[int, int]]) -> bool:
        """Whether all of several states run at all of several sizes."""
        return all(self.runs(state.at(row)) for state in those for row in at)

    def shrunk(self, state: State) -> State:
        """The same at the smallest sizes it runs at; at its own where it runs at no other.

        Where backward raises at its own, so it must at the smaller ones: that is what is to be reported.
        """
        symbols = state.symbols()
        most = max(state.elements(), LEAST_ELEMENTS)
        for base in (SEVERAL, *BASES) if len(symbols) > 2 else BASES:
            smaller = state.at(dict(zip(symbols, base, strict=False)))
            if len(symbols) <= len(base) and smaller.elements() <= most and self.runs(smaller, raises=True):
                return smaller
        for symbol in symbols:
            taken = {state.values[s] for s in symbols if s != symbol}
            for size in (n for n in range(2, state.values[symbol]) if n not in taken):
                if self.runs(state.at({symbol: size}), raises=True):
                    state = state.at({symbol: size})
                    break
        return state

    def second_sizes(self, state: State) -> Sizes:
        """For each symbol the sizes to sweep: its own, and where one runs, another.

        A second size is kept only if every combination with the others runs, so that no case of the sweep is
        one that forward refuses.
        """
        sizes: dict[int, tuple[int, ...]] = {s: (state.values[s],) for s in state.symbols()}
        swept, choices = 0, [(s, few) for s, few in _further_choices(state) if self.runs(s)]
        others, few = [s for s, _ in choices], [few for _, few in choices]
        for symbol in sorted(sizes, key=lambda s: state.values[s]):
            if swept == MOST_SWEPT or self.ran.jacobian * 2**swept > MOST_ENTRIES:
                break
            (own,) = sizes[symbol]
            wider = [{**sizes, symbol: (own, size)} for size in _second_of(sizes, own)]
            if wider and self._is_too_large([state, *others], _new_rows(wider[0], symbol)):
                continue  # another size would cost a choice that only gives more entries
            # A size that every choice runs at, or else the first ones do, and those of an option with few
            # values: the others are left out.
            for kept in range(len(others), -1, -1):
                those = [state, *others[:kept], *itertools.compress(others[kept:], few[kept:])]
                found = next((w for w in wider if self.all_run(those, _new_rows(w, symbol))), None)
                if found is not None:
                    sizes, swept = found, swept + 1
                    break
        return sizes

    def _is_too_large(self, those: Sequence[State], at: Sequence[Mapping[int, int]]) -> bool:
        """Whether forward takes it, and its Jacobian is more than anybody waits for."""
        ran = (attempt(self.caller, state.at(row)) for state in those for row in at)
        return any(isinstance(r, Ran) and r.jacobian > MOST_JACOBIAN for r in ran)

    def fixed_sizes(self, state: State, sizes: Sizes) -> frozenset[int]:
        """Symbols whose one size is the only one that runs: four numbers may be a quaternion alone."""
        alone = (s for s, values in sizes.items() if len(values) == 1)
        others = {s: [n for n in SECOND if n != state.values[s]] for s in alone}
        return frozenset(s for s, ns in others.items() if not any(self.runs(state.at({s: n})) for n in ns))


def with_windows(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a size of its own for each dimension in which one tensor slides over another.

    That a tensor is a window shows in what forward gives: the less there is of it, the more comes out. One of
    its input's own size gives one output, where strides, dilations and flips say nothing.
    """
    here = _given(caller, state)
    for place, argument in enumerate(state.arguments if here else ()):
        windows = iter(WINDOWS)
        for along, dim in enumerate(argument.dims if argument.is_float and argument.value is None else ()):
            others = (a for k, a in enumerate(state.arguments) if k != place and a.is_float)
            if not dim.is_plain or argument.dims.count(dim) > 1 or not any(dim in a.dims for a in others):
                continue
            wider, (own,) = state.fresh(1)
            wider = wider.with_dim(place, along, own)
            if _given(caller, wider.at({own.symbol: dim.value(state.values) - 1})) <= here:
                continue
            window = next(windows, WINDOWS[-1])
            for room in (2 * window - 1, window + 1):  # for every second entry of it, or for less
                roomy = wider.at({own.symbol: window, dim.symbol: room})
                again, more = attempt(caller, roomy), _given(caller, roomy)
                if more > here and isinstance(again, Ran):
                    state, ran, here = roomy, again, more
                    break
    return state, ran


def _given(caller: Caller, state: State) -> int:
    """Numbers that forward gives where it runs well; none where it does not."""
    ran = attempt(caller, state)
    good = isinstance(ran, Ran) and ran.finite and ran.connected and ran.jacobian <= MOST_JACOBIAN
    return sum(o.numel() for o in ran.outputs) if isinstance(ran, Ran) and good else 0


def _second_of(sizes: Sizes, own: int) -> list[int]:
    """Second sizes to try for one that is `own`: first one that makes it equal to another in some case.

    Of those, odd ones where it is even and larger ones come first. A size that every other one already takes
    has a new one: with the smallest size first, few of them become smaller, and windows still overlap; or
    failing that one that others have.
    """
    apart = [values for values in sizes.values() if own not in values]
    shared = sorted({n for values in apart for n in values}, key=lambda n: ((n - own) % 2 == 0, n < own, n))
    taken = {n for values in sizes.values() for n in values}
    return [*shared, *sorted((n for n in SECOND if n not in (own, *shared)), key=taken.__contains__)]


def other_choices(state: State) -> list[State]:
    """The same with each further choice of a literal in turn."""
    return [changed for changed, _ in _further_choices(state)]


def _further_choices(state: State) -> list[tuple[State, bool]]:
    """(the same with a further choice, whether it is one of an option that has few values)."""
    return [
        (
            state.with_argument(place, replace(a, guess=replace(a.guess, choices=(choice,)))),
            isinstance(choice, bool | str),
        )
        for place, a in enumerate(state.arguments)
        if a.guess.kind is Kind.LITERAL
        for choice in a.guess.choices[1:]
    ]


def rows(sizes: Sizes) -> list[dict[int, int]]:
    """Every combination of sizes."""
    return [dict(zip(sizes, row, strict=True)) for row in itertools.product(*sizes.values())]


def _new_rows(sizes: Sizes, symbol: int) -> list[dict[int, int]]:
    return [row for row in rows(sizes) if row[symbol] == sizes[symbol][-1]]


@dataclass(frozen=True)
class Apart:
    """Inputs of which some have a size of their own, although nothing demands it.

    A gradient that takes the length of one input for that of another is right wherever they are equal. That
    other lengths are meant is itself a guess: what is wrong at those alone is no failure.
    """

    state: State
    sizes: Sizes
    pairs: tuple[tuple[int, int], ...] = ()
    """Of each size that was one: the size, and what it is for some tensors by now."""


def apart(caller: Caller, state: State, sizes: Sizes) -> Apart:
    """The same with a size that two tensors shared as two sizes, equal and not, wherever forward takes that.

    First of any sizes, then of multiples, as heads are that share keys in groups.
    """
    found = Apart(state, sizes)
    if caller.unchecked:
        return found
    for splitting in (_of_any_sizes, _of_multiples):
        split = (splitting(caller, *one) for one in _split(found))
        found = next(filter(None, split), found)
    return found


def _split(given: Apart) -> Iterator[tuple[Apart, int, int]]:
    """(inputs with a second size in the place of another for some tensors, both)."""
    if sum(len(values) > 1 for values in given.sizes.values()) > MOST_SWEPT:
        return
    for symbol in (s for s in given.state.symbols() if s not in given.state.named):
        for places in _groups(given.state, symbol):
            wider, (own,) = given.state.fresh(1)
            for place in places:
                dims = wider.arguments[place].dims
                wider = wider.with_dims(place, (own if d == Dim(symbol) else d for d in dims))
            pairs = (*given.pairs, (symbol, own.symbol))
            yield replace(given, state=wider, pairs=pairs), symbol, own.symbol


def _groups(state: State, symbol: int) -> Iterator[tuple[int, ...]]:
    """Places of tensors that may have a size of their own: each but the first, then all after one."""
    holders = [k for k, a in enumerate(state.arguments) if any(symbol in d.symbols for d in a.sizes)]
    arguments = [state.arguments[k] for k in holders]
    plain = all(d.is_plain for a in arguments for d in a.sizes if symbol in d.symbols)
    if plain and all(a.is_float and a.value is None for a in arguments):
        yield from ((k,) for k in holders[1:])
        yield from (tuple(holders[k:]) for k in range(1, len(holders) - 1))


def _of_any_sizes(caller: Caller, given: Apart, first: int, own: int) -> Apart | None:
    """Both must take it, smaller and larger: what reads as much as there is of both is about one size."""
    wider, sizes = given.state, given.sizes
    shared, *_ = sizes[first]
    if not all(works(caller, wider.at({own: n})) for n in (shared + 1, max(2, shared - 1))):
        return None
    several = ({**sizes, own: (shared, n)} for n in _second_of(sizes, shared))
    swept = next((s for s in several if _all_work(caller, wider, s)), None)
    return None if swept is None else replace(given, sizes=swept)


def _of_multiples(caller: Caller, given: Apart, first: int, own: int) -> Apart | None:
    """One of them twice the other, and both alike; one that is parted from another already stays as it is."""
    parted = any(first in pair for pair in given.pairs[:-1])
    for values in (MULTIPLES, MULTIPLES[::-1]):
        if parted and values[0] != given.sizes[first][0]:
            continue
        swept = {**given.sizes, first: values[:1], own: values}
        if _all_work(caller, given.state, swept):
            return replace(given, state=given.state.at({first: values[0], own: values[0]}), sizes=swept)
    return None


def _all_work(caller: Caller, state: State, sizes: Sizes) -> bool:
    """Whether forward and backward take every combination of sizes, the last ones first, and of choices."""
    those = [state, *other_choices(state)]
    return all(works(caller, one.at(row)) for row in reversed(rows(sizes)) for one in those)
