"""What the source says beside the verdict of a run: state outside ctx, a backward without a formula."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from gradverify.lint.alarm import Alarm, Rule
from gradverify.source import Function, dotted, every_parameter, own_nodes_of, root_name

_HINT_STATE = "Keep it on ctx, or give it as an argument: what outlives a call reaches the next one."
_HINT_PROCESS = "Read it once, when the module is imported, or give it as an argument."

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


def outside_ctx(function: Function) -> Iterator[Alarm]:
    """GV816: state outside ctx that forward or backward writes, or reads of their process."""
    reported: set[str] = set()
    for name, node in _reached(function):
        local = _local_names(node)
        for found, what, hint in _outside(node, local, function.imported):
            if what not in reported:
                reported.add(what)
                yield Alarm(found, f"{name} {what}", hint)


def _reached(function: Function) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The methods by name, then each helper that they reach, under its own name."""
    left = [(m.name, m.node) for name in CALLED if (m := function.methods.get(name)) is not None]
    seen = {node for _, node in left}
    while left:
        name, node = left.pop(0)
        yield name, node
        for inner in own_nodes_of(node.body):
            helper = function.helpers.get(inner.id) if isinstance(inner, ast.Name) else None
            if helper is not None and helper not in seen:
                seen.add(helper)
                left.append((helper.name, helper))


def _local_names(node: ast.FunctionDef) -> set[str]:
    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    declared = {name for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    return ({*every_parameter(node)} | bound) - declared


def _outside(
    node: ast.FunctionDef, local: set[str], imported: Mapping[str, str]
) -> Iterator[tuple[ast.AST, str, str]]:
    inside = [*own_nodes_of(node.body)]
    alone = {id(inner.value) for inner in inside if isinstance(inner, ast.Expr)}
    for inner in inside:
        if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript):
            written = not isinstance(inner.ctx, ast.Load)
            outside = root_name(inner) not in local | {""}
            if written and outside:
                yield inner, f"writes `{_shown(inner)}`, which is not on ctx", _HINT_STATE
            elif isinstance(inner, ast.Attribute) and outside and dotted(inner, imported) in PROCESS:
                yield inner, f"reads `{ast.unparse(inner)}` of the process around it", _HINT_PROCESS
        elif isinstance(inner, ast.Call):
            owner = _changed(inner, MUTATING_ALONE if id(inner) in alone else MUTATING)
            if owner is not None and root_name(owner) not in local | imported.keys() | {""}:
                yield inner, f"writes `{_shown(owner)}`, which is not on ctx", _HINT_STATE


def _changed(call: ast.Call, mutating: Collection[str]) -> ast.expr | None:
    """What a call changes in place, as far as its name tells, which is one of some methods'."""
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in mutating:
            return owner
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return owner
        case _:
            return None


def _shown(node: ast.expr) -> str:
    """What is written, without the items of a container."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)


_HINT_SAME = (
    "That is as right as what it differentiates, and no faster than torch's own gradient of the same "
    "operations."
)

DIFFERENTIATING = frozenset(
    {"torch.autograd.grad", "torch.autograd.backward", "torch.autograd.functional.vjp"}
    | {"torch.func.grad", "torch.func.vjp", "torch.func.jacrev", "torch.func.jacfwd"}
)


def differentiates_forward(function: Function) -> Iterator[Alarm]:
    """GV817: backward has no formula of its own, but has torch differentiate what it computes."""
    backward = function.backward
    for node in backward.nodes if backward is not None else ():
        if not isinstance(node, ast.Call) or backward is None:
            continue
        of_tensor = isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and _is_local(node)
        if dotted(node.func, function.imported) in DIFFERENTIATING or of_tensor:
            said = f"{backward.name} has torch differentiate what it computes (`{ast.unparse(node.func)}`)"
            yield Alarm(node, said, _HINT_SAME)
            return


def _is_local(call: ast.Call) -> bool:
    """Whether it is a tensor's own, called without a ctx: `Other.backward(ctx, grad)` is another formula."""
    return not any(isinstance(argument, ast.Name) and argument.id == "ctx" for argument in call.args)


NOTES: dict[str, Rule] = {"GV816": outside_ctx, "GV817": differentiates_forward}
"""By code."""
