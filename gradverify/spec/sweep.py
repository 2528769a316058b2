"""What the cases of a function are swept over, and which combinations they take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradverify.model import WORLD, Scalar
from gradverify.spec.bound import bind
from gradverify.spec.inputs import InputSpec, counts_of, is_optional, levels, size_names
from gradverify.spec.pairwise import MAX_ROWS, Constraint, Row, TooManyError, cover, first_row
from gradverify.spec.sizes import Condition, InfeasibleError

Values = tuple[Scalar, ...]
"""One value for each factor."""
_Holds = Callable[[Row], bool]
Rows = Literal["pairwise", "product", "pairwise first"] | tuple[Mapping[str, Scalar], ...]
"""How combinations are chosen, or the combinations themselves as a spec lists them. `pairwise first` has the
others after those: a base that no value exists for does not become one."""


@dataclass(frozen=True)
class Sweep:
    """Everything the cases of one function follow from."""

    sizes: Mapping[str, tuple[int, ...]]
    """Declared sizes with their values, in spec order."""
    automatic: Mapping[str, int]
    """Undeclared sizes; they are no part of an id."""
    inputs: tuple[InputSpec, ...]
    hook: str = ""
    where: tuple[Condition, ...] = ()
    rows: Rows = "pairwise"
    init: tuple[tuple[str, object], ...] | None = None

    @property
    def of_ranks(self) -> tuple[str, ...]:
        """Sizes that are no dimension: how many ranks there are."""
        return (WORLD,) if any(item.across_ranks for item in self.inputs) else ()


@dataclass(frozen=True)
class Factor:
    """One thing that differs between cases."""

    name: str
    levels: Values
    is_size: bool
    is_optional: bool = False
    """Its last level, None, leaves the input out."""
    is_count: bool = False


@dataclass(frozen=True)
class Chosen:
    """The combinations to make cases of."""

    rows: tuple[Values, ...]
    infeasible: int = 0
    """Combinations that were dropped, as far as they are counted before cases are made."""


def factors_of(sweep: Sweep) -> list[Factor]:
    """Return what the cases differ in: sizes, then inputs, in spec order."""
    factors = [Factor(name, values, is_size=True) for name, values in sweep.sizes.items()]
    for item in sweep.inputs:
        swept = levels(item)
        if swept:
            optional = is_optional(item)
            factors.append(
                Factor(item.name, swept, is_size=False, is_optional=optional, is_count=bool(counts_of(item)))
            )
    return factors


def choose(sweep: Sweep, factors: Sequence[Factor]) -> Chosen:
    """Return the combinations in the order of their cases, the base first; none where `where` leaves none.

    Raises `TooManyError` when the lists are too long.
    """
    if isinstance(sweep.rows, tuple):
        return Chosen(tuple(_listed(row, factors) for row in sweep.rows))
    if sweep.rows == "product":
        return _product(sweep, factors)
    chosen = _pairwise(sweep, factors)
    return _with_the_others(sweep, factors, chosen) if sweep.rows == "pairwise first" else chosen


def allowed(sweep: Sweep, sizes: Mapping[str, int]) -> Condition | None:
    """Return the first condition of `where` that sizes break, None where they keep all."""
    return next((condition for condition in sweep.where if not condition.holds(sizes)), None)


def sizes_at(sweep: Sweep, factors: Sequence[Factor], values: Values) -> dict[str, int]:
    """Return all sizes at a combination, declared ones first."""
    pairs = zip(factors, values, strict=True)
    bound = {factor.name: value for factor, value in pairs if factor.is_size and isinstance(value, int)}
    return {**bound, **sweep.automatic}


def _listed(row: Mapping[str, Scalar], factors: Sequence[Factor]) -> Values:
    return tuple(row.get(factor.name, factor.levels[0]) for factor in factors)


def _product(sweep: Sweep, factors: Sequence[Factor]) -> Chosen:
    count = math.prod(len(factor.levels) for factor in factors)
    if count > MAX_ROWS:
        raise TooManyError(f"the product of the lists has {count} cases, and {MAX_ROWS} are allowed")
    every = tuple(itertools.product(*(factor.levels for factor in factors)))
    kept = tuple(row for row in every if allowed(sweep, sizes_at(sweep, factors, row)) is None)
    return Chosen(kept, len(every) - len(kept))


def _with_the_others(sweep: Sweep, factors: Sequence[Factor], chosen: Chosen) -> Chosen:
    """Add every other combination, where they are not too many."""
    if math.prod(len(factor.levels) for factor in factors) > MAX_ROWS:
        return chosen
    others = [row for row in _product(sweep, factors).rows if row not in chosen.rows]
    return Chosen((*chosen.rows, *others), chosen.infeasible)


def _pairwise(sweep: Sweep, factors: Sequence[Factor]) -> Chosen:
    def values(row: Row) -> Values:
        return tuple(factor.levels[level] for factor, level in zip(factors, row, strict=True))

    def kept(row: Row) -> bool:
        return allowed(sweep, sizes_at(sweep, factors, values(row))) is None

    constraints = list(_constraints(sweep, factors))
    plain: Row | None = (0,) * len(factors)
    base = plain
    if not kept((0,) * len(factors)):
        # Where `where` forbids the first of every list, the first combination it allows is the base.
        base = first_row([range(len(factor.levels)) for factor in factors], constraints)
    if base is None:
        return Chosen(())
    further, infeasible = _further(factors, constraints, base)
    rows = [base, *(row for row in further if kept(row))]
    dropped = len(further) + 1 - len(rows)
    return Chosen(tuple(values(row) for row in rows), max(infeasible + dropped, int(base != plain)))


def _further(factors: Sequence[Factor], constraints: list[Constraint], base: Row) -> tuple[list[Row], int]:
    """Return the rows after the base, zero sizes last, and how many the cover had to drop."""
    if not factors:
        return [], 0
    full = [
        [index for index, value in enumerate(factor.levels) if not (factor.is_size and value == 0)]
        for factor in factors
    ]
    # A case with a size 0 in it covers no pair: nothing in it is compared.
    base_is_empty = any(level not in indices for level, indices in zip(base, full, strict=True))
    covered = cover(full, constraints, [] if base_is_empty else [base])
    zeros = [
        (*base[:position], factor.levels.index(0), *base[position + 1 :])
        for position, factor in enumerate(factors)
        if factor.is_size and 0 in factor.levels and factor.levels[base[position]] != 0
    ]
    return [*covered.rows, *zeros], covered.infeasible


def _constraints(sweep: Sweep, factors: Sequence[Factor]) -> Iterator[Constraint]:
    positions = {factor.name: index for index, factor in enumerate(factors) if factor.is_size}
    optional = {factor.name: index for index, factor in enumerate(factors) if factor.is_optional}
    for condition in sweep.where:
        used = tuple(sorted(positions[name] for name in condition.names if name in positions))
        yield Constraint(used, _keeps(sweep, factors, condition, used))
    for item in sweep.inputs:
        names = {*size_names(item), *((WORLD,) if item.across_ranks else ())}
        used = tuple(sorted(positions[name] for name in names if name in positions))
        if used and not item.is_annotation:
            own = (optional[item.name],) if item.name in optional else ()
            yield Constraint((*used, *own), _binds(sweep, factors, item, (*used, *own)))


def _keeps(sweep: Sweep, factors: Sequence[Factor], condition: Condition, used: Row) -> _Holds:
    return lambda row: condition.holds({**sweep.automatic, **_sizes(factors, used, row)})


def _binds(sweep: Sweep, factors: Sequence[Factor], item: InputSpec, used: Row) -> _Holds:
    def holds(row: Row) -> bool:
        if is_optional(item) and factors[used[-1]].levels[row[-1]] is None:
            return True
        # How many tensors a list holds makes none of them possible or impossible.
        level = next(iter(levels(item)), None)
        try:
            bind(item, {**sweep.automatic, **_sizes(factors, used, row)}, level)
        except InfeasibleError:
            return False
        return True

    return holds


def _sizes(factors: Sequence[Factor], used: Row, row: Row) -> dict[str, int]:
    pairs = (
        (factors[factor], factors[factor].levels[level]) for factor, level in zip(used, row, strict=True)
    )
    return {factor.name: value for factor, value in pairs if factor.is_size and isinstance(value, int)}
