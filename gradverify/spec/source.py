"""YAML text → plain data, with the place in the file of every key and every value.

What only the text can tell is found here: syntax, duplicate keys, keys that are not strings, tags,
merge keys, aliases that recurse or multiply. Everything else works on plain data and complains by path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

import yaml

from gradverify.cases.messages import Path, described, number, shown
from gradverify.errors import SpecError
from gradverify.model import Location, Mistake
from gradverify.spec.yaml_core import MAP, MAX_DEPTH, SEQ, CoreLoader, scalar_value

MAX_BYTES = 1 << 20
"""A spec is read in milliseconds; a file this long is something else."""
MAX_NODES = 50_000
"""Values after aliases are expanded. Nine lines of aliases can stand for a billion."""

MAX_ENTRIES = 1000
"""Of one list or mapping, but for `functions:`. No sweep has more cases, and no call as many arguments."""
MOST_REPORTED = 100
"""Mistakes of one file that are reported: whoever fixes these asks again."""

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What PyYAML counts as the end of a line."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_HINTS = {
    "found character '\\t' that cannot start any token": "indent with spaces, not with a tab",
    "mapping values are not allowed here": "a second `: ` in one line; quote the value if it belongs to it",
    "found another document": "a spec file holds one document",
}

_WITH_INTEGERS = ("constant_at",)
"""The end of the path of a mapping whose keys are integers: dimensions. The data holds them as text."""


def as_written(data: object, path: Path) -> Path:
    """A path as the data has it: a bare list stands for the `shape` of a tensor."""
    found: Path = ()
    for part in path:
        if isinstance(data, list) and part == "shape":
            continue
        found = (*found, part)
        try:
            data = data[part]  # type: ignore[index]
        except (LookupError, TypeError):
            data = None
    return found


@dataclass(frozen=True)
class Complaint:
    """What is wrong with one place of the data, before it is known where that is in the file."""

    path: Path
    message: str
    of_key: bool = False
    """It points to the key of an entry, not to its value."""

    def under(self, prefix: Path) -> Complaint:
        """Return the same complaint, its path seen from further up."""
        return replace(self, path=prefix + self.path)


def at_key(path: Path, message: str) -> Complaint:
    """Return what is wrong with a key, or with an entry as a whole."""
    return Complaint(path, message, of_key=True)


@dataclass(frozen=True)
class Span:
    """A stretch of one line: line and column from 1."""

    line: int
    column: int
    length: int


@dataclass(frozen=True)
class Document:
    """The data of a spec file and where each piece of it is."""

    shown_path: str
    lines: tuple[str, ...]
    data: object
    keys: Mapping[Path, Span] = field(repr=False)
    values: Mapping[Path, Span] = field(repr=False)
    complaints: tuple[Mistake, ...] = ()
    """Mistakes that leave the rest readable: duplicate keys, keys that are not strings."""

    def mistake(self, complaint: Complaint) -> Mistake:
        """Return the complaint with its place; where the path is not in the file, its nearest ancestor."""
        return _mistake(self.shown_path, self.lines, self._span(complaint), complaint.message)

    def mistakes(self, complaints: Iterable[Complaint]) -> list[Mistake]:
        """Return complaints and what the text itself gave, in the order of the file, each once.

        Of more than `MOST_TOLD` the first ones, and one that says so.
        """
        found = {*self.complaints, *(self.mistake(complaint) for complaint in complaints)}
        order = sorted(found, key=lambda mistake: (mistake.location or Location("", 0), mistake.message))
        more = order[MOST_REPORTED : MOST_REPORTED + 1]
        return order[:MOST_REPORTED] + [replace(one, message="further errors are not shown") for one in more]

    def line_of(self, path: Path) -> int:
        """Return the line of the key at `path`."""
        return self._span(at_key(path, "")).line

    def _span(self, complaint: Complaint) -> Span:
        places = (self.keys, self.values) if complaint.of_key else (self.values, self.keys)
        whole = as_written(self.data, complaint.path)
        paths = (whole[:length] for length in range(len(whole), -1, -1))
        found = (place[path] for path in paths for place in places if path in place)
        return next(found, Span(1, 1, 1))


def load(path: FilePath, shown_path: str) -> Document:
    """Read a spec file. Raises SpecError when it cannot be read as YAML at all."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        why = f"the spec file cannot be read: {error.strerror or 'no such file'}"
        raise _failed(shown_path, why, (1, 0)) from None
    if len(raw) > MAX_BYTES:
        raise _failed(shown_path, "the file is larger than 1 MiB: this is no spec file", (1, 1))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"the file is not UTF-8 text: byte 0x{raw[error.start]:02X}"
        raise _failed(shown_path, why, _end_of(raw[: error.start].decode("utf-8-sig"))) from None
    return parse(text, shown_path)


def parse(text: str, shown_path: str) -> Document:
    """Turn the text of a spec into data. Raises SpecError with a mistake that hides the rest."""
    lines = tuple(_BREAK.split(text))
    root = _compose(text, lines, shown_path)
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        raise _failed(shown_path, "the file is empty: it needs `module:` and `functions:`", (1, 1))
    walk = _Walk(shown_path, lines)
    data = walk.convert(root, ())
    return Document(shown_path, lines, data, walk.keys, walk.values, tuple(walk.complaints))


def _compose(text: str, lines: tuple[str, ...], shown_path: str) -> yaml.Node | None:
    try:
        loader = CoreLoader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        place = _end_of(text[: error.position])
        message = f"the character U+{ord(text[error.position]):04X} is not allowed"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = str(error.problem or error.context).removeprefix("but ")
        message = f"{problem} ({_HINTS[problem]})" if problem in _HINTS else problem
    except (ValueError, OverflowError):
        # PyYAML converts escapes and version numbers without a guard: "\UFFFFFFFF", %YAML 1.<5000 digits>.
        place = loader.line + 1, loader.column + 1
        message = "an escape or a number is out of range"
    raise SpecError([_mistake(shown_path, lines, Span(*place, 1), f"not valid YAML: {message}")])


class _Walk:
    """Converts nodes to data and remembers where they stood. Raises SpecError for what is no plain YAML."""

    def __init__(self, shown_path: str, lines: tuple[str, ...]) -> None:
        self.shown_path, self.lines = shown_path, lines
        self.keys: dict[Path, Span] = {}
        self.values: dict[Path, Span] = {}
        self.complaints: list[Mistake] = []
        self._open: set[int] = set()
        self._nodes = 0

    def convert(self, node: yaml.Node, path: Path) -> object:
        """Return the data of a node."""
        self._nodes += 1
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            most = f"{MAX_NODES} values or {MAX_DEPTH} levels"
            raise self._refused(node, f"aliases (`*name`) expand to more than {most}")
        if id(node) in self._open:
            raise self._refused(node, "an alias (`*name`) is inside the value that it names")
        self._place(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in {MAP, SEQ}:
            raise self._refused(node, f"the tag `{shown(node.tag)}` is not supported: a spec is plain YAML")
        if len(node.value) > MAX_ENTRIES and path != ("functions",):
            kind = "list" if node.tag == SEQ else "mapping"
            raise self._refused(node, f"a {kind} has at most {MAX_ENTRIES} entries, not {len(node.value)}")
        self._open.add(id(node))
        data: object
        if isinstance(node, yaml.MappingNode):
            data = self._mapping(node, path)
        else:
            data = [self.convert(one, (*path, index)) for index, one in enumerate(node.value)]
        self._open.discard(id(node))
        return data

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if not isinstance(key, str):
                continue
            here = (*path, key)
            if key in data:
                first = self.keys[here]
                already = f"it is already given at line {first.line}, column {first.column}"
                self._complain(key_node, f"duplicate key `{shown(key)}`: {already}")
                continue
            self.keys[here] = self._span_of(key_node)
            data[key] = self.convert(value_node, here)
        return data

    def _key(self, node: yaml.Node, path: Path) -> object:
        """The key as text; anything else is reported."""
        quoted = ""
        if not isinstance(node, yaml.ScalarNode):
            value: object = node.value if isinstance(node, yaml.SequenceNode) else {}
        elif node.value == "<<" and node.style is None:
            raise self._refused(node, "merge keys (`<<`) are not supported: write the entries out")
        else:
            value = self._scalar(node)
            if isinstance(value, int) and not isinstance(value, bool) and path[-1:] == _WITH_INTEGERS:
                value = number(value)
            quoted = f'; write "{shown(node.value)}"' if node.value else ""
        if not isinstance(value, str):
            self._complain(node, f"a key must be a string, not {described(value)}{quoted}")
        return value

    def _scalar(self, node: yaml.ScalarNode) -> object:
        if _SURROGATE.search(node.value):
            raise self._refused(node, "not valid YAML: an escape sequence names no character")
        try:
            return scalar_value(node.tag, node.value)
        except (ValueError, OverflowError):
            message = f"the tag `{shown(node.tag)}` is not supported"
            if node.tag.startswith("tag:yaml.org,2002:int"):
                message = f"`{shown(node.value)}` is out of range"
            raise self._refused(node, message) from None

    def _place(self, node: yaml.Node, path: Path) -> None:
        # An empty value has no width, and one that spans lines starts at its first entry: the key says more.
        span = self._span_of(node)
        spans_lines = node.start_mark.line != node.end_mark.line and not isinstance(node, yaml.ScalarNode)
        if path in self.keys and (spans_lines or not span.length):
            span = self.keys[path]
        self.values[path] = span

    def _span_of(self, node: yaml.Node) -> Span:
        start, end = node.start_mark, node.end_mark
        line = self.lines[start.line] if start.line < len(self.lines) else ""
        last = end.column if end.line == start.line else len(line.rstrip())
        return Span(start.line + 1, start.column + 1, max(0, last - start.column))

    def _complain(self, node: yaml.Node, message: str) -> None:
        self.complaints.append(_mistake(self.shown_path, self.lines, self._span_of(node), message))

    def _refused(self, node: yaml.Node, message: str) -> SpecError:
        self._complain(node, message)
        return SpecError(sorted(self.complaints, key=lambda mistake: str(mistake.location)))


def _end_of(text: str) -> tuple[int, int]:
    """The line and the column behind a text, from 1."""
    lines = _BREAK.split(text)
    return len(lines), len(lines[-1]) + 1


def _mistake(shown_path: str, lines: tuple[str, ...], span: Span, message: str) -> Mistake:
    line = lines[span.line - 1] if span.line <= len(lines) else ""
    return Mistake(message, Location(shown_path, span.line, span.column), line, max(1, span.length))


def _failed(shown_path: str, message: str, place: tuple[int, int]) -> SpecError:
    return SpecError([Mistake(message, Location(shown_path, *place))])
