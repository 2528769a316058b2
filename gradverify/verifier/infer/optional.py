"""Tensors that may be left out: a parameter with the default None that backward gives a gradient for.

The search takes None, which always runs, or a tensor that runs, too. A path that only the other of them
enters would then stay unverified.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.trial import Ran, attempt

MOST_SHAPES = 12
"""Shapes tried for one optional tensor."""


def with_optional_tensors(known: Known, state: State) -> tuple[State, frozenset[str]]:
    """The same with a tensor for every optional one whose shape can be found, and their names.

    A shape counts if forward takes it and backward gives a gradient of that shape by itself.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
        if _runs_without(known, state, place):
            found.add(argument.name)
        for dims in _shapes(state) if _may_be_tensor(known, argument) else ():
            trial = _given(state, place, dims)
            ran = attempt(known.caller, trial)
            if (
                isinstance(ran, Ran)
                and ran.backward is None
                and (ran.gradients or {}).get(argument.name) is not None
            ):
                state = trial
                found.add(argument.name)
                break
    return state, frozenset(found)


def none_in_every_case(known: Known, state: State) -> Iterator[tuple[str, str, bool]]:
    """(parameter, sentence, whether it should be a tensor) of what is None and has no default."""
    for argument in state.arguments:
        required = known.caller.defaults.get(argument.name, ...) is ...
        if required and argument.guess.is_nothing:
            tensor = _may_be_tensor(known, argument)
            why = ": no tensor was found that forward takes for it" if tensor else ""
            yield argument.name, f"`{argument.name}` is None in every case{why}", tensor


def _given(state: State, place: int, dims: tuple[Dim, ...]) -> State:
    argument = state.arguments[place]
    guess = Guess(Kind.FLOAT, argument.guess.cost, found=False)
    return state.with_argument(place, Argument(argument.name, guess, dims))


def _may_be_tensor(known: Known, argument: Argument) -> bool:
    return argument.guess.is_nothing and known.facts(argument.name).gradient is True


def _runs_without(known: Known, state: State, place: int) -> bool:
    """Whether a tensor was guessed for what is None by default, and None runs as well."""
    argument = state.arguments[place]
    if not argument.is_float or known.default(argument.name) is not None:
        return False
    nothing = Argument(argument.name, Guess(Kind.LITERAL, choices=(None,)))
    result = attempt(known.caller, state.with_argument(place, nothing))
    return isinstance(result, Ran) and result.backward is None


def _shapes(state: State) -> list[tuple[Dim, ...]]:
    """One dimension first, as a bias has it, the last of the arguments' before others; then whole shapes."""
    tensors = [a for a in state.arguments if a.is_tensor and a.dims]
    single = ((a.dims[-1 - k],) for k in range(3) for a in reversed(tensors) if k < len(a.dims))
    return list(dict.fromkeys([*single, *(a.dims for a in tensors), ()]))[:MOST_SHAPES]
