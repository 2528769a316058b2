"""The values of a spec file as annotated types: each is checked by one function, with its own sentence.

A message that begins with "must" is completed with the name of its key by `gradverify.spec.translate`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from gradverify.model import Nested, Scalar
from gradverify.spec.sizes import MAX_SIZE, Expression, ExpressionError, constant, parse_expression
from gradverify.spec.wording import described, did_you_mean, number, shown

OWN_MESSAGE = "gradverify"
"""The pydantic error type of our own sentences."""
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
DTYPES = (*FLOATING, *COMPLEX, *INTEGERS, "bool")
DOMAINS = ("real", "positive", "negative", "nonzero", "unit")

_ATTRIBUTE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError(OWN_MESSAGE, "{message}", {"message": message})


def _dimension(value: object) -> Expression:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise _wrong(f"a dimension cannot be negative: {number(value)}")
        if value > MAX_SIZE:
            raise _wrong(f"a dimension is at most {MAX_SIZE}, not {number(value)}")
        return constant(value)
    if isinstance(value, str):
        return _expression(value)
    hint = "; a shape is one flat list" if isinstance(value, list) else ""
    raise _wrong(f"a dimension is an integer, a size name or an expression, not {described(value)}{hint}")


def given(value: object) -> object:
    """Refuse null: a key that says nothing is left out."""
    if value is None:
        raise _wrong("must have a value: leave the key out instead")
    return value


def _expression(text: str) -> Expression:
    try:
        return parse_expression(text)
    except ExpressionError as error:
        raise _wrong(str(error)) from None


def _finite(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(f"must be a number, not {described(value)}")
    try:
        if math.isfinite(float(value)):
            return value
    except OverflowError:
        pass
    raise _wrong(f"must be a finite number, not {number(value)}")


def _bound(value: object) -> int | float | Expression:
    if isinstance(value, str):
        return _expression(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(f"a bound is a number or a size expression, not {described(value)}")
    return _finite(value)


def _two(bounds: list[Bound]) -> list[Bound]:
    if len(bounds) != 2:
        raise _wrong(f"`range` has two bounds, [low, high], not {len(bounds)}")
    return bounds


def _dtype(value: object) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        named = (
            f"`{shown(value)}` is no dtype"
            if isinstance(value, str)
            else f"a dtype cannot be {described(value)}"
        )
        meant = did_you_mean(value.removeprefix("torch."), DTYPES) if isinstance(value, str) else ""
        raise _wrong(named + (meant or f"; dtypes: {', '.join(DTYPES)}"))
    return value


def _domain(value: object) -> str:
    if not isinstance(value, str) or value not in DOMAINS:
        named = described(value)
        meant = did_you_mean(value, DOMAINS) if isinstance(value, str) else ""
        raise _wrong(f"`domain` cannot be {named}" + (meant or f"; domains: {', '.join(DOMAINS)}"))
    return value


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; write the expression where the size is used" if isinstance(value, str) else ""
        raise _wrong(f"a size is an integer or a list of integers, not {described(value)}{hint}")
    if not 0 <= value <= MAX_SIZE:
        raise _wrong(f"a size is between 0 and {MAX_SIZE}, not {number(value)}")
    return value


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _swept(values: list[int]) -> list[int]:
    if not values:
        raise _wrong("a list of sizes cannot be empty")
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise _wrong(f"{twice[0]} is listed twice")
    if values == [0]:
        raise _wrong("a size that is only 0 makes every case empty: add another value, `[3, 0]`")
    return values


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _wrong(f"a literal is a number, a string, true, false or null, not {described(value)}")


def _distinct(values: list[Scalar]) -> list[Scalar]:
    if not values:
        raise _wrong("`choices` cannot be empty")
    marks = [repr(value) for value in values]
    for index, mark in enumerate(marks):
        if mark in marks[:index]:
            raise _wrong(f"{described(values[index])} is listed twice".replace("empty is", "null is"))
    return values


def _nested(value: object) -> Nested:
    if isinstance(value, dict):
        raise _wrong("`value` is a number or nested lists of numbers, not a mapping")
    if not isinstance(value, list):
        return _scalar(value)
    items = tuple(_nested(item) for item in value)
    if len({shape_of(item) for item in items}) > 1:
        raise _wrong("`value` is ragged: every list of one level must have the same length")
    return items


def shape_of(value: Nested) -> tuple[int, ...]:
    """Return the shape of rectangular nested tuples."""
    if not isinstance(value, tuple):
        return ()
    return (len(value), *(shape_of(value[0]) if value else ()))


def _float64(value: object) -> str:
    if value == "float64":
        return "float64"
    raise _wrong("native dtypes are not supported yet: verification runs in float64")


def _tolerance(value: object) -> float:
    checked = _finite(value)
    if not 0 <= checked < 1:
        raise _wrong(f"must be at least 0 and below 1, not {number(checked)}")
    return float(checked)


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(f"must be a dotted path or `module:attribute`, not {described(value)}")
    module, colon, attribute = value.partition(":")
    if not _ATTRIBUTE.fullmatch(module) or (colon and not _ATTRIBUTE.fullmatch(attribute)):
        raise _wrong(f"`{shown(value)}` is not a dotted path or `module:attribute`")
    return value


def _reference(value: object) -> str:
    path = _path(value)
    if "." not in path and ":" not in path:
        raise _wrong(f"`{shown(path)}` names no module: write `module:{shown(path)}`")
    return path


def _hook(value: object) -> str:
    path = _path(value)
    if ":" not in path:
        raise _wrong(f"`{shown(path)}` is not `module:attribute`")
    return path


def _reason(value: str) -> str:
    if not value.strip():
        raise _wrong("a reason is required")
    return value.strip()


def no_call(_value: object) -> object:
    """Refuse `reference: {}`; the keys of a call are refused before, one by one."""
    raise _wrong("must be a dotted path or `module:attribute`, not a mapping")


def _version(value: object) -> Literal[1]:
    if isinstance(value, int) and not isinstance(value, bool) and value == 1:
        return 1
    raise _wrong(f"must be 1, the format version, not {described(value)}")


_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_NUMBER_OR_TEXT = {"type": ["number", "string"]}
_LITERAL = {"type": ["number", "string", "boolean", "null"]}
_SIZE = {"type": "integer", "minimum": 0}
_SIZES = {"anyOf": [_SIZE, {"type": "array", "items": _SIZE}]}

Dimension = Annotated[Expression, PlainValidator(_dimension), WithJsonSchema({"type": ["integer", "string"]})]
Finite = Annotated[int | float, PlainValidator(_finite), WithJsonSchema(_NUMBER)]
Bound = Annotated[int | float | Expression, PlainValidator(_bound), WithJsonSchema(_NUMBER_OR_TEXT)]
Bounds = Annotated[list[Bound], AfterValidator(_two)]
Dtype = Annotated[str, PlainValidator(_dtype), WithJsonSchema({"enum": list(DTYPES)})]
Domain = Annotated[str, PlainValidator(_domain), WithJsonSchema({"enum": list(DOMAINS)})]
Size = Annotated[int, PlainValidator(_size), WithJsonSchema(_SIZE)]
Sizes = Annotated[list[Size], AfterValidator(_swept), BeforeValidator(_as_list), WithJsonSchema(_SIZES)]
LiteralValue = Annotated[Scalar, PlainValidator(_scalar), WithJsonSchema(_LITERAL)]
Choices = Annotated[list[LiteralValue], AfterValidator(_distinct)]
Values = Annotated[Any, PlainValidator(_nested), WithJsonSchema({})]
Float64 = Annotated[str, PlainValidator(_float64), WithJsonSchema({"const": "float64"})]
Tolerance = Annotated[float, PlainValidator(_tolerance), WithJsonSchema(_NUMBER)]
Reason = Annotated[str, StringConstraints(strict=True), AfterValidator(_reason)]
Attribute = Annotated[str, PlainValidator(_path), WithJsonSchema(_TEXT)]
Reference = Annotated[str, PlainValidator(_reference), WithJsonSchema(_TEXT)]
Hook = Annotated[str, PlainValidator(_hook), WithJsonSchema(_TEXT)]
Version = Annotated[Literal[1], PlainValidator(_version), WithJsonSchema({"const": 1})]
