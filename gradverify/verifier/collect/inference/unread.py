"""Sizes of which forward reads only a part: real and imaginary parts have a last dimension of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.collect.inference.answered import answers_for_more
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt
from gradverify.verifier.guard import Raised

STEPS = (0.37, 7.3, -7.3)
"""How far the entries of a slice are moved: far enough to cross a threshold, too."""

SMALLER = (2, 1)
"""Last dimensions that are tried where a part of a larger one is never read."""


def without_unread(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a last dimension of two, or one, where forward leaves the rest of a larger one unread.

    Only where everything is read then: a scan leaves its first factor unread at every size, and has nothing
    to be wrong at a length of one. A tensor that is read whole keeps its own size.
    """
    for place in range(len(state.arguments)):
        argument = state.arguments[place]  # as it is by now: a size may have been resized with another one
        if argument.guess.kind is not Kind.FLOAT or not argument.dims or not argument.dims[-1].is_plain:
            continue
        if all(_slices_read(caller, ran.arguments, place)):
            continue
        for size in SMALLER:
            found = _resized(caller, state, ran, place, size)
            if found is not None and all(_slices_read(caller, found[1].arguments, place)):
                state, ran = found
                break
    return state, ran


def _resized(caller: Caller, state: State, ran: Ran, place: int, size: int) -> tuple[State, Ran] | None:
    """With another last dimension: of all that share it, or of this alone where one of them is read whole."""
    dims = state.arguments[place].dims
    symbol, alone = dims[-1].symbol, Dim(plus=size)
    sharing = [k for k, a in enumerate(state.arguments) if k != place and symbol in _sizes_of(a)]
    changed: State | None
    if any(_is_read_whole(caller, state.arguments[k], ran, k, symbol) for k in sharing):
        changed = state.with_argument(place, replace(state.arguments[place], dims=(*dims[:-1], alone)))
    else:
        changed = state.substituted(symbol, alone)
    result = attempt(caller, changed) if changed is not None else None
    if changed is None or not isinstance(result, Ran) or result.backward is not None or not result.finite:
        return None
    if answers_for_more(caller, changed):  # forward may have read past the end
        return None
    return changed, result


def _sizes_of(argument: Argument) -> set[int]:
    """The sizes that an argument's shape is made of."""
    return {s for d in argument.sizes for s in d.symbols}


def _is_read_whole(caller: Caller, argument: Argument, ran: Ran, place: int, symbol: int) -> bool:
    """Whether a size that is shared is another dimension than the last one, or nothing along it is unread."""
    last = argument.dims[-1].symbols if argument.dims else ()
    return symbol not in last or all(_slices_read(caller, ran.arguments, place))


def _slices_read(caller: Caller, arguments: Sequence[Any], place: int) -> list[bool]:
    """Of each slice along the last dimension, whether forward reads it; nothing where that is unknown."""
    given = arguments[place] if place < len(arguments) else None
    if not isinstance(given, Tensor) or not given.dim() or given.layout is not torch.strided:
        return []
    if not (given.is_floating_point() or given.is_complex()):
        return []
    base = _outputs(caller, arguments, place, given)
    if base is None:
        return []
    return [_is_read(caller, arguments, place, k, base) for k in range(given.shape[-1])]


def _is_read(caller: Caller, arguments: Sequence[Any], place: int, k: int, base: Sequence[Tensor]) -> bool:
    for step in STEPS:
        moved = arguments[place].detach().clone()
        moved[..., k] += step
        outputs = _outputs(caller, arguments, place, moved)
        if outputs is None or any(not torch.equal(a, b) for a, b in zip(outputs, base, strict=True)):
            return True
    return False


def _outputs(caller: Caller, arguments: Sequence[Any], place: int, value: Tensor) -> Sequence[Tensor] | None:
    """What forward returns, on copies of its tensors; None where it refuses them."""
    given = [value if k == place else a for k, a in enumerate(arguments)]
    copied = [g.detach().clone() if isinstance(g, Tensor) else g for g in given]
    guard.RandomStates(0).replay()
    with torch.no_grad():
        result = guard.call(caller.call, *copied)
    if isinstance(result, Raised):
        return None
    returned = result.value if isinstance(result.value, tuple | list) else (result.value,)
    outputs = [r.clone() for r in returned if isinstance(r, Tensor) and r.layout is torch.strided]
    return outputs or None
