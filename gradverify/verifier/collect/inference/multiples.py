"""Sizes that follow from others: multiples where the source cuts a tensor up, sums where it joins some."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.shapes import Dim, State

RELATED = 0.2
"""What such a repair costs: less than a number of its own, more than that two sizes agree."""

CUT = 0.06
"""What a multiple costs where the source cuts into so many parts, and the message names one of them."""

_UNPACKED = re.compile(r"values to unpack \(expected (\d+)")
_LAST = (
    re.compile(r"have size (\d+) in (?:the )?last dimension"),
    re.compile(r"last dimension (?:of |must be |should be |to be )(?:of )?(?:size |a )*(\d+)"),
)
"""Messages that name the size of a last dimension."""

_OUTSIDE = re.compile(r"index (\d+) is out of bounds for dimension (\d+) with size \d+")
_SPLIT = re.compile(r"sum exactly to (\d+) \(.*split_sizes=\[([\d, ]+)\]")


def by_parts(state: State, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[State, float]]:
    """After two sizes that disagree: (a state in which one of them follows from another size, its cost).

    One of the two is the size of a part: of five columns in four parts, two. What is cut up becomes that
    many times the other one, so that the parts agree with it.
    """
    values = state.values
    for place, (a, b) in enumerate(pairs):
        for part, wanted in ((a, b), (b, a)):
            for whole, count in _wholes(state, part):
                for dim in _of_value(state, values, wanted, whole):
                    changed = state.substituted(whole, Dim(dim, times=count))
                    if changed is not None:
                        yield changed, CUT + 0.1 * place
                yield from _both_cut(state, whole, wanted, count)


def by_halves(state: State, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[State, float]]:
    """After two sizes that disagree and that may be of halves, where forward leaves the halving to an object.

    Either both are halves of one dimension, which is even; or one is, and a layer asks for another width.
    """
    values = state.values
    for place, (a, b) in enumerate(pairs):
        for symbol in state.symbols():
            halves = (values[symbol] // 2, -(-values[symbol] // 2))
            if {a, b} == set(halves) and a != b:
                changed = state.substituted(symbol, Dim(symbol, times=2))
                if changed is not None:
                    yield changed, RELATED + 0.1 * place
                continue
            for part, wanted in ((a, b), (b, a)):
                if part not in halves or wanted == part or wanted in values.values():
                    continue
                changed = state.substituted(symbol, Dim(plus=2 * wanted))
                if changed is not None:
                    yield changed, 2 * RELATED + 0.1 * place


def by_sums(state: State, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[State, float]]:
    """After two sizes that disagree, where something is concatenated: one of them the sum of two."""
    values, symbols = state.values, state.symbols()
    for place, (a, b) in enumerate(pairs if state.cuts.joins else ()):
        for total, other in ((a, b), (b, a)):
            for symbol in (s for s in symbols if values[s] == other):
                for first, second in _pairs(symbols, values, total):
                    changed = (
                        state.substituted(symbol, Dim(first, added=second))
                        if symbol not in {first, second}
                        else None
                    )
                    if changed is not None:
                        yield changed, RELATED + 0.1 * place


def by_unpacking(state: State, message: str, suspects: Sequence[int]) -> Iterator[tuple[State, float]]:
    """After `not enough values to unpack (expected 4, got 3)`: so many slices, or parts, of a suspect."""
    found = _UNPACKED.search(message)
    if found is None:
        return
    count = int(found[1])
    for number, place in enumerate(k for k in suspects if state.arguments[k].is_tensor):
        argument = state.arguments[place]
        for end in dict.fromkeys((0, len(argument.dims) - 1)) if argument.dims else ():
            dim = argument.dims[end]
            if not dim.is_plain:
                continue
            # Parts of one entry each would be broadcast: forward runs, and little is verified.
            multiple = count in state.cuts.parts
            new = Dim(dim.symbol, times=count) if multiple else Dim(plus=count)
            dims = (*argument.dims[:end], new, *argument.dims[end + 1 :])
            yield state.with_argument(place, replace(argument, dims=dims)), RELATED + 0.05 * number
            changed = state.substituted(dim.symbol, new)
            if changed is not None:
                yield changed, RELATED + 0.05 * (number + 1)


def by_fixed_size(state: State, message: str, suspects: Sequence[int]) -> Iterator[tuple[State, float]]:
    """After a message, or an index, that fixes one dimension of a suspect: of that one alone."""
    wanted = [(-1, int(m[1])) for p in _LAST for m in p.finditer(message)]
    wanted += [(int(m[2]), int(m[1]) + 1) for m in _OUTSIDE.finditer(message)]
    for number, place in enumerate(k for k in suspects if state.arguments[k].is_tensor):
        argument = state.arguments[place]
        for end, size in wanted:
            at = end % len(argument.dims) if argument.dims else 0
            if not -len(argument.dims) <= end < len(argument.dims) or argument.dims[at] == Dim(plus=size):
                continue
            dims = (*argument.dims[:at], Dim(plus=size), *argument.dims[at + 1 :])
            yield state.with_argument(place, replace(argument, dims=dims)), RELATED + 0.05 * number


def by_split(state: State, message: str) -> Iterator[tuple[State, float]]:
    """After `split_sizes` that do not add up: what is split is a multiple, or a sum, of other sizes."""
    found = _SPLIT.search(message)
    if found is None:
        return
    values = state.values
    whole, parts = int(found[1]), [int(n) for n in found[2].split(",")]
    for symbol in (s for s in state.symbols() if values[s] == whole):
        if len(set(parts)) == 1:
            made = [
                Dim(s, times=len(parts)) for s in state.symbols() if values[s] == parts[0] and s != symbol
            ]
        else:
            made = [
                Dim(a, added=b)
                for a, b in _pairs(state.symbols(), values, sum(parts))
                if symbol not in {a, b}
            ]
        for dim in (*made, Dim(plus=sum(parts))):
            changed = state.substituted(symbol, dim)
            if changed is not None:
                yield changed, RELATED if dim.symbol >= 0 else 2 * RELATED


def _wholes(state: State, part: int) -> Iterator[tuple[int, int]]:
    """(symbol, number of parts) pairs that give parts of a size."""
    values = state.values
    for count in sorted(state.cuts.parts):
        for symbol in state.symbols():
            if part in {-(-values[symbol] // count), values[symbol] // count} and values[symbol] != part:
                yield symbol, count


def _of_value(state: State, values: Mapping[int, int], wanted: int, other: int) -> Iterator[int]:
    yield from (s for s in state.symbols() if values[s] == wanted and s != other)


def _both_cut(state: State, whole: int, wanted: int, count: int) -> Iterator[tuple[State, float]]:
    """Both sizes are of parts: what is cut up agrees."""
    for other, parts in _wholes(state, wanted):
        if parts == count and other != whole:
            changed = state.substituted(whole, Dim(other))
            if changed is not None:
                yield changed, CUT


def _pairs(symbols: Sequence[int], values: Mapping[int, int], total: int) -> Iterator[tuple[int, int]]:
    for place, first in enumerate(symbols):
        yield from ((first, s) for s in symbols[place + 1 :] if values[first] + values[s] == total)
