"""Tensors that may be left out: a parameter with the default None that backward gives a gradient for.

The search takes None, which always runs, or a tensor that runs, too. A path that only the other of them
enters would then stay unverified. So would what takes two of them together, as both matrices of an adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.search import Solution, is_whole, search
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt

MOST_SHAPES = 12
"""Shapes tried for one optional tensor."""

PAIR_TRIES, MOST_PAIRS = 40, 15
"""Calls of a search for the shapes of two that go together, and how many such pairs are tried."""


def with_optional_tensors(
    caller: Caller, state: State, facts: Mapping[str, Facts]
) -> tuple[State, frozenset[str]]:
    """The same with a tensor for every optional one whose shape can be found, and their names.

    A shape counts if forward takes it and backward gives a gradient of that shape by itself.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
        if _may_be_left_out(caller, state, place):
            found.add(argument.name)
        if not _may_be_tensor(argument, facts.get(argument.name)):
            continue
        for dims in _shapes(state):
            given = Argument(argument.name, Guess(Kind.FLOAT, argument.guess.cost, found=False), dims)
            trial = state.with_argument(place, given)
            if _answers(attempt(caller, trial), argument.name):
                state = trial
                found.add(argument.name)
                break
    return state, frozenset(found)


def with_pairs(caller: Caller, state: State, facts: Mapping[str, Facts]) -> tuple[State, tuple[str, ...]]:
    """The same with two tensors at a time that forward takes together alone, and the names of those given."""
    found: list[str] = []
    left = [k for k, a in enumerate(state.arguments) if _may_be_tensor(a, facts.get(a.name))]
    rank = max((len(a.dims) for a in state.arguments if a.is_tensor), default=1)
    names = [a.name for a in state.arguments]
    for pair in itertools.islice(itertools.combinations(left, 2), MOST_PAIRS):
        if any(names[k] in found for k in pair):
            continue
        trial = state
        for place in pair:
            trial, dims = trial.fresh(min(rank, 2))
            given = Argument(names[place], Guess(Kind.FLOAT, 0.0, found=False), dims)
            trial = trial.with_argument(place, given)
        solved = search(caller, [trial], names, PAIR_TRIES)
        if isinstance(solved, Solution) and is_whole(solved.ran):
            gradients = solved.ran.gradients or {}
            if all(gradients.get(names[k]) is not None for k in pair):
                state = solved.state
                found += [names[k] for k in pair]
    return state, tuple(found)


def never_given(caller: Caller, state: State, facts: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    """(parameter, sentence) pairs: tensors without a default that backward has a gradient for, left out."""
    for argument in state.arguments:
        required = caller.defaults.get(argument.name, ...) is ...
        if required and _may_be_tensor(argument, facts.get(argument.name)):
            said = "no tensor was found that forward takes for it"
            yield argument.name, f"`{argument.name}` is None in every case: {said}"


def left_out(caller: Caller, state: State, facts: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    """(parameter, sentence) pairs: the others without a default that are None, which some code may use."""
    for argument in state.arguments:
        known, required = facts.get(argument.name), caller.defaults.get(argument.name, ...) is ...
        nothing = argument.guess.kind is Kind.LITERAL and argument.guess.choices == (None,)
        if nothing and required and not _may_be_tensor(argument, known):
            yield argument.name, f"`{argument.name}` is None in every case"


def _may_be_tensor(argument: Argument, known: Facts | None) -> bool:
    left_out = argument.guess.kind is Kind.LITERAL and argument.guess.choices == (None,)
    return left_out and known is not None and known.gradient is True


def _may_be_left_out(caller: Caller, state: State, place: int) -> bool:
    """Whether a tensor was guessed for what is None by default, and None runs as well."""
    argument = state.arguments[place]
    if argument.guess.kind is not Kind.FLOAT or caller.defaults.get(argument.name, ...) is not None:
        return False
    left_out = Argument(argument.name, Guess(Kind.LITERAL, argument.guess.cost, (None,)))
    result = attempt(caller, state.with_argument(place, left_out))
    return isinstance(result, Ran) and result.backward is None


def _shapes(state: State) -> Iterator[tuple[Dim, ...]]:
    """One dimension first, as a bias has it, the last of the arguments' before others; then whole shapes."""
    tensors = [a for a in state.arguments if a.is_tensor and a.dims]
    tried: list[tuple[Dim, ...]] = []
    single = [(a.dims[-1 - k],) for k in range(3) for a in reversed(tensors) if k < len(a.dims)]
    for dims in [*single, *(a.dims for a in tensors), ()]:
        if dims not in tried and len(tried) < MOST_SHAPES:
            tried.append(dims)
            yield dims


def _answers(result: object, name: str) -> bool:
    if not isinstance(result, Ran) or result.backward is not None or not result.gradients:
        return False
    return result.gradients.get(name) is not None
