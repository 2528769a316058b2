"""A deduced entry as the data of a spec file: what is planned without a spec is what `init` would write.

Spec files as text: what `init` writes, and how it adds to a file that is there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import yaml

from gradverify.cases.inputs import GROUP, ChoicesSpec, InputSpec, ListSpec, TensorSpec, ValueSpec
from gradverify.cases.messages import dotted
from gradverify.cases.sizes import Expression, size
from gradverify.cases.sweep import FunctionSpec
from gradverify.errors import SpecError
from gradverify.model import Mistake, ObjectInput, Target, with_parts
from gradverify.source import GROUPS
from gradverify.spec.function import SpecFunction, read_function, split_key
from gradverify.spec.yaml_core import CoreDumper, CoreLoader

_DEFAULTS = TensorSpec("", ())
_WRITTEN = ("dtype", "domain", "range", "layout", "structure", "distinct", "requires_grad", "optional")
"""The keys of a tensor beside its shape or its values, in the order a person writes them."""


def function_of(name: str, spec: FunctionSpec, known_codes: Collection[str]) -> SpecFunction:
    """The function of an entry that no file holds yet, read as any other one.

    Raises `SpecError` where the format cannot say it, or for what is wrong with it.
    """
    raw = entry_data(spec)
    function, faults = read_function(name, raw, split_key(name, raw, "module.py"), known_codes)
    if function is None:
        raise SpecError([Mistake(f"{dotted(f.path)}: {f.message}") for f in faults])
    return function


def entry_data(spec: FunctionSpec) -> dict[str, object]:
    """The entry as plain data, in the order a person writes it."""
    sizes = {name: values[0] if len(values) == 1 else list(values) for name, values in spec.sweep.sizes}
    data = {
        "sizes": sizes,
        "inputs": {i.name: input_data(i) for i in spec.sweep.inputs},
        "reference": spec.reference,
        "default_dtype": spec.default_dtype,
    }
    return {key: value for key, value in data.items() if value or key == "inputs"}


def input_data(spec: InputSpec) -> object:
    """One input as plain data, in its shortest form."""
    match spec:
        case TensorSpec():
            return _tensor(spec)
        case ChoicesSpec(choices=choices):
            return {"choices": list(choices)}
        case ListSpec(items=items):
            return {"list": [_tensor(item) for item in items]}
        case ObjectInput(path=path) if path == GROUP:
            return {"process_group": "world"}
        case ObjectInput(path=path, init=init, parameters=parameters):
            made = {"object": path} if init is None else {"object": path, "init": list(init)}
            return {**made, "parameters": parameters} if parameters else made
        case ValueSpec(value=value):
            form = {Expression: "size", tuple: "tuple", str: "value"}.get(type(value), "")
            return {form: _plain(value)} if form else value
        case _:
            raise TypeError(type(spec).__name__)


def entry_to_fill_in(
    target: Target, *, on_ranks: bool = False, known: Sequence[InputSpec] = ()
) -> dict[str, object]:
    """The entry of a target of which only its author knows the inputs, and how they lie on ranks.

    `known` is what they are, as far as that could be told.
    """
    if known and not on_ranks:
        return {"inputs": {i.name: input_data(i) for i in known}}
    every = with_parts(target.parameters)
    needed = [p for p in every if not p.has_default or (on_ranks and p.name in GROUPS)]
    if not on_ranks:
        return {"inputs": {p.name: ["n", "d"] for p in needed}}
    local = {"shape": ["b", "n"], "placement": "local"}
    inputs = {p.name: {"process_group": "world"} if p.name in GROUPS else local for p in needed}
    return {"world_size": [2, 1, 3], "inputs": inputs, "output_placement": "local"}


def _tensor(spec: TensorSpec) -> object:
    shape = _plain(spec.shape)
    data = {"shape": shape} if spec.value is None else {"value": _plain(spec.value), "dtype": spec.dtype}
    said = {key: getattr(spec, key) for key in _WRITTEN}
    data |= {key: _plain(value) for key, value in said.items() if value != getattr(_DEFAULTS, key)}
    return shape if len(data) == 1 else data


def _plain(value: object) -> object:
    """A size, a literal or nested ones as a spec writes them."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    made = size(value.text) if isinstance(value, Expression) else value
    return made.text if isinstance(made, Expression) else made


def shown(spec: FunctionSpec) -> str:
    """The inputs on one line, as a spec has them: `x: [n, d], eps: 1e-05`; with a default dtype."""
    inputs = ", ".join(f"{i.name}: {flow(input_data(i))}" for i in spec.sweep.inputs)
    return f"{inputs}; default_dtype {spec.default_dtype}" if spec.default_dtype else inputs


WIDTH = 96
"""Columns of a line before an entry is broken into several."""

MODELINE = "# yaml-language-server: $schema=gradverify.schema.json"
"""Editors complete from the schema: `gradverify schema > gradverify.schema.json` puts it there."""


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


def render_spec(entries: Mapping[str, Sequence[DraftedEntry]]) -> str:
    """Return a new spec file with entries by the paths of their modules.

    Without an active entry it is one only once some entry is confirmed.
    """
    only = next(iter(entries)) if len(entries) == 1 else ""
    lines = [MODELINE, "gradverify: 1", *[f"module: {flow(only)}"] * bool(only), "functions:"]
    for module, of_module in entries.items():
        lines += _entries(of_module, "  ", "" if only else f"{module}::")
    return "\n".join(lines) + "\n"


def extended_spec(text: str, entries: Sequence[DraftedEntry]) -> str:
    """Return the text of a spec file with entries added below its functions, which are its end.

    Raises NotExtensibleError where they are not, or are written in braces.
    """
    root = CoreLoader(text).get_single_node()
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    values = {key.value: value for key, value in pairs}
    functions = values.get("functions")
    indent, prefix, head = "  ", "", [text.rstrip()]
    if functions is None:
        head.append("functions:")
    elif functions is not [*values.values()][-1] or getattr(functions, "flow_style", False):
        message = (
            "`functions` is written in braces, or is not the last key: write it last, one function a line"
        )
        raise NotExtensibleError(message)
    elif functions.value:
        first = functions.value[0][0]
        indent, prefix = " " * first.start_mark.column, first.value.rpartition("::")[0]
    return "\n".join([*head, *_entries(entries, indent, f"{prefix}::" if prefix else "")]) + "\n"


def is_mentioned(text: str, name: str) -> bool:
    """Whether a spec file has an entry of this name, a commented one included."""
    return re.search(rf"^\s*#?\s*(?:\S+::)?{re.escape(name)}:", text, re.MULTILINE) is not None


def flow(value: object) -> str:
    """Return plain data as YAML in one line."""
    text: str = yaml.dump(
        value, None, CoreDumper, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n...\n").rstrip()


def _entries(entries: Sequence[DraftedEntry], indent: str, prefix: str) -> list[str]:
    lines: list[str] = []
    for entry in entries:
        lines += [f"{indent}# {comment}" for comment in entry.comments]
        body = _entry(entry, prefix)
        lines += [f"{indent}{line}" if entry.active else f"{indent}# {line}" for line in body]
    return lines


def _entry(entry: DraftedEntry, prefix: str) -> list[str]:
    key = f"{prefix}{entry.name}" if prefix else flow(entry.name)
    if not entry.input_comments and len(f"{key}: {flow(entry.data)}") <= WIDTH // 2:
        return [f"{key}: {flow(entry.data)}"]
    lines = [f"{key}:"]
    for name, value in entry.data.items():
        if name == "inputs" and isinstance(value, Mapping) and value:
            lines.append("  inputs:")
            said = dict(entry.input_comments)
            for key, item in value.items():
                comment = f"  # {said[key]}" if said.get(key) else ""
                lines.append(f"    {flow(key)}: {flow(item)}{comment}")
        else:
            lines.append(f"  {name}: {flow(value)}")
    return lines
