"""The JSON Schema of a spec file, made from the same models that read it: what editors complete from."""

from __future__ import annotations

from typing import Any

from gradverify.spec.schema_file import FileEntry

DRAFT = "http://json-schema.org/draft-07/schema#"
"""What editors and yaml-language-server understand best."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec file, in the words of draft 7.

    Shapes, keys, words and ranges; what relates entries to each other only reading can tell. Integer
    keys of YAML (`constant_at: {0: [0]}`) count as text, as JSON has them.
    """
    made = FileEntry.model_json_schema(by_alias=True)
    definitions = made.pop("$defs")
    return {
        "$schema": DRAFT,
        **_draft_7(made),
        "definitions": {name: _draft_7(one) for name, one in sorted(definitions.items())},
    }


def _draft_7(node: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _draft_7(value) for key, value in node.items()}
    # Exactly one form matches in our reading, but `{value: 3}` has the shape of two.
    forms = made.pop("oneOf", None) or made.pop("anyOf", None)
    if forms is not None:
        # None stands for an absent key in the models; a null in a file is refused.
        forms = [form for form in forms if form != {"type": "null"}]
        made = {**made, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}
    # An absent key has no value to show; titles only repeat the names of keys.
    if made.get("default", ...) in (None, "", [], {}):
        del made["default"]
    if isinstance(made.get("title"), str):
        del made["title"]
    if "$ref" not in made:
        return made
    reference = {"$ref": made.pop("$ref").replace("#/$defs/", "#/definitions/")}
    # Draft 7 ignores whatever is beside a $ref.
    return {**made, "allOf": [reference]} if made else reference
