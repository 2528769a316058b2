"""The notes of all processes together: which Functions were called, and how; then calls of one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Note = Mapping[str, Any]
"""One argument, as `gradverify.record.hook` describes it."""


Place = tuple[int, ...]
"""Where a tensor is: (argument,), or (argument, item of its list)."""


@dataclass(frozen=True)
class Call:
    """One signature: the arguments by name, their values taken together over all calls of it."""

    arguments: tuple[tuple[str, Note], ...]
    count: int = 1


@dataclass(frozen=True)
class Recorded:
    """One Function that was called."""

    module: str
    """The name it was imported by."""
    file: str
    name: str
    """Its qualified name."""
    line: int = 0
    calls: tuple[Call, ...] = ()
    strided: bool = False
    """Backward got a gradient that is not contiguous."""
    main: bool = False
    """It is in the script that was run."""
    bounded: bool = False
    """There were more signatures than are noted."""

    @property
    def count(self) -> int:
        """Calls in all, as far as they were noted."""
        return sum(call.count for call in self.calls)


def read_notes(folder: Path) -> tuple[Recorded, ...]:
    """The Functions that the files of a folder tell of, by file and line."""
    found: dict[tuple[str, str], Recorded] = {}
    calls: dict[tuple[str, str], dict[str, Call]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        numbers: dict[int, Call] = {}
        heads: dict[int, tuple[str, str]] = {}
        for line in _lines(path):
            if line["kind"] == "other":
                continue
            if line["kind"] == "count":
                number = line["number"]
                if number in numbers:
                    numbers[number] = replace(numbers[number], count=line["count"])
                continue
            key = (line["file"], line["name"])
            known = found.setdefault(key, _named(line))
            if line["kind"] == "call":
                number, before = line["number"], numbers.get(line["number"])
                call = Call(tuple((n, note) for n, note in line["arguments"]), line["count"])
                heads[number] = key
                numbers[number] = _together(before, call, call.count) if before is not None else call
            else:
                strided, bounded = line["kind"] == "strided", line["kind"] == "left-out"
                found[key] = replace(
                    known, strided=known.strided or strided, bounded=known.bounded or bounded
                )
        for number, call in numbers.items():
            _add(calls.setdefault(heads[number], {}), call)
    named = [replace(r, calls=tuple(calls.get(key, {}).values())) for key, r in found.items()]
    return tuple(sorted((r for r in named if r.calls), key=lambda r: (r.file, r.line, r.name)))


def read_others(folder: Path) -> tuple[tuple[str, str], ...]:
    """(module, name) of the Functions that were called and not recorded, each once."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in _lines(path))
    return tuple(sorted({(line["module"], line["name"]) for line in lines if line["kind"] == "other"}))


def _named(line: Note) -> Recorded:
    return Recorded(line["module"], line["file"], line["name"], line["line"], main=line["main"])


def _lines(path: Path) -> Iterator[Any]:
    for text in path.read_text("utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # the last line of a process that was killed
            return


def _add(calls: dict[str, Call], call: Call) -> None:
    """Join a call with one of another process that differs in nothing but values."""
    key = json.dumps([[name, _bare(note)] for name, note in call.arguments], sort_keys=True)
    known = calls.get(key)
    calls[key] = call if known is None else _together(known, call, known.count + call.count)


def _bare(note: Note) -> Any:  # noqa: ANN401
    if note["kind"] == "list":
        return [_bare(item) for item in note["items"]]
    drop = {"low", "high", "values", "looks", "distinct", "sorted", "finite", "stride"}
    return {key: value for key, value in note.items() if key not in drop}


def _together(one: Call, other: Call, count: int) -> Call:
    pairs = zip(one.arguments, other.arguments, strict=True)
    return Call(tuple((name, together(a, b)) for (name, a), (_, b) in pairs), count)


def together(one: Note, other: Note) -> Note:
    """Two notes of one argument as one that holds for both, but for shapes, which are the first's."""
    if one["kind"] == "list":
        items = [together(a, b) for a, b in zip(one["items"], other["items"], strict=True)]
        return {**one, "items": items}
    if one["kind"] != "tensor" or other["kind"] != "tensor":
        return one
    joined = dict(one) | {"requires_grad": one["requires_grad"] or other["requires_grad"]}
    for key, choose in (("low", min), ("high", max)):
        known = [note[key] for note in (one, other) if key in note]
        joined |= {key: choose(known)} if known else {}
    joined["looks"] = one.get("looks", 1) + other.get("looks", 1)
    if one.get("values") != other.get("values"):
        joined.pop("values", None)
    for key in ("distinct", "sorted", "finite", "contiguous"):
        known = [note[key] for note in (one, other) if key in note]
        joined |= {key: all(known)} if known else {}
    return joined


FLOATING = ("float64", "float32", "float16", "bfloat16")
COMPLEX = ("complex128", "complex64", "complex32")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


@dataclass(frozen=True)
class Form:
    """Calls that one entry of a spec can describe; an argument may be None in some of them."""

    calls: tuple[Call, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments' names, in call order."""
        longest = max(self.calls, key=lambda call: len(call.arguments))
        return tuple(name for name, _ in longest.arguments)

    def notes(self, place: Place) -> tuple[Note | None, ...]:
        """What is at a place in each call; None where it is absent or None."""
        return tuple(_at(call, place) for call in self.calls)

    def present(self, place: Place) -> tuple[Note, ...]:
        """What is at a place in the calls that give something."""
        return tuple(note for note in self.notes(place) if note is not None)

    @property
    def is_differentiated(self) -> bool:
        """Whether any tensor of any call required grad."""
        return any(note["requires_grad"] for place in self.tensors() for note in self.present(place))

    def constant(self, place: Place) -> object:
        """The values of a tensor that were the same in every call, and never differentiated; None for none.

        Of few entries, beside a tensor that is differentiated, or might be, and seen twice: those of one call
        may be labels, or weights of that day.
        """
        values = self._same_values(place)
        floats = (p for p in self.tensors() if self.present(p)[0]["dtype"] in FLOATING)
        others = self.is_differentiated or any(self._same_values(p) is None for p in floats)
        return values if others else None

    def _same_values(self, place: Place) -> object:
        notes = self.notes(place)
        present = [n for n in notes if n is not None and "values" in n and not n["requires_grad"]]
        if len(place) > 1 or len(present) < len(notes):
            return None
        first, looks = present[0], sum(note.get("looks", 1) for note in present)
        same = all(note["values"] == first["values"] for note in present)
        known = first["dtype"] in (*FLOATING, *INTEGERS) and looks > 1
        return first["values"] if same and known else None

    def tensors(self) -> Iterator[Place]:
        """The places of all tensors."""
        for index in range(len(self.names)):
            first = next(iter(self.present((index,))), None)
            if first is None:
                continue
            if first["kind"] == "tensor":
                yield (index,)
            elif first["kind"] == "list":
                yield from ((index, i) for i, item in enumerate(first["items"]) if item["kind"] == "tensor")


def forms_of(calls: Sequence[Call]) -> tuple[Form, ...]:
    """Group calls, those of the first one first; empty tensors only where there is nothing else."""
    kept = [call for call in calls if not _is_empty(call)] or list(calls)
    groups: list[list[Call]] = []
    for call in kept:
        group = next((g for g in groups if all(_alike(call, other) for other in g)), None)
        if group is None:
            groups.append([call])
        else:
            group.append(call)
    return tuple(Form(tuple(group)) for group in groups)


def is_none(note: Note) -> bool:
    """Whether an argument is None."""
    return note["kind"] == "literal" and "value" in note and note["value"] is None


def _at(call: Call, place: Place) -> Note | None:
    if place[0] >= len(call.arguments):
        return None
    note = call.arguments[place[0]][1]
    if is_none(note):
        return None
    return note if len(place) == 1 else note["items"][place[1]]


def _alike(one: Call, other: Call) -> bool:
    pairs = zip(one.arguments, other.arguments, strict=False)
    return all(is_none(a) or is_none(b) or _kind(a) == _kind(b) for (_, a), (_, b) in pairs)


def _kind(note: Note) -> object:
    match note["kind"]:
        case "tensor":
            return "tensor", len(note["shape"]), _family(note["dtype"]), note["layout"]
        case "list":
            return "list", [_kind(item) for item in note["items"]]
        case "object":
            return "object", note["path"]
        case _:
            return "literal", type(note.get("value", 0.0)).__name__


def _family(dtype: str) -> str:
    """Which dtypes one input may have in different calls: those that are verified in float64 alike."""
    return next((family for family in ("bfloat", "float", "complex") if dtype.startswith(family)), dtype)[-5:]


def _is_empty(call: Call) -> bool:
    notes = [n for _, note in call.arguments for n in (note["items"] if note["kind"] == "list" else [note])]
    return any(0 in note["shape"] for note in notes if note["kind"] == "tensor")
