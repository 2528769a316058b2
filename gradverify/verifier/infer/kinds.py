"""What is done where an error says that an input is of another kind: integers, a number, several tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gradverify.verifier.infer.guesses import FACTORS
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State, literal

COMPLEX = "complex128"


def as_kind(state: State, _found: re.Match[str], suspects: Sequence[int], kind: Kind) -> Iterator[State]:
    """A suspect is of integers, or of truths."""
    for place in suspects:
        argument, bound = state.arguments[place], Dim(plus=3) if kind is Kind.INDEX else None
        if argument.guess.kind in {Kind.FLOAT, Kind.INDEX} - {kind}:
            guess = Guess(kind, found=False)
            yield state.with_argument(place, replace(argument, guess=guess, bound=bound))


def as_narrow(state: State, found: re.Match[str], _suspects: Sequence[int]) -> Iterator[State]:
    """All integers are of the width that the code asks for; `Int` is torch's word for int32."""
    for place in state.places(Kind.INDEX):
        state = state.with_argument(place, replace(state.arguments[place], dtype=found[1] or "int32"))
    yield state


def as_number(state: State, _found: re.Match[str], suspects: Sequence[int]) -> Iterator[State]:
    """A suspect is one number in place of many."""
    for place in suspects:
        if state.arguments[place].is_tensor and state.arguments[place].dims:
            yield state.with_dims(place, ())


def as_complex(state: State, _found: re.Match[str], suspects: Sequence[int]) -> Iterator[State]:
    """Each suspect is complex, or all of them are."""
    real = [k for k in suspects if state.arguments[k].is_real]
    for places in dict.fromkeys([*((k,) for k in real), tuple(real)]):
        if places:
            yield made_complex(state, places)


def made_complex(state: State, places: Sequence[int]) -> State:
    """The same with complex tensors at some places."""
    for place in places:
        state = state.with_argument(place, replace(state.arguments[place], dtype=COMPLEX))
    return state


def as_returning(state: State, found: re.Match[str], _suspects: Sequence[int]) -> Iterator[State]:
    """A function that was put in returns as many values as it is unpacked to."""
    for place in state.places(Kind.CALLABLE):
        returning = Guess(Kind.CALLABLE, found=False, returns=(int(found[1]),))
        yield state.with_argument(place, Argument(state.arguments[place].name, returning))


def as_several(state: State, found: re.Match[str], suspects: Sequence[int]) -> Iterator[State]:
    """What is gone through is several tensors, as many as it is unpacked to."""
    unpacked, items = bool(found[1]), int(found[1] or 2)
    several = Guess(Kind.LIST, found=False)
    for place in suspects:
        argument = state.arguments[place]
        takes = {Kind.FLOAT, Kind.LIST if unpacked else Kind.LITERAL}
        if argument.guess.kind in takes and argument.items != items:
            dims = argument.dims or (() if argument.is_float and unpacked else state.first_dims())
            yield state.with_argument(place, Argument(argument.name, several, dims, items=items))


def as_tensor(state: State, found: re.Match[str], suspects: Sequence[int]) -> Iterator[State]:
    """A number that is asked for what tensors alone have is one: of the shape of another, or of one entry.

    What is None, and is asked for anything, is a number, or a tensor.
    """
    asked = found["attribute"]
    is_tensor = not asked or hasattr(torch.Tensor, asked)
    first = state.first_dims()
    for place in suspects:
        argument = state.arguments[place]
        if argument.guess.is_nothing:
            yield state.with_argument(place, Argument(argument.name, literal(FACTORS[0])))
        if argument.guess.is_nothing or (is_tensor and argument.guess.is_invented_number):
            for dims in dict.fromkeys((first, first[:-1], first[1:], ())):
                yield state.with_argument(place, Argument(argument.name, Guess(Kind.FLOAT), dims))


def as_sizes(state: State, _found: re.Match[str], suspects: Sequence[int]) -> Iterator[State | None]:
    """What is no tuple of sizes is that of the last dimensions of a tensor, which are fixed by it."""
    shaped = next((k for k, a in enumerate(state.arguments) if a.is_float and a.dims), None)
    for place in suspects if shaped is not None else ():
        if place == shaped or not state.arguments[place].is_tensor:
            continue
        whole = state.first_dims()
        for count in range(1, len(whole) + 1):
            sizes = tuple(d.value(state.values) for d in whole[-count:])
            guess = replace(literal(sizes), found=True)
            changed: State | None = state.with_argument(place, Argument(state.arguments[place].name, guess))
            for dim, size in zip(whole[-count:], sizes, strict=True):
                changed = changed and changed.substituted(dim.symbol, Dim(plus=size))
            yield changed


def as_structure(
    state: State, _found: re.Match[str], suspects: Sequence[int], structure: str
) -> Iterator[State | None]:
    """What a factorization takes instead of any matrix; it may read one triangle for both."""
    for place in suspects:
        argument = state.arguments[place]
        if argument.is_float and len(argument.dims) > 1 and not argument.structure:
            *batch, rows, columns = argument.dims
            square = replace(argument, structure=structure, domain="real", dims=(*batch, rows, rows))
            changed = state.with_argument(place, square)
            # The other arguments go on with the size that is left.
            yield changed.substituted(columns.symbol, rows) if columns.is_plain else None
            yield changed


def in_domain(state: State, found: re.Match[str], suspects: Sequence[int]) -> Iterator[State]:
    """What is refused for its sign, or for not being a share: suspects, or all inputs, are in that range."""
    domain = "unit" if found["share"] else "positive"
    real = [k for k, a in enumerate(state.arguments) if a.is_real]
    for places in dict.fromkeys((tuple(k for k in suspects if k in real), tuple(real))):
        changed = state
        for place in places:
            changed = changed.with_argument(place, replace(changed.arguments[place], domain=domain))
        if places:
            yield changed
