"""Shapes as symbols: dimensions whose sizes differ from each other until an error says that they agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.collect.inference.candidates import Guess, Kind

DISTINCT = (4, 3, 5, 7, 6, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
"""Sizes of symbols in order of appearance: all differ, so that a number in an error names its dimension."""


@dataclass(frozen=True)
class Dim:
    """`times * symbol // over + plus`; without a symbol, the constant `plus`."""

    symbol: int = -1
    times: int = 1
    over: int = 1
    plus: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is a symbol by itself."""
        return self.symbol >= 0 and (self.times, self.over, self.plus) == (1, 1, 0)

    def value(self, sizes: Mapping[int, int]) -> int:
        """Its size."""
        return self.plus if self.symbol < 0 else sizes[self.symbol] * self.times // self.over + self.plus

    def written(self, names: Mapping[int, str]) -> str:
        """As a size expression."""
        if self.symbol < 0:
            return str(self.plus)
        text = names[self.symbol]
        text = f"{self.times}*{text}" if self.times != 1 else text
        text = f"{text}//{self.over}" if self.over != 1 else text
        return text if not self.plus else f"{text} {'+' if self.plus > 0 else '-'} {abs(self.plus)}"


@dataclass(frozen=True)
class Argument:
    """One argument of an attempt."""

    name: str
    guess: Guess
    dims: tuple[Dim, ...] = ()
    """Shape of a tensor; the one dimension that a size is."""
    bound: Dim | None = None
    """Exclusive upper bound of an integer tensor."""
    dtype: str = ""
    """Set where an error asked for another one."""
    domain: str = "real"
    structure: str = ""
    items: int = 0
    """How many tensors a list holds."""
    requires_grad: bool = True

    @property
    def is_tensor(self) -> bool:
        """Whether it has a shape."""
        return self.guess.kind in {Kind.FLOAT, Kind.INDEX, Kind.BOOL, Kind.LIST}


@dataclass(frozen=True)
class State:
    """One set of arguments to try."""

    arguments: tuple[Argument, ...]
    sizes: tuple[tuple[int, int], ...]
    """(symbol, size) pairs."""
    cost: float = 0.0
    pinned: frozenset[str] = frozenset()
    """Arguments of which an error, not the source, fixed a size to a number or an expression."""
    observed: bool = False
    """A module of the user's own passed such arguments."""

    @property
    def values(self) -> dict[int, int]:
        """Sizes by symbol."""
        return dict(self.sizes)

    def shape(self, argument: Argument) -> tuple[int, ...]:
        """The shape of a tensor argument at the present sizes."""
        return tuple(d.value(self.values) for d in argument.dims)

    def symbols(self) -> tuple[int, ...]:
        """Symbols in use, in order of appearance."""
        used = (d.symbol for a in self.arguments for d in (*a.dims, *((a.bound,) if a.bound else ())))
        return tuple(dict.fromkeys(s for s in used if s >= 0))

    def substituted(self, symbol: int, dim: Dim) -> State | None:
        """The same with a symbol replaced everywhere; None where an expression would be nested."""
        changed = []
        for argument in self.arguments:
            replaced = [_replaced(d, symbol, dim) for d in argument.dims]
            dims = tuple(d for d in replaced if d is not None)
            bound = _replaced(argument.bound, symbol, dim)
            if len(dims) < len(replaced):
                return None
            changed.append(replace(argument, dims=dims, bound=bound))
        return replace(self, arguments=tuple(changed))

    def at(self, sizes: Mapping[int, int]) -> State:
        """The same at other sizes."""
        return replace(self, sizes=tuple((s, sizes.get(s, v)) for s, v in self.sizes))

    def with_argument(self, position: int, argument: Argument) -> State:
        """The same with one argument replaced."""
        changed = list(self.arguments)
        changed[position] = argument
        return replace(self, arguments=tuple(changed))

    def fresh(self, count: int) -> tuple[State, tuple[Dim, ...]]:
        """So many new symbols, of sizes that no other has."""
        taken, known = {v for _, v in self.sizes}, len(self.sizes)
        spare = [v for v in DISTINCT if v not in taken]
        added = tuple((known + k, spare[k] if k < len(spare) else 50 + known + k) for k in range(count))
        return replace(self, sizes=(*self.sizes, *added)), tuple(Dim(s) for s, _ in added)

    def key(self) -> tuple[object, ...]:
        """What two states that make the same call have in common."""
        return tuple(
            (
                a.guess.kind, a.guess.choices, a.guess.path, self.shape(a), a.dtype, a.domain, a.structure,
                a.items, a.requires_grad, a.bound.value(self.values) if a.bound else None,
            )
            for a in self.arguments
        )  # fmt: skip

    def elements(self) -> int:
        """How many numbers the arguments hold."""
        return sum(math.prod(self.shape(a)) * max(1, a.items) for a in self.arguments if a.is_tensor)


def _replaced(dim: Dim | None, symbol: int, by: Dim) -> Dim | None:
    if dim is None or dim.symbol != symbol:
        return dim
    if dim.is_plain:
        return by
    if by.is_plain:
        return replace(dim, symbol=by.symbol)
    if by.symbol < 0:
        return Dim(plus=by.plus * dim.times // dim.over + dim.plus)
    return None


HYPOTHESES = ("same", "labels", "leading", "distinct")
"""All of one shape; integer and boolean tensors without the last dimension, as class labels are; the same
leading dimensions and distinct last ones; every dimension another one."""


def states(
    names: Sequence[str], combination: Sequence[Guess], ranks: Sequence[int | None], least: Sequence[int]
) -> Iterator[State]:
    """The starting states of a combination of guesses; later ones cost more."""
    tensors = [
        k for k, g in enumerate(combination) if g.kind in {Kind.FLOAT, Kind.INDEX, Kind.BOOL, Kind.LIST}
    ]
    base = math.fsum(g.cost for g in combination)
    free = any(ranks[k] is None for k in tensors)
    for order, rank in enumerate(_free_ranks(max((least[k] for k in tensors), default=0)) if free else (2,)):
        marked = any(combination[k].kind in {Kind.INDEX, Kind.BOOL} for k in tensors)
        for place, hypothesis in enumerate(HYPOTHESES if len(tensors) > 1 else HYPOTHESES[:1]):
            if hypothesis == "labels" and not (marked and rank):
                continue
            cost = base + 0.5 * order + 0.3 * place
            made = _started(names, combination, [rank if r is None else r for r in ranks], hypothesis)
            yield replace(made, cost=cost)


def _free_ranks(least: int) -> tuple[int, ...]:
    return tuple(r for r in (2, 3, 4, 1, 0, 5) if r >= least) or (least,)


def _started(
    names: Sequence[str], combination: Sequence[Guess], ranks: Sequence[int], hypothesis: str
) -> State:
    state = State((), ())
    shared: list[Dim] = []
    arguments: list[Argument] = []
    for name, guess, rank in zip(names, combination, ranks, strict=True):
        argument = Argument(name, guess)
        if guess.kind is Kind.SIZE:
            state, (dim,) = state.fresh(1)
            argument = replace(argument, dims=(dim,))
        elif argument.is_tensor:
            is_label = hypothesis == "labels" and guess.kind in {Kind.INDEX, Kind.BOOL}
            state, dims, shared = _dims(state, rank - is_label, shared, hypothesis)
            argument = replace(argument, dims=dims, items=2 if guess.kind is Kind.LIST else 0)
            if guess.kind is Kind.INDEX:
                argument = replace(argument, bound=_bound(arguments, dims, state))
                argument = replace(argument, bound=argument.bound or Dim(plus=3))
        arguments.append(argument)
    return replace(state, arguments=tuple(arguments))


def _dims(
    state: State, rank: int, shared: list[Dim], hypothesis: str
) -> tuple[State, tuple[Dim, ...], list[Dim]]:
    if hypothesis == "distinct":
        state, dims = state.fresh(rank)
        return state, dims, shared
    keep = rank if hypothesis in {"same", "labels"} else max(0, rank - 1)
    if len(shared) < keep:
        state, more = state.fresh(keep - len(shared))
        shared = [*shared, *more]
    state, last = state.fresh(rank - keep)
    return state, (*shared[:keep], *last), shared


def _bound(before: Sequence[Argument], dims: tuple[Dim, ...], state: State) -> Dim | None:
    """An index is below a dimension of the first tensor: the last one it does not share, else the last."""
    del state
    first = next((a for a in before if a.guess.kind is Kind.FLOAT and a.dims), None)
    if first is None:
        return None
    own = [d for d in first.dims if d not in dims]
    return (own or list(first.dims))[-1]
