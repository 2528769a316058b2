"""One tensor of a spec: what is wrong with it at any sizes.

Structured inputs: what shape, dtype and company each structure demands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gradverify.model import Nested, Scalar, TensorInput
from gradverify.spec.fields import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.spec.inputs import InputSpec
from gradverify.spec.messages import Path, described, number, shown
from gradverify.spec.schema import TensorEntry
from gradverify.spec.source import At, Complaint


class Form(Enum):
    """Which part of the shape a structure speaks of; the words complete "needs"."""

    MATRIX = "a square matrix in the last two dimensions"
    ROWS = "at least one dimension"
    VECTOR = "exactly one dimension"


@dataclass(frozen=True)
class Structure:
    """The demands of one structure."""

    form: Form
    dtypes: tuple[str, ...]
    beside: frozenset[str] = frozenset()
    """Keys about values that still mean something beside it."""

    @property
    def kind(self) -> str:
        """The dtypes in words."""
        if self.dtypes == FLOATING:
            return "a floating dtype"
        return "an integer dtype" if self.dtypes == _INTEGER else "a real dtype"


_INTEGER = tuple(INTEGERS)
_ENTRYWISE = frozenset({"range", "domain", "avoid"})
STRUCTURES = {
    "spd": Structure(Form.MATRIX, FLOATING),
    "symmetric": Structure(Form.MATRIX, FLOATING, _ENTRYWISE),
    "invertible": Structure(Form.MATRIX, FLOATING),
    "triangular": Structure(Form.MATRIX, FLOATING, frozenset({"range"})),
    "cholesky-factor": Structure(Form.MATRIX, FLOATING),
    "orthogonal": Structure(Form.MATRIX, FLOATING),
    "unit-norm": Structure(Form.ROWS, FLOATING),
    "simplex": Structure(Form.ROWS, FLOATING),
    "permutation": Structure(Form.VECTOR, _INTEGER, frozenset({"range"})),
    "sorted": Structure(Form.ROWS, (*FLOATING, *_INTEGER), _ENTRYWISE | {"special", "ties", "distinct"}),
    "offsets": Structure(Form.VECTOR, _INTEGER, frozenset({"range", "ties", "distinct"})),
    "one-hot": Structure(Form.ROWS, (*FLOATING, *_INTEGER, "bool")),
}
OWN_VALUES = {"permutation", "one-hot"}
"""Structures whose values follow from the shape: an integer tensor of them needs no range."""
_FILLED_ROWS = {"unit-norm", "simplex", "one-hot"}

_ABOUT_VALUES = (
    "range", "domain", "avoid", "special", "ties", "distinct",
    "value", "make", "layout", "constant_at", "mutated",
)  # fmt: skip


def check_structure(entry: TensorEntry, rank: int) -> Iterator[Complaint]:
    """Yield what is wrong with the structure of a tensor of so many dimensions, at any sizes."""
    name = entry.structure
    structure = STRUCTURES[name]
    if entry.dtype not in structure.dtypes:
        reported = "dtype" in entry.model_fields_set
        fix = "" if reported or structure.dtypes != _INTEGER else ": add `dtype: int64`"
        found = f", not {entry.dtype}" if reported else fix
        yield Complaint(
            ("dtype" if reported else "structure",), f"structure `{name}` needs {structure.kind}{found}"
        )
    for key in _ABOUT_VALUES:
        given = key in entry.model_fields_set and getattr(entry, key) is not False
        if given and key not in structure.beside:
            yield Complaint((key,), f"`{key}` conflicts with `structure: {name}`", At.KEY)
    short = rank < (2 if structure.form is Form.MATRIX else 1)
    if short or (structure.form is Form.VECTOR and rank != 1):
        yield Complaint(
            ("structure",), f"structure `{name}` needs {structure.form.value}, not a shape of {rank}"
        )


def structure_contradictions(entry: TensorEntry, bound: TensorInput, at: str) -> Iterator[Complaint]:
    """Yield what the sizes of a feasible case reveal: matrices that are not square, wrong ranges."""
    shape, bounds = bound.shape, bound.range
    if not entry.structure:
        return
    if STRUCTURES[entry.structure].form is Form.MATRIX and shape[-1] != shape[-2]:
        message = f"structure `{entry.structure}` needs a square matrix, not {shape[-2]} × {shape[-1]}{at}"
        yield Complaint(("shape",), message)
    if bounds is None:
        return
    if entry.structure == "offsets" and bounds[0] != 0:
        yield Complaint(("range", 0), f"offsets begin at 0, not at {number(bounds[0])}{at}")
    if entry.structure == "permutation" and bounds != (0, shape[0]):
        message = f"a permutation of {shape[0]} has the range [0, {shape[0]}]: leave `range` out{at}"
        yield Complaint(("range",), message)


def no_values(entry: TensorEntry, bound: TensorInput) -> str:
    """Return why no values exist at the sizes of `bound`, or an empty string."""
    if entry.structure == "offsets":
        _, high = bound.range or (0, 0)
        # Equal offsets are empty segments, valid unless they are said to be distinct.
        return _no_offsets(bound.shape[0], int(high), strict=entry.distinct)
    if entry.structure in _FILLED_ROWS and bound.shape[-1] == 0:
        return f"a row without entries cannot be {entry.structure}"
    return ""


def none_left(entry: TensorEntry, bound: TensorInput) -> str:
    """Return why a range has not enough values outside of `avoid` at the sizes of `bound`, or nothing."""
    if bound.range is None or not math.prod(bound.shape) or entry.structure in {"offsets", "permutation"}:
        return ""
    low, high = bound.range
    whole = f"the range [{number(low)}, {number(high)}]"
    without = " without those in `avoid`" if entry.avoid else ""
    if entry.dtype in INTEGERS:
        left = high - low - len({point for point in entry.avoid if low <= point < high})
        count = math.prod(bound.shape) if entry.distinct else 1
        if left < 1:
            return f"`avoid` leaves no integer of {whole}"
        return f"{whole} has no {count} distinct integers{without}" if count > left else ""
    return f"`avoid` leaves no number of {whole}" if low == high and low in entry.avoid else ""


def _no_offsets(length: int, total: int, *, strict: bool) -> str:
    if length == 0:
        return "offsets need at least one entry"
    if length == 1 and total > 0:
        return f"one offset cannot be both 0 and {total}"
    if strict and total < length - 1:
        return f"no {length} distinct offsets go from 0 to {total}"
    return ""


DOMAIN_ENDS = {"positive": (0.0, None), "negative": (None, 0.0), "unit": (0.0, 1.0)}
"""Closures of the domains; None is unbounded."""
_MADE = ("value", "domain", "range", "special", "ties", "distinct", "layout")
"""Keys about how values are drawn, which a `make` decides by itself."""


def check_tensor(tensor: InputSpec) -> list[Complaint]:
    """Return what is wrong with a tensor at any sizes, by paths inside its entry."""
    entry, name = tensor.entry, tensor.name
    if entry.shape is None and "value" not in entry.model_fields_set:
        return [Complaint((), f"`{shown(name)}` needs a `shape`", At.KEY)]
    found = [*_check_dtype(entry, name), *_check_points(entry), *_check_value(entry), *_check_company(entry)]
    found += _check_constant_at(entry, name)
    if entry.structure:
        # What the structure says about a key says more than what the dtype says about it.
        of_structure = list(check_structure(entry, rank(entry)))
        reported = {complaint.path for complaint in of_structure}
        found = [*of_structure, *(complaint for complaint in found if complaint.path not in reported)]
    return found


def rank(entry: TensorEntry) -> int:
    """Return how many dimensions a tensor has."""
    return len(shape_of(entry.value)) if entry.shape is None else len(entry.shape)


def drawn(entry: TensorEntry) -> bool:
    """Whether we choose its values."""
    return "value" not in entry.model_fields_set and not entry.make


def _check_dtype(entry: TensorEntry, name: str) -> Iterator[Complaint]:
    if entry.dtype in INTEGERS and entry.range is None and drawn(entry) and entry.structure not in OWN_VALUES:
        bounds = "[0, total]" if entry.structure == "offsets" else "[0, n]"
        message = f"`{shown(name)}` is an integer tensor: give it `range: {bounds}`"
        yield Complaint(("dtype",), message)
    if _lacks_dtype(entry):
        yield Complaint(("value",), "a list `value` needs a `dtype`: float64, int64, bool, …", At.KEY)
    floating = entry.dtype in FLOATING + COMPLEX
    if entry.requires_grad and not floating:
        yield Complaint(("requires_grad",), f"a tensor of dtype {entry.dtype} cannot require grad")
    differentiated = entry.requires_grad is not False and not entry.mutated
    if floating and entry.dtype not in {"float64", "complex128"} and differentiated:
        message = f"verification runs in float64: {entry.dtype} is only for `requires_grad: false`"
        yield Complaint(("dtype",), message)
    yield from _check_keys(entry, floating=floating)


def _check_keys(entry: TensorEntry, *, floating: bool) -> Iterator[Complaint]:
    """Yield the keys that mean nothing for a dtype."""
    for key in ("domain", "avoid", "special", "range", "ties", "distinct", "constant_at"):
        if key not in entry.model_fields_set or entry.dtype in FLOATING:
            continue
        whole = entry.dtype == "bool" or (key == "constant_at" and not floating)
        if whole or (key == "domain" and entry.dtype in INTEGERS):
            yield Complaint((key,), f"`{key}` does not apply to dtype {entry.dtype}", At.KEY)
        elif key == "domain" and entry.domain in DOMAIN_ENDS and entry.dtype in COMPLEX:
            yield Complaint((key,), f"a complex number cannot be {entry.domain}")


def _lacks_dtype(entry: TensorEntry) -> bool:
    return isinstance(entry.value, tuple) and "dtype" not in entry.model_fields_set


def _check_company(entry: TensorEntry) -> Iterator[Complaint]:
    """Yield keys that contradict each other."""
    if entry.ties and entry.distinct:
        yield Complaint(("ties",), "`ties` conflicts with `distinct`: values are equal or not", At.KEY)
    if not drawn(entry):
        source = "make" if entry.make else "value"
        for key in _MADE if entry.make else ("special", "ties", "distinct"):
            if key in entry.model_fields_set and getattr(entry, key) is not False:
                yield Complaint((key,), f"`{key}` conflicts with `{source}`: nothing is drawn", At.KEY)
    if entry.mutated and entry.requires_grad:
        message = "a `mutated` buffer is not differentiated: leave `requires_grad` out"
        yield Complaint(("requires_grad",), message, At.KEY)
    if entry.mutated and entry.layout:
        yield Complaint(("layout",), "`layout` conflicts with `mutated`", At.KEY)
    if entry.layout and rank(entry) < (2 if entry.layout == "sparse_csr" else 1):
        yield Complaint(("layout",), f"layout `{entry.layout}` needs more dimensions than {rank(entry)}")


def _check_constant_at(entry: TensorEntry, name: str) -> Iterator[Complaint]:
    if not entry.constant_at:
        return
    if entry.requires_grad is False or entry.mutated:
        message = f"`constant_at` says nothing about `{shown(name)}`, which is not differentiated"
        yield Complaint(("constant_at",), message, At.KEY)
        return
    if entry.layout:
        yield Complaint(("constant_at",), "`constant_at` conflicts with `layout`", At.KEY)
    dimensions, seen = rank(entry), set[int]()
    for key in entry.constant_at:
        at = int(key) if int(key) >= 0 else int(key) + dimensions
        if not 0 <= at < dimensions:
            message = f"`{shown(name)}` has {dimensions} dimensions, and no dimension {key}"
            yield Complaint(("constant_at", key), message, At.KEY)
        elif at in seen:
            yield Complaint(("constant_at", key), f"dimension {at} is named twice", At.KEY)
        seen.add(at)


def _check_points(entry: TensorEntry) -> Iterator[Complaint]:
    for key, points in (("special", entry.special), ("avoid", entry.avoid)):
        for index, point in enumerate(points if entry.dtype in INTEGERS else ()):
            if not isinstance(point, int):
                yield Complaint((key, index), f"{number(point)} is no {entry.dtype}")
            elif problem := _integer_problem(entry.dtype, point):
                yield Complaint((key, index), problem)
    for index, point in enumerate(entry.special):
        if outside_domain(entry, point):
            yield Complaint(("special", index), f"{number(point)} is outside the domain `{entry.domain}`")
        elif point in entry.avoid:
            yield Complaint(("special", index), f"{number(point)} is in `avoid`")
    for index, bound in enumerate(entry.range or ()):
        if isinstance(bound, float) and entry.dtype in INTEGERS:
            yield Complaint(("range", index), f"a bound of {entry.dtype} is an integer, not {number(bound)}")


def _check_value(entry: TensorEntry) -> Iterator[Complaint]:
    if "value" not in entry.model_fields_set or _lacks_dtype(entry):
        return
    for path, item in items(entry.value, ("value",)):
        problem = _item_problem(entry, item)
        if problem:
            yield Complaint(path, problem)


def _item_problem(entry: TensorEntry, item: Scalar) -> str:
    dtype = entry.dtype
    if dtype == "bool":
        return "" if isinstance(item, bool) else f"a value of bool is true or false, not {described(item)}"
    if isinstance(item, bool) or not isinstance(item, int | float):
        return f"a value of {dtype} is a number, not {described(item)}"
    problem = _integer_problem(dtype, item) if dtype in INTEGERS else _floating_problem(entry, item)
    return problem or (f"{number(item)} is in `avoid`" if item in entry.avoid else "")


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
    if outside_domain(entry, item):
        return f"{number(item)} is outside the domain `{entry.domain}`"
    return ""


def _is_finite(value: float) -> bool:
    try:
        return abs(float(value)) < float("inf")
    except OverflowError:
        return False


def items(value: Nested, path: Path) -> Iterator[tuple[Path, Scalar]]:
    """Yield the scalars of a literal tensor with their paths."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from items(item, (*path, index))
    else:
        yield path, value


def outside_domain(entry: TensorEntry, point: float) -> bool:
    """Whether a number is no value of the domain."""
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
