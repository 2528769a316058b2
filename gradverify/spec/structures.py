"""Structured inputs: what shape, dtype and company each structure demands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gradverify.model import TensorInput
from gradverify.spec.fields import FLOATING, INTEGERS
from gradverify.spec.messages import number
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
