"""Parameters with a default: the path that another value takes, which would else stay unverified.

A default always runs, and often goes round a part of the code: a stride that is the size of the window, a
padding of 0, a flag that is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from gradverify.model import Nested, RaisedError
from gradverify.verifier.collect.inference.candidates import FACTORS, Kind, looks_real
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.shapes import Argument, State
from gradverify.verifier.collect.inference.trial import MOST_JACOBIAN, Caller, Ran, attempt

MOST_NAMED = 4
"""Other strings or numbers of one parameter that its source names."""

ROOM = (6, 9, 12, 16)
"""Sizes to try where a number that the source names asks for more entries, as of coefficients."""

MOST_VARIED = 6
"""Parameters whose default is varied: each makes more cases, and its values are invented."""


def with_other_values(caller: Caller, state: State, facts: Mapping[str, Facts]) -> State:
    """The same with a second value for the parameters that are left to a default, where forward takes one."""
    varied = 0
    for place, argument in enumerate(state.arguments):
        known = facts.get(argument.name, Facts())
        is_default, is_guessed = _is_default(argument, caller), _is_guessed(argument)
        if varied == MOST_VARIED or not (is_default or is_guessed or _has_other_paths(argument, known)):
            continue
        default = argument.guess.choices[0]
        # Each string or number of the source names a path of its own; of other numbers one is enough.
        named = tuple(_named(default, known))
        if is_guessed:
            state = _roomier(caller, state, place, named)
        taken = tuple(islice((v for v in named if is_taken(caller, state, place, v)), MOST_NAMED))
        others: Iterator[Nested] = iter(())
        if is_default and not taken:
            others = _others(default, argument.name, known)
        elif is_guessed and not is_default:
            others = _beside(default, taken)
        # Twice nothing is nothing: that is the default again, and no other value.
        taken += tuple(islice((v for v in others if v != default and is_taken(caller, state, place, v)), 1))
        if taken:
            state = with_choices(state, place, (default, *taken))
            varied += 1
    return state


def _beside(value: Nested, taken: tuple[Nested, ...]) -> Iterator[Nested]:
    """Other values of an invented count, none of one or none.

    A step below it, so that windows overlap; past the numbers that the source names, what follows them.
    """
    counts = [v for v in (value, *taken) if type(v) is int]
    if type(value) is int and len(counts) == 1:
        yield from (v for v in (value - 1,) if v > 1)
    if counts:
        yield max(counts) + 1


def _roomier(caller: Caller, state: State, place: int, named: tuple[Nested, ...]) -> State:
    """The same at a larger size where forward takes more of the numbers that the source names."""
    counts = [v for v in named if type(v) is int]
    if not counts or is_taken(caller, state, place, max(counts)):
        return state
    for symbol in state.symbols():
        for size in ROOM:
            larger = state.at({symbol: size})
            value = state.arguments[place].guess.choices[0]
            if all(is_taken(caller, larger, place, v) for v in (max(counts), value)):
                return larger
    return state


def never_otherwise(caller: Caller, state: State, facts: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    """(parameter, sentence) of each default with another value that gives what is not finite.

    As a logarithm of negative inputs: they are no valid ones for it, which is no reason to pass over it.
    """
    for place, argument in enumerate(state.arguments):
        if not _is_default(argument, caller):
            continue
        known, default = facts.get(argument.name, Facts()), argument.guess.choices[0]
        for other in (*_named(default, known), *islice(_others(default, argument.name, known), 1)):
            ran = attempt(caller, with_choices(state, place, (other,)))
            if isinstance(ran, Ran) and not ran.finite:
                said = f"with {other!r}, what forward gives at these inputs is not finite"
                yield argument.name, f"`{argument.name}` is {default!r} in every case: {said}"
                break


def with_valid_choices(caller: Caller, state: State, sizes: Iterable[Mapping[int, int]] = ()) -> State:
    """The same without the swept choices that forward refuses, here or at one of further sizes."""
    at = [state, *(state.at(row) for row in sizes)]
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is Kind.LITERAL and len(argument.guess.choices) > 1:
            first, *others = argument.guess.choices
            kept = [c for c in others if all(is_taken(caller, one, place, c) for one in at)]
            state = with_choices(state, place, (first, *kept))
    return state


def with_choices(state: State, place: int, choices: tuple[Nested, ...]) -> State:
    """The same with other literals for one argument."""
    argument = state.arguments[place]
    return state.with_argument(place, replace(argument, guess=replace(argument.guess, choices=choices)))


def is_taken(caller: Caller, state: State, place: int, value: Nested) -> bool:
    """Whether forward works with another literal; and backward, unless it raises what nobody meant.

    A value for which backward breaks is one to be told of, not one to be left out.
    """
    chosen = with_choices(state, place, (value,))
    result = attempt(caller, chosen)
    if isinstance(result, RaisedError) or not result.connected or result.jacobian > MOST_JACOBIAN:
        return False
    if not result.finite or _is_refusal(result):
        return False
    return not _is_idle(result) or not _is_same(result, attempt(caller, chosen, draw=1))


def _is_idle(ran: Ran) -> bool:
    """Whether nothing flows back."""
    given = [g for g in (ran.gradients or {}).values() if g is not None]
    return ran.backward is None and not any(bool((g != 0).any()) for g in given)


def _is_same(ran: Ran, again: Ran | RaisedError) -> bool:
    """Whether other inputs give the same outputs: nothing of them is read, and nothing can be verified."""
    if not isinstance(again, Ran) or len(again.outputs) != len(ran.outputs):
        return False
    pairs = zip(ran.outputs, again.outputs, strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def _is_refusal(ran: Ran) -> bool:
    return ran.backward is not None and ran.backward.deliberate


def _is_default(argument: Argument, caller: Caller) -> bool:
    """Whether it has the one value that its default is; the same literal in another call proves no more."""
    default: Any = caller.defaults.get(argument.name, ...)
    choices = argument.guess.choices
    return (
        argument.guess.kind is Kind.LITERAL
        and len(choices) == 1
        and type(choices[0]) is type(default)
        and choices[0] == default
    )


def _has_other_paths(argument: Argument, known: Facts) -> bool:
    """Whether it is one literal, and the source compares it with others.

    The author's own too: the one that a caller passes may be that for which nothing is done.
    """
    guess = argument.guess
    single = guess.kind is Kind.LITERAL and len(guess.choices) == 1
    return single and next(_named(guess.choices[0], known), None) is not None


def _is_guessed(argument: Argument) -> bool:
    """Whether it is one invented number."""
    guess = argument.guess
    single = guess.kind is Kind.LITERAL and not guess.found and len(guess.choices) == 1
    return single and _is_number(guess.choices[0])


def _is_number(value: Nested) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(default: Nested, known: Facts) -> Iterator[Nested]:
    """Other values that the source names: of the same type, and no mark for what is left out."""
    if isinstance(default, str):
        yield from dict.fromkeys(s for s in known.strings if s != default)
    elif isinstance(default, float):
        yield from dict.fromkeys(float(n) for n in known.numbers if n != default)
    elif _is_number(default):
        yield from dict.fromkeys(int(n) for n in known.numbers if n != default and int(n) == n)


def _others(default: Nested, name: str, known: Facts) -> Iterator[Nested]:
    """Other values, the likeliest first."""
    match default:
        case bool():
            yield not default
        case int() if default < -1:  # a mark, such as the label to ignore: one that occurs
            yield from (1, 0)
        case int():
            yield from (default + 1, 2 * default, default - 1)
        case None if known.gradient is not True and not known.kinds & {"tensor", "index", "bool", "callable"}:
            yield from (FACTORS[0], 2) if looks_real(name, known) else (2, 1, 3)
        case _:
            return
