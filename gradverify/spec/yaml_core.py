"""YAML 1.2 core on top of PyYAML, which reads YAML 1.1.

In 1.1 `1e-6` is a string, `no` is false, `1:30` is ninety and `010` is eight; in a file full of
tolerances and sizes each of these is a wrong verdict waiting. Only the composed nodes of PyYAML are
used, never its constructors: no tag can build an object.
"""

from __future__ import annotations

import re

import yaml

from gradverify.model import Scalar

MAX_DEPTH = 40
"""Levels of nesting. A spec needs about ten; beyond, the composer's recursion would overflow."""

PREFIX = "tag:yaml.org,2002:"
MAP, SEQ, STR = PREFIX + "map", PREFIX + "seq", PREFIX + "str"

_CORE = {
    "null": r"(?:~|null|Null|NULL|)\Z",
    "bool": r"(?:true|True|TRUE|false|False|FALSE)\Z",
    "int": r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z",
    "float": r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
}
"""The core schema of YAML 1.2.2, section 10.3.2."""


class CoreLoader(yaml.SafeLoader):
    """Composes nodes whose plain scalars carry the tags of the YAML 1.2 core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, stream: str) -> None:
        """Start at depth 0."""
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int | yaml.Node | None) -> yaml.Node | None:
        """Refuse to nest deeper than `MAX_DEPTH`, where the recursion of PyYAML would overflow."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]
        self._depth -= 1
        return node


class CoreDumper(yaml.SafeDumper):
    """Writes plain scalars that this schema reads back as what they are."""

    yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers


for _name, _pattern in _CORE.items():
    CoreLoader.add_implicit_resolver(PREFIX + _name, re.compile(_pattern), None)


def scalar_value(tag: str, text: str) -> Scalar:
    """Return the value of a scalar, or raise ValueError where the text does not fit its tag."""
    name = tag.removeprefix(PREFIX)
    if name == "str":
        return text
    if name not in _CORE or not re.match(_CORE[name], text):
        if name == "float" and re.match(_CORE["int"], text):
            return float(scalar_value(PREFIX + "int", text) or 0)
        raise ValueError(f"`{tag}` does not fit")
    if name == "null":
        return None
    if name == "bool":
        return text.lower() == "true"
    if name == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return int(text, 0 if text[:2] in {"0o", "0x"} else 10)
