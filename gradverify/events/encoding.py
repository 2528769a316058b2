"""Requests and events as lines: the number of the request, then JSON.

Both sides run the same version of this package, so the encoding is private: every value is tagged with its
class and read back exactly (tuples stay tuples, enums stay enums, NaN stays NaN).
"""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Any

from gradverify import deduced, model
from gradverify.cases import further, inputs, sizes, sweep
from gradverify.events import answers, requests
from gradverify.events.answers import Event
from gradverify.events.requests import Request

_CLASSES: dict[str, type[Any]] = {
    name: value
    for namespace in (
        {name: getattr(model, name) for name in model.NAMES},
        *map(vars, (sizes, inputs, sweep, further, deduced)),
        vars(requests),
        vars(answers),
    )
    for name, value in namespace.items()
    if isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, Enum))
}


def encode(message: Request | Event) -> str:
    """Write a request or event as one line of JSON without the newline."""
    return json.dumps(_to_data(message), separators=(",", ":"))


def decode(line: str) -> Any:  # noqa: ANN401 - the union of requests or events; callers match on it
    """Read back what `encode` wrote.

    Raises `ValueError` for anything else.
    """
    return _from_data(json.loads(line))


def to_line(number: int, message: Request | Event) -> str:
    """Write a message of one request as a line without the newline."""
    return f"{number} {encode(message)}"


def from_line(line: str) -> tuple[int, Any]:
    """Read back the number of the request, and the message.

    Raises `ValueError`, `TypeError` or `KeyError` for anything else.
    """
    number, _, message = line.partition(" ")
    return int(number), decode(message)


def _to_data(value: object) -> object:
    if isinstance(value, Enum):
        return {"": type(value).__name__, "value": value.value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_to_data(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} does not cross the process border")


def _from_data(data: object) -> object:
    if isinstance(data, list):
        return tuple(_from_data(item) for item in data)
    if not isinstance(data, dict):
        return data
    cls = _CLASSES.get(data.get("", ""))
    if cls is None:
        raise ValueError(f"not a message of gradverify: {str(data)[:200]}")
    if issubclass(cls, Enum):
        return cls(data["value"])
    return cls(**{key: _from_data(item) for key, item in data.items() if key})
