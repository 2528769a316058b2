"""One input of a function: what can be told of it alone, and what it becomes at given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from gradverify.model import Nested, Scalar, TensorInput
from gradverify.spec import schema
from gradverify.spec.fields import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.spec.schema import TensorEntry
from gradverify.spec.sizes import Expression, SizeError, bindings
from gradverify.spec.source import At, Complaint
from gradverify.spec.wording import Path, described, number, shown

_INPUT: TypeAdapter[Any] = TypeAdapter(schema.InputEntry)
_DOMAIN_ENDS = {"positive": (0.0, None), "negative": (None, 0.0), "unit": (0.0, 1.0)}
"""Closures of the domains; None is unbounded."""


class InfeasibleError(Exception):
    """No valid values exist at these sizes: the case is dropped, unless it is the base case."""

    def __init__(self, complaint: Complaint) -> None:
        """Keep what is wrong, in case it is the base case."""
        super().__init__(complaint.message)
        self.complaint = complaint


@dataclass(frozen=True)
class LiteralSpec:
    """A literal, or one swept over its choices."""

    name: str
    choices: tuple[Scalar, ...]
    swept: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """A tensor whose sizes are not bound yet."""

    name: str
    entry: TensorEntry

    @property
    def size_names(self) -> tuple[str, ...]:
        """The sizes that its shape and range depend on, each once."""
        expressions = [*(self.entry.shape or ()), *(self.entry.range or ())]
        names = (name for one in expressions if isinstance(one, Expression) for name in one.names)
        return tuple(dict.fromkeys(names))


InputSpec = LiteralSpec | TensorSpec


def read_input(name: str, raw: object) -> InputSpec:
    """Return an input whose form has been validated."""
    entry = _INPUT.validate_python(raw)
    if isinstance(entry, list):
        return TensorSpec(name, TensorEntry.model_construct(shape=entry))
    if isinstance(entry, TensorEntry):
        return TensorSpec(name, entry)
    if isinstance(entry, schema.ChoicesEntry):
        return LiteralSpec(name, tuple(entry.choices), swept=True)
    return LiteralSpec(name, (entry.value if isinstance(entry, schema.ValueEntry) else entry,))


def check_tensor(tensor: TensorSpec) -> list[Complaint]:
    """Return what is wrong with a tensor at any sizes, by paths inside its entry."""
    entry, name = tensor.entry, tensor.name
    if entry.shape is None and "value" not in entry.model_fields_set:
        return [Complaint((), f"`{shown(name)}` needs a `shape`", At.KEY)]
    return [*_check_dtype(entry, name), *_check_points(entry), *_check_value(entry)]


def _check_dtype(entry: TensorEntry, name: str) -> Iterator[Complaint]:
    drawn = "value" not in entry.model_fields_set
    if entry.dtype in INTEGERS and entry.range is None and drawn:
        message = f"`{shown(name)}` is an integer tensor: give it `range: [0, n]`"
        yield Complaint(("dtype",), message)
    if _lacks_dtype(entry):
        yield Complaint(("value",), "a list `value` needs a `dtype`: float64, int64, bool, …", At.KEY)
    floating = entry.dtype in FLOATING + COMPLEX
    if entry.requires_grad and not floating:
        yield Complaint(("requires_grad",), f"a tensor of dtype {entry.dtype} cannot require grad")
    if floating and entry.dtype not in {"float64", "complex128"} and entry.requires_grad is not False:
        message = f"verification runs in float64: {entry.dtype} is only for `requires_grad: false`"
        yield Complaint(("dtype",), message)
    for key in ("domain", "avoid", "special", "range"):
        if key not in entry.model_fields_set or entry.dtype in FLOATING:
            continue
        if entry.dtype == "bool" or (key in {"domain", "avoid"} and entry.dtype in INTEGERS):
            yield Complaint((key,), f"`{key}` does not apply to dtype {entry.dtype}", At.KEY)
        elif key == "domain" and entry.domain in _DOMAIN_ENDS and entry.dtype in COMPLEX:
            yield Complaint((key,), f"a complex number cannot be {entry.domain}")


def _lacks_dtype(entry: TensorEntry) -> bool:
    return isinstance(entry.value, tuple) and "dtype" not in entry.model_fields_set


def _check_points(entry: TensorEntry) -> Iterator[Complaint]:
    if "special" in entry.model_fields_set and "value" in entry.model_fields_set:
        yield Complaint(("special",), "`special` cannot stand beside `value`: nothing is drawn", At.KEY)
    for index, point in enumerate(entry.special):
        if entry.dtype in INTEGERS and not isinstance(point, int):
            yield Complaint(("special", index), f"{number(point)} is no {entry.dtype}")
        elif _outside_domain(entry, point):
            yield Complaint(("special", index), f"{number(point)} is outside the domain `{entry.domain}`")
        elif point in entry.avoid:
            yield Complaint(("special", index), f"{number(point)} is in `avoid`")
    for index, bound in enumerate(entry.range or ()):
        if isinstance(bound, float) and entry.dtype in INTEGERS:
            yield Complaint(("range", index), f"a bound of {entry.dtype} is an integer, not {number(bound)}")


def _check_value(entry: TensorEntry) -> Iterator[Complaint]:
    if "value" not in entry.model_fields_set or _lacks_dtype(entry):
        return
    for path, item in _items(entry.value, ("value",)):
        problem = _item_problem(entry, item)
        if problem:
            yield Complaint(path, problem)


def _item_problem(entry: TensorEntry, item: Scalar) -> str:
    dtype = entry.dtype
    if dtype == "bool":
        return "" if isinstance(item, bool) else f"a value of bool is true or false, not {described(item)}"
    if isinstance(item, bool) or not isinstance(item, int | float):
        return f"a value of {dtype} is a number, not {described(item)}"
    return _integer_problem(dtype, item) if dtype in INTEGERS else _floating_problem(entry, item)


def _integer_problem(dtype: str, item: float) -> str:
    if not isinstance(item, int):
        return f"a value of {dtype} is an integer, not {number(item)}"
    low, high = INTEGERS[dtype]
    return "" if low <= item < high else f"{number(item)} does not fit {dtype}"


def _floating_problem(entry: TensorEntry, item: float) -> str:
    if isinstance(item, int) and not _is_finite(item):
        return f"{number(item)} does not fit {entry.dtype}"
    if entry.requires_grad is not False and not _is_finite(item):
        return f"{number(item)} cannot be differentiated: values must be finite, or `requires_grad: false`"
    if _outside_domain(entry, item):
        return f"{number(item)} is outside the domain `{entry.domain}`"
    return f"{number(item)} is in `avoid`" if item in entry.avoid else ""


def _is_finite(value: float) -> bool:
    try:
        return abs(float(value)) < float("inf")
    except OverflowError:
        return False


def _items(value: Nested, path: Path) -> Iterator[tuple[Path, Scalar]]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _items(item, (*path, index))
    else:
        yield path, value


def _outside_domain(entry: TensorEntry, point: float) -> bool:
    match entry.domain:
        case "positive":
            return point <= 0
        case "negative":
            return point >= 0
        case "nonzero":
            return point == 0
        case "unit":
            return not 0 <= point <= 1
        case _:
            return False


def bind_tensor(tensor: TensorSpec, sizes: Mapping[str, int]) -> TensorInput:
    """Return a tensor at given sizes. Raises InfeasibleError where no valid values exist there."""
    entry = tensor.entry
    at = bindings({name: sizes[name] for name in tensor.size_names})
    shape = _shape(tensor, sizes, at)
    bounds = _range(tensor, sizes, at, empty=0 in shape)
    value = _converted(entry.value, entry.dtype) if "value" in entry.model_fields_set else None
    return TensorInput(
        name=tensor.name,
        shape=shape,
        dtype=entry.dtype,
        domain=entry.domain,
        range=bounds,
        special=_numbers(entry, entry.special),
        avoid=_numbers(entry, entry.avoid),
        requires_grad=entry.requires_grad,
        value=value,
    )


def contradictions(tensor: TensorSpec, bound: TensorInput, sizes: Mapping[str, int]) -> Iterator[Complaint]:
    """Yield what no sizes excuse: special values outside the range, a value that is not of the shape."""
    entry = tensor.entry
    at = bindings({name: sizes[name] for name in tensor.size_names})
    if "value" in entry.model_fields_set and shape_of(entry.value) != bound.shape:
        message = f"`value` has shape {list(shape_of(entry.value))}, not {list(bound.shape)}{at}"
        yield Complaint(("value",), message, At.KEY)
    if bound.range is None:
        return
    low, high = bound.range
    half_open = entry.dtype in INTEGERS
    points: list[tuple[Path, int | float]] = [
        (("special", i), point) for i, point in enumerate(entry.special)
    ]
    points += [
        (path, item) for path, item in _items(entry.value, ("value",)) if isinstance(item, int | float)
    ]
    for path, point in points:
        if point < low or point > high or (half_open and point == high):
            end = ")" if half_open else "]"
            yield Complaint(
                path, f"{number(point)} is outside the range [{number(low)}, {number(high)}{end}{at}"
            )
    low_end, high_end = _DOMAIN_ENDS.get(entry.domain, (None, None))
    beyond = (low_end is not None and low < low_end) or (high_end is not None and high > high_end)
    only_zero = low == high == 0 and entry.domain in {"nonzero", "positive", "negative"}
    if beyond or only_zero:
        message = f"the range [{number(low)}, {number(high)}] leaves the domain `{entry.domain}`{at}"
        yield Complaint(("range",), message)


def _shape(tensor: TensorSpec, sizes: Mapping[str, int], at: str) -> tuple[int, ...]:
    if tensor.entry.shape is None:
        return shape_of(tensor.entry.value)
    shape = tuple(
        _evaluated(expression, sizes, ("shape", i)) for i, expression in enumerate(tensor.entry.shape)
    )
    for index, dimension in enumerate(shape):
        if dimension < 0:
            text = tensor.entry.shape[index].text
            message = f"a dimension cannot be negative: `{text}` is {dimension}{at}"
            raise InfeasibleError(Complaint(("shape", index), message))
    return shape


def _range(
    tensor: TensorSpec, sizes: Mapping[str, int], at: str, *, empty: bool
) -> tuple[float, float] | None:
    entry = tensor.entry
    if entry.range is None:
        return None
    low, high = (
        _evaluated(bound, sizes, ("range", index)) if isinstance(bound, Expression) else bound
        for index, bound in enumerate(entry.range)
    )
    shown_range = f"[{number(low)}, {number(high)}]"
    if low > high:
        raise InfeasibleError(Complaint(("range",), f"the range {shown_range} ends before it begins{at}"))
    if entry.dtype in INTEGERS:
        if low == high and not empty:
            message = f"the range {shown_range} holds no integer{at}: integer ranges are half-open"
            raise InfeasibleError(Complaint(("range",), message))
        least, limit = INTEGERS[entry.dtype]
        if low < least or high > limit:
            raise InfeasibleError(
                Complaint(("range",), f"the range {shown_range} does not fit {entry.dtype}{at}")
            )
    return (low, high) if entry.dtype in INTEGERS else (float(low), float(high))


def _numbers(entry: TensorEntry, points: list[int | float]) -> tuple[float, ...]:
    # Integers stay integers: beyond 2**53 a float would be another number.
    return tuple(points) if entry.dtype in INTEGERS else tuple(float(point) for point in points)


def _evaluated(expression: Expression, sizes: Mapping[str, int], path: Path) -> int:
    try:
        return expression.evaluate(sizes)
    except SizeError as error:
        raise InfeasibleError(Complaint(path, str(error))) from None


def _converted(value: Nested, dtype: str) -> Nested:
    if isinstance(value, tuple):
        return tuple(_converted(item, dtype) for item in value)
    floating = dtype in FLOATING + COMPLEX
    return float(value) if floating and isinstance(value, int) else value
