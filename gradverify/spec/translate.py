"""Pydantic's errors → our complaints: one clear sentence for each mistake, at its key or value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gradverify.spec import schema
from gradverify.spec.fields import OWN_MESSAGE
from gradverify.spec.source import At, Complaint
from gradverify.spec.wording import Path, described, did_you_mean, dotted, shown

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "too_short": "a list with at least one entry",
}
"""What an error type of pydantic expects, in words."""


@dataclass(frozen=True)
class Level:
    """One kind of mapping in a spec file: which keys it knows."""

    known: frozenset[str]
    unsupported: frozenset[str] = frozenset()
    """Keys of the format that this version does not know how to honour: an error, never ignored."""
    forms: tuple[str, ...] = ()
    """Unsupported keys that decide what the whole mapping means: then nothing else in it is judged."""


def _level(model: type[BaseModel], unsupported: str = "", forms: str = "") -> Level:
    known = frozenset(model.model_fields)
    return Level(known, frozenset((unsupported + " " + forms).split()), tuple(forms.split()))


_LevelOf = Callable[[object, Path], Level]
"""Tells the level of the mapping at a path."""

TOP = _level(schema.FileEntry)
DEFAULTS = _level(schema.Defaults)
FUNCTION = _level(
    schema.FunctionEntry,
    "where cases xfail surrogate tolerance outputs default_dtype devices dtypes init notes internals",
)
TENSOR = _level(
    schema.TensorEntry,
    "structure layout ties distinct constant_at mutated init of count",
    "list concat object tuple size make",
)
CHOICES = _level(schema.ChoicesEntry, " ".join(TENSOR.unsupported))
VALUE = _level(schema.ValueEntry, " ".join(TENSOR.unsupported))
CALL = _level(schema.CallEntry, "arguments", "call")


def file_complaints(raw: object) -> list[Complaint]:
    """Return what is wrong with the top of a file, its functions left aside."""
    top = raw
    if isinstance(raw, dict) and isinstance(raw.get("functions"), dict):
        top = {**raw, "functions": {}}
    return _validate(schema.FileEntry, top, (), _file_level)


def function_complaints(raw: object, prefix: Path) -> list[Complaint]:
    """Return what is wrong with the entry of one function, each key by itself."""
    return _validate(schema.FunctionEntry, raw, prefix, _function_level)


def _validate(model: type[BaseModel], raw: object, prefix: Path, level: _LevelOf) -> list[Complaint]:
    try:
        model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        return list(dict.fromkeys(_complaint(one, raw, level, prefix) for one in errors))
    return []


def _complaint(error: ErrorDetails, raw: object, level: _LevelOf, prefix: Path) -> Complaint:
    path = _without_tag(tuple(error["loc"]))
    form = _unsupported_form(raw, path, level)
    if form:
        return Complaint(prefix + form, f"`{form[-1]}` is not supported yet", At.KEY)
    if error["type"] == "extra_forbidden":
        return Complaint(prefix + path, _unknown_key(prefix, path, level(raw, path[:-1])), At.KEY)
    if error["type"] == "missing":
        return Complaint(prefix + path[:-1], f"`{path[-1]}` is missing")
    return Complaint(prefix + path, _sentence(error, prefix + path))


def _sentence(error: ErrorDetails, path: Path) -> str:
    if error["type"] == OWN_MESSAGE:
        message = error["msg"]
        return f"{_subject(path)} {message}" if message.startswith("must ") else message
    expected = _EXPECTED[error["type"]]
    return f"{_subject(path)} must be {expected}, not {_found(error, expected)}"


def _without_tag(loc: Path) -> Path:
    # A tagged union puts the form it chose into the path: ("inputs", "w", "tensor", "shpe").
    if loc[:1] == ("inputs",):
        return loc[:2] + loc[3:]
    return loc[:1] + loc[2:] if loc[:1] == ("reference",) else loc


def _file_level(_raw: object, path: Path) -> Level:
    return DEFAULTS if path == ("defaults",) else TOP


def _function_level(raw: object, path: Path) -> Level:
    if path[:1] == ("reference",):
        return CALL
    if path[:1] != ("inputs",):
        return FUNCTION
    form = schema.input_form(_at(raw, path))
    return {"choices": CHOICES, "value": VALUE}.get(form, TENSOR)


def _at(raw: object, path: Path) -> object:
    for part in path:
        raw = raw[part] if isinstance(raw, dict) and part in raw else None
    return raw


def _unsupported_form(raw: object, path: Path, level: _LevelOf) -> Path:
    """Return the path of an unsupported key that decides the meaning of the mapping around `path`."""
    entry = path[: {"inputs": 2, "reference": 1}.get(str(path[0]), 0)] if path else ()
    mapping = _at(raw, entry)
    if not entry or not isinstance(mapping, dict):
        return ()
    return next(((*entry, key) for key in mapping if key in level(raw, entry).forms), ())


def _unknown_key(prefix: Path, path: Path, level: Level) -> str:
    key, name = str(path[-1]), shown(str(path[-1]))
    if key in level.unsupported:
        return f"`{name}` is not supported yet"
    of_tensors = level in {CHOICES, VALUE} and key in TENSOR.known
    if of_tensors and level is CHOICES:
        return f"`{name}` cannot stand beside `choices`"
    if of_tensors:
        return f"`{name}` is for tensors, and `value` alone is a literal: a `dtype` makes it a tensor"
    known = (TENSOR if level in {CHOICES, VALUE} else level).known
    where = dotted(prefix + path[:-1])
    meant = did_you_mean(key, known | level.unsupported) or f"; known keys: {', '.join(sorted(known))}"
    return f"unknown key `{name}` {f'in {where}' if where else 'at the top'}{meant}"


def _subject(path: Path) -> str:
    if not path:
        return "a spec"
    if isinstance(path[-1], int):
        return f"entry {path[-1] + 1} of `{path[-2]}`"
    return f"`{shown(path[-1])}`"


def _found(error: ErrorDetails, expected: str) -> str:
    if error["type"] == "too_short":
        return "an empty one"
    found = described(error["input"])
    yes_or_no = expected == "true or false" and str(error["input"]).lower() in {"yes", "no", "on", "off"}
    return f"{found}: in YAML 1.2 that is a string" if yes_or_no else found
