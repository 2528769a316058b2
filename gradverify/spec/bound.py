"""Inputs at given sizes, and what the sizes reveal: cases without values, and contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gradverify.model import (
    Annotation,
    ConcatInput,
    Input,
    ListInput,
    LiteralInput,
    Nested,
    ObjectInput,
    Scalar,
    TensorInput,
)
from gradverify.spec import schema
from gradverify.spec.fields import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.spec.inputs import InputSpec, counts_of, levels, size_names, tensors_of
from gradverify.spec.messages import number
from gradverify.spec.ranks import GROUP, literal_across, tensor_across
from gradverify.spec.schema import TensorEntry
from gradverify.spec.sizes import Expression, InfeasibleError, at_sizes, evaluated, init_scalar, nested
from gradverify.spec.source import Complaint
from gradverify.spec.tensors import no_values, none_left


def bind(item: InputSpec, sizes: Mapping[str, int], level: Scalar) -> Input:
    """Return an input at given sizes and its level of the sweep.

    Raises InfeasibleError, its path inside the entry of the input, where no valid values exist there.
    """
    of_ranks = literal_across(item, sizes, partial(_bound, item, level=level)) if item.across_ranks else None
    return _bound(item, sizes, level) if of_ranks is None else of_ranks


def _bound(item: InputSpec, sizes: Mapping[str, int], level: Scalar) -> Input:
    made: Input
    match item.entry:
        case schema.ChoicesEntry():
            made = LiteralInput(item.name, level)
        case _ if levels(item) and level is None:
            made = LiteralInput(item.name, None)
        case schema.SizeEntry(size=size):
            made = LiteralInput(item.name, evaluated(size, sizes, ("size",)))
        case schema.TupleEntry(entries=entries):
            made = LiteralInput(item.name, nested(entries, sizes, ("tuple",)))
        case TensorEntry():
            made = bind_tensor(item, sizes)
        case schema.ListEntry():
            made = _bind_list(item, sizes, level)
        case schema.ConcatEntry(requires_grad=wanted):
            parts = (bind_tensor(part, sizes) for part in tensors_of(item))
            made = ConcatInput(item.name, tuple(replace(p, requires_grad=wanted) for p in parts))
        case schema.GroupEntry():
            made = ObjectInput(item.name, GROUP)
        case schema.ObjectEntry(path=path, init=init, parameters=parameters):
            given = None if init is None else tuple(init_scalar(value, sizes) for value in init)
            made = ObjectInput(item.name, path, given, parameters)
        case schema.ValueEntry(value=literal) | literal:
            made = LiteralInput(item.name, literal)
    return made


def bind_annotation(item: InputSpec, sizes: Mapping[str, int]) -> Annotation:
    """Return what is said of a hook's tensor at given sizes; indices may be negative there."""
    constants = tuple(
        (int(key), tuple(evaluated(one, sizes, ("constant_at", key, i)) for i, one in enumerate(indices)))
        for key, indices in item.entry.constant_at.items()
    )
    avoid = tuple(float(point) for point in item.entry.avoid)
    return Annotation(item.name, item.entry.requires_grad, avoid, constants)


def bind_tensor(tensor: InputSpec, sizes: Mapping[str, int]) -> TensorInput:
    """Return a tensor at given sizes. Raises InfeasibleError."""
    if tensor.across_ranks:
        return tensor_across(replace(tensor, across_ranks=False), sizes, bind_tensor)
    try:
        return _tensor(tensor, sizes)
    except InfeasibleError as error:
        raise InfeasibleError(placed(error.complaint, tensor)) from None


def placed(complaint: Complaint, tensor: InputSpec) -> Complaint:
    """Return a complaint about a tensor by its path inside the entry of the input."""
    path = complaint.path[1:] if tensor.inline and complaint.path[:1] == ("shape",) else complaint.path
    return Complaint(tensor.path + path, complaint.message, complaint.at)


def _tensor(tensor: InputSpec, sizes: Mapping[str, int]) -> TensorInput:
    entry = tensor.entry
    at = at_sizes(sizes, size_names(tensor))
    shape = _shape(tensor, sizes, at)
    bound = TensorInput(
        name=tensor.name,
        shape=shape,
        dtype=entry.dtype,
        domain=entry.domain,
        range=_range(entry, sizes, at, empty=0 in shape),
        special=_numbers(entry, entry.special),
        avoid=_numbers(entry, entry.avoid),
        requires_grad=False if entry.mutated else entry.requires_grad,
        value=_converted(entry.value, entry.dtype) if "value" in entry.model_fields_set else None,
        structure=entry.structure,
        layout=entry.layout,
        ties=entry.ties,
        distinct=entry.distinct,
        constant_at=_constant_at(entry, shape, sizes, at),
        mutated=entry.mutated,
        make=entry.make,
    )
    of_structure, of_range = no_values(entry, bound), none_left(entry, bound)
    if of_structure:
        raise InfeasibleError(Complaint(("range" if entry.range else "structure",), f"{of_structure}{at}"))
    if of_range:
        raise InfeasibleError(Complaint(("avoid" if entry.avoid else "range",), f"{of_range}{at}"))
    return bound


def _bind_list(item: InputSpec, sizes: Mapping[str, int], level: Scalar) -> ListInput:
    tensors, counts = tensors_of(item), counts_of(item)
    if counts:
        count = level if isinstance(level, int) else counts[0]
        tensors = tuple(replace(tensors[0], name=f"{item.name}[{i}]") for i in range(count))
    return ListInput(item.name, tuple(bind_tensor(tensor, sizes) for tensor in tensors))


def _shape(tensor: InputSpec, sizes: Mapping[str, int], at: str) -> tuple[int, ...]:
    expressions = tensor.entry.shape
    if expressions is None:
        return shape_of(tensor.entry.value)
    shape = tuple(evaluated(one, sizes, ("shape", index)) for index, one in enumerate(expressions))
    for index, dimension in enumerate(shape):
        if dimension < 0:
            text = expressions[index].text
            message = f"a dimension cannot be negative: `{text}` is {dimension}{at}"
            raise InfeasibleError(Complaint(("shape", index), message))
    return shape


def _range(
    entry: TensorEntry, sizes: Mapping[str, int], at: str, *, empty: bool
) -> tuple[float, float] | None:
    if entry.range is None:
        return None
    low, high = (
        evaluated(bound, sizes, ("range", index)) if isinstance(bound, Expression) else bound
        for index, bound in enumerate(entry.range)
    )
    shown_range = f"[{number(low)}, {number(high)}]"
    if low > high:
        raise InfeasibleError(Complaint(("range",), f"the range {shown_range} ends before it begins{at}"))
    if entry.dtype not in INTEGERS:
        return float(low), float(high)
    if low == high and not empty and entry.structure != "offsets":
        message = f"the range {shown_range} holds no integer{at}: integer ranges are half-open"
        raise InfeasibleError(Complaint(("range",), message))
    least, limit = INTEGERS[entry.dtype]
    if low < least or high > limit:
        raise InfeasibleError(
            Complaint(("range",), f"the range {shown_range} does not fit {entry.dtype}{at}")
        )
    return low, high


def _constant_at(
    entry: TensorEntry, shape: tuple[int, ...], sizes: Mapping[str, int], at: str
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    constants: list[tuple[int, tuple[int, ...]]] = []
    for key, indices in entry.constant_at.items():
        dimension = int(key) % len(shape)
        size = shape[dimension]
        found: set[int] = set()
        for place, expression in enumerate(indices):
            path = ("constant_at", key, place)
            index = evaluated(expression, sizes, path)
            if not -size <= index < size:
                message = f"dimension {dimension} has size {size}, and no index {index}{at}"
                raise InfeasibleError(Complaint(path, message))
            found.add(index % size)
        constants.append((dimension, tuple(sorted(found))))
    return tuple(sorted(constants))


def _numbers(entry: TensorEntry, points: list[int | float]) -> tuple[float, ...]:
    # Integers stay integers: beyond 2**53 a float would be another number.
    return tuple(points) if entry.dtype in INTEGERS else tuple(float(point) for point in points)


def _converted(value: Nested, dtype: str) -> Nested:
    if isinstance(value, tuple):
        return tuple(_converted(item, dtype) for item in value)
    floating = dtype in FLOATING + COMPLEX
    return float(value) if floating and isinstance(value, int) else value
