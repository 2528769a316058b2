"""GV815: backward never uses its grad_output."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass, Method, last_name
from gradverify.lint.returned import gives_gradient
from gradverify.lint.walking import names_in


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Report a backward that returns gradients without ever reading a grad_output."""
    backward = function.backward
    if backward is None or backward.is_wrapped or len(backward.parameters) < 2:
        return
    given = {*backward.parameters[1:], *filter(None, [backward.variadic])}
    names = names_in(backward.node)
    if given & names or names & {"locals", "super"} or not _gives_gradient(backward):
        return
    named = ", ".join(f"`{name}`" for name in backward.parameters[1:])
    yield Alarm(
        "GV815",
        backward.node,
        f"{backward.name} never uses {named}: its gradient is right only where the output is the loss itself",
        "Multiply by grad_output, also where forward has computed the gradient already.",
    )


def _gives_gradient(backward: Method) -> bool:
    """Whether something other than None and zeros is returned, as far as one can see."""
    zeros = any(
        "zero" in last_name(n) for n in ast.walk(backward.node) if isinstance(n, ast.Name | ast.Attribute)
    )
    return not zeros and gives_gradient(backward)
