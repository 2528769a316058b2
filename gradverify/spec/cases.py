"""Which cases a function gets, what they are called, and the seed of each.

What no sizes excuse, found on the inputs of a feasible case.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gradverify.model import (
    Annotation,
    Case,
    ConcatInput,
    Input,
    ListInput,
    LiteralInput,
    Nested,
    Scalar,
    TensorInput,
)
from gradverify.spec.bound import bind, bind_annotation, placed
from gradverify.spec.fields import INTEGERS, shape_of
from gradverify.spec.inputs import GIVEN, InputSpec, size_names, tensors_of
from gradverify.spec.messages import Path, number
from gradverify.spec.ranks import STACKED
from gradverify.spec.schema import ConcatEntry
from gradverify.spec.sizes import InfeasibleError, at_sizes, init_value
from gradverify.spec.source import At, Complaint
from gradverify.spec.sweep import Factor, Sweep, Values, allowed, choose, factors_of, sizes_at
from gradverify.spec.tensors import DOMAIN_ENDS, items, structure_contradictions


def contradictions(item: InputSpec, bound: Input, sizes: Mapping[str, int]) -> Iterator[Complaint]:
    """Yield what is wrong with an input at the sizes of a case, by paths inside its entry."""
    match bound:
        case TensorInput():
            made: tuple[TensorInput, ...] = (bound,)
        case ListInput(items=made) | ConcatInput(parts=made):
            pass
        case _:
            return
    for tensor, value in zip(tensors_of(item), made, strict=False):
        for complaint in _of_tensor(tensor, value, at_sizes(sizes, size_names(tensor))):
            yield placed(complaint, tensor)
    if isinstance(item.entry, ConcatEntry):
        yield from _of_parts(item, made, at_sizes(sizes, size_names(item)))


def _of_parts(item: InputSpec, parts: tuple[TensorInput, ...], at: str) -> Iterator[Complaint]:
    for index, part in enumerate(parts):
        if not part.shape:
            message = "a part of `concat` needs at least one dimension"
            yield Complaint(("concat", index), message)
            return
    for index, (one, other) in enumerate(pairwise(parts), start=1):
        if one.shape[:-1] != other.shape[:-1]:
            message = (
                f"the parts of `{item.name}` differ before their last dimension: "
                f"{list(one.shape)} and {list(other.shape)}{at}"
            )
            yield Complaint(("concat", index), message)
        elif one.dtype != other.dtype:
            message = f"the parts of `{item.name}` have one dtype, not {one.dtype} and {other.dtype}"
            yield Complaint(("concat", index), message)


def _of_tensor(tensor: InputSpec, bound: TensorInput, at: str) -> Iterator[Complaint]:
    entry = tensor.entry
    own = bound.shape[1:] if bound.placement in STACKED else bound.shape
    if "value" in entry.model_fields_set and shape_of(entry.value) != own:
        message = f"`value` has shape {list(shape_of(entry.value))}, not {list(bound.shape)}{at}"
        yield Complaint(("value",), message, At.KEY)
    yield from structure_contradictions(entry, bound, at)
    if bound.range is None:
        return
    low, high = bound.range
    half_open = entry.dtype in INTEGERS
    for path, point in _points(tensor):
        if half_open and path[0] == "special" and point != high:
            continue  # a mark, such as the label to ignore; the bound itself is taken for one too many
        if point < low or point > high or (half_open and point == high):
            end = ")" if half_open else "]"
            message = f"{number(point)} is outside the range [{number(low)}, {number(high)}{end}{at}"
            yield Complaint(path, message)
    low_end, high_end = DOMAIN_ENDS.get(entry.domain, (None, None))
    beyond = (low_end is not None and low < low_end) or (high_end is not None and high > high_end)
    only_zero = low == high == 0 and entry.domain in {"nonzero", "positive", "negative"}
    if beyond or only_zero:
        message = f"the range [{number(low)}, {number(high)}] leaves the domain `{entry.domain}`{at}"
        yield Complaint(("range",), message)


def _points(tensor: InputSpec) -> Iterator[tuple[Path, int | float]]:
    for index, point in enumerate(tensor.entry.special):
        yield ("special", index), point
    for path, item in items(tensor.entry.value, ("value",)):
        if isinstance(item, int | float):
            yield path, item


Init = tuple[tuple[str, Nested], ...] | None
_BARE = re.compile(r"[^\W\d][\w.+-]*")
_NOT_BARE = {"none", "null", "true", "false", "nan", "inf"}
"""Strings that Python or YAML would read as another value, whatever their case."""


@dataclass(frozen=True)
class Cases:
    """The cases of one function without seeds, and what is wrong with them."""

    cases: tuple[Case, ...] = ()
    infeasible: int = 0
    complaints: tuple[Complaint, ...] = ()
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


def build_cases(sweep: Sweep) -> Cases:
    """Return the base case, the others, then one case for each further size 0.

    Raises `gradverify.spec.sweep.TooManyError` when the lists are too long.
    """
    if isinstance(sweep.rows, tuple):
        return _listed_cases(sweep)
    factors = factors_of(sweep)
    chosen = choose(sweep, factors)
    if not chosen.rows:
        return Cases(complaints=(Complaint(("where",), "`where` leaves no case", At.KEY),))
    try:
        bound = [bound_case(sweep, factors, chosen.rows[0])]
    except InfeasibleError as error:
        return Cases(complaints=(error.complaint,))
    infeasible = chosen.infeasible
    for row in chosen.rows[1:]:
        try:
            bound.append(bound_case(sweep, factors, row))
        except InfeasibleError:
            infeasible += 1
    return Cases(tuple(bound), infeasible, _contradictions(sweep, bound))


def _listed_cases(sweep: Sweep) -> Cases:
    """Return the cases that the spec lists. A listed case that cannot run is an error."""
    factors = factors_of(sweep)
    bound: dict[str, Case] = {}
    faults: list[Complaint] = []
    for index, row in enumerate(choose(sweep, factors).rows):
        broken = allowed(sweep, sizes_at(sweep, factors, row))
        try:
            case = bound_case(sweep, factors, row)
        except InfeasibleError as error:
            faults.append(Complaint(("cases", index), f"no such case: {error.complaint.message}"))
            continue
        if broken is not None:
            message = f"the case `{case.id}` breaks the condition `{broken.text}`"
            faults.append(Complaint(("cases", index), message))
        if case.id in bound:
            faults.append(Complaint(("cases", index), f"the case `{case.id}` is listed twice"))
        bound[case.id] = case
    cases = tuple(bound.values())
    return Cases(cases, 0, (*faults, *_contradictions(sweep, cases)))


def bound_case(sweep: Sweep, factors: Sequence[Factor], row: Values) -> Case:
    """Return the case of one combination, without its seed.

    Raises `InfeasibleError` where it has no valid inputs.
    """
    values = list(zip(factors, row, strict=True))
    declared = [(factor.name, value) for factor, value in values if factor.is_size and isinstance(value, int)]
    options = [
        (factor.name, value)
        for factor, value in values
        if not factor.is_size and not (factor.is_optional and value == GIVEN)
    ]
    sizes = sizes_at(sweep, factors, row)
    given = {factor.name: value for factor, value in values if not factor.is_size}
    inputs, annotations = _bound(sweep, sizes, given)
    return Case(
        id=case_id(declared, options),
        seed=0,
        sizes=tuple(sizes.items()),
        options=tuple(options),
        inputs=tuple(with_marks(inputs)),
        hook=sweep.hook,
        annotations=tuple(annotations),
        init=_init(sweep, sizes),
    )


def with_marks(inputs: Sequence[Input]) -> Iterator[Input]:
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


def _bound(
    sweep: Sweep, sizes: Mapping[str, int], given: Mapping[str, Scalar]
) -> tuple[list[Input], list[Annotation]]:
    inputs: list[Input] = []
    annotations: list[Annotation] = []
    for item in sweep.inputs:
        try:
            if item.is_annotation:
                annotations.append(bind_annotation(item, sizes))
            else:
                inputs.append(bind(item, sizes, given.get(item.name)))
        except InfeasibleError as error:
            raise InfeasibleError(error.complaint.under(("inputs", item.name))) from None
    return inputs, annotations


def _init(sweep: Sweep, sizes: Mapping[str, int]) -> Init:
    if sweep.init is None:
        return None
    return tuple(
        (name, init_value(value, sizes, ("init", int(name) if name.isdecimal() else name)))
        for name, value in sweep.init
    )


def _contradictions(sweep: Sweep, cases: Sequence[Case]) -> tuple[Complaint, ...]:
    found: dict[object, Complaint] = {}
    for case in reversed(cases):
        made = {bound.name: bound for bound in case.inputs}
        for item in sweep.inputs:
            if item.name in made:
                for complaint in contradictions(item, made[item.name], dict(case.sizes)):
                    reported = complaint.under(("inputs", item.name))
                    found[reported.path] = reported
    return tuple(found.values())
