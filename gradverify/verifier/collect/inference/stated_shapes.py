"""A refusal that states the shape it wants: `must have shape (..., 3, 4)`, `a Bx3x3 tensor`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, dearer

STATED = 0.06
"""What the shape costs that a message asks for."""

_IN_BRACKETS = re.compile(r"\b(?:shape|size|dimensions)[^()\[\]]{0,24}[(\[]([\w*.,\s-]*)[)\]]", re.IGNORECASE)
_WITH_TIMES = re.compile(r"(?<!\w)((?:\*|[A-Z]|\d+)(?:\s?x\s?(?:[A-Z]|\d+))+)\b")
_GOT = re.compile(r"\b(?:got|given|received|found|instead of|not)\b", re.IGNORECASE)
_SHAPE = re.compile(r"[(\[]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[)\]]")


def by_stated_shape(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """States in which one suspect has the shape that the author's own refusal names."""
    wanted = _wanted(error.message) if error.deliberate else None
    if wanted is None:
        return
    got = [tuple(int(n) for n in m[1].split(",")) for m in _SHAPE.finditer(error.message)]
    for number, changed in enumerate(_changed(state, suspects, wanted, got)):
        yield dearer(changed, STATED + 0.03 * number)


def _wanted(message: str) -> list[int | None] | None:
    """The dimensions that are wanted, None for any size; a leading -1 for any number of them before."""
    first = _GOT.search(message)
    before = message[: first.start()] if first is not None else message
    found = _IN_BRACKETS.search(before)
    if found is not None:
        tokens = [t.strip() for t in found[1].split(",") if t.strip()]
    else:
        times = _WITH_TIMES.search(before)
        tokens = re.split(r"\s?x\s?", times[1]) if times is not None else []
    sizes: list[int | None] = [-1 if t in {"...", "*"} else int(t) if t.isdigit() else None for t in tokens]
    if not any(s is not None and s > 0 for s in sizes) or -1 in sizes[1:]:
        return None
    return sizes


def _changed(
    state: State, suspects: Sequence[int], wanted: Sequence[int | None], got: Sequence[tuple[int, ...]]
) -> Iterator[State]:
    values = state.values

    def fits(argument: Argument) -> bool:
        return not got or tuple(d.value(values) for d in argument.dims) in got

    for place in suspects:
        argument = state.arguments[place]
        if argument.guess.kind is Kind.LIST:
            items = argument.parts or (_item(argument),) * argument.items
            for k, item in enumerate(items):
                if fits(item):
                    wider, dims = _with_shape(state, item.dims, wanted)
                    parts = (*items[:k], replace(item, dims=dims), *items[k + 1 :])
                    yield wider.with_argument(place, replace(argument, dims=(), parts=parts))
        elif argument.is_tensor and argument.value is None and fits(argument):
            wider, dims = _with_shape(state, argument.dims, wanted)
            if dims != argument.dims:
                yield wider.with_argument(place, replace(argument, dims=dims))


def _item(argument: Argument) -> Argument:
    return Argument(argument.name, Guess(Kind.FLOAT, 0.0), argument.dims)


def _with_shape(
    state: State, dims: tuple[Dim, ...], wanted: Sequence[int | None]
) -> tuple[State, tuple[Dim, ...]]:
    """The dimensions as they are wanted; those of any size stay as they are, or are new ones."""
    leading = wanted[0] == -1
    ends = wanted[1:] if leading else wanted
    kept = dims[: max(0, len(dims) - len(ends))] if leading else ()
    own = dims[len(kept) :]
    shape = list(kept)
    for k, size in enumerate(ends):
        if size is not None:
            shape.append(Dim(plus=size))
        elif k < len(own):
            shape.append(own[k])
        else:
            state, (new,) = state.fresh(1)
            shape.append(new)
    return state, tuple(shape)
