"""Last dimensions that forward accepts and does not mean: of a larger one than two the rest is never read.

Real and imaginary parts have a last dimension of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.state import Dim, State
from gradverify.verifier.infer.trial import Caller, Ran, attempt

STEPS = (0.37, 7.3, -7.3)
"""How far the entries of a slice are moved: far enough to cross a threshold, too."""

PAIR = Dim(plus=2)
"""The last dimension that is tried where a part of a larger one is never read."""


def without_unread(caller: Caller, state: State, ran: Ran) -> tuple[State, Ran]:
    """The same with a last dimension of two where forward leaves the rest of a larger one unread.

    Of all that share the size, or of one alone where another is read whole. Only where everything is read
    then: a scan leaves its first factor unread at every size, and has nothing to be wrong at a length of one.
    """
    for place in range(len(state.arguments)):
        argument = state.arguments[place]  # as it is by now: a size may have been resized with another one
        plain = argument.is_float and argument.dims and argument.dims[-1].is_plain
        if not plain or _is_read_whole(caller, ran.arguments, place):
            continue
        symbol = argument.dims[-1].symbol
        sharing = [k for k, a in enumerate(state.arguments) if any(symbol in d.symbols for d in a.sizes)]
        last = {k: state.arguments[k].dims[-1:] for k in sharing}
        if any(argument.dims[-1:] != last[k] or _is_read_whole(caller, ran.arguments, k) for k in sharing):
            changed: State | None = state.with_dim(place, len(argument.dims) - 1, PAIR)
        else:
            changed = state.substituted(symbol, PAIR)
        again = attempt(caller, changed) if changed is not None else None
        good = isinstance(again, Ran) and again.finite and again.backward is None
        if changed and isinstance(again, Ran) and good and _is_read_whole(caller, again.arguments, place):
            state, ran = changed, again
    return state, ran


def _is_read_whole(caller: Caller, arguments: Sequence[Any], place: int) -> bool:
    """Whether forward reads every slice along the last dimension; also where that cannot be told."""
    given = arguments[place] if place < len(arguments) else None
    if (
        not isinstance(given, Tensor)
        or not given.dim()
        or not (given.is_floating_point() or given.is_complex())
    ):
        return True
    base = _outputs(caller, arguments, place, given)
    return base is None or all(_is_read(caller, arguments, place, k, base) for k in range(given.shape[-1]))


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
