"""A deduced entry as the data of a spec file: what is planned without a spec is what `init` would write.

Spec files as text: what `init` writes, and how it adds to a file that is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import yaml

from gradverify.cases.inputs import GROUP
from gradverify.deduced import (
    Deduced,
    DeducedInput,
    DeducedList,
    DeducedLiteral,
    DeducedObject,
    DeducedSize,
    DeducedTensor,
)
from gradverify.errors import SpecError
from gradverify.model import Mistake, Nested, Parameter, Target, with_parts
from gradverify.source import GROUPS
from gradverify.spec.function import SpecFunction, read_function, split_key
from gradverify.spec.yaml_core import STR, CoreLoader

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+\.\d+")


def drafted_function(name: str, deduced: Deduced, known_codes: Collection[str]) -> SpecFunction:
    """The function of a spec that would hold the deduced entry, read as any other one.

    Raises `SpecError` where the format cannot say what was deduced.
    """
    return function_of(name, entry_data(deduced), known_codes)


def function_of(name: str, raw: dict[str, object], known_codes: Collection[str]) -> SpecFunction:
    """The function of an entry that no file holds yet, read as any other one.

    Raises `SpecError` for what is wrong with it.
    """
    function, faults = read_function(name, raw, split_key(name, raw, "module.py"), known_codes)
    if function is None:
        raise SpecError([Mistake(f"{'.'.join(map(str, f.path))}: {f.message}") for f in faults])
    return function


def entry_data(deduced: Deduced) -> dict[str, object]:
    """The entry as plain data, in the order a person writes it."""
    data: dict[str, object] = {}
    if deduced.sizes:
        data["sizes"] = {name: _swept(values) for name, values in deduced.sizes}
    data["inputs"] = {i.name: input_data(i) for i in deduced.inputs}
    if deduced.reference:
        data["reference"] = deduced.reference
    if deduced.default_dtype:
        data["default_dtype"] = deduced.default_dtype
    return data


def input_data(deduced: DeducedInput) -> object:
    """One input as plain data, in its shortest form."""
    match deduced:
        case DeducedTensor():
            return _tensor(deduced)
        case DeducedLiteral(choices=choices):
            return {"choices": list(choices)} if len(choices) > 1 else _literal(choices[0])
        case DeducedSize(expression=expression):
            return {"size": _dimension(expression)}
        case DeducedList(items=items):
            return {"list": [_tensor(item) for item in items]}
        case DeducedObject(path=path) if path == GROUP:
            return {"process_group": "world"}
        case DeducedObject(path=path, init=init, parameters=parameters):
            made = {"object": path} if init is None else {"object": path, "init": list(init)}
            return {**made, "parameters": parameters} if parameters else made


PLACEHOLDERS: Mapping[str, object] = {
    "int": 3,
    "float": 0.75,
    "number": 0.75,
    "bool": True,
    "str": {"value": "to fill in"},
    "List[Tensor]": {"list": [["n", "d"]]},
    "List[int]": {"tuple": [2, 2]},
}
"""What stands for an input that is to be filled in, by the type in an operator's schema."""


def placeholder(parameter: Parameter) -> object:
    """An input to be filled in, of the form that its type asks for: a tensor where none is known."""
    return PLACEHOLDERS.get(parameter.annotation, ["n", "d"]) if parameter.exact else ["n", "d"]


def entry_to_fill_in(
    target: Target, *, on_ranks: bool = False, known: Sequence[DeducedInput] = ()
) -> dict[str, object]:
    """The entry of a target of which only its author knows the inputs, and how they lie on ranks.

    `known` is what they are, as far as that could be told.
    """
    if known and not on_ranks:
        return {"inputs": {i.name: input_data(i) for i in known}}
    every = with_parts(target.parameters)
    needed = [p for p in every if not p.has_default or (on_ranks and p.name in GROUPS)]
    if not on_ranks:
        return {"inputs": {p.name: placeholder(p) for p in needed}}
    local = {"shape": ["b", "n"], "placement": "local"}
    inputs = {p.name: {"process_group": "world"} if p.name in GROUPS else local for p in needed}
    return {"world_size": [2, 1, 3], "inputs": inputs, "output_placement": "local"}


def _swept(values: tuple[int, ...]) -> object:
    return values[0] if len(values) == 1 else list(values)


def _literal(value: Nested) -> object:
    if isinstance(value, tuple):
        return {"tuple": list(value)}
    return {"value": value} if isinstance(value, str) else value


def _tensor(tensor: DeducedTensor) -> object:
    shape: list[object] = [_dimension(d) for d in tensor.shape]
    data: dict[str, object] = {"shape": shape} if tensor.value is None else {"value": _lists(tensor.value)}
    if tensor.dtype != "float64" or tensor.value is not None:
        data["dtype"] = tensor.dtype
    if tensor.domain != "real":
        data["domain"] = tensor.domain
    if tensor.range:
        data["range"] = [_bound(bound) for bound in tensor.range]
    if tensor.layout:
        data["layout"] = tensor.layout
    if tensor.structure:
        data["structure"] = tensor.structure
    if tensor.requires_grad is not None:
        data["requires_grad"] = tensor.requires_grad
    if tensor.optional:
        data["optional"] = True
    return shape if len(data) == 1 else data


def _lists(value: Nested) -> object:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def _bound(expression: str) -> object:
    return float(expression) if _DECIMAL.fullmatch(expression) else _dimension(expression)


def _dimension(expression: str) -> object:
    return int(expression) if _INTEGER.fullmatch(expression) else expression


def shown(deduced: Deduced) -> str:
    """The inputs on one line: `x [n, d], index int64 [k], eps 1e-05`; a default dtype where it is set."""
    inputs = ", ".join(f"{i.name} {_short(i)}".rstrip() for i in deduced.inputs)
    return f"{inputs}; default_dtype {deduced.default_dtype}" if deduced.default_dtype else inputs


def _short(deduced: DeducedInput) -> str:
    match deduced:
        case DeducedTensor():
            dtype = "" if deduced.dtype == "float64" else f"{deduced.dtype} "
            constant = " (a constant)" if deduced.requires_grad is False else ""
            optional = " or None" if deduced.optional else ""
            return f"{dtype}[{', '.join(deduced.shape)}]{constant}{optional}"
        case DeducedLiteral(choices=choices):
            return " | ".join(repr(c) for c in choices)
        case DeducedSize(expression=expression):
            return f"= {expression}"
        case DeducedList(items=items):
            return f"{len(items)} tensors [{', '.join(items[0].shape)}]" if items else "[]"
        case DeducedObject(path=path, init=init):
            return path if init is None else f"{path}({', '.join(map(repr, init))})"


WIDTH = 96
"""Columns of a line before an entry is broken into several."""

MODELINE = "# yaml-language-server: $schema=gradverify.schema.json"
"""Editors complete from the schema: `gradverify schema > gradverify.schema.json` puts it there."""

_PLAIN = re.compile(r"[A-Za-z_][\w.:/*+ -]*")


class NotExtensibleError(Exception):
    """The functions of a spec file are not written one below the other; the message says what to do."""


@dataclass(frozen=True)
class DraftedEntry:
    """One function as it is written into a spec."""

    name: str
    data: Mapping[str, object]
    comments: tuple[str, ...] = ()
    """Lines above it."""
    input_comments: tuple[tuple[str, str], ...] = ()
    """(input, what is to be confirmed) pairs."""
    active: bool = True
    """Otherwise it is commented out, to be confirmed."""


def render_spec(module: str, entries: Sequence[DraftedEntry]) -> str:
    """Return a new spec file; without an active entry it is one only once some entry is confirmed."""
    lines = [MODELINE, "gradverify: 1", f"module: {flow(module)}", "functions:"]
    return "\n".join([*lines, *_entries(entries, "  ", "")]) + "\n"


def render_spec_of_modules(entries: Mapping[str, Sequence[DraftedEntry]]) -> str:
    """Return a new spec file with the entries of several modules, by the modules' paths."""
    if len(entries) == 1:
        return render_spec(*next(iter(entries.items())))
    lines = [MODELINE, "gradverify: 1", "functions:"]
    for module, of_module in entries.items():
        lines += _entries(of_module, "  ", f"{module}::")
    return "\n".join(lines) + "\n"


def extended_spec(text: str, entries: Sequence[DraftedEntry]) -> str:
    """Return the text of a spec file with entries added below its functions; all else stays as it is.

    Raises `NotExtensibleError` where they are written in braces.
    """
    lines = text.splitlines()
    mapping = _functions(text)
    if mapping is None:
        return "\n".join([*lines, "functions:", *_entries(entries, "  ", "")]) + "\n"
    if mapping.flow_style or not mapping.value:
        raise NotExtensibleError("`functions` is written in braces: write it one function a line")
    first, last = mapping.value[0][0], mapping.value[-1][1]
    key = str(first.value)
    prefix = key.rpartition("::")[0]
    end = last.end_mark.line + (last.end_mark.column > 0)
    while end > first.start_mark.line + 1 and not _is_content(lines[end - 1], first.start_mark.column):
        end -= 1
    added = _entries(entries, " " * first.start_mark.column, f"{prefix}::" if prefix else "")
    return "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"


def is_mentioned(text: str, name: str) -> bool:
    """Whether a spec file has an entry of this name, a commented one included."""
    return re.search(rf"^\s*#?\s*(?:\S+::)?{re.escape(name)}:", text, re.MULTILINE) is not None


def flow(value: object) -> str:
    """Return plain data as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    """Whether a string stays one without quotes, inside braces too."""
    if not _PLAIN.fullmatch(text) or text != text.strip() or ": " in text or text.endswith(":"):
        return False
    node = CoreLoader(text).get_single_node()
    return isinstance(node, yaml.ScalarNode) and node.tag == STR


def _functions(text: str) -> yaml.MappingNode | None:
    root = CoreLoader(text).get_single_node()
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    found = next((value for key, value in pairs if key.value == "functions"), None)
    return found if isinstance(found, yaml.MappingNode) else None


def _is_content(line: str, indent: int) -> bool:
    """Whether a line belongs to an entry: a comment does where it is further in than the keys."""
    stripped = line.strip()
    if not stripped:
        return False
    return not stripped.startswith("#") or len(line) - len(line.lstrip()) >= indent


def _entries(entries: Sequence[DraftedEntry], indent: str, prefix: str) -> list[str]:
    lines: list[str] = []
    for entry in entries:
        lines += [f"{indent}# {comment}" for comment in entry.comments]
        body = _entry(entry, prefix)
        lines += [f"{indent}{line}" if entry.active else f"{indent}# {line}" for line in body]
    return lines


def _entry(entry: DraftedEntry, prefix: str) -> list[str]:
    key = flow(prefix + entry.name) if not prefix else f"{prefix}{entry.name}"
    if not entry.input_comments and len(f"{key}: {flow(entry.data)}") <= WIDTH // 2:
        return [f"{key}: {flow(entry.data)}"]
    lines = [f"{key}:"]
    for name, value in entry.data.items():
        if name == "inputs" and isinstance(value, Mapping) and value:
            lines.append("  inputs:")
            said = dict(entry.input_comments)
            lines += [_with_comment(f"    {flow(i)}: {flow(v)}", said.get(i, "")) for i, v in value.items()]
        else:
            lines.append(f"  {name}: {flow(value)}")
    return lines


def _with_comment(line: str, comment: str) -> str:
    return f"{line}  # {comment}" if comment else line
