"""What backward's expressions come to when it runs: of what shape each is, and which values are at hand."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.harmless import resolved
from gradverify.verifier.diagnose.edits.known import OF_TORCH, Known, Value, as_it_is, known_in
from gradverify.verifier.diagnose.edits.source import Slot, Source, slots

ORDINARY = (Tensor, list, tuple, dict, int, float, complex, str, slice, range, type)
"""Kinds of values whose methods do nothing but compute."""

_NOTE, _LAST = "_gradverify_note", "_gradverify_last"
"""Functions that a backward calls whose values are noted."""


@dataclass
class TracedBackward:
    """One run of backward."""

    source: Source
    slots: list[Slot]
    parents: dict[int, ast.AST]
    """By the id of a node."""
    values: dict[int, Value] = field(default_factory=dict)
    """By the number of a slot: what stood there first."""
    locals: dict[str, Value] = field(default_factory=dict)
    """Names at the end of backward."""
    steps: int = 1
    """Expressions that were evaluated: a loop has many."""
    known: list[Known] = field(default_factory=list)
    is_foreign: bool = False
    """Methods of objects are called that may do anything."""

    def note(self, number: int, value: Value) -> Value:
        """What a slot comes to."""
        self.steps += 1
        if not isinstance(value, ORDINARY) and self._is_owner(self.slots[number]):
            self.is_foreign = True
        if number not in self.values:
            self.values[number] = as_it_is(value)
        return value

    def last(self, names: Mapping[str, Value], value: Value) -> Value:
        """What the names stand for when backward returns a value."""
        self.locals = {name: as_it_is(v) for name, v in names.items()}
        return value

    def _is_owner(self, slot: Slot) -> bool:
        """Whether a method of what is there is called."""
        call = self.parents.get(id(slot.parent))
        return (
            isinstance(slot.parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is slot.parent
        )

    def names(self) -> dict[str, Value]:
        """Those at the end, and those of functions inside."""
        found = dict(self.locals)
        for number, slot in enumerate(self.slots):
            if isinstance(slot.node, ast.Name) and number in self.values:
                found.setdefault(slot.node.id, self.values[number])
        return found


def traced(
    source: Source, forward: Sequence[Source], start: Callable[[Callable[..., Any]], bool]
) -> TracedBackward | None:
    """Run backward once with its values noted; None where that fails, or where it is more than tensors.

    `start` gets a function to run as backward.
    """
    values = [s for s in slots(source.whole) if _is_value(s, source)]
    run = TracedBackward(source, values, _parents(source.whole))
    made = _noting(source).compiled({_NOTE: run.note, _LAST: run.last})
    if made is None:
        return None

    def noting(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
        found = made(ctx, *given)
        with torch.no_grad():
            run.known = known_in(source, forward, run.names(), ctx)
        return found

    return run if start(noting) and not run.is_foreign else None


def _parents(tree: ast.AST) -> dict[int, ast.AST]:
    return {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _noting(source: Source) -> Source:
    """The same backward, which tells what each of its expressions comes to."""
    noted = copy.deepcopy(source.whole)
    for number, slot in enumerate([s for s in slots(noted) if _is_value(s, source)]):
        assert isinstance(slot.node, ast.expr)  # noqa: S101
        slot.put(_call(_NOTE, [ast.Constant(number), slot.node]))
    *helpers, tree = [node for node in noted.body if isinstance(node, ast.FunctionDef)]
    for statement in list(_returns(tree)):
        value = statement.value or ast.Constant(None)
        statement.value = _call(_LAST, [_call("locals", []), value])
    return Source(source.function, tree, tuple(helpers))


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(func=ast.Name(name, ast.Load()), args=arguments, keywords=[])


def _returns(tree: ast.AST) -> Iterator[ast.Return]:
    """Those that are not of a function inside of this one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _returns(node)


_NO_VALUES = (ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue)

_PARENTS_WITHOUT = (ast.arguments, ast.FormattedValue, ast.JoinedStr, ast.arg, ast.FunctionDef)
"""Nodes below which nothing comes to a value that may be another one."""


def _is_value(slot: Slot, source: Source) -> bool:
    """Whether an expression stands there that comes to a value which may be another one."""
    node, parent = slot.node, slot.parent
    if not isinstance(node, ast.expr) or isinstance(node, _NO_VALUES) or isinstance(parent, _PARENTS_WITHOUT):
        return False
    is_function = isinstance(parent, ast.Call) and slot.field == "func"
    if is_function or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return False
    return not _is_fixed(node, source)


def _is_fixed(node: ast.expr, source: Source) -> bool:
    """Whether nothing else can stand for an expression: `...`, the ctx, a module, a function."""
    match node:
        case ast.Tuple(elts=parts):
            return any(isinstance(part, ast.Slice | ast.Starred) for part in parts)
        case ast.Constant(value=value):
            return value is None or value is Ellipsis
        case ast.Name() | ast.Attribute():
            name = node.id if isinstance(node, ast.Name) else node.attr
            is_torchs = isinstance(node, ast.Attribute) and name in OF_TORCH
            return is_torchs or name == source.context or resolved(node, source.function) is not None
        case _:
            return False
