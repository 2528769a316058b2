"""A case: bound sizes and options, and the inputs they give.

At which points a case is verified: what is declared, and values that were not requested.

The front counts them before anything runs, the verifier draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradverify.model.words import Effort, Nested, Point, Scalar

WORLD = "world"
"""What `world_size` of a spec is called among sizes."""


Dimension = TypeVar("Dimension")
"""What a dimension is: an integer, or an expression of sizes too."""


@dataclass(frozen=True)
class Tensor(Generic[Dimension]):
    """A tensor argument: what a spec says of it, and what its values are drawn from."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: str = "float64"
    domain: str = "real"
    """`real`, `positive`, `negative`, `nonzero` or `unit`."""
    range: tuple[Dimension | float, Dimension | float] | None = None
    """Closed for floating dtypes, half-open for integer ones."""
    special: tuple[float, ...] = ()
    """Valid values worth planting at the `special` point; of integers also marks outside of the range."""
    avoid: tuple[float, ...] = ()
    """Declared kinks: drawn values keep away from them."""
    requires_grad: bool | None = None
    """None: differentiate it if its dtype is floating or complex."""
    value: Nested = None
    """Literal values instead of drawn ones; None draws them."""
    structure: str = ""
    """The manifold it lies on or the form it has: `spd`, `unit-norm`, `offsets`, ...; empty for none."""
    layout: str = ""
    """`sparse_coo` or `sparse_csr`; empty for strided."""
    ties: bool = False
    """Equal values are valid, and planted at the `special` point."""
    distinct: bool = False
    """No two entries may be equal, nor near enough for a step to reorder them."""
    constant_at: tuple[tuple[int, tuple[Dimension, ...]], ...] = ()
    """(dimension, indices) pairs: slices that are never perturbed and whose gradient must be zero."""
    mutated: bool = False
    """Forward writes into it (a running buffer); it is not differentiated."""
    make: str = ""
    """`module:attribute` of a function (generator, device, dtype, shape) -> tensor that builds it."""
    placement: str = ""
    """How it lies on the ranks of a world: `local`, `replicate`, `shard(0)`, `partial`; empty without any."""
    gradient: str = ""
    """How its gradient lies on them, where that is another way: `partial`, `partial(avg)`, `shard(0)`."""


@dataclass(frozen=True)
class TensorInput(Tensor[int]):
    """A tensor argument with every size bound to a number.

    Of `local` and `partial` ones the first dimension of `shape` counts the ranks.
    """

    rank_shapes: tuple[tuple[int, ...], ...] = ()
    """The shape on each rank where they differ; `shape` is then that of all entries in a row."""
    beside: tuple[float, ...] = ()
    """Valid values on either side of numbers that the source compares: one draw holds them."""


@dataclass(frozen=True)
class LiteralInput:
    """An argument passed as it is: a number, a string, a bool, a tuple, or None for an absent optional."""

    name: str
    value: Nested
    by_rank: tuple[Nested, ...] = ()
    """What each rank of a world gets, where that is not the same."""


@dataclass(frozen=True)
class ListInput:
    """Several tensors: one list argument, or what a `*args` parameter receives."""

    name: str
    items: tuple[TensorInput, ...]
    """Named as reports call them: `xs[0]`, `xs[1]`."""
    splatted: bool = False
    """Passed as so many positional arguments, not as one list."""


@dataclass(frozen=True)
class ConcatInput:
    """One tensor made of parts of different kinds, joined along the last dimension."""

    name: str
    parts: tuple[TensorInput, ...]


@dataclass(frozen=True)
class ObjectInput:
    """A live object passed as it is: a callable, a module, a type."""

    name: str
    path: str
    """Dotted path or `module:attribute`."""
    init: tuple[Scalar, ...] | None = None
    """Arguments to call it with first, None to pass the object itself."""
    parameters: str = ""
    """The `*args` parameter that gets the parameters of this module; empty for none."""


Input = TensorInput | LiteralInput | ListInput | ConcatInput | ObjectInput


def tensors_of(an_input: Input) -> tuple[TensorInput, ...]:
    """The tensors that an input draws: itself, the items of a list, the parts of a concatenation."""
    match an_input:
        case TensorInput():
            return (an_input,)
        case ListInput():
            return an_input.items
        case ConcatInput():
            return an_input.parts
        case LiteralInput() | ObjectInput():
            return ()


@dataclass(frozen=True)
class Annotation(Generic[Dimension]):
    """What a spec says of a tensor that a hook builds."""

    name: str
    requires_grad: bool | None = None
    avoid: tuple[float, ...] = ()
    constant_at: tuple[tuple[int, tuple[Dimension, ...]], ...] = ()
    """As of a `TensorInput`, but dimensions and indices may be negative: its shape is not known yet."""


@dataclass(frozen=True)
class Case:
    """One set of bound sizes and options of a target, with the seed its values are drawn from."""

    id: str
    """`b=3,n=4,mode=sum,bias=None`; `base` when nothing is bound."""
    seed: int
    sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, Scalar], ...] = ()
    inputs: tuple[Input, ...] = ()
    """In call order. Empty when `hook` builds the arguments."""
    hook: str = ""
    """`module:attribute` of a function (generator, device, dtype, **sizes) -> arguments."""
    annotations: tuple[Annotation[int], ...] = ()
    """What is known of the tensors that `hook` builds."""
    init: tuple[tuple[str, Nested], ...] | None = None
    """`TargetPlan.init` at the sizes of this case: a module may be swept over its own dimensions."""

    @property
    def world(self) -> int:
        """How many ranks it runs on; 0 for this process alone."""
        placed = any(t.placement for i in self.inputs for t in tensors_of(i))
        return dict(self.sizes)[WORLD] if placed else 0


FEWEST_STRATA = 4
"""Large magnitudes are spread over at least so many strata, of which few entries take the largest."""

KEEP_AWAY = 0.05
"""Drawn values keep this share of the interval's width away from zero, declared kinks and the ends."""

SIGNED = frozenset({"real", "nonzero"})
"""Domains of both signs."""

BOTH_SIGNS = 2 * FEWEST_STRATA
"""Entries from which on one draw has large values of both signs, whatever the threshold."""

TYPICAL_DRAWS = {Effort.QUICK: 2, Effort.NORMAL: 2, Effort.THOROUGH: 6}
"""Two, so that a branch on the data is entered from both sides; more for luck."""

ROUNDS = {Effort.QUICK: 0, Effort.NORMAL: 1, Effort.THOROUGH: 2}
"""How often every undeclared regime is drawn."""

LARGE_VALUES, MIRRORED, SMALL_VALUES = range(3)
"""Kinds of undeclared wide draws; mirrored ones are large with every sign turned."""

ZEROS, ZERO_ROWS = range(2)
"""Kinds of undeclared special draws."""

EQUAL_INPUTS = 1 + len((ZEROS, ZERO_ROWS)) * max(ROUNDS.values())
"""The special draw in which other inputs have values of the first one, after those of every round."""

DECADES_FROM = 100
"""The wide draws from this one on hold the magnitudes of a declared range."""

MOST_OF_DECADES = 4
"""Draws of them: of few entries each has room for few."""

BESIDE_THRESHOLDS = DECADES_FROM + MOST_OF_DECADES
"""The wide draw of values beside the thresholds of the source, after those of the decades."""

STRATA_FROM = 200
"""The wide draws from this one on hold values of every twentieth of a declared range."""

STRATA = 20
"""Parts of equal width of a declared range, each of which is met whatever the seed."""

OF_EACH = 2
"""Entries that lie in each of them, of tensors with more than one."""

AT_ONE_END = STRATA_FROM + STRATA
"""The wide draw of values that all lie in the last of these parts, and after it in the first: sums and
products reach their ends there alone."""

WHOLE_FROM = DECADES_FROM // 2
"""The wide draws from this one on lie as a whole on one side of zero, or of a threshold of the source."""

MOST_WHOLE = 2
"""Thresholds that have such draws."""

UNDECLARED_BESIDE = DECADES_FROM - 1
"""The same where no range is declared, after the draws of every round."""

SMALLEST = 1e-6
"""The least magnitude of a declared range that is drawn: the usual thresholds of series are larger."""

OF_SMALL_ONES = 2.0
"""Entries for magnitudes from there to typical ones; each decade of larger ones is worth one."""

SQUARE = frozenset({"spd", "symmetric", "invertible", "triangular", "cholesky-factor", "orthogonal"})
"""Structures of a square matrix in the last two dimensions."""

MODERATE = 2.0
"""Typical values stay within ±2 where their domain and range allow it."""


def points_of(case: Case, effort: Effort = Effort.NORMAL) -> tuple[tuple[Point, int], ...]:
    """Which (point, draw) pairs a case is verified at: what is declared first.

    Hooks draw their own values, so that only typical ones are to be had from them.
    """
    typical = tuple((Point.TYPICAL, draw) for draw in range(TYPICAL_DRAWS[effort]))
    if case.hook or effort is Effort.QUICK:
        return typical
    drawn = [t for i in case.inputs for t in tensors_of(i) if t.value is None and not t.make]
    return (*typical, *_declared_points(drawn), *_undeclared_points(drawn, ROUNDS[effort]))


def is_declared(point: Point, draw: int) -> bool:
    """Whether the values of a draw are what the spec says is valid, or moderate ones."""
    return point in {Point.TYPICAL, Point.PLAIN} or draw == 0 or draw >= DECADES_FROM


def _declared_points(drawn: list[TensorInput]) -> Iterator[tuple[Point, int]]:
    floating = [t for t in drawn if is_floating(t)]
    ranged = [t for t in floating if t.range is not None and not t.structure and _count(t)]
    if ranged:
        yield Point.WIDE, 0
    for number in range(max(map(draws_of_decades, ranged), default=0)):
        yield Point.WIDE, DECADES_FROM + number
    if any(t.beside for t in ranged):
        yield Point.WIDE, BESIDE_THRESHOLDS
    if any(t.ties for t in floating) or any(t.special for t in drawn):
        yield Point.SPECIAL, 0


def spans_of(spec: TensorInput) -> tuple[tuple[float, float, float], ...]:
    """Parts of a declared range: the numbers from which and up to which, and entries it takes to meet it."""
    low, high = spec.range or (0.0, 0.0)
    found = []
    for sign, near, far in ((1.0, low, high), (-1.0, -high, -low)):
        for start, stop in ((SMALLEST, MODERATE), (MODERATE, math.inf)):
            a, b = max(start, near), min(stop, far)
            if a < b:
                weight = OF_SMALL_ONES if stop == MODERATE else math.log10(b / a)
                found.append((sign * a, sign * b, weight))
    return tuple(found)


def draws_of_decades(spec: TensorInput) -> int:
    """How many draws it takes until each decade of a declared range, on both sides, has an entry."""
    needed, count = sum(weight for *_, weight in spans_of(spec)), _count(spec)
    return min(MOST_OF_DECADES, math.ceil(needed / count)) if count else 0


def draws_of_strata(spec: TensorInput) -> int:
    """How many draws it takes until each part of a declared range has its entries."""
    return min(STRATA, math.ceil(OF_EACH * STRATA / _count(spec)))


def strata_points(case: Case) -> tuple[tuple[Point, int], ...]:
    """The draws in which each part of every declared range has an entry, and those in which one has all."""
    drawn = [t for i in case.inputs for t in tensors_of(i) if t.value is None and not t.make]
    ranged = [t for t in drawn if is_floating(t) and t.range is not None and not t.structure and _count(t)]
    draws = range(STRATA_FROM, STRATA_FROM + max(map(draws_of_strata, ranged), default=0))
    ends = (AT_ONE_END, AT_ONE_END + 1) if any(_count(t) > 1 for t in ranged) else ()
    return () if case.hook else tuple((Point.WIDE, draw) for draw in (*draws, *ends))


def whole_points(case: Case) -> tuple[tuple[Point, int], ...]:
    """The draws whose tensors lie on one side of zero, or of a threshold: sums, maxima and norms do, then."""
    drawn = [t for i in case.inputs for t in tensors_of(i) if t.value is None and not t.make]
    free = [t for t in drawn if is_floating(t) and is_free(t) and not t.structure and _count(t)]
    signs = 2 if any(is_signed(t) for t in free) else 0
    draws = 2 + max((2 * min(MOST_WHOLE, len(t.beside) // 2) for t in free), default=0)
    return (
        () if case.hook or not free else tuple((Point.WIDE, WHOLE_FROM + k) for k in range(2 - signs, draws))
    )


def _undeclared_points(drawn: list[TensorInput], rounds: int) -> Iterator[tuple[Point, int]]:
    free = [t for t in drawn if is_floating(t) and is_free(t) and _count(t)]
    needs_mirror = any(is_signed(t) and _count(t) < BOTH_SIGNS for t in free)
    special = [t for t in drawn if _count(t) and _has_special_values(t)]
    for round_ in range(rounds):
        if free:
            kinds = (LARGE_VALUES, MIRRORED, SMALL_VALUES) if needs_mirror else (LARGE_VALUES, SMALL_VALUES)
            yield from ((Point.WIDE, 1 + 3 * round_ + kind) for kind in kinds)
        if special:
            yield from ((Point.SPECIAL, 1 + 2 * round_ + kind) for kind in (ZEROS, ZERO_ROWS))
    if rounds and any(t.beside for t in free):
        yield Point.WIDE, UNDECLARED_BESIDE
    if rounds and may_be_equal(drawn):
        yield Point.SPECIAL, EQUAL_INPUTS


def may_be_equal(drawn: Sequence[TensorInput]) -> tuple[TensorInput, ...]:
    """An input and those after it of its shape and dtype that may have values of it.

    Of all such inputs the first with others; empty where there are none.
    """
    free = [t for t in drawn if _is_one_of_many(t)]
    for number, first in enumerate(free):
        alike = [t for t in free[number + 1 :] if (t.shape, t.dtype) == (first.shape, first.dtype)]
        others = [t for t in alike if _overlap(first, t)]
        if others:
            return first, *others
    return ()


def _is_one_of_many(spec: TensorInput) -> bool:
    """Whether it is differentiated, and its values are nothing but drawn."""
    given = spec.value is not None or spec.make or spec.structure or spec.layout or spec.placement
    moves = is_floating(spec) and spec.requires_grad is not False and not spec.mutated
    return moves and not given and not spec.distinct and _count(spec) > 0


def _overlap(a: TensorInput, b: TensorInput) -> bool:
    """Whether their domains and ranges have more than a number in common."""
    lows = [0.0 if t.domain in {"positive", "unit"} else -math.inf for t in (a, b)]
    highs = [{"negative": 0.0, "unit": 1.0}.get(t.domain, math.inf) for t in (a, b)]
    ranges = [t.range for t in (a, b) if t.range is not None]
    return max(*lows, *(low for low, _ in ranges)) < min(*highs, *(high for _, high in ranges))


def _count(spec: TensorInput) -> int:
    return math.prod(spec.shape)


def is_floating(spec: TensorInput) -> bool:
    """Whether its values can be anything between."""
    return spec.dtype in {"float64", "complex128"}


def is_free(spec: TensorInput) -> bool:
    """Nothing but a named domain limits its values."""
    return spec.range is None and not spec.structure


def is_signed(spec: TensorInput) -> bool:
    """Whether its domain holds numbers of both signs."""
    return spec.domain in SIGNED


def _has_special_values(spec: TensorInput) -> bool:
    if spec.structure:
        return spec.structure in SQUARE and spec.shape[-1] > 1
    several = _count(spec) > 1 and not spec.distinct
    return several or (is_floating(spec) and allows_zero(spec))


def allows_zero(spec: TensorInput) -> bool:
    """Whether zeros may be planted in it."""
    if spec.domain != "real" or spec.structure or any(abs(a) < KEEP_AWAY for a in spec.avoid):
        return False
    return spec.range is None or spec.range[0] < 0 < spec.range[1]
