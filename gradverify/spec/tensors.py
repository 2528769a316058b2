"""One tensor of a spec: what is wrong with it at any sizes.

Structured inputs: what shape, dtype and company each structure demands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from gradverify.cases.inputs import (
    COMPLEX,
    DOMAIN_ENDS,
    FLOATING,
    INTEGERS,
    STACKED,
    ConcatSpec,
    InputSpec,
    TensorSpec,
    leaves,
    parts_of,
    shape_of,
    size_names,
)
from gradverify.cases.messages import described, number, shown
from gradverify.cases.sizes import at_sizes
from gradverify.model import ConcatInput, Input, Scalar, TensorInput, tensors_of
from gradverify.spec.fields import is_finite
from gradverify.spec.source import Complaint, at_key

Given = Collection[str]
"""The keys of a tensor that its entry has: a default that is written out is another thing."""


MATRIX = "a square matrix in the last two dimensions"
ROWS = "at least one dimension"
VECTOR = "exactly one dimension"


@dataclass(frozen=True)
class Structure:
    """The demands of one structure."""

    form: str
    """Which part of the shape it speaks of; the words complete "needs"."""
    dtypes: tuple[str, ...]
    beside: frozenset[str] = frozenset()
    """Keys about values that still mean something beside it."""


_INTEGER = tuple(INTEGERS)
_KINDS = {FLOATING: "a floating dtype", _INTEGER: "an integer dtype"}
_ENTRYWISE = frozenset({"range", "domain", "avoid"})
STRUCTURES = {
    "spd": Structure(MATRIX, FLOATING),
    "symmetric": Structure(MATRIX, FLOATING, _ENTRYWISE),
    "invertible": Structure(MATRIX, FLOATING),
    "triangular": Structure(MATRIX, FLOATING, frozenset({"range"})),
    "cholesky-factor": Structure(MATRIX, FLOATING),
    "orthogonal": Structure(MATRIX, FLOATING),
    "unit-norm": Structure(ROWS, FLOATING),
    "simplex": Structure(ROWS, FLOATING),
    "permutation": Structure(VECTOR, _INTEGER, frozenset({"range"})),
    "sorted": Structure(ROWS, (*FLOATING, *_INTEGER), _ENTRYWISE | {"special", "ties", "distinct"}),
    "offsets": Structure(VECTOR, _INTEGER, frozenset({"range", "ties", "distinct"})),
    "one-hot": Structure(ROWS, (*FLOATING, *_INTEGER, "bool")),
}
OWN_VALUES = {"permutation", "one-hot"}
"""Structures whose values follow from the shape: an integer tensor of them needs no range."""

_ABOUT_VALUES = (
    "range", "domain", "avoid", "special", "ties", "distinct",
    "value", "make", "layout", "constant_at", "mutated",
)  # fmt: skip


def check_structure(spec: TensorSpec, given: Given) -> Iterator[Complaint]:
    """Yield what is wrong with the structure of a tensor, at any sizes."""
    name, rank = spec.structure, len(spec.shape)
    structure = STRUCTURES[name]
    if spec.dtype not in structure.dtypes:
        reported = "dtype" in given
        found = f", not {spec.dtype}" if reported else ": add `dtype: int64`" * (structure.dtypes == _INTEGER)
        kind = _KINDS.get(structure.dtypes, "a real dtype")
        yield Complaint(("dtype" if reported else "structure",), f"structure `{name}` needs {kind}{found}")
    for key in _ABOUT_VALUES:
        if _is_said(spec, given, key) and key not in structure.beside:
            yield at_key((key,), f"`{key}` conflicts with `structure: {name}`")
    short = rank < (2 if structure.form is MATRIX else 1)
    if short or (structure.form is VECTOR and rank != 1):
        yield Complaint(("structure",), f"structure `{name}` needs {structure.form}, not a shape of {rank}")


def _is_said(spec: TensorSpec, given: Given, key: str) -> bool:
    return key in given and getattr(spec, key) is not False


def _structure_contradictions(bound: TensorInput, at: str) -> Iterator[Complaint]:
    """Yield what the sizes of a feasible case reveal: matrices that are not square, wrong ranges."""
    shape, bounds, structure = bound.shape, bound.range, bound.structure
    if structure and STRUCTURES[structure].form is MATRIX and shape[-1] != shape[-2]:
        message = f"structure `{structure}` needs a square matrix, not {shape[-2]} × {shape[-1]}{at}"
        yield Complaint(("shape",), message)
    if structure == "offsets" and bounds and bounds[0] != 0:
        yield Complaint(("range", 0), f"offsets begin at 0, not at {number(bounds[0])}{at}")
    if structure == "permutation" and bounds not in {None, (0, shape[0])}:
        message = f"a permutation of {shape[0]} has the range [0, {shape[0]}]: leave `range` out{at}"
        yield Complaint(("range",), message)


def contradictions(item: InputSpec, bound: Input, sizes: Mapping[str, int]) -> Iterator[Complaint]:
    """Yield what is wrong with an input at the sizes of a case, by paths inside its entry.

    No other sizes excuse it.
    """
    made = tensors_of(bound)
    for (path, spec), one in zip(parts_of(item), made, strict=False):
        for complaint in _of_tensor(spec, one, at_sizes(sizes, size_names(spec))):
            yield complaint.under(path)
    if isinstance(item, ConcatSpec) and isinstance(bound, ConcatInput):
        yield from _of_parts(item, made, at_sizes(sizes, size_names(item)))


def _of_parts(item: ConcatSpec, parts: tuple[TensorInput, ...], at: str) -> Iterator[Complaint]:
    for index, part in enumerate(parts):
        if not part.shape:
            yield Complaint(("concat", index), "a part of `concat` needs at least one dimension")
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


def _of_tensor(spec: TensorSpec, bound: TensorInput, at: str) -> Iterator[Complaint]:
    own = bound.shape[1:] if bound.placement in STACKED else bound.shape
    if spec.value is not None and shape_of(spec.value) != own:
        message = f"`value` has shape {list(shape_of(spec.value))}, not {list(bound.shape)}{at}"
        yield at_key(("value",), message)
    yield from _structure_contradictions(bound, at)
    if bound.range is None:
        return
    low, high = bound.range
    half_open = spec.dtype in INTEGERS
    for path, point in [*leaves(spec.special, ("special",)), *leaves(spec.value, ("value",))]:
        if not isinstance(point, int | float) or (half_open and path[0] == "special" and point != high):
            continue  # a mark, such as the label to ignore; the bound itself is taken for one too many
        if point < low or point > high or (half_open and point == high):
            end = ")" if half_open else "]"
            message = f"{number(point)} is outside the range [{number(low)}, {number(high)}{end}{at}"
            yield Complaint(path, message)
    low_end, high_end = DOMAIN_ENDS.get(spec.domain, (None, None))
    beyond = (low_end is not None and low < low_end) or (high_end is not None and high > high_end)
    only_zero = low == high == 0 and spec.domain in {"nonzero", "positive", "negative"}
    if beyond or only_zero:
        message = f"the range [{number(low)}, {number(high)}] leaves the domain `{spec.domain}`{at}"
        yield Complaint(("range",), message)


_MADE = ("value", "domain", "range", "special", "ties", "distinct", "layout")
"""Keys about how values are drawn, which a `make` decides by itself."""


def check_tensor(spec: TensorSpec, given: Given) -> list[Complaint]:
    """Return what is wrong with a tensor at any sizes, by paths inside its entry."""
    if not {"shape", "value"} & {*given}:
        return [at_key((), f"`{shown(spec.name)}` needs a `shape`")]
    found = [*_check_dtype(spec, given), *_check_points(spec), *_check_value(spec, given)]
    found += _check_company(spec, given)
    if spec.structure:
        # What the structure says about a key says more than what the dtype says about it.
        of_structure = list(check_structure(spec, given))
        reported = {complaint.path for complaint in of_structure}
        found = [*of_structure, *(complaint for complaint in found if complaint.path not in reported)]
    return found


def _check_dtype(spec: TensorSpec, given: Given) -> Iterator[Complaint]:
    drawn = spec.value is None and not spec.make
    if spec.dtype in INTEGERS and spec.range is None and drawn and spec.structure not in OWN_VALUES:
        bounds = "[0, total]" if spec.structure == "offsets" else "[0, n]"
        message = f"`{shown(spec.name)}` is an integer tensor: give it `range: {bounds}`"
        yield Complaint(("dtype",), message)
    if _lacks_dtype(spec, given):
        yield at_key(("value",), "a list `value` needs a `dtype`: float64, int64, bool, …")
    floating = spec.dtype in FLOATING + COMPLEX
    if spec.requires_grad and not floating:
        yield Complaint(("requires_grad",), f"a tensor of dtype {spec.dtype} cannot require grad")
    differentiated = spec.requires_grad is not False and not spec.mutated
    if floating and spec.dtype not in {"float64", "complex128"} and differentiated:
        message = (
            f"verification runs in float64: {spec.dtype} is only for `requires_grad: false`; "
            "what the Function does in shorter dtypes is asked by its `dtypes: [...]`"
        )
        yield Complaint(("dtype",), message)
    for key in ("domain", "avoid", "special", "range", "ties", "distinct", "constant_at"):
        if key not in given or spec.dtype in FLOATING:
            continue
        whole = spec.dtype == "bool" or (key == "constant_at" and not floating)
        if whole or (key == "domain" and spec.dtype in INTEGERS):
            yield at_key((key,), f"`{key}` does not apply to dtype {spec.dtype}")
        elif key == "domain" and spec.domain in DOMAIN_ENDS and spec.dtype in COMPLEX:
            yield Complaint((key,), f"a complex number cannot be {spec.domain}")


def _lacks_dtype(spec: TensorSpec, given: Given) -> bool:
    return isinstance(spec.value, tuple) and "dtype" not in given


def _check_company(spec: TensorSpec, given: Given) -> Iterator[Complaint]:
    """Yield keys that contradict each other."""
    source = "make" if spec.make else "value"
    undrawn = () if spec.value is None else ("special", "ties", "distinct")
    said = [key for key in (_MADE if spec.make else undrawn) if _is_said(spec, given, key)]
    unused = spec.requires_grad is False or spec.mutated
    unheard = f"`constant_at` says nothing about `{shown(spec.name)}`, which is not differentiated"
    rows = [
        *((True, key, f"`{key}` conflicts with `{source}`: nothing is drawn") for key in said),
        (spec.ties and spec.distinct, "ties", "`ties` conflicts with `distinct`: values are equal or not"),
        (
            spec.mutated and spec.requires_grad,
            "requires_grad",
            "a `mutated` buffer is not differentiated: leave `requires_grad` out",
        ),
        (spec.mutated and spec.layout, "layout", "`layout` conflicts with `mutated`"),
        (spec.constant_at and unused, "constant_at", unheard),
        (
            spec.constant_at and not unused and spec.layout,
            "constant_at",
            "`constant_at` conflicts with `layout`",
        ),
    ]
    yield from (at_key((key,), message) for wrong, key, message in rows if wrong)
    rank = len(spec.shape)
    if spec.layout and rank < (2 if spec.layout == "sparse_csr" else 1):
        yield Complaint(("layout",), f"layout `{spec.layout}` needs more dimensions than {rank}")
    seen = set[int]()
    for key, _ in () if unused else spec.constant_at:
        at, path = key if key >= 0 else key + rank, ("constant_at", str(key))
        if not 0 <= at < rank:
            message = f"`{shown(spec.name)}` has {rank} dimensions, and no dimension {key}"
            yield at_key(path, message)
        elif at in seen:
            yield at_key(path, f"dimension {at} is named twice")
        seen.add(at)


def _check_points(spec: TensorSpec) -> Iterator[Complaint]:
    for key, points in (("special", spec.special), ("avoid", spec.avoid)):
        for index, point in enumerate(points if spec.dtype in INTEGERS else ()):
            if not isinstance(point, int):
                yield Complaint((key, index), f"{number(point)} is no {spec.dtype}")
            elif problem := _integer_problem(spec.dtype, point):
                yield Complaint((key, index), problem)
    for index, point in enumerate(spec.special):
        if outside_domain(spec, point):
            yield Complaint(("special", index), f"{number(point)} is outside the domain `{spec.domain}`")
        elif point in spec.avoid:
            yield Complaint(("special", index), f"{number(point)} is in `avoid`")
    for index, bound in enumerate(spec.range or ()):
        if isinstance(bound, float) and spec.dtype in INTEGERS:
            yield Complaint(("range", index), f"a bound of {spec.dtype} is an integer, not {number(bound)}")


def _check_value(spec: TensorSpec, given: Given) -> Iterator[Complaint]:
    if spec.value is None or _lacks_dtype(spec, given):
        return
    for path, item in leaves(spec.value, ("value",)):
        problem = _item_problem(spec, item)
        if problem:
            yield Complaint(path, problem)


def _item_problem(spec: TensorSpec, item: Scalar) -> str:
    dtype = spec.dtype
    if dtype == "bool":
        return "" if isinstance(item, bool) else f"a value of bool is true or false, not {described(item)}"
    if isinstance(item, bool) or not isinstance(item, int | float):
        return f"a value of {dtype} is a number, not {described(item)}"
    problem = _integer_problem(dtype, item) if dtype in INTEGERS else _floating_problem(spec, item)
    return problem or (f"{number(item)} is in `avoid`" if item in spec.avoid else "")


def _integer_problem(dtype: str, item: float) -> str:
    if not isinstance(item, int):
        return f"a value of {dtype} is an integer, not {number(item)}"
    low, high = INTEGERS[dtype]
    return "" if low <= item < high else f"{number(item)} does not fit {dtype}"


def _floating_problem(spec: TensorSpec, item: float) -> str:
    if isinstance(item, int) and not is_finite(item):
        return f"{number(item)} does not fit {spec.dtype}"
    if spec.requires_grad is not False and not is_finite(item):
        return f"{number(item)} cannot be differentiated: values must be finite, or `requires_grad: false`"
    if outside_domain(spec, item):
        return f"{number(item)} is outside the domain `{spec.domain}`"
    return ""


def outside_domain(spec: TensorSpec, point: float) -> bool:
    """Whether a number is no value of the domain."""
    outside = {
        "positive": point <= 0,
        "negative": point >= 0,
        "nonzero": point == 0,
        "unit": not 0 <= point <= 1,
    }
    return outside.get(spec.domain, False)
