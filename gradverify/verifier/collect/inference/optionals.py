"""Tensors that may be left out: a parameter with the default None that backward gives a gradient for.

The search takes None, which always runs. A path that only a given tensor enters would then stay unverified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt
from gradverify.verifier.collect.inference.uses import Facts

MOST_SHAPES = 12
"""Shapes tried for one optional tensor."""


def with_optional_tensors(
    caller: Caller, state: State, facts: Mapping[str, Facts]
) -> tuple[State, frozenset[str]]:
    """The same with a tensor for every optional one whose shape can be found, and their names.

    A shape counts if forward takes it and backward gives a gradient of that shape by itself.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
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


def _may_be_tensor(argument: Argument, known: Facts | None) -> bool:
    left_out = argument.guess.kind is Kind.LITERAL and argument.guess.choices == (None,)
    return left_out and known is not None and known.gradient is True


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
