"""The values of a function's own keys as annotated types; the values of its inputs are in `fields`.

The values of a spec's keys about ranks as annotated types: world sizes, and how tensors lie on ranks.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema

from gradverify.cases.messages import described, did_you_mean, number, shown
from gradverify.cases.sizes import Condition, ExpressionError, is_size_name, parse_condition
from gradverify.spec.fields import Checked, as_list, finite, one_of, wrong

MOST_RANKS = 16
"""Processes of one machine: what more of them would show, these do."""

PLACEMENTS = ("local", "replicate", "shard(0)", "partial")
GRADIENTS = ("replicate", "partial", "partial(avg)", "shard(0)")
SHARD = re.compile(r"shard\(\s*(\d{1,2})\s*\)", re.ASCII)


def _word(key: str, value: object, known: tuple[str, ...]) -> str:
    """One way of lying on ranks, as `shard(0)` is written without spaces."""
    shard = SHARD.fullmatch(value) if isinstance(value, str) else None
    if shard is not None:
        return f"shard({int(shard[1])})"
    if isinstance(value, str) and value in known:
        return value
    meant = did_you_mean(value, known) if isinstance(value, str) else ""
    if isinstance(value, str) and value.startswith("shard"):
        meant = "; write the dimension that is split: `shard(0)`"
    raise wrong(f"`{key}` cannot be {described(value)}" + (meant or f"; known: {', '.join(known)}"))


def placement(value: object) -> str:
    """How an input lies on ranks. Raises `PydanticCustomError`, a `ValueError`, with a sentence."""
    return _word("placement", value, PLACEMENTS)


def gradient(value: object) -> str:
    """How the gradient of a replicated input lies on them; empty for `replicate`. Raises as `placement`."""
    word = _word("gradient", value, GRADIENTS)
    return "" if word == "replicate" else word


def output(value: object) -> str:
    """How an output lies on them. Raises as `placement`."""
    if value == {"replicate": {"gradient": "partial"}}:
        return "replicate(partial)"
    if isinstance(value, dict) and list(value) == ["on"]:
        rank = value["on"]
        if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < MOST_RANKS:
            return f"on({rank})"
        raise wrong(f"`on` is the number of a rank, not {described(rank)}")
    if isinstance(value, dict):
        raise wrong("`output_placement` knows the mappings {replicate: {gradient: partial}} and {on: 0}")
    return _word("output_placement", value, PLACEMENTS)


def _worlds(values: list[Any]) -> list[int]:
    if not values:
        raise wrong("`world_size` cannot be empty")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANKS:
            raise wrong(f"a world has 1 to {MOST_RANKS} ranks, not {described(value)}")
    if len(set(values)) < len(values):
        raise wrong("a `world_size` is listed twice")
    if values == [1]:
        raise wrong("a world of one rank does not communicate: list a larger one too, as in `[2, 1]`")
    return values


_SIZE = {"type": "integer", "minimum": 1, "maximum": MOST_RANKS}
_WORD = {"type": "string", "pattern": r"^(local|replicate|partial|shard\(\d+\))$"}

_OUTPUT = [
    _WORD,
    {"const": {"replicate": {"gradient": "partial"}}},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": MOST_RANKS - 1}},
]

Placement = Annotated[str, Checked(placement, _WORD)]
Gradient = Annotated[str, Checked(gradient, {"type": "string"})]
Group = Annotated[str, one_of("process_group", "groups", ("world",))]
WorldSizes = Annotated[
    list[Any],
    AfterValidator(_worlds),
    BeforeValidator(as_list),
    WithJsonSchema({"anyOf": [_SIZE, {"type": "array", "items": _SIZE, "minItems": 1}]}),
]
OutputPlacements = Annotated[
    list[Annotated[str, Checked(output, {})]],
    Field(min_length=1),
    BeforeValidator(as_list),
    WithJsonSchema({"anyOf": [*_OUTPUT, {"type": "array", "items": {"anyOf": _OUTPUT}, "minItems": 1}]}),
]


DEFAULT_DTYPES = ("float64", "float32")
DEVICES = ("cpu", "cuda")
JUDGED_DTYPES = ("float64", "float32", "bfloat16", "float16")
INTERNALS = ("float32",)
_ATTRIBUTE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _float64(value: object) -> str:
    if value == "float64":
        return "float64"
    raise wrong("must be float64, in which everything is verified; list native dtypes under `dtypes`")


def _tolerance(value: object) -> float:
    checked = finite(value)
    if not 0 <= checked < 1:
        raise wrong(f"must be at least 0 and below 1, not {number(checked)}")
    return float(checked)


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise wrong(f"must be a dotted path or `module:attribute`, not {described(value)}")
    module, colon, attribute = value.partition(":")
    if not _ATTRIBUTE.fullmatch(module) or (colon and not _ATTRIBUTE.fullmatch(attribute)):
        raise wrong(f"`{shown(value)}` is not a dotted path or `module:attribute`")
    return value


def _reference(value: object) -> str:
    path = _path(value)
    if "." not in path and ":" not in path:
        raise wrong(f"`{shown(path)}` names no module: write `module:{shown(path)}`")
    return path


def _hook(value: object) -> str:
    path = _path(value)
    if ":" not in path:
        raise wrong(f"`{shown(path)}` is not `module:attribute`")
    return path


def _reason(value: str) -> str:
    if not value.strip():
        raise wrong("a reason is required")
    return value.strip()


def _words(value: str) -> str:
    if not value.strip():
        raise wrong("must not be empty")
    return value.strip()


def _version(value: object) -> Literal[1]:
    if isinstance(value, int) and not isinstance(value, bool) and value == 1:
        return 1
    raise wrong(f"must be 1, the format version, not {described(value)}")


def _condition(value: object) -> Condition:
    if not isinstance(value, str):
        raise wrong(f"a condition is a string such as `h >= k`, not {described(value)}")
    try:
        return parse_condition(value)
    except ExpressionError as error:
        raise wrong(str(error)) from None


def _date(value: object) -> str:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value).isoformat()
        except ValueError:
            raise wrong(f"there is no day {value}") from None
    raise wrong(f"must be a date such as 2027-01-31, not {described(value)}")


def _output(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"must be the position of an output, not {described(value)}")
    if not 0 <= value < MAX_OUTPUTS:
        raise wrong(f"must be the position of an output, counted from 0, not {number(value)}")
    return value


def _each_once(values: list[Any]) -> list[Any]:
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise wrong(f"{f'`{shown(twice[0])}`' if isinstance(twice[0], str) else twice[0]} is listed twice")
    return values


def _product(value: object) -> Literal["product"]:
    if value == "product":
        return "product"
    raise wrong(f"must be `product` or a list of cases, not {described(value)}")


def some_tolerance(value: object) -> object:
    """Refuse a `tolerance` that says nothing."""
    if value == {}:
        raise wrong("`tolerance` is empty: give it `rtol` or `atol`")
    return value


def parameter_names(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse names that no parameter can have."""
    for name in value:
        if not is_size_name(name):
            raise wrong(f"`{shown(name)}` is not the name of a parameter")
    return value


def _init_value(value: object) -> object:
    if isinstance(value, dict):
        raise wrong("must be a literal, a size or a list of them, not a mapping")
    return tuple(_init_value(item) for item in value) if isinstance(value, list) else value


def _scalar(value: object) -> object:
    if isinstance(value, dict | list):
        raise wrong(f"must be a literal or a size, not {described(value)}")
    return value


MAX_OUTPUTS = 1000
"""Positions of outputs; no forward returns this many, and a position is printed with each finding."""
_TEXT = {"type": "string"}
_SOME = Field(min_length=1)
_ANY_LITERAL = ["number", "string", "boolean", "null"]

Float64 = Annotated[str, Checked(_float64, {"const": "float64"})]
Tolerance = Annotated[float, Checked(_tolerance, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})]
Text = Annotated[str, StringConstraints(strict=True)]
Words = Annotated[Text, AfterValidator(_words), WithJsonSchema({**_TEXT, "minLength": 1})]
Reason = Annotated[Text, AfterValidator(_reason), WithJsonSchema({**_TEXT, "minLength": 1})]
Attribute = Annotated[str, Checked(_path, _TEXT)]
Reference = Annotated[str, Checked(_reference, _TEXT)]
Hook = Annotated[str, Checked(_hook, {**_TEXT, "pattern": ":"})]
Version = Annotated[Literal[1], Checked(_version, {"const": 1})]
Where = Annotated[list[Annotated[Condition, Checked(_condition, _TEXT)]], _SOME]
Day = Annotated[str, Checked(_date, {**_TEXT, "pattern": r"^\d{4}-\d\d-\d\d$"})]
Names = Annotated[list[Text], _SOME, AfterValidator(_each_once)]
Arguments = Annotated[list[Text], _SOME]
Output = Annotated[int, Checked(_output, {"type": "integer", "minimum": 0})]
Outputs = Annotated[list[Output], _SOME, AfterValidator(_each_once)]
DefaultDtype = Annotated[str, one_of("default_dtype", "dtypes", DEFAULT_DTYPES)]
Device = Annotated[str, one_of("devices", "devices", DEVICES)]
Devices = Annotated[list[Device], _SOME, AfterValidator(_each_once)]
JudgedDtype = Annotated[str, one_of("dtypes", "dtypes", JUDGED_DTYPES)]
Dtypes = Annotated[list[JudgedDtype], _SOME, AfterValidator(_each_once)]
Internals = Annotated[str, one_of("internals", "dtypes", INTERNALS)]
Product = Annotated[str, Checked(_product, {"const": "product"})]
InitValue = Annotated[Any, Checked(_init_value, {"type": [*_ANY_LITERAL, "array"]})]
InitScalar = Annotated[Any, Checked(_scalar, {"type": _ANY_LITERAL})]
