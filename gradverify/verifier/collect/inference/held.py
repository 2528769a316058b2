"""Tensors that are passed on as they are: their entries, and with them the sizes, are held."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Nested
from gradverify.verifier.collect.inference.shapes import LENGTHS, Dim, State


def lengths_of(total: int, parts: int) -> tuple[int, ...]:
    """So many rising integers that add up to a total."""
    rising = range(1, parts)
    return (*rising, total - sum(rising)) if parts else ()


def with_lengths_held(state: State) -> State:
    """The same with integers that add up to a size as they are: those sizes stay what they are, too."""
    for place in range(len(state.arguments)):
        argument = state.arguments[place]
        if argument.structure == LENGTHS and argument.bound is not None and len(argument.dims) == 1:
            (parts,), total = state.shape(argument), argument.bound.value(state.values)
            state = held_at(state, place, lengths_of(total, parts)) or state
    return state


def held_at(state: State, place: int, value: Nested) -> State | None:
    """The same with entries of a tensor that are passed as they are; its sizes are numbers from then on."""
    argument = state.arguments[place]
    changed: State | None = state.with_argument(
        place, replace(argument, structure="", bound=None, value=value)
    )
    for symbol in {s for d in argument.sizes for s in d.symbols}:
        changed = changed.substituted(symbol, Dim(plus=state.values[symbol])) if changed is not None else None
    return changed
