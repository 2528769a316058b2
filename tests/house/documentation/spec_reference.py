"""The tables of `docs/spec.md`: every key of a spec file, from the JSON Schema that `schema` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gradverify.spec.schema import json_schema

FILE = "file"
"""How the page names the mapping at the top of a spec file."""

TITLES = {
    FILE: "The file",
    "Defaults": "defaults",
    "FunctionEntry": "A function",
    "HookedEntry": "A function whose arguments you build",
    "CallEntry": "A reference with arguments of its own",
    "SurrogateCall": "A surrogate for some inputs",
    "SurrogateReason": "A surrogate without a composite",
    "ToleranceEntry": "tolerance",
    "XfailEntry": "An expected failure",
    "TensorEntry": "A tensor",
    "ValueEntry": "A literal",
    "ChoicesEntry": "Choices",
    "TupleEntry": "A tuple",
    "SizeEntry": "A size",
    "ObjectEntry": "An object",
    "GroupEntry": "A process group",
    "ListEntry": "A list of tensors",
    "OfEntry": "So many tensors of one kind",
    "ConcatEntry": "Tensors that are concatenated",
    "AnnotationEntry": "A tensor that a hook builds",
}
"""The headings of the page: one for each mapping that a spec may hold."""

_WORDS = {"string": "text", "number": "number", "integer": "integer", "boolean": "`true` or `false`"}
_SHAPE = {"type": "array", "items": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "string"}]}}


def definitions() -> dict[str, dict[str, Any]]:
    """Every mapping of a spec file, by the name that the page gives it."""
    schema = json_schema()
    return {FILE: schema, **schema["definitions"]}


def table(name: str) -> str:
    """The keys of one mapping as a Markdown table."""
    every = definitions()
    node = every[name]
    keys = node["properties"]
    if name == "HookedEntry":  # what it has in common with a function stands there
        keys = {
            key: value
            for key, value in keys.items()
            if value != every["FunctionEntry"]["properties"].get(key)
        }
    required = node.get("required", ())
    rows = [_row(key, value, required=key in required) for key, value in keys.items()]
    return "\n".join([f"{node['description']}\n", "| key | holds | meaning |", "|---|---|---|", *rows])


def _row(key: str, node: dict[str, Any], *, required: bool) -> str:
    default = node.get("default")
    notes = " Required." if required else ""
    if default is not None:
        notes = f" Default: `{json.dumps(default)}`.".replace('"', "")
    return f"| `{key}` | {holds(node)} | {node['description']}{notes} |"


def holds(node: dict[str, Any]) -> str:
    """What a key may hold, in words."""
    if {k: v for k, v in node.items() if k != "description"} == _SHAPE:
        return "shape"
    form = next((name for name in _FORMS if name in node), "")
    return _FORMS[form](node[form]) if form else _of_kind(node)


def _of_kind(node: dict[str, Any]) -> str:
    kinds = node.get("type", "")
    if isinstance(kinds, list):
        return _alternatives(kinds)
    if kinds == "array":
        return f"list of {_several(holds(node['items']))}" if "items" in node else "list"
    if kinds == "object":
        return f"mapping of names to {holds(node['additionalProperties'])}"
    return _WORDS.get(kinds, "nested lists of numbers")


def _several(words: str) -> str:
    """`integers or size expressions`; links stay as they are."""
    if "[" in words or "`" in words:
        return words
    return " or ".join(f"{word}s" for word in words.split(" or "))


def _alternatives(kinds: list[str]) -> str:
    if {"number", "string", "boolean", "null"} <= set(kinds):
        return "literal or list" if "array" in kinds else "literal"
    if set(kinds) == {"integer", "string"}:
        return "integer or size expression"
    return "number or size expression"


def _link(reference: str) -> str:
    title = TITLES[reference.removeprefix("#/definitions/")]
    words = title[0].lower() + title[1:]
    return f"[{words}](#{title.lower().replace(' ', '-')})"


_FORMS: dict[str, Callable[[Any], str]] = {
    "$ref": _link,
    "allOf": lambda forms: holds(forms[0]),
    "anyOf": lambda forms: " or ".join(dict.fromkeys(holds(form) for form in forms)),
    "enum": lambda words: ", ".join(f"`{word}`" for word in words),
    "const": lambda word: f"`{word}`",
}
"""What decides what a key holds, before its type does."""
