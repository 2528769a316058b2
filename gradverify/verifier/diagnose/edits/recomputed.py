"""Backward computes anew what forward keeps without its graph, so that it can be differentiated itself.

What is saved and is neither an input nor an output is a constant for a second derivative. Forward's own
source says how it was made of the inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gradverify.source import parameters_of
from gradverify.verifier.diagnose.edits.source import Edit, Slot, Source, filled, slots

CAUSE = "detached"

DEEPEST = 8
"""Values of forward, each made of others, up to which one is written out."""

WITHOUT_GRAPH = ("detach", "clone", "contiguous")
"""Methods that give the same numbers."""


@dataclass
class Known:
    """What forward does with names."""

    parameters: tuple[str, ...]
    made: dict[str, ast.expr] = field(default_factory=dict)
    """Names that are assigned once, by what."""
    several: set[str] = field(default_factory=set)
    """Names that are assigned more than once, or in part."""
    saved: list[ast.expr] = field(default_factory=list)
    attributes: dict[str, ast.expr] = field(default_factory=dict)


def recomputed(source: Source, forward: Sequence[Source]) -> Iterator[Edit]:
    """Backward with a value computed anew, for each that is kept, then with all that are saved.

    `forward` is where they are kept.
    """
    for kept in forward:
        known = _known(kept)
        unpacked = _unpacking(source)
        names = [] if unpacked is None else [n.id if isinstance(n, ast.Name) else "" for n in unpacked[1]]
        at_hand = {
            **{a.id: ast.Attribute(_name(source.context), n, ast.Load()) for n, a in _plain(known)},
            **{
                a.id: _name(n)
                for n, a in zip(names, known.saved, strict=False)
                if isinstance(a, ast.Name) and n
            },
        }
        at_hand = {name: given for name, given in at_hand.items() if name in known.parameters}
        made: list[ast.stmt] = []
        for name, value in zip(names, known.saved, strict=False):
            written = _written_out(value, known, at_hand, source)
            if name and written is not None:
                made.append(ast.Assign([ast.Name(name, ast.Store())], written, lineno=0))
        if unpacked is not None and isinstance(unpacked[2].node, ast.stmt):
            several = [made] if len(made) > 1 else []
            for statements in (*([one] for one in made), *several):
                yield Edit(unpacked[2], [*statements, unpacked[2].node], CAUSE, is_whole=True)
        for name, value in known.attributes.items():
            written = _written_out(value, known, at_hand, source)
            places = _places_of(source, name)
            if written is not None and len(places) == 1:
                yield Edit(places[0], written, CAUSE)


def _name(text: str) -> ast.Name:
    return ast.Name(text, ast.Load())


def _plain(known: Known) -> list[tuple[str, ast.Name]]:
    """Parameters that are kept as they are: (attribute of ctx, name)."""
    return [(n, a) for n, a in known.attributes.items() if isinstance(a, ast.Name)]


def _known(forward: Source) -> Known:
    known = Known(tuple(parameters_of(forward.tree)[1:]))
    for slot in slots(forward.tree):
        match slot.node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known.several |= {name} & {*known.made, *known.parameters}
                known.made[name] = value
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name)], value=value):
                if owner == forward.context:
                    known.attributes[name] = value
            case (
                ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))])
                | ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)))
            ):
                known.several.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="save_for_backward"), args=given):
                known.saved = list(given) if owner == forward.context else known.saved
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr.endswith("_"):
                known.several.add(name)
            case _:
                pass
    return known


def _unpacking(source: Source) -> tuple[Slot, Sequence[ast.expr], Slot] | None:
    """Where backward unpacks what was saved, into which names, and the statement that follows."""
    body = [slot for slot in slots(source.tree) if slot.parent is source.tree and slot.field == "body"]
    for slot, after in pairwise(body):
        match slot.node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Attribute(attr="saved_tensors")):
                return slot, names, after
            case _:
                pass
    return None


def _written_out(
    value: ast.expr, known: Known, at_hand: Mapping[str, ast.expr], source: Source, depth: int = 0
) -> ast.expr | None:
    """A value of forward in backward's own names; None for an input, and where something is not at hand."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        if value.func.attr not in WITHOUT_GRAPH:
            break
        value = value.func.value
    if isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in known.parameters):
        return None
    if isinstance(value, ast.Name):
        if value.id in known.several or value.id not in known.made or depth > DEEPEST:
            return None
        return _written_out(known.made[value.id], known, at_hand, source, depth + 1)
    parts: dict[str, ast.expr] = {}
    local = {*known.made, *known.several, *known.parameters}
    for name in {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} & local:
        if name in known.several:
            return None
        given = at_hand.get(name) if name in known.parameters else None
        if given is None and name not in known.parameters and depth <= DEEPEST:
            given = _written_out(_name(name), known, at_hand, source, depth + 1)
        if given is None:
            return None
        parts[name] = given
    return filled(ast.parse(ast.unparse(value), mode="eval").body, parts)


def _places_of(source: Source, attribute: str) -> list[Slot]:
    """Where backward reads an attribute of ctx."""
    return [
        slot
        for slot in slots(source.tree)
        if isinstance(slot.node, ast.Attribute)
        and slot.node.attr == attribute
        and isinstance(slot.node.value, ast.Name)
        and slot.node.value.id == source.context
    ]
