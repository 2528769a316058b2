"""The static rules: what reading alone shows for certain, also of code that needs a GPU which is not here.

Each gives its alarms for one Function. A rule speaks only where the source leaves no doubt; helper calls,
starred tuples and code out of sight keep it silent.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from gradverify.lint.alarm import Alarm, Rule, plural
from gradverify.source import Function, Method, dotted, integer, own_nodes
from gradverify.source.memory import VIEWS, Aliases, steps, writes
from gradverify.source.returned import differentiated, gives_gradient, is_always_none, returned


def gradient_count(function: Function) -> Iterator[Alarm]:
    """GV803: a path of backward that returns more or fewer gradients than forward has parameters."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.variadic or not function.is_whole:
        return
    if not gives_gradient(backward):
        return  # nobody calls it: an output that is not differentiable
    inputs = function.inputs
    fewest = len(inputs) - forward.defaults
    for path in returned(backward):
        if path.values is None:
            continue
        count = len(path.values)
        surplus = path.values[len(inputs) :]
        if count < fewest or any(not is_always_none(value, backward) for value in surplus):
            takes = plural(len(inputs), "input")
            gives = plural(count, "gradient")
            yield Alarm(
                path.node,
                f"{backward.name} returns {gives} here, forward takes {takes} ({', '.join(inputs)})",
                "Return one gradient for each input of forward in order, None for those that have none.",
            )


def grad_output_count(function: Function) -> Iterator[Alarm]:
    """GV814: backward takes another number of grad_outputs than forward has outputs."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or backward.variadic or not function.is_whole:
        return
    if forward.is_wrapped or backward.is_wrapped:
        return
    paths = returned(forward)
    counts = {len(path.values or ()) for path in paths}
    outputs = counts.pop() if len(counts) == 1 else 0
    if outputs <= 1:  # what a single one holds cannot be read off
        return
    most = len(backward.parameters) - 1
    if not most - backward.defaults <= outputs <= most:
        yield Alarm(
            backward.node,
            f"{backward.name} takes {plural(most, 'grad_output')}, forward returns "
            f"{plural(outputs, 'output')} (line {paths[0].node.lineno})",
            "Give it one parameter after ctx for each output of forward.",
        )


OF_TORCH = frozenset(
    {"apply", "dirty_tensors", "mark_dirty", "mark_non_differentiable", "mark_shared_storage"}
    | {"materialize_grads", "maybe_clear_saved_tensors", "metadata", "name", "needs_input_grad"}
    | {"next_functions", "non_differentiable", "register_hook", "register_prehook", "requires_grad"}
    | {"save_for_backward", "save_for_forward", "saved_for_forward", "saved_tensors", "saved_variables"}
    | {"set_materialize_grads", "to_save"}
)
"""What ctx has by itself."""


def ctx_attributes(function: Function) -> Iterator[Alarm]:
    """GV812: backward reads an attribute of ctx that nothing sets."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    methods = [m for m in (*function.saving, function.methods.get("jvp"), backward) if m is not None]
    if any(m.lets_ctx_out() for m in methods) or any(m.is_wrapped for m in methods):
        return
    known = set(OF_TORCH).union(*(m.attributes_set | m.attributes_probed for m in methods))
    reported: set[str] = set()
    for node in backward.attributes_read:
        if node.attr in known or node.attr in reported or node.attr.startswith("_"):
            continue
        reported.add(node.attr)
        yield Alarm(
            node,
            f"{backward.name} reads `{ast.unparse(node)}`, which {function.saving[0].name} never sets",
            _hint(function, node, known - OF_TORCH | {"saved_tensors", "needs_input_grad"}),
        )


def _hint(function: Function, node: ast.Attribute, known: set[str]) -> str:
    of_class = {
        target.id
        for item in function.node.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    if node.attr in of_class:
        return f"ctx is no instance of the class: write {function.name}.{node.attr}."
    if _is_set_by_instances(function, node.attr):
        saving = function.saving[0].name
        return f"__init__ sets it, of an instance, which ctx is none: pass it to {saving}, and set it there."
    near = difflib.get_close_matches(node.attr, sorted(known), 1, 0.6)
    return f"Did you mean `{near[0]}`?" if near else f"Set it in {function.saving[0].name}."


def _is_set_by_instances(function: Function, attribute: str) -> bool:
    """Whether the class's `__init__` sets an attribute."""
    bodies = (n for n in function.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    stored = (n for body in bodies for n in ast.walk(body) if isinstance(n, ast.Attribute))
    return any(n.attr == attribute and isinstance(n.ctx, ast.Store) for n in stored)


def saved_count(function: Function) -> Iterator[Alarm]:
    """GV813: backward unpacks another number of saved tensors than were saved."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    if any(method.lets_ctx_out() or method.is_wrapped for method in function.saving):
        return
    saved = [call for method in function.saving for call in method.saved]
    if any(isinstance(argument, ast.Starred) for call in saved for argument in call.args):
        return
    counts = sorted({len(call.args) for call in saved}) or [0]
    for node, count, at_least in _taken(backward):
        if max(counts) < count if at_least else count not in counts:
            yield Alarm(
                node,
                f"{backward.name} takes {plural(count, 'saved tensor')}, but {_said(counts, function)}",
                "Unpack as many as were saved, in the same order.",
            )


def _said(counts: list[int], function: Function) -> str:
    if counts == [0]:
        return f"{function.saving[0].name} saves none"
    return f"{' or '.join(map(str, counts))} {'was' if counts == [1] else 'were'} saved"


def _taken(backward: Method) -> Iterator[tuple[ast.AST, int, bool]]:
    """(node, how many tensors it takes, whether more may have been saved)."""
    reads = {id(n) for n in backward.attributes_read if n.attr in {"saved_tensors", "saved_variables"}}
    for node in backward.nodes:
        if isinstance(node, ast.Assign) and id(node.value) in reads:
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List):
                    starred = any(isinstance(element, ast.Starred) for element in target.elts)
                    yield target, len(target.elts) - starred, starred
        elif isinstance(node, ast.Subscript) and id(node.value) in reads:
            index = integer(node.slice)
            if index is not None and index >= 0:
                yield node, index + 1, True


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


_LAYOUT = frozenset({"stride", "strides", "is_contiguous", "data_ptr_strides"})
"""What a backward that allows for other layouts asks of a tensor."""


def grad_output_layout(function: Function) -> Iterator[Alarm]:
    """GV809: backward reads grad_output as if it were contiguous."""
    backward = function.backward
    if backward is None or backward.is_wrapped or _asks_for_layout(backward):
        return
    variadic = frozenset({backward.variadic} - {""})
    given = {name: name for name in (*backward.parameters[1:], *variadic)}
    aliases = Aliases(given, variadic, VIEWS - {"view"})
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
            f"`{ast.unparse(call)}` may raise where `{taken}` comes non-contiguous, as from a transpose",
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


def launched_kernel(call: ast.Call) -> str:
    """The kernel that `kernel[grid](...)` launches, empty for another call."""
    if not isinstance(call.func, ast.Subscript) or not isinstance(call.func.value, ast.Name):
        return ""
    name, index = call.func.value.id, call.func.slice
    is_grid = isinstance(index, ast.Tuple | ast.Lambda) or (
        isinstance(index, ast.Name) and "grid" in index.id
    )
    return name if is_grid and ("kernel" in name or len(call.args) + len(call.keywords) > 3) else ""


def addresses_given(call: ast.Call, imported: Mapping[str, str]) -> tuple[ast.Call, ...]:
    """The `x.data_ptr()` given to a call that reads memory; empty for one that may only keep them.

    An address alone may be a key of a dictionary. A function that computes gets two at least, or one through
    ctypes.
    """
    given = tuple(
        a
        for a in call.args
        if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute) and a.func.attr == "data_ptr"
    )
    by_ctypes = dotted(call.func, imported).startswith("ctypes.")
    return given if len(given) > 1 or by_ctypes else ()


RULES: dict[str, Rule] = {
    "GV803": gradient_count,
    "GV809": grad_output_layout,
    "GV811": input_written,
    "GV812": ctx_attributes,
    "GV813": saved_count,
    "GV814": grad_output_count,
}
"""By code."""
