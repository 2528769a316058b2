"""How a body of source cuts tensors into equal parts and joins them: sizes that are multiples, or sums."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MOST_PARTS = 16
"""More parts than any layer has: larger numbers of a source are no counts of gates or of heads."""

_CUTTING = frozenset(
    {"chunk", "split", "tensor_split", "unbind", "unsafe_chunk", "hsplit", "vsplit", "dsplit"}
)
_RESHAPING = frozenset({"view", "reshape", "unflatten", "rearrange", "unfold"})
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack"})


@dataclass(frozen=True)
class Cuts:
    """What the source says of sizes that follow from others."""

    parts: frozenset[int] = frozenset()
    """Numbers of equal parts: 4 of `i, f, g, o = gates.chunk(4, 1)`."""
    joins: bool = False
    """Something is concatenated: a size may be the sum of two."""

    def with_more(self, other: Cuts) -> Cuts:
        """What two bodies say together."""
        return Cuts(self.parts | other.parts, self.joins or other.joins)


NO_CUTS = Cuts()
"""Of a source that says nothing."""


def cuts_of(definition: ast.AST) -> Cuts:
    """Read the calls, the slices and the quotients of a body."""
    parts = {n for node in ast.walk(definition) for n in _parts(node) if 2 <= n <= MOST_PARTS}
    joins = any(isinstance(n, ast.Call) and _name(n) in _JOINING for n in ast.walk(definition))
    return Cuts(frozenset(parts), joins)


def _parts(node: ast.AST) -> Iterator[int]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=entries)], value=ast.Call() as call):
            names = {_name(n) for n in ast.walk(call) if isinstance(n, ast.Call)}
            starred = any(isinstance(e, ast.Starred) for e in entries)
            if names & _CUTTING and "unbind" not in names and not starred:
                yield len(entries)
        case ast.Call() if _name(node) in _CUTTING | _RESHAPING:
            yield from _integers([*node.args, *(k.value for k in node.keywords)])
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
            yield from _integers([right])
        case ast.BinOp(op=ast.Mult(), left=left, right=right) if _is_bound(left, right):
            # `2 * hidden`, where slices end, and not a factor of numbers
            yield from _integers([left, right])
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Mult):
                    yield from (n + 1 for n in _integers([bound.left, bound.right]))
        case _:
            return


def _is_bound(left: ast.expr, right: ast.expr) -> bool:
    other = right if isinstance(left, ast.Constant) else left
    name = other.id if isinstance(other, ast.Name) else ""
    return any(word in name for word in ("hidden", "dim", "size", "channels", "units"))


def _integers(nodes: list[ast.expr]) -> Iterator[int]:
    yield from (n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is int)


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
