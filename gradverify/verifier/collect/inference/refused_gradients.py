"""What the engine says of a gradient that it refused: another shape of the input, or that it is a tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State

FEWER = 0.15
"""What an input with the dimensions of its gradient costs."""

A_TENSOR, NEXT_SHAPE = 0.1, 0.05
"""What it costs to take for a tensor what gets a gradient, and each further shape that is tried for it."""

_REFUSED = re.compile(
    r"invalid gradient at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]"
)
_NO_TENSOR = re.compile(
    r"gradient different from None at position (\d+), but the corresponding forward input was not"
)


@dataclass(frozen=True)
class RefusedGradient:
    """A gradient that the engine refused for its shape."""

    name: str
    """Of the parameter."""
    got: tuple[int, ...]
    expected: tuple[int, ...]


def refused_gradient(message: str, names: Sequence[str]) -> RefusedGradient | None:
    """What `invalid gradient` says; None for every other message."""
    found = _REFUSED.search(message)
    if found is None or int(found[1]) >= len(names):
        return None
    got, expected = (tuple(int(n) for n in found[k].split(",") if n.strip()) for k in (2, 3))
    return RefusedGradient(names[int(found[1])], got, expected)


def given_gradients(state: State, message: str) -> Iterator[State]:
    """After a gradient for what is no tensor: it is one, shaped as another one or as its last dimension."""
    found = _NO_TENSOR.search(message)
    if found is None or int(found[1]) > len(state.arguments):
        return
    place = int(found[1]) - 1  # torch counts them from one
    shapes = [a.dims for a in state.arguments if a.is_tensor and a.dims]
    for number, dims in enumerate(dict.fromkeys([*shapes, *(d[-1:] for d in shapes), ()])):
        tensor = Argument(state.arguments[place].name, Guess(Kind.FLOAT, 0.0), dims)
        given = state.with_argument(place, tensor)
        yield replace(given, cost=given.cost + A_TENSOR + NEXT_SHAPE * number)


def unbroadcast(state: State, message: str, names: Sequence[str]) -> State | None:
    """After `invalid gradient`: the input shaped like the gradient that backward returned for it.

    Only a gradient of fewer numbers says that the input was broadcast. One of as many numbers is a mistake
    of backward's, which another shape would hide.
    """
    refused = refused_gradient(message, names)
    if refused is None:
        return None
    place = next((k for k, a in enumerate(state.arguments) if a.name == refused.name), None)
    if place is None or math.prod(refused.got) >= math.prod(refused.expected):
        return None
    argument, sizes = state.arguments[place], state.values
    if len(refused.got) == len(refused.expected) == len(argument.dims):
        kept = tuple(
            Dim(plus=1) if got == 1 else dim for got, dim in zip(refused.got, argument.dims, strict=True)
        )
        if tuple(d.value(sizes) for d in kept) != refused.got:
            return None
        return replace(state.with_argument(place, replace(argument, dims=kept)), cost=state.cost + FEWER)
    left = list(argument.dims)
    dims = []
    for size in refused.got:
        dim = next((d for d in left if d.value(sizes) == size), None)
        if dim is None:
            return None
        dims.append(dim)
        left.remove(dim)
    return replace(state.with_argument(place, replace(argument, dims=tuple(dims))), cost=state.cost + FEWER)
