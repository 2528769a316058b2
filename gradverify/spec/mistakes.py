"""What pydantic refuses, by its place in the data: one clear sentence for each mistake."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gradverify.cases.messages import Path, described, did_you_mean, dotted, nearest, shown
from gradverify.spec import schema
from gradverify.spec.schema import KEYED
from gradverify.spec.source import MOST_REPORTED, Complaint, at_key

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


_MODELS = {
    **schema.FUNCTION.forms,
    **schema.INPUT.forms,
    **schema.SURROGATE.forms,
    "file": schema.FileEntry,
    "defaults": schema.Defaults,
    "tolerance": schema.ToleranceEntry,
    "item": schema.TensorEntry,
    "of": schema.OfEntry,
    "annotation": schema.AnnotationEntry,
    "reference": schema.CallEntry,
    "xfail": schema.XfailEntry,
}
"""The kinds of mapping that a spec has."""
_ELSEWHERE = {
    "of": "`of` belongs inside `list`: `list: {of: [b, n], count: [2, 1]}`",
    "count": "`count` belongs inside `list`: `list: {of: [b, n], count: [2, 1]}`",
    "init": "`init` is for `object`: `{object: torch.nn.Linear, init: [2, 2]}`",
}
"""Keys of a neighbouring form, and where they belong."""


def file_complaints(raw: object) -> list[Complaint]:
    """Return what is wrong with the top of a file, its functions left aside."""
    top = raw
    if isinstance(raw, dict) and isinstance(raw.get("functions"), dict):
        top = {**raw, "functions": {}}
    return _validated(top, (), "file")[1]


def read_entry(raw: object, prefix: Path) -> tuple[schema.CommonEntry | None, list[Complaint]]:
    """Return the entry of one function, None where something is wrong with it, each key by itself."""
    return _validated(raw, prefix, schema.function_form(raw))


def _validated(raw: object, prefix: Path, level: str) -> tuple[Any, list[Complaint]]:
    try:
        return _MODELS[level].model_validate(raw), []
    except ValidationError as error:
        errors = error.errors(include_url=False)[: MOST_REPORTED + 1]
        reported = [one for one in errors if not _reported(one, errors)]
        return None, list(dict.fromkeys(_complaint(one, prefix, level, raw) for one in reported))


def _keys(form: str) -> set[str]:
    """The keys that a kind of mapping knows; `arguments` makes a function another kind."""
    own = {field.alias or key for key, field in _MODELS[form].model_fields.items()}
    return own | {"arguments"} if form == "function" else own


def _reported(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """Whether another error tells this one: a missing key that is there, misspelt; `count` beside `of`."""
    *parent, key = error["loc"] or ("",)
    extra = (one["loc"] for one in errors if one["type"] == "extra_forbidden")
    unknown = [str(loc[-1]) for loc in extra if [*loc[:-1]] == parent]
    if error["type"] == "missing":
        return any(nearest(name, [str(key)]) for name in unknown)
    return key == "count" and "of" in unknown


def _complaint(error: ErrorDetails, prefix: Path, level: str, raw: object) -> Complaint:
    path = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        form = _form(path[:-1], level, raw)
        return at_key(prefix + path, _unknown_key(prefix, path, form))
    if error["type"] == "missing":
        return at_key(prefix + path[:-1], f"`{path[-1]}` is missing")
    return Complaint(prefix + path, _sentence(error, prefix + path, level, path))


def _form(path: Path, level: str, raw: object) -> str:
    """Return which kind of mapping stands at a path of an entry."""
    for part in path:
        raw = raw[part]  # type: ignore[index]
    match path:
        case ():
            return level
        case ("inputs", _):
            return "annotation" if level == "hooked" else schema.input_form(raw)
        case ("inputs", _, "list"):
            return "of"
        case ("inputs", *_):
            return "item"
        case ("surrogate",):
            return schema.surrogate_form(raw)
        case _:
            return str(path[0])


def _expected(error: ErrorDetails, path: Path, level: str) -> str:
    """Return what is expected at a path, in words; of a value with several forms, each of them."""
    match path:
        case ("inputs", _) if level == "hooked":
            return "a mapping of `requires_grad`, `avoid`, `constant_at` (the hook builds the tensor)"
        case ("inputs", _, "list") if error["type"] == "list_type":
            return "a list of tensors, or `{of: …, count: …}`"
        case ("inputs", _, "list" | "concat", _) if error["type"] == "model_type":
            return "a shape or a mapping"
        case ("init",):
            return "a mapping or a list"
        case ("xfail",) if error["type"] == "model_type":
            return "a mapping or a list of them"
        case _:
            return _EXPECTED[error["type"]]


def _sentence(error: ErrorDetails, path: Path, level: str, own: Path) -> str:
    """Return the sentence for a wrong value; `own` is its path inside the entry."""
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return f"{_subject(path)} {message}" if message.startswith("must ") else message
    expected = _expected(error, own, level)
    return f"{_subject(path)} must be {expected}, not {_found(error, expected)}"


def _unknown_key(prefix: Path, path: Path, form: str) -> str:
    key, name = str(path[-1]), shown(str(path[-1]))
    reported = _misplaced(key, form)
    if reported:
        return reported
    known, where = _keys(form), dotted(prefix + path[:-1])
    more = KEYED if form == "tensor" else ()
    meant = did_you_mean(key, {*known, *more}) or f"; known keys: {', '.join(sorted(known))}"
    return f"unknown key `{name}` {f'in {where}' if where else 'at the top'}{meant}"


def _misplaced(key: str, form: str) -> str:
    """Return the sentence for a key of the format that is in the wrong mapping."""
    of_inputs = key in {*_keys("tensor"), *KEYED}
    reported = ""
    match form:
        case "value" if of_inputs:
            reported = f"`{key}` is for tensors, and `value` alone is a literal: a `dtype` makes it a tensor"
        case "tensor" | "item" if key in _ELSEWHERE:
            reported = _ELSEWHERE[key]
        case "item" if of_inputs:
            reported = f"`{key}` is not allowed here: a part of a list is one tensor"
        case "of" if of_inputs:
            reported = f"`{key}` belongs to the tensor: `of: {{shape: [b, n], {key}: …}}`"
        case "annotation" if of_inputs:
            reported = f"`{key}` conflicts with `arguments`: the hook builds the tensor"
        case "surrogate" if key == "reason":
            reported = "`reason` conflicts with `call`"
        case "reason" if key == "inputs":
            reported = "`inputs` conflicts with `reason`"
        case _ if form in KEYED and (of_inputs or key in _ELSEWHERE):
            reported = f"`{key}` conflicts with `{form}`"
    return reported


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
