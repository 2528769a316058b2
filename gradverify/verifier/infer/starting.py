"""The states that a search starts from: a guess for each parameter, and a hypothesis on the shapes."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradverify.verifier.infer import costs
from gradverify.verifier.infer.facts import Evidence
from gradverify.verifier.infer.guesses import all_different
from gradverify.verifier.infer.state import LENGTHS, Argument, Dim, Guess, Kind, State, Waiting, combined
from gradverify.verifier.inputs.arguments import BLOCK

MOST_COMBINATIONS = 100
"""Combinations of guesses that a search starts from."""

MANY_OPTIONAL = 4
"""From how many arguments that may be None they are tried as None together."""

HYPOTHESES = ("same", "labels", "leading", "distinct")
"""All of one shape; integer and boolean tensors without the last dimension, as class labels are; the same
leading dimensions and distinct last ones; every dimension another one."""

LAYERS = ("layer", "norm")
"""Where something is called a bias, before all others: weights are matrices of their own and a bias has one
dimension; as a normalisation has them, weights have one dimension as well."""

RANKS = (2, 3, 4, 1, 0, 5)
"""Numbers of dimensions where the source says none, the likeliest first."""

SEGMENTS = 2
"""Segments that offsets begin with."""

LABELS = 3
"""Exclusive bound of integers beside no tensor that they could index."""

_BIAS = re.compile(r"^(b|bias|beta|shift)(_\w+)?\d*$|.*_(b|bias|beta)\d*$|^b\d$")
_WEIGHT = re.compile(
    r"^(w|u|weights?|gamma|kernel|filters?|proj)(_\w+)?\d*$|.*_(w|weights?|gamma)\d*$", re.IGNORECASE
)


def is_weight(name: str) -> bool:
    """Whether a parameter is called as those of layers are, which share no batch with the inputs."""
    return bool(_WEIGHT.match(name))


def started(names: Sequence[str], each: Sequence[Sequence[Guess]], evidence: Evidence) -> Iterator[Waiting]:
    """The states of the likeliest combinations of guesses for each parameter."""
    facts = [evidence.facts[name] for name in names]
    ranks, least = [f.rank for f in facts], [f.least_rank for f in facts]
    likely = [r if r is not None else evidence.likely.get(n) for n, r in zip(names, ranks, strict=True)]
    likeliest = (*combinations(each, MOST_COMBINATIONS), *_bare(each))
    several = (with_block(names, c) for one in likeliest for c in all_different(names, one))
    for combination in filter(None, several):
        stated = [f.least_rank if f.rank is None else f.rank for f in facts]
        empty = State(parts=evidence.parts, joins=evidence.joins)
        made = _Made(names, combination, least, stated, empty, [f.sizes for f in facts])
        if likely != ranks:
            written = (*made.states(likely), *made.vectors_apart(likely))
            yield from (replace(s, cost=s.cost + costs.AS_WRITTEN) for s in written)
        yield from made.states(ranks)


def combinations(each: Sequence[Sequence[Guess]], most: int) -> Iterator[tuple[Guess, ...]]:
    """Combinations of one guess for each parameter, cheapest first, at most so many."""
    if not all(each):
        return
    first = (0,) * len(each)
    heap = [(combined([g[0] for g in each]), first)]
    seen = {first}
    for _ in range(most):
        if not heap:
            return
        _, chosen = heapq.heappop(heap)
        yield tuple(g[k] for g, k in zip(each, chosen, strict=True))
        for place in range(len(each)):
            further = (*chosen[:place], chosen[place] + 1, *chosen[place + 1 :])
            if further[place] < len(each[place]) and further not in seen:
                seen.add(further)
                cost = combined([g[k] for g, k in zip(each, further, strict=True)])
                heapq.heappush(heap, (cost, further))


def with_block(names: Sequence[str], combination: Sequence[Guess]) -> Sequence[Guess] | None:
    """The same with a module that has parameters where some are passed; None where none can have any."""
    for guess in (g for g in combination if g.kind is Kind.PARAMETERS):
        owner = names.index(guess.path)
        module = combination[owner]
        if module.kind is Kind.CALLABLE and not module.found:
            block = replace(module, path=BLOCK, made=True)
            return (*combination[:owner], block, *combination[owner + 1 :])
        return None
    return combination


def _bare(each: Sequence[Sequence[Guess]]) -> Iterator[tuple[Guess, ...]]:
    """The likeliest guesses, with nothing for each of many arguments that may be None.

    What code asks for all the same is put in where it refuses: that takes fewer calls than to find out which
    of ten tensors go together, and which of them are none.
    """
    nothing = [next((g for g in several if g.is_nothing), None) for several in each]
    left_out = [g for g, several in zip(nothing, each, strict=True) if g not in {None, several[0]}]
    if len(left_out) < MANY_OPTIONAL:
        return
    yield tuple(
        several[0] if none is None else replace(none, cost=several[0].cost + costs.BARE / len(left_out))
        for none, several in zip(nothing, each, strict=True)
    )


@dataclass(frozen=True)
class _Made:
    """The states of one combination of guesses."""

    names: Sequence[str]
    combination: Sequence[Guess]
    least: Sequence[int]
    """Dimensions that each has at least."""
    stated: Sequence[int]
    """The same, or those that the source names."""
    empty: State
    sizes: Sequence[Mapping[int, str]]
    """What the author calls the dimensions of each, as far as that is known."""

    @property
    def tensors(self) -> list[int]:
        """Places of the tensors."""
        return [k for k, g in enumerate(self.combination) if Argument("", g).is_tensor]

    def states(self, ranks: Sequence[int | None]) -> Iterator[Waiting]:
        """Those of every hypothesis and number of dimensions; `ranks` where they are known."""
        tensors, cost = self.tensors, combined(self.combination)
        least = max((self.least[k] for k in tensors), default=0)
        free = tuple(r for r in RANKS if r >= least) or (least,)
        marked = any(self.combination[k].kind in {Kind.INDEX, Kind.BOOL} for k in tensors)
        biased = any(ranks[k] in {None, 1} and _BIAS.match(self.names[k].lower()) for k in tensors)
        for order, rank in enumerate(free if any(ranks[k] is None for k in tensors) else (2,)):
            filled = [rank if r is None else r for r in ranks]
            if self._is_named(filled):
                yield Waiting(cost + costs.RANK * order + costs.NAMED, partial(self._named, filled))
            for place, how in enumerate(HYPOTHESES if len(tensors) > 1 else HYPOTHESES[:1]):
                if how != "labels" or (marked and rank):
                    yield Waiting(
                        cost + costs.RANK * order + costs.HYPOTHESIS * place,
                        partial(self._shaped, filled, how),
                    )
            for place, layer in enumerate(LAYERS if biased and len(tensors) > 2 and rank > 1 else ()):
                made = partial(self._layer, ranks, rank, layer)
                yield Waiting(cost + costs.RANK * order + costs.LAYER * (1 + place), made)

    def vectors_apart(self, ranks: Sequence[int | None]) -> Iterator[Waiting]:
        """The state in which vectors share no size with the tensors beside them, if all ranks are known."""
        tensors = self.tensors
        vectors = frozenset(self.names[k] for k in tensors if ranks[k] == 1)
        if vectors and len(vectors) < len(tensors) and all(ranks[k] is not None for k in tensors):
            filled = [r or 0 for r in ranks]
            yield Waiting(
                combined(self.combination) + costs.APART, partial(self._shaped, filled, "leading", vectors)
            )

    def _layer(self, ranks: Sequence[int | None], free: int, kind: str) -> State:
        flat = [(kind == "norm" and is_weight(n)) or bool(_BIAS.match(n.lower())) for n in self.names]
        filled = [r if r is not None else 1 if one else free for r, one in zip(ranks, flat, strict=True)]
        apart = (
            n for n, one in zip(self.names, flat, strict=True) if one or (kind == "layer" and is_weight(n))
        )
        return self._shaped(filled, "leading", frozenset(apart))

    def _is_named(self, ranks: Sequence[int]) -> bool:
        """Whether names tie the sizes of two tensors that have some, and tell those of every other one."""
        like = self._like(ranks)
        each = {k: [self._name(like, k, ranks[k], d) for d in range(ranks[k])] for k in self.tensors}
        own = [n for k, names in each.items() if self.sizes[k] for n in set(names) - {""}]
        known = all(self.sizes[k] or ranks[k] in like for k in self.tensors)
        return known and len(own) > len(set(own))

    def _like(self, ranks: Sequence[int]) -> dict[int, Mapping[int, str]]:
        """Of each number of dimensions the names of the tensor that has most of them."""
        like: dict[int, Mapping[int, str]] = {}
        for rank, sizes in zip(ranks, self.sizes, strict=True):
            if len(sizes) > len(like.get(rank, {})):
                like[rank] = sizes
        return like

    def _name(self, like: Mapping[int, Mapping[int, str]], place: int, rank: int, k: int) -> str:
        """What the author calls a dimension, or that of the tensor like it."""
        return _at(self.sizes[place], k, rank) or _at(like.get(rank, {}), k, rank)

    def _named(self, ranks: Sequence[int]) -> State:
        """A size for each name; what has no name is as in the tensor of that rank with the most of them."""
        like = self._like(ranks)
        state, dims = self._shaped(ranks, "distinct"), dict[str, Dim]()
        for place in self.tensors:
            for k, own in enumerate(state.arguments[place].dims):
                name = self._name(like, place, ranks[place], k)
                size = dims.setdefault(name, own) if name else own
                if own.is_plain and size != own:
                    state = state.substituted(own.symbol, size) or state
        return replace(state, named=frozenset(d.symbol for d in dims.values()))

    def _shaped(self, ranks: Sequence[int], how: str, apart: frozenset[str] = frozenset()) -> State:
        """`apart` are tensors that share no dimension with others."""
        state, shared = self.empty, tuple[Dim, ...]()
        arguments: list[Argument] = []
        each = zip(self.names, self.combination, ranks, self.stated, strict=True)
        for name, guess, rank, stated in each:
            argument = Argument(name, guess, least_rank=stated)
            if guess.kind is Kind.SIZE:
                state, dims = state.fresh(1)
                argument = argument.with_dims(dims)
            elif argument.is_tensor:
                label = how == "labels" and guess.kind in {Kind.INDEX, Kind.BOOL}
                own = "distinct" if name in apart else how
                state, dims, shared = _dims(state, rank - label, shared, own)
                argument = replace(argument, dims=dims, items=2 if guess.kind is Kind.LIST else 0)
                if guess.structure:
                    state, argument = _ordered(state, argument, arguments)
                elif guess.kind is Kind.INDEX:
                    argument = replace(argument, bound=_bound(arguments, dims))
            arguments.append(argument)
        return replace(state, arguments=tuple(arguments))


def _at(sizes: Mapping[int, str], k: int, rank: int) -> str:
    """The name of a dimension, which may be counted from the back."""
    return sizes.get(k) or sizes.get(k - rank, "")


def _dims(
    state: State, rank: int, shared: tuple[Dim, ...], how: str
) -> tuple[State, tuple[Dim, ...], tuple[Dim, ...]]:
    if how == "distinct":
        return (*state.fresh(rank), shared)
    keep = rank if how in {"same", "labels"} else max(0, rank - 1)
    state, more = state.fresh(max(0, keep - len(shared)))
    shared = (*shared, *more)
    state, last = state.fresh(rank - keep)
    return state, (*shared[:keep], *last), shared


def _ordered(state: State, argument: Argument, before: Sequence[Argument]) -> tuple[State, Argument]:
    """Offsets into the first dimension of the first tensor, lengths of its parts, a permutation of it."""
    structure = argument.guess.structure
    first = next((a.dims[0] for a in before if a.is_float and a.dims), None)
    if first is None:
        state, (first,) = state.fresh(1)
    dims: tuple[Dim, ...] = (first,)
    if structure in {"offsets", LENGTHS}:
        state, (segments,) = state.fresh(1)
        # Fewer segments than places, so that none needs to be empty.
        state = state.at({segments.symbol: SEGMENTS})
        dims = (replace(segments, plus=int(structure == "offsets")),)
    return state, replace(argument, dims=dims, bound=first, structure=structure)


def _bound(before: Sequence[Argument], dims: tuple[Dim, ...]) -> Dim:
    """An index is below a dimension of the first tensor: the last one it does not share, else the last."""
    first = next((a for a in before if a.is_float and a.dims), None)
    if first is None:
        return Dim(plus=LABELS)
    own = [d for d in first.dims if d not in dims]
    return (own or list(first.dims))[-1]
