"""What backward's expressions come to when it runs: of what shape each is, and which values are at hand."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradverify.verifier.numerics.diagnosis.edits.edit import filled
from gradverify.verifier.numerics.diagnosis.edits.harmless import is_harmless, resolved
from gradverify.verifier.numerics.diagnosis.edits.source import Slot, Source, slots

OF_TORCH = frozenset(
    {
        "saved_tensors",
        "needs_input_grad",
        "saved_for_forward",
        "save_for_backward",
        "mark_dirty",
        "mark_non_differentiable",
        "set_materialize_grads",
    }
)
"""What torch keeps on a ctx."""

LONGEST = 90
"""Characters of an expression that may stand elsewhere, too."""

MOST_EXPRESSIONS = 60
"""Expressions that are tried elsewhere."""

Value = Any


@dataclass(frozen=True)
class Known:
    """An expression that may stand elsewhere, with what it comes to."""

    text: str
    node: ast.expr
    value: Value
    is_name: bool
    is_bounded: bool = False
    """Whether a `relu` or the like is taken of it."""


@dataclass
class Scene:
    """One run of backward."""

    source: Source
    slots: list[Slot] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    """By the number of a slot: what stood there first."""
    passes: dict[int, int] = field(default_factory=dict)
    locals: dict[str, Value] = field(default_factory=dict)
    operations: int = 0
    known: list[Known] = field(default_factory=list)
    parents: dict[int, ast.AST] = field(default_factory=dict)
    """By the id of a node."""


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        self.count += 1
        return func(*args, **(kwargs or {}))


def scene_of(
    source: Source, forward: Sequence[Source], run: Callable[[Callable[..., Any]], bool]
) -> Scene | None:
    """Run backward once with its values noted; None where that fails. `run` gets a function to run as backward."""
    scene = Scene(source, [s for s in slots(source.tree) if _is_value(s, source)])
    for node in ast.walk(source.tree):
        for child in ast.iter_child_nodes(node):
            scene.parents[id(child)] = node
    noted = copy.deepcopy(source.tree)
    twins = [s for s in slots(noted) if _is_value(s, source)]
    for number, slot in enumerate(twins):
        call = _call("_gradverify_note", [ast.Constant(number), slot.node])  # type: ignore[list-item]
        _put(slot, call)
    for slot in [s for s in _outer(noted) if isinstance(s.node, ast.Return)]:
        assert isinstance(slot.node, ast.Return)  # noqa: S101
        value = slot.node.value or ast.Constant(None)
        slot.node.value = _call("_gradverify_last", [_call("locals", []), value])

    def note(number: int, value: Value) -> Value:
        scene.passes[number] = scene.passes.get(number, 0) + 1
        if number not in scene.values:
            scene.values[number] = _kept(value)
        return value

    def last(names: dict[str, Value], value: Value) -> Value:
        scene.locals = {k: _kept(v) for k, v in names.items()}
        return value

    made = Source(source.function, noted, source.first_line).compiled(
        {"_gradverify_note": note, "_gradverify_last": last}
    )
    if made is None:
        return None

    counting = _Counting()

    def noting(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
        with counting:
            found = made(ctx, *given)
        with torch.no_grad():
            _know(scene, ctx, forward)
        return found

    ran = run(noting)
    scene.operations = max(1, counting.count)
    return scene if ran else None


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(func=ast.Name(name, ast.Load()), args=arguments, keywords=[])


def _put(slot: Slot, node: ast.AST) -> None:
    if slot.place < 0:
        setattr(slot.parent, slot.field, node)
    else:
        getattr(slot.parent, slot.field)[slot.place] = node


def _kept(value: Value) -> Value:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _outer(tree: ast.AST) -> Iterator[Slot]:
    """Places that are not within a function inside of this one."""
    for field_name, value in ast.iter_fields(tree):
        nodes = value if isinstance(value, list) else [value]
        for place, node in enumerate(nodes):
            if isinstance(node, ast.AST):
                yield Slot(tree, field_name, place if isinstance(value, list) else -1, node)
                if not isinstance(node, ast.FunctionDef | ast.Lambda):
                    yield from _outer(node)


def _is_value(slot: Slot, source: Source) -> bool:
    """Whether an expression stands there that comes to a value which may be another one."""
    node, parent = slot.node, slot.parent
    if not isinstance(node, ast.expr) or isinstance(
        node, ast.Slice | ast.Starred | ast.JoinedStr | ast.FormattedValue
    ):
        return False
    if isinstance(parent, ast.arguments | ast.FormattedValue | ast.JoinedStr | ast.arg | ast.FunctionDef):
        return False
    if isinstance(parent, ast.Call) and slot.field == "func":
        return False
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return False
    if isinstance(node, ast.Tuple) and any(isinstance(e, ast.Slice | ast.Starred) for e in node.elts):
        return False
    if isinstance(node, ast.Constant) and (node.value is None or node.value is Ellipsis):
        return False
    if isinstance(node, ast.Name) and node.id == source.context:
        return False
    if isinstance(node, ast.Attribute) and node.attr in OF_TORCH:
        return False
    is_other = isinstance(node, ast.Name | ast.Attribute) and resolved(node, source.function) is not None
    return not is_other


def _know(scene: Scene, ctx: Any, forward: Sequence[Source]) -> None:  # noqa: ANN401
    """The names, attributes, sizes and expressions that may stand elsewhere."""
    source, names = scene.source, dict(scene.locals)
    known: dict[str, Known] = {}

    def add(text: str, value: Value, *, is_name: bool) -> None:
        if text not in known and _is_known(value):
            node = ast.parse(text, mode="eval").body
            known[text] = Known(text, node, _kept(value), is_name)

    for slot, value in ((s, scene.values[k]) for k, s in enumerate(scene.slots) if k in scene.values):
        if isinstance(slot.node, ast.Name):
            names.setdefault(slot.node.id, value)
    for name, value in names.items():
        if name != source.context:
            add(name, value, is_name=True)
    for attribute in _attributes([source, *forward], source):
        if hasattr(ctx, attribute):
            add(f"{source.context}.{attribute}", getattr(ctx, attribute), is_name=True)
    for name, value in list(names.items()):
        for dim, n in enumerate(value.shape) if isinstance(value, Tensor) else ():
            if n > 1 and sum(k.value == n for k in known.values() if type(k.value) is int) < 2:
                add(f"{name}.shape[{dim}]", n, is_name=True)
    bounded: set[str] = set()
    kept = set(vars(ctx)) if hasattr(ctx, "__dict__") else set()
    for node in _expressions(source, forward):
        node = _with_attributes(node, kept - set(names), source)
        text = ast.unparse(node)
        if len(text) > LONGEST:
            continue
        bounded |= _bounded_in(node)
        if len(known) > MOST_EXPRESSIONS or text in known:
            continue
        value = _evaluated(text, source, {**names, source.context: ctx})
        if isinstance(value, Tensor):
            add(text, value, is_name=False)
    known = {text: replace(one, is_bounded=text in bounded) for text, one in known.items()}
    scene.known = list(known.values())


def _with_attributes(node: ast.expr, kept: set[str], source: Source) -> ast.expr:
    """An expression of forward, where what it calls `margin` is `ctx.margin` in backward."""
    held = {name: ast.Attribute(ast.Name(source.context, ast.Load()), name, ast.Load()) for name in kept}
    return filled(copy.deepcopy(node), held)


BOUNDING = frozenset({"relu", "relu_", "clamp", "clamp_min", "clip"})
"""Functions that are flat on one side."""


def _bounded_in(node: ast.expr) -> set[str]:
    """What such a function is taken of."""
    found = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in BOUNDING:
            found.add(
                ast.unparse(call.args[0] if call.func.attr == "relu" and call.args else call.func.value)
            )
            found |= {ast.unparse(argument) for argument in call.args[:1]}
    return found


def _is_known(value: Value) -> bool:
    return isinstance(value, int | float | complex) or (
        isinstance(value, Tensor) and value.layout is torch.strided
    )


def _attributes(sources: Sequence[Source], own: Source) -> list[str]:
    found: dict[str, None] = {}
    for source in sources:
        context = source.context or own.context
        for node in ast.walk(source.tree):
            is_own = (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == context
            )
            if is_own and node.attr not in OF_TORCH:  # type: ignore[attr-defined]
                found[node.attr] = None  # type: ignore[attr-defined]
    return list(found)


def _expressions(source: Source, forward: Sequence[Source]) -> Iterator[ast.expr]:
    """What is computed in backward, then in forward."""
    for one in (source, *forward):
        for node in ast.walk(one.tree):
            computed = isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp | ast.Compare | ast.Subscript)
            if computed and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                if is_harmless(one.function, node):
                    yield node  # type: ignore[misc]


def _evaluated(text: str, source: Source, names: dict[str, Value]) -> Value:
    """What an expression comes to with these names; None where it does not."""
    if "_(" in text or "print" in text:
        return None  # it writes into what it gets
    try:
        return eval(text, dict(source.function.__globals__), names)  # noqa: S307 - the user's own code
    except Exception:  # noqa: BLE001 - the names may stand for anything
        return None
