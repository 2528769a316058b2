"""Parameters with a default or an invented number: the path that another value takes, else unverified.

A default always runs, and often goes round a part of the code: a stride that is the size of the window, a
padding of 0, a flag that is off, a bias that is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from gradverify.model import Nested, RaisedError
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.guesses import FACTORS, looks_real
from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.trial import MOST_JACOBIAN, Caller, Ran, attempt

MOST_NAMED = 4
"""Other strings or numbers of one parameter that its source names."""

MOST_VARIED = 6
"""Parameters whose value is varied: each makes more cases, and its values are invented."""


MOST_SHAPES = 12
"""Shapes tried for one optional tensor."""


def with_optional_tensors(known: Known, state: State) -> tuple[State, frozenset[str]]:
    """The same with a tensor for every optional one whose shape can be found, and the names of all of them.

    A shape counts if forward takes it and backward gives a gradient of that shape by itself.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
        name = argument.name
        if argument.is_float and known.caller.defaults.get(name, ...) is None:
            nothing = Argument(name, Guess(Kind.LITERAL, choices=(None,)))
            without = attempt(known.caller, state.with_argument(place, nothing))
            found |= {name} if isinstance(without, Ran) and without.backward is None else set()
        elif argument.guess.is_nothing and known.facts(name).gradient is True:
            for dims in _shapes(state):
                given = state.with_argument(place, Argument(name, Guess(Kind.FLOAT, found=False), dims))
                ran = attempt(known.caller, given)
                if isinstance(ran, Ran) and (ran.gradients or {}).get(name) is not None:
                    state = given
                    found.add(name)
                    break
    return state, frozenset(found)


def _shapes(state: State) -> list[tuple[Dim, ...]]:
    """One dimension first, as a bias has it, the last of the arguments' before others; then whole shapes."""
    tensors = [a for a in state.arguments if a.is_tensor and a.dims]
    single = ((a.dims[-1 - k],) for k in range(3) for a in reversed(tensors) if k < len(a.dims))
    return list(dict.fromkeys([*single, *(a.dims for a in tensors), ()]))[:MOST_SHAPES]


def with_other_values(known: Known, state: State) -> State:
    """The same with a second value for the parameters that are left to a default, where forward takes one."""
    varied = 0
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is not Kind.LITERAL or len(argument.guess.choices) > 1:
            continue
        value, facts = argument.guess.choices[0], known.facts(argument.name)
        is_default = _is_default(known, argument)
        # Each string or number of the source names a path of its own; of other numbers one is enough.
        taken = _taken(known.caller, state, place, _named(value, facts), MOST_NAMED)
        others: Iterator[Nested] = iter(())
        if is_default and not taken:
            others = _others(argument, facts)
        elif argument.guess.is_invented_number and not is_default:
            others = _beside(value, taken)
        taken += _taken(known.caller, state, place, others, 1)
        if taken and varied < MOST_VARIED:
            state = with_choices(state, place, (value, *taken))
            varied += 1
    return state


def never_otherwise(known: Known, state: State) -> Iterator[tuple[str, str]]:
    """(parameter, sentence) of each default with another value that gives what is not finite.

    As a logarithm of negative inputs: they are no valid ones for it, which is no reason to pass over it.
    """
    for place, argument in enumerate(state.arguments):
        name, facts = argument.name, known.facts(argument.name)
        if not _is_default(known, argument) or len(argument.guess.choices) > 1:
            continue
        value = argument.guess.choices[0]
        for other in (*_named(value, facts), *islice(_others(argument, facts), 1)):
            ran = attempt(known.caller, with_choices(state, place, (other,)))
            if isinstance(ran, Ran) and not ran.finite:
                said = f"with {other!r}, what forward gives at these inputs is not finite"
                yield name, f"`{name}` is {value!r} in every case: {said}"
                break


def _is_default(known: Known, argument: Argument) -> bool:
    """Whether the one literal is the default; the same literal in another call proves no more."""
    default, choices = known.caller.defaults.get(argument.name, ...), argument.guess.choices
    return bool(choices) and type(choices[0]) is type(default) and choices[0] == default


def _taken(
    caller: Caller, state: State, place: int, values: Iterable[Nested], most: int
) -> tuple[Nested, ...]:
    return tuple(islice((v for v in values if is_taken(caller, state, place, v)), most))


def _named(value: Nested, facts: Facts) -> tuple[Nested, ...]:
    """Other values that the source names: of the same type."""
    others: Iterable[Nested] = ()
    if isinstance(value, str):
        others = facts.strings
    elif type(value) is float:
        others = map(float, facts.numbers)
    elif type(value) is int:
        others = (int(n) for n in facts.numbers if int(n) == n)
    return tuple(dict.fromkeys(v for v in others if v != value))


def _others(argument: Argument, facts: Facts) -> Iterator[Nested]:
    """Other values than a default that nothing names, the likeliest first."""
    match argument.guess.choices[0]:
        case bool(value):
            yield not value
        case int(value) if value < -1:  # a mark, such as the label to ignore: one that occurs
            yield from (1, 0)
        case int(value):
            # Twice nothing is nothing: that is the default again, and no other value.
            yield from (v for v in (value + 1, 2 * value, value - 1) if v != value)
        case None if not facts.kinds & {"tensor", "index", "bool", "callable"} and facts.gradient is not True:
            yield from (FACTORS[0], 2) if looks_real(argument.name, facts) else (2, 1, 3)
        case _:
            return


def _beside(value: Nested, taken: tuple[Nested, ...]) -> Iterator[Nested]:
    """Other values of an invented count, none of one or none.

    A step below it, so that windows overlap; past the numbers that the source names, what follows them.
    """
    counts = [v for v in (value, *taken) if type(v) is int]
    if type(value) is int and len(counts) == 1 and value > 2:
        yield value - 1
    if counts:
        yield max(counts) + 1


def with_valid_choices(caller: Caller, state: State, sizes: Iterable[Mapping[int, int]]) -> State:
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
    ran = attempt(caller, chosen)
    if isinstance(ran, RaisedError) or not ran.connected or ran.jacobian > MOST_JACOBIAN:
        return False
    if not ran.finite or (ran.backward is not None and ran.backward.deliberate):
        return False
    given = [g for g in (ran.gradients or {}).values() if g is not None]
    idle = ran.backward is None and not any(bool((g != 0).any()) for g in given)
    # Where other inputs give the same outputs nothing of them is read, and nothing can be verified.
    return not idle or not ran.has_outputs_of(attempt(caller, chosen, draw=1))
