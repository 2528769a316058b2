"""What forward hands on to backward through ctx without a look: nothing tells what it was meant to be."""

from __future__ import annotations

import ast

from torch.autograd import Function

from gradverify.source import Method
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.collect.discover import uses_setup_context


def asks_of_what_is_handed_on(function: type[Function], attribute: str) -> bool:
    """Whether backward asks an attribute of an argument that forward keeps on ctx, itself unread."""
    backward = Method.of(own_backward(function))
    filling = Method.of(function.setup_context if uses_setup_context(function) else function.forward)
    bodies = [m.node for m in (Method.of(function.forward), filling) if m is not None]
    if backward is None or filling is None:
        return False
    unread = {at for at, name in _kept(filling) if not any(_is_read(name, body) for body in bodies)}
    own = {
        name
        for name, values in backward.bindings.items()
        if any(_is_kept(value, backward, unread) for value in values)
    }
    asked = (n.value for n in backward.nodes if isinstance(n, ast.Attribute) and n.attr == attribute)
    return any(_is_kept(v, backward, unread) or (isinstance(v, ast.Name) and v.id in own) for v in asked)


def _is_kept(node: ast.expr | None, backward: Method, names: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and backward.is_ctx(node.value) and node.attr in names


def _kept(method: Method) -> list[tuple[str, str]]:
    """(attribute, local name) of what a method keeps on ctx as it got it: a parameter, one of `inputs`."""
    names, found = set(method.parameters), []
    for node in method.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            for target in node.targets:
                names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                if isinstance(target, ast.Attribute) and method.is_ctx(target.value):
                    found.append((target.attr, node.value.id))
    return found


def _is_read(name: str, body: ast.FunctionDef) -> bool:
    """Whether a body does anything with a name but to keep it on ctx."""
    handed = {
        id(n.value)
        for n in ast.walk(body)
        if isinstance(n, ast.Assign) and all(isinstance(t, ast.Attribute) for t in n.targets)
    }
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and id(n) not in handed
        for n in ast.walk(body)
    )
