"""The inputs of a function before sizes are bound, and what they are at given sizes.

Functions that run on several ranks have inputs as all ranks have them. A `local` tensor is that of every rank
in a row: its first dimension counts the ranks. Where its shape depends on `rank`, all entries of all ranks
are in one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gradverify.cases.messages import Path, number
from gradverify.cases.sizes import (
    RANK,
    Expression,
    Infeasible,
    Size,
    at_sizes,
    evaluated,
    init_value,
)
from gradverify.model import (
    WORLD,
    Annotation,
    ConcatInput,
    Input,
    ListInput,
    LiteralInput,
    Nested,
    ObjectInput,
    Scalar,
    Tensor,
    TensorInput,
)

FLOATING = ("float64", "float32", "float16", "bfloat16")
COMPLEX = ("complex128", "complex64")
INTEGERS = {
    "int64": (-(2**63), 2**63),
    "int32": (-(2**31), 2**31),
    "int16": (-(2**15), 2**15),
    "int8": (-(2**7), 2**7),
    "uint8": (0, 2**8),
}
"""Integer dtypes with their half-open limits."""

DOMAIN_ENDS = {"positive": (0.0, None), "negative": (None, 0.0), "unit": (0.0, 1.0)}
"""Closures of the domains; None is unbounded."""

FILLED_ROWS = frozenset({"unit-norm", "simplex", "one-hot"})
"""Structures of rows that have an entry."""

STACKED = ("local", "partial")
"""Placements of which every rank has a tensor of its own."""

GROUP = "torch.distributed:group.WORLD"
"""What `{process_group: world}` stands for, where a process has joined one."""

GIVEN = "given"
"""The level of an optional input that is not left out."""


@dataclass(frozen=True)
class TensorSpec(Tensor[Size]):
    """A tensor whose dimensions, bounds and indices may be expressions of sizes."""

    optional: bool = False
    """Given, and left out as None."""


@dataclass(frozen=True)
class ValueSpec:
    """A literal, a size that is passed as an integer, or a tuple of both."""

    name: str
    value: Any
    """A scalar, an `Expression`, or nested tuples of them."""


@dataclass(frozen=True)
class ChoicesSpec:
    """A literal that is swept over the cases; the first makes the base case."""

    name: str
    choices: tuple[Scalar, ...]


@dataclass(frozen=True)
class ListSpec:
    """Several tensors: a list argument, or what a `*args` parameter receives."""

    name: str
    items: tuple[TensorSpec, ...]
    counts: tuple[int, ...] = ()
    """How many there are of the only item; empty where each is listed."""
    optional: bool = False


@dataclass(frozen=True)
class ConcatSpec:
    """One tensor made of parts of different kinds, joined along the last dimension."""

    name: str
    parts: tuple[TensorSpec, ...]
    optional: bool = False
    requires_grad: bool | None = None


InputSpec = TensorSpec | ValueSpec | ChoicesSpec | ListSpec | ConcatSpec | ObjectInput | Annotation[Size]
"""Of an `ObjectInput`, names of sizes in its `init` are sizes."""


def shape_of(value: Nested) -> tuple[int, ...]:
    """Return the shape of rectangular nested tuples."""
    if not isinstance(value, tuple):
        return ()
    return (len(value), *(shape_of(value[0]) if value else ()))


def parts_of(item: InputSpec) -> tuple[tuple[Path, TensorSpec], ...]:
    """Return the tensors that an input is made of, each with its path in the entry; of one kind, the one."""
    match item:
        case TensorSpec():
            return (((), item),)
        case ListSpec(items=items, counts=counts):
            return tuple((("list", "of" if counts else k), one) for k, one in enumerate(items))
        case ConcatSpec(parts=parts):
            return tuple((("concat", k), one) for k, one in enumerate(parts))
        case _:
            return ()


def is_optional(item: InputSpec) -> bool:
    """Whether it is left out in some cases."""
    return isinstance(item, TensorSpec | ListSpec | ConcatSpec) and item.optional


def levels(item: InputSpec) -> tuple[Scalar, ...]:
    """Return what an input is swept over, empty where it is the same in every case."""
    if isinstance(item, ChoicesSpec):
        return item.choices
    counts = item.counts if isinstance(item, ListSpec) else ()
    return (*(counts or (GIVEN,)), None) if is_optional(item) else counts


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the scalars and expressions of nested data with their paths."""
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def expressions(item: InputSpec) -> Iterator[tuple[Path, Expression]]:
    """Yield the size expressions of an input with their paths inside its entry."""
    held: list[tuple[Path, object]] = []
    if isinstance(item, ValueSpec):
        held.append((("tuple",) if isinstance(item.value, tuple) else ("size",), item.value))
    if isinstance(item, Annotation):
        held.append((("constant_at",), {str(k): v for k, v in item.constant_at}))
    for path, one in parts_of(item):
        constants = {str(k): v for k, v in one.constant_at}
        held.append((path, {"shape": one.shape, "range": one.range, "constant_at": constants}))
    for path, value in held:
        yield from (found for found in leaves(value, path) if isinstance(found[1], Expression))


def size_names(item: InputSpec) -> tuple[str, ...]:
    """Return the sizes that an input depends on, each once."""
    return tuple(dict.fromkeys(name for _, one in expressions(item) for name in one.names))


def bind(
    item: InputSpec, sizes: Mapping[str, int], level: Scalar, *, across: bool
) -> Input | Annotation[int]:
    """Return an input at given sizes and its level of the sweep; `across` several ranks.

    Raises `Infeasible`, its path inside the entry of the input, where no valid values exist there.
    """
    if levels(item) and (level is None or isinstance(item, ChoicesSpec)):
        return LiteralInput(item.name, level)
    parts = parts_of(item)
    if isinstance(item, ListSpec) and item.counts:
        path, one = parts[0]
        count = level if isinstance(level, int) else item.counts[0]
        parts = tuple((path, replace(one, name=f"{item.name}[{k}]")) for k in range(count))
    bound = tuple(_on_ranks(path, one, sizes) for path, one in parts)
    made: Input | Annotation[int]
    match item:
        case TensorSpec():
            made = bound[0]
        case ListSpec():
            made = ListInput(item.name, bound)
        case ConcatSpec(requires_grad=wanted):
            made = ConcatInput(item.name, tuple(replace(one, requires_grad=wanted) for one in bound))
        case ValueSpec():
            made = _literal(item, sizes, across=across)
        case ObjectInput(init=init):
            given = None if init is None else tuple(init_value(value, sizes, ("init",)) for value in init)
            made = replace(item, init=given)
        case Annotation(constant_at=written):  # indices may be negative: no shape is known
            constants = tuple((k, evaluated(v, sizes, ("constant_at", str(k)))) for k, v in written)
            made = Annotation(item.name, item.requires_grad, item.avoid, constants)
        case _:
            raise AssertionError(item)
    return made


def _literal(item: ValueSpec, sizes: Mapping[str, int], *, across: bool) -> LiteralInput:
    path: Path = ("tuple",) if isinstance(item.value, tuple) else ("size",)
    if not across or RANK not in size_names(item):
        return LiteralInput(item.name, evaluated(item.value, sizes, path))
    each = tuple(evaluated(item.value, {**sizes, RANK: k}, path) for k in range(sizes[WORLD]))
    return LiteralInput(item.name, each[0], each)


def _on_ranks(path: Path, spec: TensorSpec, sizes: Mapping[str, int]) -> TensorInput:
    """A tensor at given sizes, on all ranks."""
    try:
        if spec.placement not in STACKED:
            return _bound(spec, sizes)
        each = [_bound(spec, {**sizes, RANK: k}) for k in range(sizes[WORLD])]
    except Infeasible as error:
        raise error.under(path) from None
    shapes = tuple(one.shape for one in each)
    if len(set(shapes)) > 1:
        return replace(each[0], shape=(sum(map(math.prod, shapes)),), rank_shapes=shapes)
    value: Nested = None if each[0].value is None else tuple(one.value for one in each)
    return replace(each[0], shape=(len(each), *shapes[0]), value=value)


def _bound(spec: TensorSpec, sizes: Mapping[str, int]) -> TensorInput:
    at = at_sizes(sizes, size_names(spec))
    shape = _shape(spec, sizes, at)
    given: dict[str, Any] = {field.name: getattr(spec, field.name) for field in fields(Tensor)}
    floating = spec.dtype not in INTEGERS
    given |= {
        "shape": shape,
        "range": _range(spec, sizes, at, empty=0 in shape),
        # Integers stay integers: beyond 2**53 a float would be another number.
        "special": tuple(map(float, spec.special)) if floating else spec.special,
        "avoid": tuple(map(float, spec.avoid)) if floating else spec.avoid,
        "requires_grad": False if spec.mutated else spec.requires_grad,
        "value": _converted(spec.value) if spec.dtype in FLOATING + COMPLEX else spec.value,
        "constant_at": tuple(sorted(_constants(spec, shape, sizes, at))),
    }
    bound = TensorInput(**given)
    of_structure, of_range = _no_values(bound), _none_left(bound)
    if of_structure:
        raise Infeasible(("range" if spec.range else "structure",), f"{of_structure}{at}")
    if of_range:
        raise Infeasible(("avoid" if spec.avoid else "range",), f"{of_range}{at}")
    return bound


def _shape(spec: TensorSpec, sizes: Mapping[str, int], at: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = evaluated(spec.shape, sizes, ("shape",))
    for index, dimension in enumerate(shape):
        written = spec.shape[index]
        if dimension < 0 and isinstance(written, Expression):
            message = f"a dimension cannot be negative: `{written.text}` is {dimension}{at}"
            raise Infeasible(("shape", index), message)
    return shape


def _range(spec: TensorSpec, sizes: Mapping[str, int], at: str, *, empty: bool) -> tuple[float, float] | None:
    if spec.range is None:
        return None
    low, high = evaluated(spec.range, sizes, ("range",))
    shown = f"the range [{number(low)}, {number(high)}]"
    if low > high:
        raise Infeasible(("range",), f"{shown} ends before it begins{at}")
    if spec.dtype not in INTEGERS:
        return float(low), float(high)
    if low == high and not empty and spec.structure != "offsets":
        raise Infeasible(("range",), f"{shown} holds no integer{at}: integer ranges are half-open")
    least, limit = INTEGERS[spec.dtype]
    if low < least or high > limit:
        raise Infeasible(("range",), f"{shown} does not fit {spec.dtype}{at}")
    return low, high


def _constants(
    spec: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int], at: str
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for key, indices in spec.constant_at:
        dimension = key % len(shape)
        size = shape[dimension]
        path = ("constant_at", str(key))
        found: tuple[int, ...] = evaluated(indices, sizes, path)
        for place, index in enumerate(found):
            if not -size <= index < size:
                message = f"dimension {dimension} has size {size}, and no index {index}{at}"
                raise Infeasible((*path, place), message)
        yield dimension, tuple(sorted({index % size for index in found}))


def _converted(value: Nested) -> Nested:
    if isinstance(value, tuple):
        return tuple(map(_converted, value))
    return float(value) if isinstance(value, int) else value


def _no_values(bound: TensorInput) -> str:
    """Return why no values of its structure exist, or an empty string."""
    if bound.structure in FILLED_ROWS and bound.shape[-1] == 0:
        return f"a row without entries cannot be {bound.structure}"
    if bound.structure != "offsets":
        return ""
    length, total = bound.shape[0], int((bound.range or (0, 0))[1])
    if length == 0:
        return "offsets need at least one entry"
    if length == 1 and total > 0:
        return f"one offset cannot be both 0 and {total}"
    # Equal offsets are empty segments, valid unless they are said to be distinct.
    if bound.distinct and total < length - 1:
        return f"no {length} distinct offsets go from 0 to {total}"
    return ""


def _none_left(bound: TensorInput) -> str:
    """Return why a range has not enough values outside of `avoid`, or an empty string."""
    count = math.prod(bound.shape)
    if bound.range is None or not count or bound.structure in {"offsets", "permutation"}:
        return ""
    low, high = bound.range
    whole = f"the range [{number(low)}, {number(high)}]"
    without = " without those in `avoid`" if bound.avoid else ""
    if bound.dtype in INTEGERS:
        left = high - low - len({point for point in bound.avoid if low <= point < high})
        wanted = count if bound.distinct else 1
        if left < 1:
            return f"`avoid` leaves no integer of {whole}"
        return f"{whole} has no {wanted} distinct integers{without}" if wanted > left else ""
    return f"`avoid` leaves no number of {whole}" if low == high and low in bound.avoid else ""
