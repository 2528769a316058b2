"""What the errors of convolutions say of channels: a single one, or one for each filter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Dim, State

TOLD = 0.1
"""What it costs to have the channels that a convolution asks for."""

_WEIGHT = re.compile(r"Given groups=(\d+), (?:expected weight|weight of size) .*?\[([\d, ]+)\]")
_OF_WEIGHT = re.compile(r"expected weight to be .* at dimension 0, but got weight of size \[+([\d, ]+)\]")
_OF_INPUT = re.compile(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels")


def by_channels(state: State, message: str) -> Iterator[tuple[State, float]]:
    """States with the channels that a convolution asks for, each with what it costs."""
    given = _WEIGHT.search(message)
    if given is None:
        return
    groups = int(given[1])
    refused, asked = _OF_WEIGHT.search(message), _OF_INPUT.search(message)
    if refused is not None:
        yield from _as_many_filters(state, groups, _sizes(refused[1]))
    elif asked is not None and int(asked[2]) != int(asked[3]):
        wanted, got = int(asked[2]), int(asked[3])
        if groups > 1 and got % groups == 0:
            for place in _with_shape(state, _sizes(given[2])):
                yield _with_size(state, place, 1, Dim(plus=got // groups)), TOLD
        elif wanted == 1:
            for place in _with_shape(state, _sizes(asked[1])):
                yield (
                    _with_size(state, place, len(_sizes(asked[1])) - len(_sizes(given[2])) + 1, Dim(plus=1)),
                    TOLD,
                )


def _as_many_filters(state: State, groups: int, shape: Sequence[int]) -> Iterator[tuple[State, float]]:
    """As many filters as there are groups, of one channel each."""
    symbol = next((s for s in state.symbols() if state.values[s] == groups), None)
    for place in _with_shape(state, shape) if symbol is not None and len(shape) > 1 else ():
        filters = _with_size(state, place, 0, Dim(symbol if symbol is not None else -1))
        yield _with_size(filters, place, 1, Dim(plus=1)), TOLD


def _sizes(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _with_shape(state: State, shape: Sequence[int]) -> list[int]:
    """Positions of the float tensors that have a shape."""
    return [
        k
        for k, a in enumerate(state.arguments)
        if a.guess.kind is Kind.FLOAT and state.shape(a) == tuple(shape)
    ]


def _with_size(state: State, place: int, along: int, dim: Dim) -> State:
    argument = state.arguments[place]
    dims = (*argument.dims[:along], dim, *argument.dims[along + 1 :])
    return state.with_argument(place, replace(argument, dims=dims))
