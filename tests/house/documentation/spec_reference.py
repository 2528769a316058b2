"""The tables of `docs/spec.md`: every key of a spec file, from the JSON Schema that `gradverify schema` prints."""

from __future__ import annotations

from typing import Any

from gradverify.spec import json_schema

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
    "ValueEntry": "A literal that is not a string or a list",
    "ChoicesEntry": "Choices",
    "TupleEntry": "A tuple",
    "SizeEntry": "A size",
    "ObjectEntry": "An object",
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
        keys = {key: value for key, value in keys.items() if value != every["FunctionEntry"]["properties"].get(key)}
    required = node.get("required", ())
    rows = [_row(key, value, key in required) for key, value in keys.items()]
    return "\n".join([f"{node['description']}\n", "| key | holds | meaning |", "|---|---|---|", *rows])


def _row(key: str, node: dict[str, Any], required: bool) -> str:
    default = node.get("default")
    notes = " Required." if required else ""
    if default is not None:
        notes = f" Default: `{str(default).lower() if isinstance(default, bool) else default}`."
    return f"| `{key}` | {holds(node)} | {node['description']}{notes} |"


def holds(node: dict[str, Any]) -> str:
    """What a key may hold, in words."""
    if {k: v for k, v in node.items() if k != "description"} == _SHAPE:
        return "shape"
    if "$ref" in node:
        return _link(node["$ref"])
    if "allOf" in node:
        return holds(node["allOf"][0])
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(holds(form) for form in node["anyOf"]))
    if "enum" in node:
        return ", ".join(f"`{word}`" for word in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    kinds = node.get("type", "anything")
    if kinds == "array":
        return f"list of {holds(node['items'])}" if "items" in node else "list"
    if kinds == "object":
        return f"mapping of names to {holds(node['additionalProperties'])}"
    if isinstance(kinds, list):
        return _alternatives(kinds)
    return _WORDS.get(kinds, "nested lists of numbers")


def _alternatives(kinds: list[str]) -> str:
    if {"number", "string", "boolean", "null"} <= set(kinds):
        return "literal, or list of them" if "array" in kinds else "literal"
    if set(kinds) == {"integer", "string"}:
        return "integer or size expression"
    return "number or size expression"


def _link(reference: str) -> str:
    title = TITLES[reference.removeprefix("#/definitions/")]
    words = title[0].lower() + title[1:]
    return f"[{words}](#{title.lower().replace(' ', '-')})"
