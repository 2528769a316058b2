"""From inputs that ran by chance to ones that tell more: sizes that differ, and parts of equal size.

Where all sizes are one, a transposed gradient fits, and what should have fewer dimensions is broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, is_weight
from gradverify.verifier.collect.inference.trial import Caller, attempt
from gradverify.verifier.inputs.stand_ins import MADE
from gradverify.verifier.inputs.structures import SQUARE

AGAIN = 0.02
"""What each further beginning costs: little beside the guesses, and beside what waits at the same cost."""

CUTTING = frozenset({"chunk", "tensor_split", "unsafe_chunk"})
"""Functions of torch that cut a tensor into a number of parts."""


def squares(state: State) -> int:
    """How many tensors have two dimensions of one size."""
    return sum(len(set(a.dims)) < len(a.dims) for a in state.arguments if a.is_tensor)


def _are_tied(argument: Argument) -> bool:
    """Whether two dimensions go together, as `3*n` and `n` do; those of a symmetric matrix have to."""
    if argument.structure in SQUARE:
        return False
    symbols = [s for d in argument.dims for s in d.symbols]
    return len(set(symbols)) < len(symbols)


def idle_counts(state: State) -> int:
    """How many invented counts are one or none: of rounds, of groups, of terms."""
    counts = (
        a.guess.choices[0]
        for a in state.arguments
        if a.guess.kind is Kind.LITERAL and not a.guess.found and len(a.guess.choices) == 1
    )
    return sum(type(c) is int and c in {0, 1} for c in counts)


def is_by_chance(state: State) -> bool:
    """Whether the state hides mistakes: square tensors, sizes that are all fixed, counts of one or none."""
    held = any(a.value is not None for a in state.arguments)  # the author's own numbers fix the sizes
    fixed = not held and not state.symbols() and any(a.is_tensor and a.dims for a in state.arguments)
    tied = any(a.is_tensor and _are_tied(a) for a in state.arguments)
    chosen = not state.observed and idle_counts(state) > 0
    return tied or fixed or chosen


def deepest(state: State) -> int:
    """The most dimensions of a tensor."""
    return max((len(a.dims) for a in state.arguments if a.is_tensor), default=0)


def begun_again(state: State) -> Iterator[State]:
    """The same guesses with sizes that all differ: of the same ranks, and with one dimension less for one."""
    if any(a.parts for a in state.arguments):
        return
    places = [k for k, a in enumerate(state.arguments) if a.is_tensor and len(a.dims) > 1]
    number = 0
    for place in (None, *reversed(places)):
        for shares in (True, False):
            yield replace(_distinct(state, place, shares=shares), cost=state.cost + AGAIN * number)
            number += 1


def _distinct(state: State, lowered: int | None, *, shares: bool) -> State:
    """`shares`: tensors of the highest rank agree in all dimensions but the last, unless they are weights."""
    highest = deepest(state)
    fresh = replace(state, sizes=(), pinned=frozenset())
    shared: tuple[Dim, ...] = ()
    if shares and highest:
        fresh, shared = fresh.fresh(highest - 1)
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


@dataclass(frozen=True)
class Cut:
    """A call that cuts a dimension into parts."""

    size: int
    parts: int

    @property
    def is_even(self) -> bool:
        """Whether the parts are equal, and more than a single entry."""
        return self.size % self.parts == 0 and self.size > self.parts


class _Noting(TorchFunctionMode):
    """Notes the sizes of what is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Cut] = []

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
                self.seen.append(Cut(args[0].shape[dim], parts))
        return func(*args, **given)


def uneven_cuts(caller: Caller, state: State) -> tuple[Cut, ...]:
    """The calls that cut into parts of different sizes, or of one entry, while forward runs."""
    if not state.cuts.parts and not any(a.guess.path == MADE for a in state.arguments):
        return ()
    noting = _Noting()
    with noting:
        attempt(caller, state)
    return tuple(dict.fromkeys(c for c in noting.seen if not c.is_even))


def evened(state: State, cuts: Sequence[Cut]) -> Iterator[State]:
    """States in which what was cut unevenly is a multiple of the number of parts."""
    values = state.values
    for cut in cuts:
        for number, symbol in enumerate(s for s in state.symbols() if values[s] == cut.size):
            changed = state.substituted(symbol, Dim(symbol, times=cut.parts))
            if changed is not None:
                yield replace(changed, cost=AGAIN * number)
            yield from (replace(s, cost=AGAIN * (1 + number)) for s in _of_one(state, symbol, cut.parts))
        for dim in {d for a in state.arguments for d in a.dims if d.symbol < 0 and d.plus == cut.size}:
            fresh, (own,) = state.fresh(1)
            yield replace(_with(fresh, dim, replace(own, times=cut.parts)), cost=AGAIN)


def _of_one(state: State, symbol: int, parts: int) -> Iterator[State]:
    """One tensor alone a multiple, where others have the size, too: as its parts do, or by chance."""
    places = [k for k, a in enumerate(state.arguments) if a.is_tensor and Dim(symbol) in a.dims]
    for place in places if len(places) > 1 else ():
        argument = state.arguments[place]
        dims = tuple(Dim(symbol, times=parts) if d == Dim(symbol) else d for d in argument.dims)
        yield state.with_argument(place, replace(argument, dims=dims))


def _with(state: State, old: Dim, new: Dim) -> State:
    return replace(
        state,
        arguments=tuple(
            replace(a, dims=tuple(new if d == old else d for d in a.dims)) for a in state.arguments
        ),
    )
