"""Parameters with a default: the path that another value takes, which would else stay unverified.

A default always runs, and often goes round a part of the code: a stride that is the size of the window, a
padding of 0, a flag that is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from gradverify.model import Nested, RaisedError
from gradverify.verifier.collect.inference.candidates import FACTORS, Kind, looks_real
from gradverify.verifier.collect.inference.shapes import Argument, State
from gradverify.verifier.collect.inference.trial import MOST_JACOBIAN, Caller, Ran, attempt
from gradverify.verifier.collect.inference.uses import Facts

MOST_STRINGS = 4
"""Other strings of one parameter."""

MOST_VARIED = 6
"""Parameters whose default is varied: each makes more cases, and its values are invented."""


def with_other_values(caller: Caller, state: State, facts: Mapping[str, Facts]) -> State:
    """The same with a second value for the parameters that are left to a default, where forward takes one."""
    varied = 0
    for place, argument in enumerate(state.arguments):
        if varied == MOST_VARIED or not _is_default(argument, caller):
            continue
        default = argument.guess.choices[0]
        # Of numbers one other is enough; each string of the source names a path of its own.
        most = MOST_STRINGS if isinstance(default, str) else 1
        others = _others(default, argument.name, facts.get(argument.name, Facts()))
        taken = tuple(islice((v for v in others if is_taken(caller, state, place, v)), most))
        if taken:
            state = with_choices(state, place, (default, *taken))
            varied += 1
    return state


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
    result = attempt(caller, with_choices(state, place, (value,)))
    if isinstance(result, RaisedError) or not result.connected or result.jacobian > MOST_JACOBIAN:
        return False
    return result.finite and (result.backward is None or not _is_refusal(result))


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


def _others(default: Nested, name: str, known: Facts) -> Iterator[Nested]:
    """Other values, the likeliest first."""
    match default:
        case bool():
            yield not default
        case str():
            yield from dict.fromkeys(s for s in known.strings if s != default)
        case int() if default < -1:  # a mark, such as the label to ignore: one that occurs
            yield from (1, 0)
        case int():
            yield from (default + 1, 2 * default, default - 1)
        case None if known.gradient is not True and not known.kinds & {"tensor", "index", "bool", "callable"}:
            yield from (FACTORS[0], 2) if looks_real(name, known) else (2, 1, 3)
        case _:
            return
