"""The values of a spec's keys about ranks as annotated types: world sizes, and how tensors lie on ranks."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gradverify.spec.fields import Checked, as_list, one_of, wrong
from gradverify.spec.messages import described, did_you_mean

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
