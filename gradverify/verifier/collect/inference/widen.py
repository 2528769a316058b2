"""From inputs that ran to those that are worth verifying: small sizes, a second size, every choice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import State
from gradverify.verifier.collect.inference.trial import MOST_JACOBIAN, Caller, Ran, attempt

SEVERAL = (2, 3, 4, 5, 6, 7, 8)
"""Sizes where there are more than two: the Jacobian grows with the product of all."""

BASES = ((4, 3, 5, 2, 7, 6, 8), (3, 4, 5, 6, 7, 8, 9), (4, 6, 8, 10, 12, 14, 16), (8, 4, 12, 16, 6, 10, 14))
"""Sizes to verify at, in order of appearance: pairwise different, small; even ones where halves are taken."""

SECOND = (2, 5, 3, 6, 7, 8, 4, 9, 10, 12)
"""Second sizes to try that no other size has."""

MOST_ENTRIES = 20_000
"""Entries of all Jacobians of a sweep, roughly: some seconds of work."""

MOST_SWEPT = 3
"""Sizes that get a second value: two values each make eight combinations, all of which are run here."""


def shrunk(caller: Caller, state: State, ran: Ran) -> State:
    """The same at the smallest sizes it runs at; at its own where it runs at no other.

    Where backward raises at its own, so it must at the smaller ones: that is what is to be told.
    """
    symbols = state.symbols()
    for base in (SEVERAL, *BASES) if len(symbols) > 2 else BASES:
        if len(symbols) <= len(base):
            smaller = state.at(dict(zip(symbols, base, strict=False)))
            if smaller.elements() <= max(state.elements(), 60) and _runs_as(
                caller, smaller, ran, raises=True
            ):
                return smaller
    for symbol in symbols:
        for size in range(2, state.values[symbol]):
            taken = {v for s, v in state.values.items() if s in symbols and s != symbol}
            if size not in taken and _runs_as(caller, state.at({symbol: size}), ran, raises=True):
                state = state.at({symbol: size})
                break
    return state


def second_sizes(caller: Caller, state: State, ran: Ran) -> dict[int, tuple[int, ...]]:
    """For each symbol the sizes to sweep: its own, and where one runs, another.

    A second size is kept only if every combination with the others runs, so that no case of the sweep is
    one that forward refuses.
    """
    sizes: dict[int, tuple[int, ...]] = {s: (state.values[s],) for s in state.symbols()}
    swept, others = 0, [s for s in other_choices(state) if _runs_as(caller, s, ran)]
    for symbol in sorted(sizes, key=lambda s: state.values[s]):
        if swept == MOST_SWEPT or ran.jacobian * 2**swept > MOST_ENTRIES:
            break
        (own,) = sizes[symbol]
        wider = [{**sizes, symbol: (own, size)} for size in second_of(sizes, own)]
        least = _rows(wider[0], symbol, wider[0][symbol][-1]) if wider else []
        if _is_too_large(caller, [state, *others], least):
            continue  # another size would cost a choice that only gives more entries
        # A size that every choice runs at, or else the first ones do: the others are left out.
        for kept in range(len(others), -1, -1):
            those = [state, *others[:kept]]
            good = (w for w in wider if _all_run(caller, those, ran, _rows(w, symbol, w[symbol][-1])))
            found = next(good, None)
            if found is not None:
                sizes, swept = found, swept + 1
                break
    return sizes


def second_of(sizes: Mapping[int, Sequence[int]], own: int) -> list[int]:
    """Second sizes to try for one that is `own`: first one that makes it equal to another in some case.

    Of those, odd ones where it is even and larger ones come first. A size that every other one already takes
    has a new one: with the smallest size first, few of them become smaller, and windows still overlap.
    """
    apart = [values for values in sizes.values() if own not in values]
    shared = sorted({n for values in apart for n in values}, key=lambda n: ((n - own) % 2 == 0, n < own, n))
    taken = {n for values in sizes.values() for n in values}
    return [*shared, *(n for n in SECOND if n not in taken)]


def other_choices(state: State) -> list[State]:
    """The same with each further choice of a literal in turn."""
    return [
        state.with_argument(place, replace(a, guess=replace(a.guess, choices=(choice,))))
        for place, a in enumerate(state.arguments)
        if a.guess.kind is Kind.LITERAL
        for choice in a.guess.choices[1:]
    ]


def _all_run(caller: Caller, those: Sequence[State], ran: Ran, at: Sequence[Mapping[int, int]]) -> bool:
    return all(_runs_as(caller, state.at(row), ran) for state in those for row in at)


def _is_too_large(caller: Caller, those: Sequence[State], at: Sequence[Mapping[int, int]]) -> bool:
    """Whether forward takes it, and its Jacobian is more than anybody waits for."""
    ran = (attempt(caller, state.at(row)) for state in those for row in at)
    return any(isinstance(r, Ran) and r.jacobian > MOST_JACOBIAN for r in ran)


def fixed_sizes(caller: Caller, state: State, ran: Ran, sizes: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """Symbols whose one size is the only one that runs: four numbers may be a quaternion, not any four."""
    alone = [s for s, values in sizes.items() if len(values) == 1]
    return frozenset(
        s
        for s in alone
        if not any(_runs_as(caller, state.at({s: size}), ran) for size in SECOND if size != state.values[s])
    )


def rows(sizes: Mapping[int, Sequence[int]]) -> list[dict[int, int]]:
    """Every combination of sizes."""
    return [dict(zip(sizes, row, strict=True)) for row in itertools.product(*sizes.values())]


def _rows(sizes: dict[int, tuple[int, ...]], symbol: int, size: int) -> list[dict[int, int]]:
    return [row for row in rows(sizes) if row[symbol] == size]


def runs_at_draws(caller: Caller, state: State, ran: Ran, draws: Sequence[int] = (0, 1)) -> bool:
    """Whether it runs at other values too."""
    return all(_runs_as(caller, state, ran, draw) for draw in draws)


def _runs_as(caller: Caller, state: State, ran: Ran, draw: int = 0, *, raises: bool = False) -> bool:
    """Whether forward accepts it, and what comes back is as good as before; with `raises`, no better."""
    result = attempt(caller, state, draw=draw)
    if isinstance(result, RaisedError):
        return False
    return (
        (result.finite or not ran.finite)
        and (result.connected or not ran.connected)
        and (result.backward is None or ran.backward is not None)
        and not (raises and ran.backward is not None and result.backward is None)
        and result.jacobian <= max(MOST_JACOBIAN, ran.jacobian if draw else 0)
    )
