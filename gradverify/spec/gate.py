"""What the format knows and the verifier does not honour yet: reading refuses it, by its name.

A key that is read and then ignored would be a wrong verdict. Names leave `NOT_YET` as the verifier
learns them; reading, checking and planning of everything in it are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradverify.spec.source import At, Complaint
from gradverify.spec.wording import Path

Gate = Mapping[str, frozenset[str]]
"""Keys by the mapping they stand in, and values by their key."""

ANNOTATIONS = "inputs beside arguments"
"""The name of `inputs:` beside a hook; alone it is another key."""

NOT_YET: Gate = {}
"""What the verifier does not honour yet."""

OPEN: Gate = {}
"""Nothing is refused."""

_FORMS = frozenset({"list", "concat", "object", "tuple", "size"})
"""Keys that decide what the whole entry of an input means: then nothing else in it is judged."""


def gated(raw: Mapping[str, object], gate: Gate) -> list[Complaint]:
    """Return a complaint for each key or value of a function's entry that the gate refuses."""
    closed = gate.get("function", frozenset())
    found = [_refused((key,)) for key in raw if key in closed]
    inputs = raw.get("inputs")
    if "arguments" in raw and "inputs" in raw and ANNOTATIONS in closed:
        message = "`inputs` beside `arguments` is not supported yet: the hook builds every argument"
        found.append(Complaint(("inputs",), message, At.KEY))
    elif isinstance(inputs, dict):
        for name, entry in inputs.items():
            found += _of_input(entry, ("inputs", name), gate)
    for key in ("reference", "surrogate"):
        entry = raw.get(key)
        if isinstance(entry, dict):
            found += [_refused((key, inner)) for inner in entry if inner in gate.get(key, frozenset())]
    return found


def hidden(path: Path, refused: list[Complaint]) -> bool:
    """Whether a path leads inside what was refused, where nothing can be judged."""
    return any(path[: len(extent)] == extent for extent in map(_extent, refused))


def _extent(refused: Complaint) -> Path:
    path = refused.path
    # `list` decides what its neighbours mean, and so does the `call` of a reference.
    of_entry = path[-1] in _FORMS and path[0] == "inputs" and len(path) > 2
    return path[:-1] if of_entry or path == ("reference", "call") else path


def _of_input(entry: object, path: Path, gate: Gate) -> Iterator[Complaint]:
    if isinstance(entry, list):
        for index, item in enumerate(entry):
            yield from _of_input(item, (*path, index), gate)
    if not isinstance(entry, dict):
        return
    closed = gate.get("tensor", frozenset())
    form = next((key for key in entry if key in _FORMS and key in closed), None)
    if form is not None:
        yield _refused((*path, form))
        return
    for key, value in entry.items():
        if key in closed:
            yield _refused((*path, key))
        elif isinstance(value, str) and value in gate.get(key, frozenset()):
            yield Complaint((*path, key), f"`{key}: {value}` is not supported yet")
        elif key in {"list", "concat", "of"}:
            yield from _of_input(value, (*path, key), gate)


def _refused(path: Path) -> Complaint:
    return Complaint(path, f"`{path[-1]}` is not supported yet", At.KEY)
