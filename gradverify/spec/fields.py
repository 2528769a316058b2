"""The values of a spec file as annotated types: each is checked by one function, with its own sentence.

A message that begins with "must" is completed with the name of its key by `gradverify.spec.translate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gradverify.cases.inputs import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.cases.messages import described, did_you_mean, number, shown
from gradverify.cases.sizes import MAX_SIZE, Expression, ExpressionError, parse_expression
from gradverify.model import Nested, Scalar

OWN_MESSAGE = "gradverify"
"""The pydantic error type of our own sentences."""
DTYPES = (*FLOATING, *COMPLEX, *INTEGERS, "bool")
DOMAINS = ("real", "positive", "negative", "nonzero", "unit")
STRUCTURES = (
    "spd", "symmetric", "invertible", "triangular", "cholesky-factor", "orthogonal",
    "unit-norm", "simplex", "permutation", "sorted", "offsets", "one-hot",
)  # fmt: skip
LAYOUTS = ("sparse_coo", "sparse_csr")
MAX_COUNT = 100
"""Tensors of one list. Each is differentiated: beyond, a count is too high by mistake."""

_DIMENSION_KEY = re.compile(r"-?\d+", re.ASCII)


def wrong(message: str) -> PydanticCustomError:
    """Return an error that carries a sentence of our own."""
    return PydanticCustomError(OWN_MESSAGE, "{message}", {"message": message})


@dataclass(frozen=True, eq=False)
class Checked:
    """A value that one function checks, and what the JSON Schema says of it."""

    check: Callable[[Any], object]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:  # noqa: ANN401
        """Return what pydantic validates with."""
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return what editors are sent."""
        return dict(self.schema)


def _dimension(value: object) -> int | Expression:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise wrong(f"a dimension cannot be negative: {number(value)}")
        if value > MAX_SIZE:
            raise wrong(f"a dimension is at most {MAX_SIZE}, not {number(value)}")
        return value
    if isinstance(value, str):
        return _expression(value)
    hint = "; a shape is one flat list" if isinstance(value, list) else ""
    raise wrong(f"a dimension is an integer, a size name or an expression, not {described(value)}{hint}")


def _integer(value: object) -> int | Expression:
    # Unlike a dimension it may be negative.
    if isinstance(value, int) and not isinstance(value, bool) and -MAX_SIZE <= value <= MAX_SIZE:
        return value
    if isinstance(value, str):
        return _expression(value)
    raise wrong(f"must be an integer, a size name or an expression, not {described(value)}")


def _tuple(value: object) -> object:
    # Strings are size expressions here: nothing else would be worth writing twice.
    if isinstance(value, list):
        return tuple(_tuple(item) for item in value)
    if isinstance(value, str):
        return _expression(value)
    if isinstance(value, dict):
        raise wrong("a tuple holds numbers, sizes, expressions and lists of them, not a mapping")
    return value


def _tuple_of(value: object) -> object:
    if not isinstance(value, list):
        raise wrong(f"must be a list, not {described(value)}")
    return _tuple(value)


def _constant_at(value: dict[str, list[int | Expression]]) -> dict[str, list[int | Expression]]:
    for key in value:
        if not _DIMENSION_KEY.fullmatch(key) or len(key) > 3:
            raise wrong(f"`constant_at` maps dimensions to indices: `{shown(key)}` is no dimension")
    return value


def given(value: object) -> object:
    """Refuse null: a key that says nothing is left out."""
    if value is None:
        raise wrong("must have a value: leave the key out instead")
    return value


def _expression(text: str) -> Expression:
    try:
        return parse_expression(text)
    except ExpressionError as error:
        raise wrong(str(error)) from None


def finite(value: object) -> int | float:
    """Refuse what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"must be a number, not {described(value)}")
    try:
        if math.isfinite(float(value)):
            return value
    except OverflowError:
        pass
    raise wrong(f"must be a finite number, not {number(value)}")


def _bound(value: object) -> int | float | Expression:
    if isinstance(value, str):
        return _expression(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"a bound is a number or a size expression, not {described(value)}")
    return finite(value)


def _two(bounds: list[Bound]) -> list[Bound]:
    if len(bounds) != 2:
        raise wrong(f"`range` has two bounds, [low, high], not {len(bounds)}")
    return bounds


def _dtype(value: object) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        named = (
            f"`{shown(value)}` is no dtype"
            if isinstance(value, str)
            else f"a dtype cannot be {described(value)}"
        )
        meant = did_you_mean(value.removeprefix("torch."), DTYPES) if isinstance(value, str) else ""
        raise wrong(named + (meant or f"; dtypes: {', '.join(DTYPES)}"))
    return value


def one_of(key: str, plural: str, known: tuple[str, ...]) -> Checked:
    """Return what checks a word out of a few."""

    def check(value: object) -> str:
        if isinstance(value, str) and value in known:
            return value
        meant = did_you_mean(value, known) if isinstance(value, str) else ""
        raise wrong(f"`{key}` cannot be {described(value)}" + (meant or f"; {plural}: {', '.join(known)}"))

    return Checked(check, {"enum": list(known)})


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; write the expression where the size is used" if isinstance(value, str) else ""
        raise wrong(f"a size is an integer or a list of integers, not {described(value)}{hint}")
    if not 0 <= value <= MAX_SIZE:
        raise wrong(f"a size is between 0 and {MAX_SIZE}, not {number(value)}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"a count is an integer or a list of integers, not {described(value)}")
    if not 1 <= value <= MAX_COUNT:
        raise wrong(f"a count is between 1 and {MAX_COUNT}, not {number(value)}")
    return value


def _counts(values: list[int]) -> list[int]:
    if not values:
        raise wrong("a list of counts cannot be empty")
    _refuse_twice(values)
    return values


def as_list(value: object) -> object:
    """Take a single value for a list of one."""
    return value if isinstance(value, list) else [value]


def _swept(values: list[int]) -> list[int]:
    if not values:
        raise wrong("a list of sizes cannot be empty")
    _refuse_twice(values)
    if values == [0]:
        raise wrong("a size that is only 0 makes every case empty: add another value, `[3, 0]`")
    return values


def _refuse_twice(values: list[int]) -> None:
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise wrong(f"{twice[0]} is listed twice")


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise wrong(f"a literal is a number, a string, true, false or null, not {described(value)}")


def _distinct(values: list[Scalar]) -> list[Scalar]:
    if not values:
        raise wrong("`choices` cannot be empty")
    marks = [repr(value) for value in values]
    for index, mark in enumerate(marks):
        if mark in marks[:index]:
            raise wrong(f"{described(values[index])} is listed twice".replace("empty is", "null is"))
    return values


def _nested(value: object) -> Nested:
    if isinstance(value, dict):
        raise wrong("`value` is a number or nested lists of numbers, not a mapping")
    if not isinstance(value, list):
        return _scalar(value)
    items = tuple(_nested(item) for item in value)
    if len({shape_of(item) for item in items}) > 1:
        raise wrong("`value` is ragged: every list of one level must have the same length")
    return items


_NUMBER_OR_TEXT = {"type": ["number", "string"]}
LITERAL_SCHEMA = {"type": ["number", "string", "boolean", "null"]}
_COUNT = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_COUNTS = {"anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 1}]}
_SIZE = {"type": "integer", "minimum": 0}
_SIZES = {"anyOf": [_SIZE, {"type": "array", "items": _SIZE, "minItems": 1}]}

Dimension = Annotated[int | Expression, Checked(_dimension, {"anyOf": [_SIZE, {"type": "string"}]})]
Finite = Annotated[int | float, Checked(finite, {"type": "number"})]
Bound = Annotated[int | float | Expression, Checked(_bound, _NUMBER_OR_TEXT)]
Bounds = Annotated[
    list[Bound],
    AfterValidator(_two),
    WithJsonSchema({"type": "array", "items": _NUMBER_OR_TEXT, "minItems": 2, "maxItems": 2}),
]
Dtype = Annotated[str, Checked(_dtype, {"enum": list(DTYPES)})]
Domain = Annotated[str, one_of("domain", "domains", DOMAINS)]
StructureName = Annotated[str, one_of("structure", "structures", STRUCTURES)]
LayoutName = Annotated[str, one_of("layout", "layouts", LAYOUTS)]
Integer = Annotated[int | Expression, Checked(_integer, {"type": ["integer", "string"]})]
Entries = Annotated[Any, Checked(_tuple_of, {"type": "array"})]
Constants = Annotated[dict[str, Annotated[list[Integer], Field(min_length=1)]], AfterValidator(_constant_at)]
Size = Annotated[int, Checked(_size, _SIZE)]
Sizes = Annotated[list[Size], AfterValidator(_swept), BeforeValidator(as_list), WithJsonSchema(_SIZES)]
Count = Annotated[int, Checked(_count, _COUNT)]
Counts = Annotated[list[Count], AfterValidator(_counts), BeforeValidator(as_list), WithJsonSchema(_COUNTS)]
LiteralValue = Annotated[Scalar, Checked(_scalar, LITERAL_SCHEMA)]
Choices = Annotated[list[LiteralValue], Field(json_schema_extra={"minItems": 1}), AfterValidator(_distinct)]
Values = Annotated[Any, Checked(_nested, {})]
