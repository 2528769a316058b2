"""GV801: a backward that autograd cannot follow, and that does not say so with `once_differentiable`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.aliases import VIEWS, Aliases, steps
from gradverify.lint.functions import FunctionClass, Method, dotted, last_name
from gradverify.lint.kernels import addresses_given, launched_kernel
from gradverify.lint.walking import names_in, own_nodes, own_nodes_of

_HINT = (
    "Put @once_differentiable (torch.autograd.function) under @staticmethod: a second derivative then raises "
    "instead of missing a term."
)
_FOLLOWED = frozenset({"enable_grad", "apply", "once_differentiable", "checkpoint"})
"""Names in a backward that deals with its own graph: what is detached there may be so for a reason."""


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Find the first step of backward that cuts the graph."""
    backward = function.backward
    if backward is None or "once_differentiable" in backward.decorators or _deals_with_graph(backward):
        return
    cut = next(_cuts(backward, source), None)
    if cut is not None:
        node, how = cut
        yield Alarm("GV801", node, f"{backward.name} {how}, without once_differentiable", _HINT)


def _deals_with_graph(backward: Method) -> bool:
    return backward.is_wrapped or any(
        isinstance(node, ast.Name | ast.Attribute) and last_name(node) in _FOLLOWED
        for node in ast.walk(backward.node)
    )


def _cuts(backward: Method, source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node in backward.nodes:
        if (
            isinstance(node, ast.With)
            and _is_no_grad(node, source.imported)
            and _gives_gradient(node, backward)
        ):
            yield node, "computes its result under torch.no_grad()"
        elif isinstance(node, ast.Call):
            if kernel := launched_kernel(node):
                yield node, f"launches the kernel `{kernel}`, which autograd does not see"
            elif helper := _launching_helper(node, source):
                yield node, f"launches a kernel in `{helper}`, which autograd does not see"
            elif addresses_given(node, source.imported):
                yield node, f"hands addresses to `{ast.unparse(node.func)}`, which autograd does not see"
            elif dotted(node.func, source.imported) == "torch.from_numpy":
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
    inside = list(own_nodes_of(node.body))
    if any(isinstance(n, ast.Return) for n in inside):
        return True
    bound = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    results = (n.value for n in backward.nodes if isinstance(n, ast.Return) and n.value)
    entries = (e for value in results for e in (value.elts if isinstance(value, ast.Tuple) else [value]))
    return any(isinstance(entry, ast.Name) and entry.id in bound for entry in entries)


def _launching_helper(call: ast.Call, source: Source) -> str:
    """The helper of this module that is called and launches a kernel, empty for another call."""
    helper = source.helpers.get(call.func.id) if isinstance(call.func, ast.Name) else None
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
            if taken and not (names_in(step) and isinstance(step, ast.Compare)):
                shown = f".{attr}" if attr == "data" else f".{attr}()"
                yield node, f"takes `{taken}` out of the graph by {shown}"
