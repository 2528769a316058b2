"""Sizes that forward accepts and does not mean: parts that it never reads, windows that cannot slide.

Real and imaginary parts have a last dimension of two. A filter of its input's own size gives one output,
where strides, dilations and flips say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.state import Dim, State
from gradverify.verifier.infer.trial import MOST_JACOBIAN, Caller, Ran, attempt

STEPS = (0.37, 7.3, -7.3)
"""How far the entries of a slice are moved: far enough to cross a threshold, too."""

SMALLER = (2,)
"""Last dimensions that are tried where a part of a larger one is never read."""

WINDOWS = (3, 2, 4)
"""Lengths of windows along several dimensions: different ones, so that a transposed window shows."""

SMALLEST = 2
"""Of a window: one entry is no window."""


def without_unread(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a last dimension of two, or one, where forward leaves the rest of a larger one unread.

    Only where everything is read then: a scan leaves its first factor unread at every size, and has nothing
    to be wrong at a length of one. A tensor that is read whole keeps its own size.
    """
    for place in range(len(state.arguments)):
        argument = state.arguments[place]  # as it is by now: a size may have been resized with another one
        plain = argument.is_float and argument.dims and argument.dims[-1].is_plain
        if not plain or _is_read_whole(caller, ran.arguments, place):
            continue
        for size in SMALLER:
            changed = _resized(caller, state, ran, place, Dim(plus=size))
            again = attempt(caller, changed) if changed is not None else None
            good = isinstance(again, Ran) and again.finite and again.backward is None
            if changed and isinstance(again, Ran) and good and _is_read_whole(caller, again.arguments, place):
                state, ran = changed, again
                break
    return state, ran


def _resized(caller: Caller, state: State, ran: Ran, place: int, size: Dim) -> State | None:
    """With another last dimension: of all that share it, or of this alone where one of them is read whole."""
    symbol = state.arguments[place].dims[-1].symbol
    for k, other in enumerate(state.arguments):
        if k != place and any(symbol in d.symbols for d in other.sizes):
            last = other.dims[-1].symbols if other.dims else ()
            if symbol not in last or _is_read_whole(caller, ran.arguments, k):
                return state.with_dim(place, len(state.arguments[place].dims) - 1, size)
    return state.substituted(symbol, size)


def _is_read_whole(caller: Caller, arguments: Sequence[Any], place: int) -> bool:
    """Whether forward reads every slice along the last dimension; also where that is not known."""
    given = arguments[place] if place < len(arguments) else None
    if not isinstance(given, Tensor) or not given.dim() or not _is_number(given):
        return True
    base = _outputs(caller, arguments, place, given)
    return base is None or all(_is_read(caller, arguments, place, k, base) for k in range(given.shape[-1]))


def _is_number(given: Tensor) -> bool:
    return given.is_floating_point() or given.is_complex()


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
    return [r.clone() for r in returned if isinstance(r, Tensor) and r.layout is torch.strided] or None


def with_windows(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a size of its own for each dimension in which one tensor slides over another.

    That a tensor is a window shows in what forward gives: the less there is of it, the more comes out.
    """
    here = _entries(caller, state)
    for place, argument in enumerate(state.arguments if here else ()):
        if not argument.is_float or argument.value is not None:
            continue
        along = [k for k in range(len(argument.dims)) if _slides(caller, state, here, place, k)]
        for wider in _roomy(state, place, along) if 0 < len(along) <= len(WINDOWS) else ():
            if _entries(caller, wider) > here:
                again = attempt(caller, wider)
                return (wider, again) if isinstance(again, Ran) else (state, ran)
    return state, ran


def _entries(caller: Caller, state: State) -> int:
    """Numbers that forward gives where it runs well; none where it does not."""
    ran = attempt(caller, state)
    good = isinstance(ran, Ran) and ran.finite and ran.connected and ran.jacobian <= MOST_JACOBIAN
    return ran.entries() if isinstance(ran, Ran) and good else 0


def _slides(caller: Caller, state: State, here: int, place: int, along: int) -> bool:
    """Whether forward gives more where a tensor has less of a size that others share."""
    dims = state.arguments[place].dims
    dim = dims[along]
    shared = any(dim in a.dims for k, a in enumerate(state.arguments) if k != place and a.is_float)
    if not (dim.is_plain and shared and dims.count(dim) == 1):
        return False
    shorter, (own,) = _with_own(state, place, [along])
    return _entries(caller, shorter.at({own.symbol: dim.value(state.values) - 1})) > here


def _roomy(state: State, place: int, along: Sequence[int]) -> Iterator[State]:
    """Windows of different lengths, with room for every second entry of theirs, then with less."""
    wider, own = _with_own(state, place, along)
    shared = [state.arguments[place].dims[k] for k in along]
    lengths = WINDOWS[: len(along)]
    for windows, room in (
        (lengths, [2 * n - 1 for n in lengths]),
        (lengths, [n + 1 for n in lengths]),
        ([SMALLEST] * len(along), [SMALLEST + 1 + k for k in range(len(along))]),
    ):
        pairs = [*zip(own, windows, strict=True), *zip(shared, room, strict=True)]
        yield wider.at({dim.symbol: size for dim, size in pairs})


def _with_own(state: State, place: int, along: Sequence[int]) -> tuple[State, tuple[Dim, ...]]:
    """The same with sizes of its own for some dimensions of a tensor."""
    wider, own = state.fresh(len(along))
    for k, dim in zip(along, own, strict=True):
        wider = wider.with_dim(place, k, dim)
    return wider, own
