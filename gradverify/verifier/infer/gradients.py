"""What backward returns for each parameter by its source: a gradient, None, or None where one is intended."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from gradverify.source import Method, integer, last_name, returned
from gradverify.source.returned import is_always_none
from gradverify.verifier.infer.facts import Facts

ASKED = "needs_input_grad"


def note_gradients(facts: Mapping[str, Facts], backward: Method) -> None:
    """Note of every parameter whether backward returns a gradient for it, and whether one is intended."""
    names = list(facts)
    for place in _asked(backward):
        if -len(names) <= place < len(names):
            facts[names[place]].intended = True
    paths = [_values(path.node.value, path.values, len(names)) for path in returned(backward)]
    known = [path for path in paths if path is not None]
    for place, name in enumerate(names if len(known) == len(paths) else ()):
        given = [path[place] for path in known if place < len(path)]
        if given:
            facts[name].gradient = not all(is_always_none(g, backward) for g in given)


def _values(
    node: ast.expr | None, values: Sequence[ast.expr] | None, count: int
) -> Sequence[ast.expr] | None:
    """What a path returns, by parameter; of one parameter it may be any expression."""
    if values is None and count == 1 and node is not None:
        return [node]
    return None if any(isinstance(e, ast.Starred) for e in getattr(node, "elts", ())) else values


def _asked(backward: Method) -> Iterator[int]:
    """Positions of `needs_input_grad` that backward reads for more than to refuse a gradient."""
    refusing = {id(n) for test in _refusals(backward) for n in ast.walk(test)}
    for node in backward.nodes:
        if isinstance(node, ast.Subscript) and last_name(node.value) == ASKED and id(node) not in refusing:
            place = integer(node.slice)
            yield from () if place is None else (place,)


def _refusals(backward: Method) -> Iterator[ast.expr]:
    """Conditions under which backward raises, warns or does nothing else."""
    for node in backward.nodes:
        match node:
            case ast.Assert(test=test):
                yield test
            case ast.If(test=test, body=body, orelse=[]):
                if all(isinstance(s, ast.Raise | ast.Expr | ast.Pass) for s in body):
                    yield test
            case _:
                pass
