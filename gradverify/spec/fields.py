"""The values of a spec file as annotated types: each is checked by one function, with its own sentence.

A message that begins with "must" is completed with the name of its key by `gradverify.spec.mistakes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from gradverify.cases.inputs import COMPLEX, FLOATING, INTEGERS, shape_of
from gradverify.cases.messages import described, did_you_mean, number, shown
from gradverify.cases.sizes import (
    MAX_SIZE,
    Condition,
    Expression,
    is_size_name,
    parse_condition,
    parse_expression,
)
from gradverify.model import Nested, Scalar

DTYPES = (*FLOATING, *COMPLEX, *INTEGERS, "bool")
MAX_COUNT = 100
"""Tensors of one list. Each is differentiated: beyond, a count is too high by mistake."""
MAX_OUTPUTS = 1000
"""Positions of outputs; no forward returns this many, and a position is printed with each finding."""
MOST_RANKS = 16
"""Processes of one machine: what more of them would show, these do."""
PLACEMENTS = ("local", "replicate", "shard(0)", "partial")
GRADIENTS = ("replicate", "partial", "partial(avg)", "shard(0)")
SHARD = re.compile(r"shard\(\s*(\d{1,2})\s*\)", re.ASCII)

_DIMENSION_KEY = re.compile(r"-?\d+", re.ASCII)
DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class FieldError(ValueError):
    """A value that a spec cannot have; the message is the sentence to report."""


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


def is_integer(value: object) -> bool:
    """Whether a value is an integer, and not true or false."""
    return isinstance(value, int) and not isinstance(value, bool)


def given(value: object) -> object:
    """Refuse null: a key that says nothing is left out."""
    if value is None:
        raise FieldError("must have a value: leave the key out instead")
    return value


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float64."""
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def finite(value: Any) -> int | float:  # noqa: ANN401 - of whatever kind
    """Refuse what is not a finite number."""
    if not is_integer(value) and not isinstance(value, float):
        raise FieldError(f"must be a number, not {described(value)}")
    if is_finite(value):
        return value  # type: ignore[no-any-return]
    raise FieldError(f"must be a finite number, not {number(value)}")


def _dimension(value: Any) -> int | Expression:  # noqa: ANN401
    if isinstance(value, str):
        return parse_expression(value)
    if not is_integer(value):
        hint = "; a shape is one flat list" if isinstance(value, list) else ""
        said = f"a dimension is an integer, a size name or an expression, not {described(value)}{hint}"
        raise FieldError(said)
    if value < 0:
        raise FieldError(f"a dimension cannot be negative: {number(value)}")
    if value > MAX_SIZE:
        raise FieldError(f"a dimension is at most {MAX_SIZE}, not {number(value)}")
    return value  # type: ignore[no-any-return]


def _integer(value: Any) -> int | Expression:  # noqa: ANN401
    # Unlike a dimension it may be negative.
    if isinstance(value, str):
        return parse_expression(value)
    if is_integer(value) and -MAX_SIZE <= value <= MAX_SIZE:
        return value  # type: ignore[no-any-return]
    raise FieldError(f"must be an integer, a size name or an expression, not {described(value)}")


def _bound(value: object) -> int | float | Expression:
    if isinstance(value, str):
        return parse_expression(value)
    if not is_integer(value) and not isinstance(value, float):
        raise FieldError(f"a bound is a number or a size expression, not {described(value)}")
    return finite(value)


def _two(bounds: list[Any]) -> list[Any]:
    if len(bounds) != 2:
        raise FieldError(f"`range` has two bounds, [low, high], not {len(bounds)}")
    return bounds


def _tuple(value: object) -> object:
    # Strings are size expressions here: nothing else would be worth writing twice.
    if isinstance(value, list):
        return tuple(map(_tuple, value))
    if isinstance(value, dict):
        raise FieldError("a tuple holds numbers, sizes, expressions and lists of them, not a mapping")
    return parse_expression(value) if isinstance(value, str) else value


def _tuple_of(value: object) -> object:
    if not isinstance(value, list):
        raise FieldError(f"must be a list, not {described(value)}")
    return _tuple(value)


def _constant_at(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        if not _DIMENSION_KEY.fullmatch(key) or len(key) > 3:
            raise FieldError(f"`constant_at` maps dimensions to indices: `{shown(key)}` is no dimension")
    return value


def _dtype(value: object) -> str:
    if isinstance(value, str) and value in DTYPES:
        return value
    if not isinstance(value, str):
        raise FieldError(f"a dtype cannot be {described(value)}; dtypes: {', '.join(DTYPES)}")
    meant = did_you_mean(value.removeprefix("torch."), DTYPES) or f"; dtypes: {', '.join(DTYPES)}"
    raise FieldError(f"`{shown(value)}` is no dtype{meant}")


def _word(value: object, key: str, plural: str, known: tuple[str, ...]) -> str:
    """One word of a few, and of ways of lying on ranks each `shard(1)`, written without spaces."""
    meant = ""
    if isinstance(value, str):
        shard = SHARD.fullmatch(value) if "shard(0)" in known else None
        if shard or value in known:
            return f"shard({int(shard[1])})" if shard else value
        meant = did_you_mean(value, known)
        if "shard(0)" in known and value.startswith("shard"):
            meant = "; write the dimension that is split: `shard(0)`"
    raise FieldError(f"`{key}` cannot be {described(value)}" + (meant or f"; {plural}: {', '.join(known)}"))


def one_of(key: str, plural: str, *known: str) -> Checked:
    """Return what checks a word out of a few."""
    return Checked(lambda value: _word(value, key, plural, known), {"enum": list(known)})


def _whole(what: str, otherwise: str, low: int, high: int) -> Callable[[Any], int]:
    """What checks an integer from `low` on and up to `high`, with a sentence for each end."""

    def check(value: Any) -> int:  # noqa: ANN401
        if not is_integer(value):
            hint = "; write the expression where the size is used" if what.startswith("a size") else ""
            raise FieldError(f"{what}, not {described(value)}{hint * isinstance(value, str)}")
        if not low <= value <= high:
            raise FieldError(f"{otherwise}, not {number(value)}")
        return value  # type: ignore[no-any-return]

    return check


def as_list(value: object) -> object:
    """Take a single value for a list of one."""
    return value if isinstance(value, list) else [value]


def _values(what: str) -> Callable[[list[int]], list[int]]:
    """What checks the list of values that something is swept over."""

    def check(values: list[int]) -> list[int]:
        if not values:
            raise FieldError(f"a list of {what} cannot be empty")
        if what == "sizes" and values == [0]:
            raise FieldError("a size that is only 0 makes every case empty: add another value, `[3, 0]`")
        return _each_once(values)

    return check


def _each_once(values: list[Any]) -> list[Any]:
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        name = f"`{shown(twice[0])}`" if isinstance(twice[0], str) else twice[0]
        raise FieldError(f"{name} is listed twice")
    return values


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FieldError(f"a literal is a number, a string, true, false or null, not {described(value)}")


def _distinct(values: list[Scalar]) -> list[Scalar]:
    if not values:
        raise FieldError("`choices` cannot be empty")
    marks = [repr(value) for value in values]
    for index, mark in enumerate(marks):
        if mark in marks[:index]:
            name = described(values[index]).replace("empty", "null")
            raise FieldError(f"{name} is listed twice")
    return values


def _nested(value: object) -> Nested:
    if isinstance(value, dict):
        raise FieldError("`value` is a number or nested lists of numbers, not a mapping")
    if not isinstance(value, list):
        return _scalar(value)
    items = tuple(map(_nested, value))
    if len({shape_of(item) for item in items}) > 1:
        raise FieldError("`value` is ragged: every list of one level must have the same length")
    return items


def placement(value: object) -> str:
    """How an input lies on ranks. Raises `ValueError`, with a sentence."""
    return _word(value, "placement", "known", PLACEMENTS)


def gradient(value: object) -> str:
    """How the gradient of a replicated input lies on them; empty for `replicate`. Raises as `placement`."""
    word = _word(value, "gradient", "known", GRADIENTS)
    return "" if word == "replicate" else word


def output(value: object) -> str:
    """How an output lies on them. Raises as `placement`."""
    if not isinstance(value, dict):
        return _word(value, "output_placement", "known", PLACEMENTS)
    if value == {"replicate": {"gradient": "partial"}}:
        return "replicate(partial)"
    if list(value) != ["on"]:
        known = "{replicate: {gradient: partial}} and {on: 0}"
        raise FieldError(f"`output_placement` knows the mappings {known}")
    rank = value["on"]
    if not is_integer(rank) or not 0 <= rank < MOST_RANKS:
        raise FieldError(f"`on` is the number of a rank, not {described(rank)}")
    return f"on({rank})"


def _worlds(values: list[Any]) -> list[int]:
    if not values:
        raise FieldError("`world_size` cannot be empty")
    for value in values:
        if not is_integer(value) or not 1 <= value <= MOST_RANKS:
            raise FieldError(f"a world has 1 to {MOST_RANKS} ranks, not {described(value)}")
    if len(set(values)) < len(values):
        raise FieldError("a `world_size` is listed twice")
    if values == [1]:
        raise FieldError("a world of one rank does not communicate: list a larger one too, as in `[2, 1]`")
    return values


def _exactly(expected: object, otherwise: str) -> Checked:
    """What checks the only value that there is."""

    def check(value: object) -> object:
        if type(value) is type(expected) and value == expected:
            return value
        raise FieldError(otherwise.format(described(value)))

    return Checked(check, {"const": expected})


def _tolerance(value: object) -> float:
    checked = finite(value)
    if not 0 <= checked < 1:
        raise FieldError(f"must be at least 0 and below 1, not {number(checked)}")
    return float(checked)


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise FieldError(f"must be a dotted path or `module:attribute`, not {described(value)}")
    module, colon, attribute = value.partition(":")
    if not DOTTED.fullmatch(module) or (colon and not DOTTED.fullmatch(attribute)):
        raise FieldError(f"`{shown(value)}` is not a dotted path or `module:attribute`")
    return value


def _reference(value: object) -> str:
    path = _path(value)
    if "." not in path and ":" not in path:
        raise FieldError(f"`{shown(path)}` names no module: write `module:{shown(path)}`")
    return path


def _hook(value: object) -> str:
    path = _path(value)
    if ":" not in path:
        raise FieldError(f"`{shown(path)}` is not `module:attribute`")
    return path


def _said(otherwise: str) -> AfterValidator:
    """What refuses an empty text."""

    def check(value: str) -> str:
        if not value.strip():
            raise FieldError(otherwise)
        return value.strip()

    return AfterValidator(check)


def _condition(value: object) -> Condition:
    if not isinstance(value, str):
        raise FieldError(f"a condition is a string such as `h >= k`, not {described(value)}")
    return parse_condition(value)


def _date(value: object) -> str:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise FieldError(f"must be a date such as 2027-01-31, not {described(value)}")
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise FieldError(f"there is no day {value}") from None


def some_tolerance(value: object) -> object:
    """Refuse a `tolerance` that says nothing."""
    if value == {}:
        raise FieldError("`tolerance` is empty: give it `rtol` or `atol`")
    return value


def parameter_names(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse names that no parameter can have."""
    for name in value:
        if not is_size_name(name):
            raise FieldError(f"`{shown(name)}` is not the name of a parameter")
    return value


def _init_value(value: object) -> object:
    if isinstance(value, dict):
        raise FieldError("must be a literal, a size or a list of them, not a mapping")
    return tuple(map(_init_value, value)) if isinstance(value, list) else value


def _init_scalar(value: object) -> object:
    if isinstance(value, dict | list):
        raise FieldError(f"must be a literal or a size, not {described(value)}")
    return value


def _one_or_more(one: Mapping[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})


_POSITION = "must be the position of an output"
_NATIVE = "must be float64, in which everything is verified; list native dtypes under `dtypes`"
_TEXT = {"type": "string"}
_SAID = WithJsonSchema({**_TEXT, "minLength": 1})
_NUMBER_OR_TEXT = {"type": ["number", "string"]}
_LITERAL = {"type": ["number", "string", "boolean", "null"]}
_COUNT = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
_SIZE = {"type": "integer", "minimum": 0}
_PLACED = {**_TEXT, "pattern": r"^(local|replicate|partial|shard\(\d+\))$"}
_OUTPUT = [
    _PLACED,
    {"const": {"replicate": {"gradient": "partial"}}},
    {"type": "object", "additionalProperties": {**_SIZE, "maximum": MOST_RANKS - 1}},
]
_LIST = BeforeValidator(as_list)
_size = _whole(
    "a size is an integer or a list of integers", f"a size is between 0 and {MAX_SIZE}", 0, MAX_SIZE
)
_count = _whole(
    "a count is an integer or a list of integers", f"a count is between 1 and {MAX_COUNT}", 1, MAX_COUNT
)
_output = _whole(_POSITION, f"{_POSITION}, counted from 0", 0, MAX_OUTPUTS - 1)

_Item = TypeVar("_Item")
Maybe = Annotated[_Item | None, BeforeValidator(given)]
"""A key that may be absent, and is never null."""
Some = Annotated[list[_Item], Field(min_length=1)]
Distinct = Annotated[Some[_Item], AfterValidator(_each_once)]
Text = str
Words = Annotated[Text, _said("must not be empty"), _SAID]
Reason = Annotated[Text, _said("a reason is required"), _SAID]
Dimension = Annotated[int | Expression, Checked(_dimension, {"anyOf": [_SIZE, _TEXT]})]
Shape = list[Dimension]
Points = list[Annotated[int | float, Checked(finite, {"type": "number"})]]
Bounds = Annotated[
    list[Annotated[int | float | Expression, Checked(_bound, _NUMBER_OR_TEXT)]],
    AfterValidator(_two),
    WithJsonSchema({"type": "array", "items": _NUMBER_OR_TEXT, "minItems": 2, "maxItems": 2}),
]
Dtype = Annotated[str, Checked(_dtype, {"enum": list(DTYPES)})]
Integer = Annotated[int | Expression, Checked(_integer, {"type": ["integer", "string"]})]
Entries = Annotated[Any, Checked(_tuple_of, {"type": "array"})]
Constants = Annotated[dict[str, Some[Integer]], AfterValidator(_constant_at)]
Sizes = Annotated[
    list[Annotated[int, Checked(_size, _SIZE)]], AfterValidator(_values("sizes")), _LIST, _one_or_more(_SIZE)
]
Counts = Annotated[
    list[Annotated[int, Checked(_count, _COUNT)]],
    AfterValidator(_values("counts")),
    _LIST,
    _one_or_more(_COUNT),
]
LiteralValue = Annotated[Scalar, Checked(_scalar, _LITERAL)]
Choices = Annotated[list[LiteralValue], Field(json_schema_extra={"minItems": 1}), AfterValidator(_distinct)]
Values = Annotated[Any, Checked(_nested, {})]
Placement = Annotated[str, Checked(placement, _PLACED)]
Gradient = Annotated[str, Checked(gradient, _TEXT)]
WorldSizes = Annotated[
    list[Any], AfterValidator(_worlds), _LIST, _one_or_more({**_COUNT, "maximum": MOST_RANKS})
]
OutputPlacements = Annotated[
    Some[Annotated[str, Checked(output, {})]],
    _LIST,
    _one_or_more({"anyOf": _OUTPUT}),
]
Float64 = Annotated[str, _exactly("float64", _NATIVE)]
Version = Annotated[Literal[1], _exactly(1, "must be 1, the format version, not {}")]
Product = Annotated[str, _exactly("product", "must be `product` or a list of cases, not {}")]
Tolerance = Annotated[float, Checked(_tolerance, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})]
Attribute = Annotated[str, Checked(_path, _TEXT)]
Reference = Annotated[str, Checked(_reference, _TEXT)]
Hook = Annotated[str, Checked(_hook, {**_TEXT, "pattern": ":"})]
Where = Some[Annotated[Condition, Checked(_condition, _TEXT)]]
Day = Annotated[str, Checked(_date, {**_TEXT, "pattern": r"^\d{4}-\d\d-\d\d$"})]
Outputs = Distinct[Annotated[int, Checked(_output, _SIZE)]]
Dtypes = Distinct[Annotated[str, one_of("dtypes", "dtypes", "float64", "float32", "bfloat16", "float16")]]
InitValue = Annotated[Any, Checked(_init_value, {"type": [*_LITERAL["type"], "array"]})]
InitScalar = Annotated[Any, Checked(_init_scalar, _LITERAL)]
