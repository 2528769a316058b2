"""Shapes as symbols: dimensions whose sizes differ from each other until an error says that they agree."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from gradverify.model import Nested
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.cuts import NO_CUTS, Cuts

DISTINCT = (4, 3, 5, 7, 6, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
"""Sizes of symbols in order of appearance: all differ, so that a number in an error names its dimension."""


@dataclass(frozen=True)
class Dim:
    """`times * symbol // over + plus + added`; without a symbol, the constant `plus`."""

    symbol: int = -1
    times: int = 1
    over: int = 1
    plus: int = 0
    added: int = -1
    """Another symbol, of what stands beside it in a concatenation."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a symbol by itself."""
        return self.symbol >= 0 and (self.times, self.over, self.plus, self.added) == (1, 1, 0, -1)

    @property
    def symbols(self) -> tuple[int, ...]:
        """Those it is made of."""
        return tuple(s for s in (self.symbol, self.added) if s >= 0)

    def value(self, sizes: Mapping[int, int]) -> int:
        """Its size."""
        beside = sizes[self.added] if self.added >= 0 else 0
        own = 0 if self.symbol < 0 else sizes[self.symbol] * self.times // self.over
        return own + self.plus + beside

    def written(self, names: Mapping[int, str]) -> str:
        """As a size expression."""
        if self.symbol < 0:
            return str(self.plus)
        text = names[self.symbol]
        text = f"{self.times}*{text}" if self.times != 1 else text
        text = f"{text}//{self.over}" if self.over != 1 else text
        text = f"{text} + {names[self.added]}" if self.added >= 0 else text
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
    layout: str = ""
    """`sparse_coo` or `sparse_csr`; empty for strided."""
    structure: str = ""
    value: Nested = None
    """Entries of a tensor that is passed on as it was noted; None where they are drawn."""
    items: int = 0
    """How many tensors of one shape a list holds."""
    parts: tuple[Argument, ...] = ()
    """The tensors of a list that are of different shapes or kinds."""
    requires_grad: bool = True

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """Its dimensions and its bound."""
        own = (*self.dims, self.bound) if self.bound is not None else self.dims
        return (*own, *(d for p in self.parts for d in p.sizes))

    @property
    def is_tensor(self) -> bool:
        """Whether it has a shape."""
        return self.guess.kind in {Kind.FLOAT, Kind.INDEX, Kind.BOOL, Kind.LIST} and not self.parts


@dataclass(frozen=True)
class State:
    """One set of arguments to try."""

    arguments: tuple[Argument, ...]
    sizes: tuple[tuple[int, int], ...]
    """(symbol, size) pairs."""
    cost: float = 0.0
    pinned: frozenset[str] = frozenset()
    """Arguments of which an error, not the source, fixed a size to a number or an expression."""
    by_backward: tuple[tuple[str, int], ...] = ()
    """(argument, size) pairs: last dimensions that a number in backward's source fixes."""
    observed: bool = False
    """A module of the user's own passed such arguments."""
    cuts: Cuts = NO_CUTS
    """How the source cuts tensors up and joins them."""

    @property
    def values(self) -> dict[int, int]:
        """Sizes by symbol."""
        return dict(self.sizes)

    def shape(self, argument: Argument) -> tuple[int, ...]:
        """The shape of a tensor argument at the present sizes."""
        return tuple(d.value(self.values) for d in argument.dims)

    def symbols(self) -> tuple[int, ...]:
        """Symbols in use, in order of appearance."""
        return tuple(dict.fromkeys(s for a in self.arguments for d in a.sizes for s in d.symbols))

    def substituted(self, symbol: int, dim: Dim) -> State | None:
        """The same with a symbol replaced everywhere; None where an expression would be nested."""
        changed = tuple(_substituted(a, symbol, dim) for a in self.arguments)
        whole = tuple(a for a in changed if a is not None)
        return replace(self, arguments=whole) if len(whole) == len(changed) else None

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
        # A number of parts is no size: one entry in each would be broadcast.
        spare = [v for v in DISTINCT if v not in taken | self.cuts.parts]
        added = tuple((known + k, spare[k] if k < len(spare) else 50 + known + k) for k in range(count))
        return replace(self, sizes=(*self.sizes, *added)), tuple(Dim(s) for s, _ in added)

    def key(self) -> tuple[object, ...]:
        """What two states that make the same call have in common."""
        return tuple(
            (
                a.guess.kind, a.guess.choices, a.guess.path, self.shape(a), a.dtype, a.domain, a.layout,
                a.structure, a.items, self.of(a.parts).key() if a.parts else (), a.requires_grad, a.value,
                a.guess.init,
                a.bound.value(self.values) if a.bound else None,
            )
            for a in self.arguments
        )  # fmt: skip

    def elements(self) -> int:
        """How many numbers the arguments hold."""
        own = sum(math.prod(self.shape(a)) * max(1, a.items) for a in self.arguments if a.is_tensor)
        return own + sum(self.of(a.parts).elements() for a in self.arguments if a.parts)

    def of(self, arguments: tuple[Argument, ...]) -> State:
        """The same with other arguments: those that a list holds."""
        return replace(self, arguments=arguments)


@dataclass(frozen=True)
class Waiting:
    """A state that is made when its turn comes: hundreds wait, and few are tried."""

    cost: float
    made: Callable[[], State]

    @cached_property
    def state(self) -> State:
        """The state, once."""
        return replace(self.made(), cost=self.cost)


def _substituted(argument: Argument, symbol: int, dim: Dim) -> Argument | None:
    replaced = [_replaced(d, symbol, dim) for d in argument.dims]
    dims = tuple(d for d in replaced if d is not None)
    parts = [_substituted(p, symbol, dim) for p in argument.parts]
    kept = tuple(p for p in parts if p is not None)
    if len(dims) < len(replaced) or len(kept) < len(parts):
        return None
    return replace(argument, dims=dims, bound=_replaced(argument.bound, symbol, dim), parts=kept)


def dearer(state: State, cost: float) -> State:
    """The same at a higher cost."""
    return replace(state, cost=state.cost + cost)


def _replaced(dim: Dim | None, symbol: int, by: Dim) -> Dim | None:
    if dim is None or symbol not in dim.symbols:
        return dim
    if dim.is_plain:
        return by
    if dim.added == symbol:
        return replace(dim, added=by.symbol) if by.is_plain and dim.symbol != symbol else None
    if by.is_plain:
        return replace(dim, symbol=by.symbol)
    constant = by.symbol < 0 and dim.added < 0
    return Dim(plus=by.plus * dim.times // dim.over + dim.plus) if constant else None


APART = 0.05
"""What it costs that vectors beside tensors of more dimensions have sizes of their own."""

SEGMENTS = 2
"""Segments that offsets begin with."""

LENGTHS = "lengths"
"""Integers that add up to a size. No spec has such a structure: in the end they are what they were."""

HYPOTHESES = ("same", "labels", "leading", "distinct")
"""All of one shape; integer and boolean tensors without the last dimension, as class labels are; the same
leading dimensions and distinct last ones; every dimension another one."""

LAYERS = ("layer", "norm")
"""Where something is called a bias, before all others: weights are matrices of their own and a bias has one
dimension; as a normalisation has them, weights have one dimension as well."""

_BIAS = re.compile(r"^(b|bias|beta|shift)(_\w+)?\d*$|.*_(b|bias|beta)\d*$|^b\d$")
_WEIGHT = re.compile(
    r"^(w|u|weights?|gamma|kernel|filters?|proj)(_\w+)?\d*$|.*_(w|weights?|gamma)\d*$", re.IGNORECASE
)


def states(
    names: Sequence[str],
    combination: Sequence[Guess],
    ranks: Sequence[int | None],
    least: Sequence[int],
    cuts: Cuts = NO_CUTS,
) -> Iterator[Waiting]:
    """The starting states of a combination of guesses; later ones cost more."""
    tensors = [
        k for k, g in enumerate(combination) if g.kind in {Kind.FLOAT, Kind.INDEX, Kind.BOOL, Kind.LIST}
    ]
    base = math.fsum(g.cost for g in combination)
    free = any(ranks[k] is None for k in tensors)
    for order, rank in enumerate(_free_ranks(max((least[k] for k in tensors), default=0)) if free else (2,)):
        marked = any(combination[k].kind in {Kind.INDEX, Kind.BOOL} for k in tensors)
        filled = [rank if r is None else r for r in ranks]
        for place, hypothesis in enumerate(HYPOTHESES if len(tensors) > 1 else HYPOTHESES[:1]):
            if hypothesis == "labels" and not (marked and rank):
                continue
            cost = base + 0.5 * order + 0.3 * place
            yield Waiting(cost, partial(_started, names, combination, filled, hypothesis, cuts))
        biased = any(ranks[k] in {None, 1} and _BIAS.match(names[k].lower()) for k in tensors)
        for place, layer in enumerate(LAYERS if biased and len(tensors) > 2 and rank > 1 else ()):
            cost = base + 0.5 * order + 0.1 * (1 + place)
            yield Waiting(cost, partial(_layer, names, combination, ranks, rank, layer, cuts))


def vectors_apart(
    names: Sequence[str], combination: Sequence[Guess], ranks: Sequence[int | None], cuts: Cuts
) -> Iterator[Waiting]:
    """The state in which vectors share no size with the tensors beside them, where all ranks are known."""
    tensors = [k for k, g in enumerate(combination) if Argument("", g).is_tensor]
    vectors = frozenset(names[k] for k in tensors if ranks[k] == 1)
    if vectors and len(vectors) < len(tensors) and all(ranks[k] is not None for k in tensors):
        cost = math.fsum(g.cost for g in combination) + APART
        filled = [r if r is not None else 0 for r in ranks]
        yield Waiting(cost, partial(_started, names, combination, filled, "leading", cuts, vectors))


def is_weight(name: str) -> bool:
    """Whether a parameter is called as those of layers are, which share no batch with the inputs."""
    return bool(_WEIGHT.match(name))


def _layer(
    names: Sequence[str],
    combination: Sequence[Guess],
    ranks: Sequence[int | None],
    free: int,
    kind: str,
    cuts: Cuts,
) -> State:
    flat = [(kind == "norm" and bool(_WEIGHT.match(n))) or bool(_BIAS.match(n.lower())) for n in names]
    filled = [r if r is not None else 1 if one else free for r, one in zip(ranks, flat, strict=True)]
    apart = frozenset(
        n for n, one in zip(names, flat, strict=True) if one or (kind == "layer" and is_weight(n))
    )
    return _started(names, combination, filled, "leading", cuts, apart)


def _free_ranks(least: int) -> tuple[int, ...]:
    return tuple(r for r in (2, 3, 4, 1, 0, 5) if r >= least) or (least,)


def _started(
    names: Sequence[str],
    combination: Sequence[Guess],
    ranks: Sequence[int],
    hypothesis: str,
    cuts: Cuts,
    apart: frozenset[str] = frozenset(),
) -> State:
    """`apart` are tensors that share no dimension with others."""
    state = State((), (), cuts=cuts)
    shared: list[Dim] = []
    arguments: list[Argument] = []
    for name, guess, rank in zip(names, combination, ranks, strict=True):
        argument = Argument(name, guess)
        if guess.kind is Kind.SIZE:
            state, (dim,) = state.fresh(1)
            argument = replace(argument, dims=(dim,))
        elif argument.is_tensor:
            is_label = hypothesis == "labels" and guess.kind in {Kind.INDEX, Kind.BOOL}
            how = "distinct" if name in apart else hypothesis
            state, dims, shared = _dims(state, rank - is_label, shared, how)
            argument = replace(argument, dims=dims, items=2 if guess.kind is Kind.LIST else 0)
            if guess.structure:
                state, argument = _ordered(state, argument, arguments)
            elif guess.kind is Kind.INDEX:
                argument = replace(argument, bound=_bound(arguments, dims, state))
                argument = replace(argument, bound=argument.bound or Dim(plus=3))
        arguments.append(argument)
    return replace(state, arguments=tuple(arguments))


def _ordered(state: State, argument: Argument, before: Sequence[Argument]) -> tuple[State, Argument]:
    """Offsets into the first dimension of the first tensor, lengths of its parts, a permutation of it."""
    first = next((a.dims[0] for a in before if a.guess.kind is Kind.FLOAT and a.dims), None)
    if first is None:
        state, (first,) = state.fresh(1)
    dims: tuple[Dim, ...] = (first,)
    if argument.guess.structure in {"offsets", LENGTHS}:
        state, (segments,) = state.fresh(1)
        # Fewer segments than places, so that none needs to be empty.
        state = state.at({segments.symbol: SEGMENTS})
        dims = (replace(segments, plus=argument.guess.structure == "offsets"),)
    return state, replace(argument, dims=dims, bound=first, structure=argument.guess.structure)


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
