"""GV809: backward reads grad_output as if it were contiguous."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.aliases import VIEWS, Aliases, steps
from gradverify.lint.functions import FunctionClass, Method
from gradverify.lint.kernels import addresses_given, launched_kernel
from gradverify.lint.walking import own_nodes

_LAYOUT = frozenset({"stride", "strides", "is_contiguous", "data_ptr_strides"})
"""What a backward that reckons with other layouts asks of a tensor."""


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Follow grad_output, as it came, to a `.view` that merges dimensions and to its address."""
    backward = function.backward
    if backward is None or backward.is_wrapped or _asks_for_layout(backward):
        return
    aliases = Aliases(
        {name: name for name in (*backward.parameters[1:], *filter(None, [backward.variadic]))},
        tuples=frozenset({backward.variadic} - {""}),
        through=VIEWS - {"view"},
    )
    calls = [node for node in backward.nodes if isinstance(node, ast.Call)]
    handed = {id(address) for call in calls for address in addresses_given(call, source.imported)}
    for step, known in steps(backward.node.body, aliases):
        for node in own_nodes(step):
            if isinstance(node, ast.Call):
                yield from _read_as_contiguous(node, known, handed)


def _read_as_contiguous(call: ast.Call, known: Aliases, handed: set[int]) -> Iterator[Alarm]:
    kernel = launched_kernel(call)
    given = next(filter(None, map(known.parameter, call.args)), "") if kernel else ""
    if given:
        yield Alarm(
            "GV809",
            call,
            f"the kernel `{kernel}` gets `{given}` without its strides: `.sum().backward()` sends stride 0",
            f"Pass `{given}.contiguous()`, or its strides too.",
        )
    if not isinstance(call.func, ast.Attribute):
        return
    taken = known.parameter(call.func.value)
    if taken and call.func.attr == "data_ptr" and id(call) in handed:
        yield Alarm(
            "GV809",
            call,
            f"the address of `{taken}` is taken whatever its strides are: `.sum().backward()` sends stride 0",
            f"Take that of `{taken}.contiguous()`.",
        )
    elif taken and call.func.attr == "view" and _merges(call):
        yield Alarm(
            "GV809",
            call,
            f"`{ast.unparse(call)}` raises where `{taken}` comes non-contiguous, as from a transpose",
            "Use .reshape, or .contiguous() first.",
        )


def _asks_for_layout(backward: Method) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in _LAYOUT for n in ast.walk(backward.node))


def _merges(call: ast.Call) -> bool:
    """Whether a view puts several dimensions into one: `view(-1)`, `view(-1, d)`, `view(b, -1)`."""
    sizes = call.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    inferred = [s for s in sizes if isinstance(s, ast.UnaryOp) and ast.unparse(s) == "-1"]
    ones = any(isinstance(s, ast.Constant) and s.value == 1 for s in sizes)
    return len(sizes) <= 2 and bool(inferred) and not ones
