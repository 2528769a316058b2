"""What no sizes excuse, found on the inputs of a feasible case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from gradverify.model import ConcatInput, Input, ListInput, TensorInput
from gradverify.spec.bound import placed
from gradverify.spec.evaluated import at_sizes
from gradverify.spec.fields import INTEGERS, shape_of
from gradverify.spec.inputs import InputSpec, size_names, tensors_of
from gradverify.spec.messages import Path, number
from gradverify.spec.ranks import STACKED
from gradverify.spec.schema import ConcatEntry
from gradverify.spec.source import At, Complaint
from gradverify.spec.structures import structure_contradictions
from gradverify.spec.tensors import DOMAIN_ENDS, items


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
