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

MOST_NAMED = 4
"""Other strings or numbers of one parameter that its source names."""

MOST_VARIED = 6
"""Parameters whose default is varied: each makes more cases, and its values are invented."""


def with_other_values(caller: Caller, state: State, facts: Mapping[str, Facts]) -> State:
    """The same with a second value for the parameters that are left to a default, where forward takes one."""
    varied = 0
    for place, argument in enumerate(state.arguments):
        known = facts.get(argument.name, Facts())
        if varied == MOST_VARIED or not (_is_default(argument, caller) or _has_other_paths(argument, known)):
            continue
        default = argument.guess.choices[0]
        # Each string or number of the source names a path of its own; of other numbers one is enough.
        named = _named(default, known)
        taken = tuple(islice((v for v in named if is_taken(caller, state, place, v)), MOST_NAMED))
        if not taken and _is_default(argument, caller):
            others = _others(default, argument.name, known)
            taken = tuple(islice((v for v in others if is_taken(caller, state, place, v)), 1))
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


def _has_other_paths(argument: Argument, known: Facts) -> bool:
    """Whether it is one literal, and the source compares it with others.

    The author's own too: the one that a caller passes may be that for which nothing is done.
    """
    guess = argument.guess
    single = guess.kind is Kind.LITERAL and len(guess.choices) == 1
    return single and next(_named(guess.choices[0], known), None) is not None


def _is_number(value: Nested) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(default: Nested, known: Facts) -> Iterator[Nested]:
    """Other values that the source names: of the same type, and no mark for what is left out."""
    if isinstance(default, str):
        yield from dict.fromkeys(s for s in known.strings if s != default)
    elif isinstance(default, float):
        yield from (float(n) for n in known.numbers if n != default)
    elif _is_number(default):
        yield from (int(n) for n in known.numbers if n != default and int(n) == n)


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
