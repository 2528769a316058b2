"""Spec files as text: what `init` writes, and how it adds to a file that is there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from gradverify.spec.yaml_core import STR, CoreLoader

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
