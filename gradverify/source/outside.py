"""What a Function's methods, and the helpers that they reach, touch outside of ctx and of their own names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gradverify.source.function import Function
from gradverify.source.tree import Place, dotted, each, every_parameter, own_nodes_of, root_name

CALLED = ("forward", "setup_context", "backward", "vjp")
"""Methods that a gradient hangs on."""

MUTATING = frozenset(
    {"append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
    | {"remove", "setdefault", "update"}
)
"""Methods by which containers of Python change."""

MUTATING_ALONE = MUTATING | {"add"}
"""The same where the result is not used: `add` of a tensor returns what it adds up, that of a set nothing."""

PROCESS = frozenset(
    {"gc.get_objects", "gc.get_referrers", "inspect.currentframe", "inspect.stack", "inspect.trace"}
    | {"os.environ", "os.getenv", "os.getpid", "os.getppid", "socket.gethostname", "sys._current_frames"}
    | {"sys._getframe", "sys.argv", "sys.gettrace", "sys.modules", "sys.orig_argv"}
    | {"threading.current_thread", "threading.enumerate", "traceback.extract_stack"}
    | {"traceback.format_stack", "traceback.walk_stack"}
)
"""What tells of the process, its callers and its variables."""


@dataclass(frozen=True)
class Outside:
    """One use of what is not the method's own."""

    place: Place
    by: str
    """The method or helper."""
    shown: str
    written: bool
    """Else it is read of the process."""


def used_outside(function: Function) -> Iterator[Outside]:
    """What the methods write outside, or read of their process."""
    helpers, imported = function.module.functions, function.module.imported
    left = [m.node for name in CALLED if (m := function.methods.get(name)) is not None]
    seen = {*left}
    for method in left:  # it grows
        inside = [*own_nodes_of(method.body)]
        named = [helpers.get(inner.id) for inner in inside if isinstance(inner, ast.Name)]
        found = [h for h in dict.fromkeys(named) if h is not None and h not in seen]
        seen |= {*found}
        left += found
        own = _own_names(method)
        alone = {id(inner.value) for inner in inside if isinstance(inner, ast.Expr)}
        for inner in inside:
            match inner:
                case ast.Name() | ast.Attribute() | ast.Subscript():
                    outside = root_name(inner) not in own
                    if outside and not isinstance(inner.ctx, ast.Load):
                        yield Outside(Place.of(inner), method.name, _container(inner), written=True)
                    elif outside and isinstance(inner, ast.Attribute) and dotted(inner, imported) in PROCESS:
                        yield Outside(Place.of(inner), method.name, ast.unparse(inner), written=False)
                case ast.Call():
                    owner = _changed(inner, MUTATING_ALONE if id(inner) in alone else MUTATING)
                    if owner is not None and root_name(owner) not in own | imported.keys():
                        yield Outside(Place.of(inner), method.name, _container(owner), written=True)
                case _:
                    pass


def _own_names(method: ast.FunctionDef) -> set[str]:
    """Its parameters and local names, and that of what has none."""
    declared = {name for node in each(ast.Global, method) for name in node.names}
    declared |= {name for node in each(ast.Nonlocal, method) for name in node.names}
    bound = {n.id for n in each(ast.Name, method) if isinstance(n.ctx, ast.Store)}
    return ({*every_parameter(method), ""} | bound) - declared


def _changed(call: ast.Call, mutating: Collection[str]) -> ast.expr | None:
    """What a call changes in place, as far as its name tells, which is one of some methods'."""
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in mutating:
            return owner
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return owner
        case _:
            return None


def _container(node: ast.expr) -> str:
    """What is written, without the items of a container."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)
