"""The JSON Schema that editors use: it accepts every valid spec and refuses what only looks like one.

A validator of the few keywords that occur is part of the test, so that it runs everywhere; where the
`jsonschema` package is installed, both must say the same.
"""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from gradverify.spec.schema import json_schema
from gradverify.spec.source import parse

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SPECS = sorted(
    [*HERE.glob("golden/*.yaml"), *ROOT.glob("tests/zoo/**/*.gradverify.yaml"), *ROOT.glob("specs/*.yaml")]
)
TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None),
}  # fmt: skip
KEYWORDS = {
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf", "allOf", "$ref", "minItems",
    "maxItems", "minProperties", "minLength", "pattern", "minimum", "maximum", "exclusiveMaximum", "description", "default",
    "definitions", "$schema", "title", "propertyNames",
}  # fmt: skip
SCHEMA = json_schema()


def data_of(text):
    return parse(text, "s.yaml").data


def valid(value, node):
    if node is True or node == {}:
        return True
    assert node.keys() <= KEYWORDS, node.keys() - KEYWORDS
    return (
        _of_type(value, node.get("type"))
        and ("enum" not in node or value in node["enum"])
        and ("const" not in node or (value == node["const"] and type(value) is type(node["const"])))
        and all(valid(value, one) for one in node.get("allOf", []))
        and ("anyOf" not in node or any(valid(value, one) for one in node["anyOf"]))
        and ("$ref" not in node or valid(value, SCHEMA["definitions"][node["$ref"].rpartition("/")[2]]))
        and (not isinstance(value, dict) or _valid_object(value, node))
        and (not isinstance(value, list) or _valid_array(value, node))
        and (not isinstance(value, str) or _valid_string(value, node))
        and (not _of_type(value, "number") or _valid_number(value, node))
    )


def _of_type(value, types):
    if types is None:
        return True
    if isinstance(types, list):
        return any(_of_type(value, one) for one in types)
    return isinstance(value, TYPES[types]) and (types == "boolean" or not isinstance(value, bool))


def _valid_object(value, node):
    known = node.get("properties", {})
    rest = node.get("additionalProperties", True)
    return (
        len(value) >= node.get("minProperties", 0)
        and all(key in value for key in node.get("required", []))
        and all(
            valid(item, known[key]) if key in known else rest is not False and valid(item, rest)
            for key, item in value.items()
        )
    )


def _valid_array(value, node):
    inside = node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value))
    return inside and all(valid(item, node.get("items", True)) for item in value)


def _valid_string(value, node):
    return len(value) >= node.get("minLength", 0) and bool(re.search(node.get("pattern", ""), value))


def _valid_number(value, node):
    low, high = node.get("minimum", value), node.get("maximum", value)
    return low <= value <= high and not value >= node.get("exclusiveMaximum", float("inf"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_valid_specs_are_accepted(path):
    assert valid(data_of(path.read_text()), SCHEMA)


WRONG = [
    "3", "{}", "functions: {}", "functions: {f: {inputs: {x: [2]}}}\nmodul: m.py", "gradverify: 2\nfunctions: {f: {skip: a}}",
    "functions: {f: {inputs: {x: {shpe: [2]}}}}", "functions: {f: {inputs: {x: [2.5]}}}", "functions: {f: {inputs: {x: [-1]}}}",
    "functions: {f: {inputs: {x: {shape: null}}}}", "functions: {f: {inputs: {x: {shape: [2], dtype: flot64}}}}",
    "functions: {f: {inputs: {x: {shape: [2, 2], structure: sdp}}}}", "functions: {f: {inputs: {x: {shape: [2], range: [0]}}}}",
    "functions: {f: {inputs: {x: {choices: [a], shape: [2]}}}}", "functions: {f: {inputs: {x: {choices: []}}}}",
    "functions: {f: {inputs: {x: {list: []}}}}", "functions: {f: {inputs: {x: {list: {of: [2]}}}}}",
    "functions: {f: {inputs: {x: {list: {of: [2], count: 0}}}}}", "functions: {f: {inputs: {x: {tuple: 3}}}}",
    "functions: {f: {inputs: {x: {size: [n]}}}}", "functions: {f: {inputs: {x: {shape: [2], ties: yes}}}}",
    "functions: {f: {sizes: {n: 1.5}, inputs: {x: [n]}}}", "functions: {f: {sizes: {n: []}, inputs: {x: [n]}}}",
    "functions: {f: {inputs: {x: [2]}, where: n > 1}}", "functions: {f: {inputs: {x: [2]}, cases: all}}",
    "functions: {f: {inputs: {x: [2]}, tolerance: {rtol: 1}}}", "functions: {f: {inputs: {x: [2]}, outputs: [-1]}}",
    "functions: {f: {inputs: {x: [2]}, devices: [gpu]}}", "functions: {f: {inputs: {x: [2]}, default_dtype: float16}}",
    "functions: {f: {inputs: {x: [2]}, xfail: {codes: [GV201]}}}", "functions: {f: {inputs: {x: [2]}, xfail: {codes: [], reason: a}}}",
    "functions: {f: {inputs: {x: [2]}, xfail: {codes: [GV201], reason: a, until: soon}}}", "functions: {f: {skip: ''}}",
    "functions: {f: {inputs: {x: [2]}, surrogate: {}}}", "functions: {f: {inputs: {x: [2]}, reference: {arguments: [x]}}}",
    "functions: {f: {arguments: 'a:b', inputs: {x: [2]}}}", "functions: {f: {arguments: a.b}}", "functions: {f: {skip: a, nots: b}}",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_specs_are_refused(text):
    assert not valid(data_of(text), SCHEMA)


def test_both_validators_agree():
    if importlib.util.find_spec("jsonschema") is None:
        pytest.skip("the jsonschema package is not installed; our own validator has checked the same")
    import jsonschema  # noqa: PLC0415 - optional

    jsonschema.Draft7Validator.check_schema(SCHEMA)
    checker = jsonschema.Draft7Validator(SCHEMA)
    for path in SPECS:
        assert not list(checker.iter_errors(data_of(path.read_text()))), path
    for text in WRONG:
        assert not checker.is_valid(data_of(text)), text


def test_the_words_are_those_of_draft_7():
    text = json.dumps(SCHEMA, allow_nan=False)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in text
    assert "prefixItems" not in text
    assert set(re.findall(r"#/definitions/(\w+)", text)) == {*SCHEMA["definitions"]}, (
        "every definition is used, and every reference leads somewhere"
    )


def test_every_key_is_described():
    for name, node in {"the file": SCHEMA, **SCHEMA["definitions"]}.items():
        assert node["description"], name
        assert node["additionalProperties"] is False, name
        for key, entry in node["properties"].items():
            assert entry.get("description"), f"{name}.{key}"
            assert "title" not in entry


def test_each_call_returns_a_value_of_its_own():
    json_schema().clear()
    assert json_schema() == SCHEMA
