"""What autograd cannot follow: kernels, detached tensors, state outside ctx."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from gradverify.lint.alarm import Alarm
from gradverify.lint.kernels import addresses_given, launched_kernel
from gradverify.source import (
    Function,
    Method,
    dotted,
    every_parameter,
    last_name,
    names_bound,
    names_read,
    own_nodes,
    own_nodes_of,
    root_name,
)
from gradverify.source.memory import VIEWS, Aliases, steps

_HINT_ONCE = (
    "Put @once_differentiable (torch.autograd.function) under @staticmethod: a second derivative then raises "
    "instead of missing a term."
)
_FOLLOWED = frozenset({"enable_grad", "apply", "once_differentiable", "checkpoint"})
"""Names in a backward that deals with its own graph: what is detached there may be so for a reason."""


def opaque_backward(function: Function) -> Iterator[Alarm]:
    """GV801: a backward that autograd cannot follow, and that does not say so with `once_differentiable`."""
    backward = function.backward
    if backward is None or "once_differentiable" in backward.decorators or _deals_with_graph(backward):
        return
    cut = next(_cuts(backward, function), None)
    if cut is not None:
        node, how = cut
        yield Alarm(node, f"{backward.name} {how}, without once_differentiable", _HINT_ONCE)


def _deals_with_graph(backward: Method) -> bool:
    return backward.is_wrapped or any(last_name(node) in _FOLLOWED for node in ast.walk(backward.node))


def _cuts(backward: Method, function: Function) -> Iterator[tuple[ast.AST, str]]:
    for node in backward.nodes:
        if isinstance(node, ast.With):
            if _is_no_grad(node, function.imported) and _gives_gradient(node, backward):
                yield node, "computes its result under torch.no_grad()"
        elif isinstance(node, ast.Call):
            if kernel := launched_kernel(node):
                yield node, f"launches the kernel `{kernel}`, which autograd does not see"
            elif helper := _launching_helper(node, function):
                yield node, f"launches a kernel in `{helper}`, which autograd does not see"
            elif addresses_given(node, function.imported):
                yield node, f"hands addresses to `{ast.unparse(node.func)}`, which autograd does not see"
            elif dotted(node.func, function.imported) == "torch.from_numpy":
                yield node, "computes with NumPy, which autograd does not see"
    yield from _detached(backward)


def _is_no_grad(node: ast.With, imported: Mapping[str, str]) -> bool:
    return any(
        isinstance(item.context_expr, ast.Call)
        and dotted(item.context_expr.func, imported) in {"torch.no_grad", "torch.inference_mode"}
        and not item.context_expr.args
        for item in node.items
    )


def _gives_gradient(node: ast.With, backward: Method) -> bool:
    """Whether the block returns, or binds a name that is returned."""
    if any(isinstance(n, ast.Return) for n in own_nodes_of(node.body)):
        return True
    bound = names_bound(node.body)
    results = (n.value for n in backward.nodes if isinstance(n, ast.Return) and n.value)
    entries = (e for value in results for e in (value.elts if isinstance(value, ast.Tuple) else [value]))
    return any(isinstance(entry, ast.Name) and entry.id in bound for entry in entries)


def _launching_helper(call: ast.Call, function: Function) -> str:
    """The helper of this module that is called and launches a kernel, empty for another call."""
    helper = function.helpers.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if helper is None:
        return ""
    launches = any(launched_kernel(n) for n in own_nodes_of(helper.body) if isinstance(n, ast.Call))
    return helper.name if launches else ""


def _detached(backward: Method) -> Iterator[tuple[ast.AST, str]]:
    """grad_output taken out of the graph by `.data`, `.detach()` or `.numpy()`."""
    given = {name: name for name in backward.parameters[1:]}
    aliases = Aliases(given, through=VIEWS - {"detach"})
    for step, known in steps(backward.node.body, aliases):
        for node in own_nodes(step):
            match node:
                case ast.Call(func=ast.Attribute(value=value, attr="detach" | "numpy" as attr)):
                    taken = known.parameter(value)
                case ast.Attribute(value=value, attr="data" as attr):
                    taken = known.parameter(value)
                case _:
                    continue
            if taken and not (names_read(step) and isinstance(step, ast.Compare)):
                shown = f".{attr}" if attr == "data" else f".{attr}()"
                yield node, f"takes `{taken}` out of the graph by {shown}"


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
    for inner in own_nodes_of(node.body):
        if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript):
            written = not isinstance(inner.ctx, ast.Load)
            outside = root_name(inner) not in local | {""}
            if written and outside:
                yield inner, f"writes `{_shown(inner)}`, which is not on ctx", _HINT_STATE
            elif isinstance(inner, ast.Attribute) and outside and dotted(inner, imported) in PROCESS:
                yield inner, f"reads `{ast.unparse(inner)}` of the process around it", _HINT_PROCESS
        elif isinstance(inner, ast.Call):
            owner = _changed(inner)
            if owner is not None and root_name(owner) not in local | imported.keys() | {""}:
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


def _shown(node: ast.expr) -> str:
    """What is written, without the items of a container."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)


_HINT_SAME = "That is right, and as fast and as exact as torch's own gradient of the same operations."

DIFFERENTIATING = frozenset(
    {"torch.autograd.grad", "torch.autograd.backward", "torch.autograd.functional.vjp"}
    | {"torch.func.grad", "torch.func.vjp", "torch.func.jacrev", "torch.func.jacfwd"}
)


def differentiates_forward(function: Function) -> Iterator[Alarm]:
    """GV817: backward has no formula of its own, but differentiates what forward computes."""
    backward = function.backward
    for node in backward.nodes if backward is not None else ():
        if not isinstance(node, ast.Call) or backward is None:
            continue
        of_tensor = isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and _is_local(node)
        if dotted(node.func, function.imported) in DIFFERENTIATING or of_tensor:
            said = f"{backward.name} differentiates forward again (`{ast.unparse(node.func)}`)"
            yield Alarm(node, said, _HINT_SAME)
            return


def _is_local(call: ast.Call) -> bool:
    """Whether it is a tensor's own, called without a ctx: `Other.backward(ctx, grad)` is another formula."""
    return not any(isinstance(argument, ast.Name) and argument.id == "ctx" for argument in call.args)
