"""What the cases of a function are swept over, which combinations they take, and one case at given sizes.

What cases are called, and the seed of each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradverify.cases.inputs import (
    GIVEN,
    INTEGERS,
    InputSpec,
    ListSpec,
    bind,
    is_optional,
    levels,
    size_names,
)
from gradverify.cases.messages import Path
from gradverify.cases.pairwise import MAX_ROWS, Constraint, Row, TooManyError, cover, first_row
from gradverify.cases.sizes import Condition, Infeasible, init_value
from gradverify.model import (
    WORLD,
    Annotation,
    Case,
    Input,
    ListInput,
    LiteralInput,
    Nested,
    Parameter,
    Scalar,
    TensorInput,
)

Sizes = Mapping[str, int]
Values = tuple[Any, ...]
"""One value for each factor."""

PRODUCT, PAIRWISE, PAIRWISE_FIRST = "product", "pairwise", "pairwise first"
"""How combinations are chosen. The last one has the others after those of pairs: a base that no value exists
for does not become one."""

MOST_WITH_OPTIONS = 4
"""Combinations of options that are tried at further sizes."""

_BARE = re.compile(r"[^\W\d][\w.+-]*")
_NOT_BARE = {"none", "null", "true", "false", "nan", "inf"}
"""Strings that Python or YAML would read as another value, whatever their case."""


@dataclass(frozen=True)
class Sweep:
    """Everything the cases of one function follow from."""

    inputs: tuple[InputSpec, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Declared sizes with their values, in spec order."""
    automatic: tuple[tuple[str, int], ...] = ()
    """Undeclared sizes; they are no part of an id."""
    hook: str = ""
    where: tuple[Condition, ...] = ()
    rows: str | tuple[tuple[tuple[str, Scalar], ...], ...] = PAIRWISE
    """How combinations are chosen, or the combinations themselves as a spec lists them."""
    init: tuple[tuple[str, Nested], ...] | None = None
    across: bool = False
    """It runs on several ranks."""

    def dimensions(self, case: Case) -> dict[str, int]:
        """The sizes of a case but for the number of ranks."""
        return {name: n for name, n in case.sizes if name != WORLD or not self.across}


@dataclass(frozen=True)
class FunctionSpec:
    """What inference answers with, and what `init` and `record` write: how a function is called."""

    sweep: Sweep
    reference: str = ""
    """`module:attribute` of a sibling whose forward agrees."""
    default_dtype: str = ""
    """Set where it runs only under this default dtype of torch, or keeps in it what it computes."""


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
class Cases:
    """The cases of one function without seeds, or why there are none."""

    cases: tuple[Case, ...] = ()
    infeasible: int = 0
    """Combinations that were dropped."""
    faults: tuple[Infeasible, ...] = ()
    """Paths are those inside the function's entry."""


def case_seed(seed: int, target_name: str, case_id: str) -> int:
    """Return the seed of a case: the first 63 bits of a SHA-256.

    Of seed, target name and case id, joined by line feeds, in UTF-8. No path and no order goes in, so
    neither selecting cases nor adding functions moves the points of another case.
    """
    text = f"{seed}\n{target_name}\n{case_id}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def case_id(sizes: Sequence[tuple[str, int]], options: Sequence[tuple[str, Scalar]]) -> str:
    """Return `b=3,n=4,mode=sum,bias=None`, or `base` when nothing is bound."""
    return ",".join(f"{name}={option_text(value)}" for name, value in [*sizes, *options]) or "base"


def option_text(value: Scalar) -> str:
    """Return a value as ids write it: strings bare where nothing else could be meant, quoted otherwise."""
    if not isinstance(value, str):
        return repr(value)
    bare = _BARE.fullmatch(value) and value.lower() not in _NOT_BARE
    return value if bare else json.dumps(value)


def in_call_order(case: Case, seed: int, name: str, order: Sequence[Parameter]) -> Case:
    """The case of a target with its seed, and its inputs as the live parameters come; `seed` is the run's."""
    each = [p for one in order for p in (one, *one.parts)]
    position = {parameter.name: index for index, parameter in enumerate(each)}
    variadic = {parameter.name for parameter in each if parameter.variadic}
    inputs = sorted(case.inputs, key=lambda item: position.get(item.name, len(position)))
    splatted = (
        replace(i, splatted=True) if isinstance(i, ListInput) and i.name in variadic else i for i in inputs
    )
    return replace(case, seed=case_seed(seed, name, case.id), inputs=tuple(splatted))


def factors_of(sweep: Sweep) -> list[Factor]:
    """Return what the cases differ in: sizes, then inputs, in spec order."""
    factors = [Factor(name, values, is_size=True) for name, values in sweep.sizes]
    for item in sweep.inputs:
        if levels(item):
            counted = isinstance(item, ListSpec) and bool(item.counts)
            swept = Factor(item.name, levels(item), is_size=False, is_optional=is_optional(item))
            factors.append(replace(swept, is_count=counted))
    return factors


def broken(sweep: Sweep, sizes: Sizes) -> Condition | None:
    """Return the first condition of `where` that sizes break, None where they keep all."""
    return next((condition for condition in sweep.where if not condition.holds(sizes)), None)


def case_at(sweep: Sweep, sizes: Sizes, options: Mapping[str, Scalar]) -> Case | Infeasible:
    """Return the case at some sizes and options, without its seed, or why it has no valid inputs.

    What is not named has its first level: an optional input is given.
    """
    factors = factors_of(sweep)
    declared = [(f.name, sizes.get(f.name, f.levels[0])) for f in factors if f.is_size]
    swept = [(f, options.get(f.name, f.levels[0])) for f in factors if not f.is_size]
    free = [(name, sizes.get(name, n)) for name, n in sweep.automatic]
    at = dict((*declared, *free))
    chosen = [(f.name, v) for f, v in swept if not (f.is_optional and v == GIVEN)]
    told = case_id(declared if tuple(free) == sweep.automatic else [*at.items()], chosen)
    try:
        made = [*_bound(sweep, at, {f.name: value for f, value in swept})]
        init = sweep.init and tuple((name, init_value(v, at, ("init", _key(name)))) for name, v in sweep.init)
    except Infeasible as error:
        return error
    forbidden = broken(sweep, at)
    if forbidden is not None:
        return Infeasible(("where",), f"the case `{told}` breaks the condition `{forbidden.text}`")
    return Case(
        id=told,
        seed=0,
        sizes=tuple(at.items()),
        options=tuple(chosen),
        inputs=tuple(_with_marks([one for one in made if not isinstance(one, Annotation)])),
        hook=sweep.hook,
        annotations=tuple(one for one in made if isinstance(one, Annotation)),
        init=init,
    )


def resized(sweep: Sweep, base: Case, sizes: Sizes) -> Case | None:
    """Return a case with the same options at other sizes; None where it has no valid inputs."""
    found = case_at(sweep, {**dict(base.sizes), **sizes}, dict(base.options))
    return found if isinstance(found, Case) else None


def with_each_option(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The first case, and others so that every value of an option occurs: code branches by them.

    What is tried at further sizes is tried with each of these.
    """
    found: list[Case] = [*cases[:1]]
    while len(found) < MOST_WITH_OPTIONS:
        seen = {option for case in found for option in case.options}
        best = max(cases, key=lambda case: len({*case.options} - seen), default=None)
        if best is None or {*best.options} <= seen:
            break
        found.append(best)
    return tuple(found)


def _key(name: str) -> str | int:
    return int(name) if name.isdecimal() else name


def _bound(sweep: Sweep, sizes: Sizes, given: Mapping[str, Scalar]) -> Iterator[Input | Annotation[int]]:
    for item in sweep.inputs:
        try:
            yield bind(item, sizes, given.get(item.name), across=sweep.across)
        except Infeasible as error:
            raise error.under(("inputs", item.name)) from None


def _with_marks(inputs: Sequence[Input]) -> Iterator[Input]:
    """The inputs; integer tensors hold the integers that are passed beside them, where their range does.

    `padding_idx` marks an entry of an index, `blank` one of the labels, and backward must treat it as forward
    does: a few integers out of many would miss it.
    """
    beside = [i.value for i in inputs if isinstance(i, LiteralInput) and type(i.value) is int]
    for item in inputs:
        if not isinstance(item, TensorInput) or not _takes_marks(item):
            yield item
            continue
        low, high = item.range or (0, 0)
        marks = [
            n for n in dict.fromkeys(beside) if low <= n < high and n not in (*item.special, *item.avoid)
        ]
        yield replace(item, special=(*item.special, *marks)) if marks else item


def _takes_marks(item: TensorInput) -> bool:
    plain = not item.structure and not item.distinct and not item.make and item.value is None
    return plain and item.range is not None and item.dtype in INTEGERS


def build_cases(sweep: Sweep) -> Cases:
    """Return the base case, the others, then one case for each further size 0.

    Raises `TooManyError` when the lists are too long.
    """
    factors = factors_of(sweep)
    if isinstance(sweep.rows, tuple):
        return _listed(sweep, sweep.rows)
    rows, infeasible = _product(sweep, factors) if sweep.rows == PRODUCT else _pairwise(sweep, factors)
    if not rows:
        return Cases(faults=(Infeasible(("where",), "`where` leaves no case"),))
    base, *others = (case_at(sweep, *named(factors, row)) for row in rows)
    if isinstance(base, Infeasible):
        return Cases(faults=(base,))
    found = [case for case in others if isinstance(case, Case)]
    return Cases((base, *found), infeasible + len(others) - len(found))


def named(factors: Sequence[Factor], row: Values) -> tuple[dict[str, int], dict[str, Scalar]]:
    """Sizes and options of one combination."""
    pairs = list(zip(factors, row, strict=True))
    sizes = {f.name: value for f, value in pairs if f.is_size}
    return sizes, {f.name: value for f, value in pairs if not f.is_size}


def _listed(sweep: Sweep, rows: Sequence[Sequence[tuple[str, Scalar]]]) -> Cases:
    """Return the cases that the spec lists. A listed case that cannot run is an error."""
    bound: dict[str, Case] = {}
    faults: list[Infeasible] = []
    sized = {name for name, _ in sweep.sizes}
    for index, row in enumerate(rows):
        path: Path = ("cases", index)
        sizes = {name: n for name, n in row if name in sized and isinstance(n, int)}
        case = case_at(sweep, sizes, dict(row))
        if isinstance(case, Infeasible):
            said = case.message if case.path == ("where",) else f"no such case: {case.message}"
            faults.append(Infeasible(path, said))
            continue
        if case.id in bound:
            faults.append(Infeasible(path, f"the case `{case.id}` is listed twice"))
        bound[case.id] = case
    return Cases(tuple(bound.values()), 0, tuple(faults))


def every_row(factors: Sequence[Factor]) -> int:
    """How many combinations there are."""
    return math.prod(len(factor.levels) for factor in factors)


def _product(sweep: Sweep, factors: Sequence[Factor]) -> tuple[list[Values], int]:
    count = every_row(factors)
    if count > MAX_ROWS:
        raise TooManyError(f"the product of the lists has {count} cases, and {MAX_ROWS} are allowed")
    every = itertools.product(*(factor.levels for factor in factors))
    kept = [row for row in every if _keeps(sweep, factors, row)]
    return kept, count - len(kept)


def _keeps(sweep: Sweep, factors: Sequence[Factor], row: Values) -> bool:
    """Whether a combination keeps every condition of `where`."""
    return broken(sweep, {**named(factors, row)[0], **dict(sweep.automatic)}) is None


def _pairwise(sweep: Sweep, factors: Sequence[Factor]) -> tuple[list[Values], int]:
    """Return the rows, the base first, and how many combinations it took that nobody can have."""
    constraints = list(_constraints(sweep, factors))
    plain: Row = (0,) * len(factors)
    base: Row | None = plain
    if not _keeps(sweep, factors, _values(factors, plain)):
        # Where `where` forbids the first of every list, the first combination it allows is the base.
        base = first_row([range(len(factor.levels)) for factor in factors], constraints)
    if base is None:
        return [], 0
    further, infeasible = _further(factors, constraints, base)
    others = (_values(factors, row) for row in further)
    rows = [_values(factors, base), *(row for row in others if _keeps(sweep, factors, row))]
    infeasible = max(infeasible + len(further) + 1 - len(rows), int(base != plain))
    if sweep.rows == PAIRWISE_FIRST and every_row(factors) <= MAX_ROWS:
        rows += [row for row in _product(sweep, factors)[0] if row not in rows]
    return rows, infeasible


def _values(factors: Sequence[Factor], row: Row) -> Values:
    return tuple(factor.levels[level] for factor, level in zip(factors, row, strict=True))


def _further(factors: Sequence[Factor], constraints: list[Constraint], base: Row) -> tuple[list[Row], int]:
    """Return the rows after the base, zero sizes last, and how many the cover had to drop."""
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
    """Yield what must hold of a row: the conditions, and that each input has values."""
    place = {factor.name: index for index, factor in enumerate(factors)}

    def constraint(names: Iterable[str], own: Iterable[str], allows: Callable[[Sizes], bool]) -> Constraint:
        used = sorted(place[name] for name in {*names} & dict(sweep.sizes).keys() | {*own})
        of_these = [factors[k] for k in used]

        def holds(row: Row) -> bool:
            sizes, options = named(of_these, _values(of_these, row))
            return None in options.values() or allows({**dict(sweep.automatic), **sizes})

        return Constraint(tuple(used), holds)

    for condition in sweep.where:
        yield constraint(condition.names, (), condition.holds)
    for item in sweep.inputs:
        names = {*size_names(item), *[WORLD] * sweep.across} & dict(sweep.sizes).keys()
        if names and not isinstance(item, Annotation):
            yield constraint(names, [item.name] * is_optional(item), partial(_binds, sweep, item))


def _binds(sweep: Sweep, item: InputSpec, sizes: Sizes) -> bool:
    """Whether an input has values at some sizes."""
    try:
        # How many tensors a list holds makes none of them possible or impossible.
        bind(item, sizes, next(iter(levels(item)), None), across=sweep.across)
    except Infeasible:
        return False
    return True
