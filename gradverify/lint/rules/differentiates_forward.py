"""GV817: backward has no formula of its own, but differentiates what forward computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass, dotted

_HINT = "That is right, and as fast and as exact as torch's own gradient of the same operations."

DIFFERENTIATING = frozenset(
    {"torch.autograd.grad", "torch.autograd.backward", "torch.autograd.functional.vjp"}
    | {"torch.func.grad", "torch.func.vjp", "torch.func.jacrev", "torch.func.jacfwd"}
)


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Find the call by which backward has torch compute its gradient."""
    backward = function.backward
    for node in backward.nodes if backward is not None else ():
        if not isinstance(node, ast.Call) or backward is None:
            continue
        of_tensor = isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and _is_local(node)
        if dotted(node.func, source.imported) in DIFFERENTIATING or of_tensor:
            said = f"{backward.name} differentiates forward again (`{ast.unparse(node.func)}`)"
            yield Alarm("GV817", node, said, _HINT)
            return


def _is_local(call: ast.Call) -> bool:
    """Whether it is a tensor's own, called without a ctx: `Other.backward(ctx, grad)` is another formula."""
    return not any(isinstance(argument, ast.Name) and argument.id == "ctx" for argument in call.args)
