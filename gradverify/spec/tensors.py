"""One tensor of a spec: what is wrong with it at any sizes."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.model import Nested, Scalar
from gradverify.spec.fields import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.spec.inputs import InputSpec
from gradverify.spec.messages import Path, described, number, shown
from gradverify.spec.schema import TensorEntry
from gradverify.spec.source import At, Complaint
from gradverify.spec.structures import OWN_VALUES, check_structure

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
