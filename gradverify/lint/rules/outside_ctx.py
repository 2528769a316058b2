"""GV816: state outside ctx that forward or backward writes, and what they read of the process around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass, dotted
from gradverify.lint.walking import own_nodes_of

_HINT_STATE = "Keep it on ctx, or give it as an argument: what outlives a call reaches the next one."
_HINT_PROCESS = "Read it once, when the module is imported, or give it as an argument."

CALLED = ("forward", "setup_context", "backward", "vjp")
"""Methods that a gradient hangs on."""

MUTATING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
    | {"remove", "setdefault", "update"}
)
"""Methods by which containers of Python change."""

PROCESS = frozenset(
    {"gc.get_objects", "gc.get_referrers", "inspect.currentframe", "inspect.stack", "inspect.trace"}
    | {"os.environ", "os.getenv", "os.getpid", "os.getppid", "socket.gethostname", "sys._current_frames"}
    | {"sys._getframe", "sys.argv", "sys.gettrace", "sys.modules", "sys.orig_argv"}
    | {"threading.current_thread", "threading.enumerate", "traceback.extract_stack"}
    | {"traceback.format_stack", "traceback.walk_stack"}
)
"""What tells of the process, its callers and its variables."""


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Look through the methods that torch calls, and the helpers of the module that these call."""
    told: set[str] = set()
    for name, node in _reached(function, source):
        local = _local_names(node)
        for found, what, hint in _outside(node, local, source.imported):
            if what not in told:
                told.add(what)
                yield Alarm("GV816", found, f"{name} {what}", hint)


def _reached(function: FunctionClass, source: Source) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The methods by name, then each helper that they reach, under its own name."""
    left = [(m.name, m.node) for name in CALLED if (m := function.methods.get(name)) is not None]
    seen = {node for _, node in left}
    while left:
        name, node = left.pop(0)
        yield name, node
        for inner in own_nodes_of(node.body):
            helper = source.helpers.get(inner.id) if isinstance(inner, ast.Name) else None
            if helper is not None and helper not in seen:
                seen.add(helper)
                left.append((helper.name, helper))


def _local_names(node: ast.FunctionDef) -> set[str]:
    arguments = node.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    declared = {name for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    return ({a.arg for a in every if a is not None} | bound) - declared


def _outside(
    node: ast.FunctionDef, local: set[str], imported: Mapping[str, str]
) -> Iterator[tuple[ast.AST, str, str]]:
    for inner in own_nodes_of(node.body):
        if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript):
            written = not isinstance(inner.ctx, ast.Load)
            outside = _root(inner) not in local | {""}
            if written and outside:
                yield inner, f"writes `{_shown(inner)}`, which is not on ctx", _HINT_STATE
            elif isinstance(inner, ast.Attribute) and outside and dotted(inner, imported) in PROCESS:
                yield inner, f"reads `{ast.unparse(inner)}` of the process around it", _HINT_PROCESS
        elif isinstance(inner, ast.Call):
            owner = _changed(inner)
            if owner is not None and _root(owner) not in local | imported.keys() | {""}:
                yield inner, f"writes `{_shown(owner)}`, which is not on ctx", _HINT_STATE


def _changed(call: ast.Call) -> ast.expr | None:
    """What a call changes in place, as far as its name tells."""
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in MUTATING:
            return owner
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return owner
        case _:
            return None


def _root(node: ast.expr) -> str:
    """The name that an expression of attributes and items begins with; empty for none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _shown(node: ast.expr) -> str:
    """What is written, without the items of a container."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)
