"""What forward hands on to backward through ctx without a look: nothing tells what it was meant to be."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch.autograd import Function

from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.collect.discover import uses_setup_context
from gradverify.verifier.collect.inference.composites import Taken, kept_on_context
from gradverify.verifier.collect.inference.evidence import parsed


def asks_of_what_is_handed_on(function: type[Function], attribute: str) -> bool:
    """Whether backward asks an attribute of an argument that forward keeps on ctx, itself unread."""
    backward = parsed(own_backward(function))
    bodies = [parsed(function.forward)]
    if uses_setup_context(function):
        bodies.append(parsed(function.setup_context))
    definitions = [d for d in bodies if d is not None]
    if backward is None or not definitions:
        return False
    kept = {at: name for d in definitions for at, name in _kept(d) if not _is_read(name, definitions)}
    taken = Taken(sorted(set(kept.values())))
    taken.read(backward, kept)
    return any(route[:1] == (f".{attribute}",) for _, route in taken.routes)


def _kept(definition: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """(`ctx.name`, local name) of what a body keeps as it got it: a parameter, or one of `inputs`."""
    names = {a.arg for a in definition.args.args}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    yield from kept_on_context(definition, {n: n for n in names})


def _is_read(name: str, definitions: list[ast.FunctionDef]) -> bool:
    """Whether a body does anything with a name but to keep it on ctx."""
    for definition in definitions:
        handed = {
            id(n.value)
            for n in ast.walk(definition)
            if isinstance(n, ast.Assign) and all(isinstance(t, ast.Attribute) for t in n.targets)
        }
        for node in ast.walk(definition):
            own = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
            if own and id(node) not in handed:
                return True
    return False
