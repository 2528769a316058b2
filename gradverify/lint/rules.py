"""The static rules: what reading alone shows for certain, also of code that needs a GPU which is not here.

Each gives its alarms for one Function. A rule speaks only where the source leaves no doubt; helper calls,
starred tuples and code out of sight keep it silent.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Rule, plural
from gradverify.source import Function, Place
from gradverify.source.memory import contiguous_reads, inputs_written
from gradverify.source.method import gives_gradient, is_always_none, returned


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
                Place.of(path.node),
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
            Place.of(backward.node),
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
    known = set(OF_TORCH).union(*(m.attributes_known for m in methods))
    for name, place in backward.attributes_read.items():
        if name not in known and not name.startswith("_"):
            yield Alarm(
                place,
                f"{backward.name} reads `{backward.ctx}.{name}`, which {function.saving[0].name} never sets",
                _hint(function, name, known - OF_TORCH | {"saved_tensors", "needs_input_grad"}),
            )


def _hint(function: Function, name: str, known: set[str]) -> str:
    saving = function.saving[0].name
    if name in (function.of_instances or ()):
        return f"__init__ sets it, of an instance, which ctx is none: pass it to {saving}, and set it there."
    near = difflib.get_close_matches(name, sorted(known), 1, 0.6)
    return f"Did you mean `{near[0]}`?" if near else f"Set it in {saving}."


def saved_count(function: Function) -> Iterator[Alarm]:
    """GV813: backward unpacks another number of saved tensors than were saved."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    if any(method.lets_ctx_out() or method.is_wrapped for method in function.saving):
        return
    saved = function.saving[0].saved_counts
    if saved is None:
        return
    counts = sorted(saved) or [0]
    for taken in backward.unpacked:
        if max(counts) < taken.count if taken.at_least else taken.count not in counts:
            yield Alarm(
                taken.place,
                f"{backward.name} takes {plural(taken.count, 'saved tensor')}, but {_said(counts, function)}",
                "Unpack as many as were saved, in the same order.",
            )


def _said(counts: list[int], function: Function) -> str:
    if counts == [0]:
        return f"{function.saving[0].name} saves none"
    return f"{' or '.join(map(str, counts))} {'was' if counts == [1] else 'were'} saved"


def input_written(function: Function) -> Iterator[Alarm]:
    """GV811: forward modifies an input in place and does not tell autograd."""
    forward = function.forward
    if forward is None or any(m.calls_of_ctx("mark_dirty") or m.lets_ctx_out() for m in function.saving):
        return
    reported: set[str] = set()
    for place, parameter in inputs_written(function):
        if parameter not in reported:
            reported.add(parameter)
            yield Alarm(
                place,
                f"forward modifies its input `{parameter}` in place without ctx.mark_dirty({parameter})",
                "Work on a copy, or mark it dirty and return it.",
            )


def grad_output_layout(function: Function) -> Iterator[Alarm]:
    """GV809: backward reads grad_output as if it were contiguous."""
    backward = function.backward
    if backward is None or backward.is_wrapped:
        return
    for read in contiguous_reads(backward):
        of = f"`{read.parameter}`"
        match read.how:
            case "kernel":
                said = f"the kernel `{read.shown}` gets {of} without its strides"
                hint = f"Pass `{read.parameter}.contiguous()`, or its strides too."
            case "address":
                said = f"the address of {of} is taken whatever its strides are"
                hint = f"Take that of `{read.parameter}.contiguous()`."
            case _:
                said = f"`{read.shown}` may raise where {of} comes non-contiguous, as from a transpose"
                hint = "Use .reshape, or .contiguous() first."
        if read.how != "view":
            said = f"{said}: `.sum().backward()` sends stride 0"
        yield Alarm(read.place, said, hint)


RULES: dict[str, Rule] = {
    "GV803": gradient_count,
    "GV809": grad_output_layout,
    "GV811": input_written,
    "GV812": ctx_attributes,
    "GV813": saved_count,
    "GV814": grad_output_count,
}
"""By code."""
