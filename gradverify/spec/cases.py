"""Which cases a function gets, what they are called, and the seed of each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradverify.model import Case, Input, LiteralInput, Scalar, TensorInput
from gradverify.spec.inputs import (
    InfeasibleError,
    InputSpec,
    LiteralSpec,
    TensorSpec,
    bind_tensor,
    contradictions,
)
from gradverify.spec.pairwise import Constraint, Row, cover
from gradverify.spec.source import Complaint

_BARE = re.compile(r"[^\W\d][\w.+-]*")
_NOT_BARE = {"none", "null", "true", "false", "nan", "inf"}
"""Strings that Python or YAML would read as another value, whatever their case."""


@dataclass(frozen=True)
class Sweep:
    """Everything the cases of one function follow from."""

    sizes: Mapping[str, tuple[int, ...]]
    """Declared sizes with their values, in spec order."""
    automatic: Mapping[str, int]
    """Undeclared sizes; they are no part of an id."""
    inputs: tuple[InputSpec, ...]
    hook: str = ""


@dataclass(frozen=True)
class Cases:
    """The cases of one function without seeds, and what is wrong with them."""

    cases: tuple[Case, ...] = ()
    infeasible: int = 0
    complaints: tuple[Complaint, ...] = ()
    """Paths begin with the name of an input."""


@dataclass(frozen=True)
class _Factor:
    name: str
    levels: tuple[Scalar, ...]
    is_size: bool
    is_optional: bool = False


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


def build_cases(sweep: Sweep) -> Cases:
    """Return the base case, the pairwise cover, then one case for each further size 0.

    Raises `gradverify.spec.pairwise.TooManyError` when the lists are too long.
    """
    factors = _factors(sweep)
    base = (0,) * len(factors)
    try:
        bound = [_case(sweep, factors, base)]
    except InfeasibleError as error:
        return Cases(complaints=(error.complaint,))
    rows, infeasible = _further_rows(sweep, factors, base)
    for row in rows:
        try:
            bound.append(_case(sweep, factors, row))
        except InfeasibleError:
            infeasible += 1
    complaints = {
        complaint.path: complaint for case in reversed(bound) for complaint in _contradictions(sweep, case)
    }
    return Cases(tuple(bound), infeasible, tuple(complaints.values()))


def _further_rows(sweep: Sweep, factors: Sequence[_Factor], base: Row) -> tuple[list[Row], int]:
    """Return the rows after the base, zero sizes last, and how many the cover had to drop."""
    if not factors:
        return [], 0
    levels = [
        [index for index, value in enumerate(factor.levels) if not (factor.is_size and value == 0)]
        for factor in factors
    ]
    # A case with a size 0 in it covers no pair: nothing in it is compared.
    base_is_empty = any(0 not in values for values in levels)
    covered = cover(levels, list(_constraints(sweep, factors)), [] if base_is_empty else [base])
    zeros = [
        (*base[:position], factor.levels.index(0), *base[position + 1 :])
        for position, factor in enumerate(factors)
        if factor.is_size and 0 in factor.levels[1:]
    ]
    return [*covered.rows, *zeros], covered.infeasible


def _factors(sweep: Sweep) -> list[_Factor]:
    factors = [_Factor(name, values, is_size=True) for name, values in sweep.sizes.items()]
    for item in sweep.inputs:
        if isinstance(item, LiteralSpec) and item.swept:
            factors.append(_Factor(item.name, item.choices, is_size=False))
        elif isinstance(item, TensorSpec) and item.entry.optional:
            factors.append(_Factor(item.name, ("given", None), is_size=False, is_optional=True))
    return factors


def _constraints(sweep: Sweep, factors: Sequence[_Factor]) -> Iterator[Constraint]:
    positions = {factor.name: index for index, factor in enumerate(factors) if factor.is_size}
    optional = {factor.name: index for index, factor in enumerate(factors) if factor.is_optional}
    for item in sweep.inputs:
        if not isinstance(item, TensorSpec):
            continue
        used = sorted(positions[name] for name in item.size_names if name in positions)
        if used:
            yield _constraint(
                sweep, factors, item, (*used, *([optional[item.name]] if item.entry.optional else []))
            )


def _constraint(sweep: Sweep, factors: Sequence[_Factor], tensor: TensorSpec, used: Row) -> Constraint:
    def holds(levels: Row) -> bool:
        values = {
            factors[factor].name: factors[factor].levels[level]
            for factor, level in zip(used, levels, strict=True)
        }
        if tensor.entry.optional and values.pop(tensor.name) is None:
            return True
        sizes = {name: value for name, value in values.items() if isinstance(value, int)}
        try:
            bind_tensor(tensor, {**sweep.automatic, **sizes})
        except InfeasibleError:
            return False
        return True

    return Constraint(used, holds)


def _case(sweep: Sweep, factors: Sequence[_Factor], row: Row) -> Case:
    values = [(factor, factor.levels[level]) for factor, level in zip(factors, row, strict=True)]
    declared = [(factor.name, value) for factor, value in values if factor.is_size and isinstance(value, int)]
    options = [
        (factor.name, value)
        for factor, value in values
        if not factor.is_size and not (factor.is_optional and value is not None)
    ]
    sizes = {**dict(declared), **sweep.automatic}
    inputs = tuple(_bound(item, sizes, dict(options)) for item in sweep.inputs)
    return Case(case_id(declared, options), 0, tuple(sizes.items()), tuple(options), inputs, sweep.hook)


def _bound(item: InputSpec, sizes: Mapping[str, int], options: Mapping[str, Scalar]) -> Input:
    if isinstance(item, LiteralSpec):
        return LiteralInput(item.name, options[item.name] if item.swept else item.choices[0])
    if item.entry.optional and item.name in options:
        return LiteralInput(item.name, None)
    try:
        return bind_tensor(item, sizes)
    except InfeasibleError as error:
        raise InfeasibleError(error.complaint.under((item.name,))) from None


def _contradictions(sweep: Sweep, case: Case) -> Iterator[Complaint]:
    for item, bound in zip(sweep.inputs, case.inputs, strict=True):
        if isinstance(item, TensorSpec) and isinstance(bound, TensorInput):
            for complaint in contradictions(item, bound, dict(case.sizes)):
                yield complaint.under((item.name,))
