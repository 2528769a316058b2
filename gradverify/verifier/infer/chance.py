"""Inputs that ran by chance, and hide mistakes: from them to sizes that differ, and parts of equal size.

Where all sizes are one, a transposed gradient fits, and what should have fewer dimensions is broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradverify.verifier.infer.starting import is_weight
from gradverify.verifier.infer.state import Argument, Dim, State
from gradverify.verifier.infer.trial import Caller, attempt
from gradverify.verifier.inputs.tensors import SQUARE

AGAIN = 0.02
"""What each further beginning costs: little beside the guesses, and beside what waits at the same cost."""

CUTTING = frozenset({"chunk", "tensor_split", "unsafe_chunk"})
"""Functions of torch that cut a tensor into a number of parts."""

Cut = tuple[int, int]
"""(size of the dimension, number of parts) of a call that cuts into parts."""


def idle_counts(state: State) -> int:
    """How many invented counts are one or none: of rounds, of groups, of terms."""
    invented = (a.guess.choices for a in state.arguments if a.guess.is_invented_number)
    return sum(choices in {(0,), (1,)} and type(choices[0]) is int for choices in invented if choices)


def is_by_chance(state: State) -> bool:
    """Whether the state hides mistakes: square tensors, sizes that are all fixed, counts of one or none."""
    held = any(a.value is not None for a in state.arguments)
    fixed = not held and not state.symbols() and any(a.is_tensor and a.dims for a in state.arguments)
    tied = any(a.is_tensor and _are_tied(a) for a in state.arguments)
    return tied or fixed or idle_counts(state) > 0


def _are_tied(argument: Argument) -> bool:
    """Whether two dimensions go together, as `3*n` and `n` do; those of a symmetric matrix have to."""
    symbols = [s for d in argument.dims for s in d.symbols]
    return argument.structure not in SQUARE and len(set(symbols)) < len(symbols)


def deepest(state: State) -> int:
    """The most dimensions of a tensor."""
    return max((len(a.dims) for a in state.arguments if a.is_tensor), default=0)


def begun_again(state: State) -> Iterator[State]:
    """The same guesses with sizes that all differ: of the same ranks, and with one dimension less for one."""
    places = [k for k, a in enumerate(state.arguments) if a.is_tensor and len(a.dims) > 1]
    ways = ((place, shares) for place in (None, *reversed(places)) for shares in (True, False))
    for number, (place, shares) in enumerate(ways):
        yield replace(_distinct(state, place, shares=shares), cost=state.cost + AGAIN * number)


def _distinct(state: State, lowered: int | None, *, shares: bool) -> State:
    """`shares`: tensors of the highest rank agree in all dimensions but the last, unless they are weights."""
    highest = deepest(state)
    fresh, shared = replace(state, sizes=(), pinned=frozenset()).fresh(max(0, highest - 1) if shares else 0)
    for place, argument in enumerate(state.arguments):
        if not argument.sizes:
            continue
        rank = len(argument.dims) - (place == lowered)
        stands_alone = rank < highest or not argument.is_tensor or is_weight(argument.name)
        common = () if stands_alone else shared
        fresh, own = fresh.fresh(rank - len(common))
        bound = argument.bound
        if bound is not None and bound.symbol >= 0:
            fresh, (bound,) = fresh.fresh(1)
        fresh = fresh.with_argument(place, replace(argument, dims=(*common, *own), bound=bound))
    return fresh


class _Noting(TorchFunctionMode):
    """Notes the sizes of what is cut into parts that are unequal, or of one entry."""

    def __init__(self) -> None:
        super().__init__()
        self.uneven: dict[Cut, None] = {}

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = kwargs or {}
        if getattr(func, "__name__", "") in CUTTING and args and isinstance(args[0], Tensor):
            parts = args[1] if len(args) > 1 else given.get("chunks", given.get("sections"))
            dim = args[2] if len(args) > 2 else given.get("dim", 0)
            if isinstance(parts, int) and isinstance(dim, int) and parts > 1 and args[0].dim():
                size = args[0].shape[dim]
                if size % parts or size <= parts:
                    self.uneven[size, parts] = None
        return func(*args, **given)


def uneven_cuts(caller: Caller, state: State) -> tuple[Cut, ...]:
    """The calls that cut into parts of different sizes, or of one entry, while forward runs."""
    if not state.parts:
        return ()
    noting = _Noting()
    with noting:
        attempt(caller, state)
    return tuple(noting.uneven)


def evened(state: State, cuts: Sequence[Cut]) -> Iterator[State]:
    """States in which what was cut unevenly is a multiple of the number of parts."""
    for size, parts in cuts:
        same = (s for s in state.symbols() if state.values[s] == size)
        for number, symbol in enumerate(same):
            changed = state.substituted(symbol, Dim(symbol, times=parts))
            if changed is not None:
                yield replace(changed, cost=AGAIN * number)
        fresh, (own,) = state.fresh(1)
        fixed, multiple = Dim(plus=size), replace(own, times=parts)
        arguments = (a.with_dims(multiple if d == fixed else d for d in a.dims) for a in fresh.arguments)
        changed = replace(fresh, arguments=tuple(arguments), cost=AGAIN)
        if changed.arguments != state.arguments:
            yield changed
