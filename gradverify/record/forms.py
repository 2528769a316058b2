"""The calls of one Function, grouped: those of a group take arguments of the same kinds and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradverify.record.reading import Call, Note

Place = tuple[int, ...]
"""Where a tensor stands: (argument,), or (argument, item of its list)."""


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
        """What stands at a place in each call; None where it is absent or None."""
        return tuple(_at(call, place) for call in self.calls)

    def present(self, place: Place) -> tuple[Note, ...]:
        """What stands at a place in the calls that give something."""
        return tuple(note for note in self.notes(place) if note is not None)

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
