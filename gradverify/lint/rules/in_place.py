"""Memory that forward and backward must not write into, or must not read as contiguous."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm
from gradverify.lint.kernels import addresses_given, launched_kernel
from gradverify.source import Function, Method, integer, own_nodes
from gradverify.source.memory import SAME_IF_CONTIGUOUS, VIEWS, Aliases, steps, writes
from gradverify.source.returned import differentiated


def grad_output_written(function: Function) -> Iterator[Alarm]:
    """GV804: backward modifies its grad_output in place."""
    backward = function.backward
    if backward is None:
        return
    aliases = _grad_outputs(backward, VIEWS | SAME_IF_CONTIGUOUS)
    for step, known in steps(backward.node.body, aliases):
        for node, parameter in writes(step, known, function.imported):
            yield Alarm(
                node,
                f"{backward.name} modifies `{parameter}` in place, which other nodes of the graph may share",
                f"Work on a copy: `{parameter} * ...` instead of `mul_`, or `{parameter}.clone()` first.",
            )


def _grad_outputs(backward: Method, through: frozenset[str]) -> Aliases:
    variadic = frozenset({backward.variadic} - {""})
    return Aliases({name: name for name in (*backward.parameters[1:], *variadic)}, variadic, through)


_LAYOUT = frozenset({"stride", "strides", "is_contiguous", "data_ptr_strides"})
"""What a backward that allows for other layouts asks of a tensor."""


def grad_output_layout(function: Function) -> Iterator[Alarm]:
    """GV809: backward reads grad_output as if it were contiguous."""
    backward = function.backward
    if backward is None or backward.is_wrapped or _asks_for_layout(backward):
        return
    aliases = _grad_outputs(backward, VIEWS - {"view"})
    calls = [node for node in backward.nodes if isinstance(node, ast.Call)]
    handed = {id(address) for call in calls for address in addresses_given(call, function.imported)}
    for step, known in steps(backward.node.body, aliases):
        for node in own_nodes(step):
            if isinstance(node, ast.Call):
                yield from _read_as_contiguous(node, known, handed)


def _read_as_contiguous(call: ast.Call, known: Aliases, handed: set[int]) -> Iterator[Alarm]:
    kernel = launched_kernel(call)
    given = next(filter(None, map(known.parameter, call.args)), "") if kernel else ""
    if given:
        yield Alarm(
            call,
            f"the kernel `{kernel}` gets `{given}` without its strides: `.sum().backward()` sends stride 0",
            f"Pass `{given}.contiguous()`, or its strides too.",
        )
    if not isinstance(call.func, ast.Attribute):
        return
    taken = known.parameter(call.func.value)
    if taken and call.func.attr == "data_ptr" and id(call) in handed:
        yield Alarm(
            call,
            f"the address of `{taken}` is taken whatever its strides are: `.sum().backward()` sends stride 0",
            f"Take that of `{taken}.contiguous()`.",
        )
    elif taken and call.func.attr == "view" and _merges(call):
        yield Alarm(
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
    numbers = [integer(size) for size in sizes]
    return len(sizes) <= 2 and -1 in numbers and 1 not in numbers


def input_written(function: Function) -> Iterator[Alarm]:
    """GV811: forward modifies an input in place and does not tell autograd."""
    forward = function.forward
    if forward is None or any(m.calls_of_ctx("mark_dirty") or m.lets_ctx_out() for m in function.saving):
        return
    aliases = Aliases({name: name for name in differentiated(function)}, through=VIEWS)
    reported: set[str] = set()
    for step, known in steps(forward.node.body, aliases):
        for node, parameter in writes(step, known, function.imported):
            if parameter not in reported:
                reported.add(parameter)
                yield Alarm(
                    node,
                    f"forward modifies its input `{parameter}` in place without ctx.mark_dirty({parameter})",
                    "Work on a copy, or mark it dirty and return it.",
                )
