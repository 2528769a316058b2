"""What is wrong with one block of a second-order Jacobian, in words (GV201, GV202).

The change by which a backward says that it has no second derivative, as lines of its file.

What leaves no graph for a second derivative: what forward keeps, and calls in the source that cut it.

Autograd gives a saved input or output back with its graph. Everything else that forward keeps is a constant
in backward, silently.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from gradverify.model import Finding, LinePatch, Severity, SourceChange, indexed, shown_path
from gradverify.source import Method, cuts, definition, import_line, is_bound_above
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    number,
)
from gradverify.verifier.collect.discover import wrapped_backward
from gradverify.verifier.collect.forward_itself import StandInContext, run_watched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies, returned_tensors, same_bits, substitute
from gradverify.verifier.numerics.problem import VjpProblem

DECORATOR = once_differentiable.__name__


def marked_first_order(function: type[Function]) -> tuple[SourceChange, ...]:
    """`@once_differentiable` above backward, and its import where the module lacks it.

    Empty where backward's source, or that of its module, cannot be had.
    """
    backward = inspect.unwrap(own_backward(function))
    tree, code = definition(backward), getattr(backward, "__code__", None)
    if tree is None or code is None:
        return ()
    file, lines = Path(code.co_filename), linecache.getlines(code.co_filename)
    # Lines count from 1 at the first decorator, as the code's first line does.
    place = code.co_firstlineno + tree.lineno - 2
    if not place < len(lines) or not lines[place].lstrip().startswith("def "):
        return ()
    above = lines[place][: len(lines[place]) - len(lines[place].lstrip())] + f"@{DECORATOR}"
    decorated = _inserted(file, lines, place, above)
    return (*_imported(file, lines, place + 1), decorated)


def _imported(file: Path, lines: list[str], line: int) -> Iterator[SourceChange]:
    """The import among those of the module, where the name is not known above a line yet."""
    source = "".join(lines)
    place = import_line(source) - 1
    if not is_bound_above(source, DECORATOR, line) and place < len(lines):
        yield _inserted(file, lines, place, f"from torch.autograd.function import {DECORATOR}")


def _inserted(file: Path, lines: list[str], place: int, text: str) -> SourceChange:
    """A line put before the one at an index."""
    here = lines[place].rstrip("\r\n")
    patch = LinePatch.within(shown_path(file), lines, place, place + 1, (text, here))
    return SourceChange(file.name, place + 1, "", text.strip(), patch, refuses=True)


CALLS = frozenset({"detach", "detach_", "item", "numpy", "tolist"})
"""Methods that give a tensor back without its graph, or its numbers."""

MODES = frozenset({"no_grad", "inference_mode"})
"""What records no graph while it lasts."""

MOST_NAMED = 3
"""Calls that one sentence names."""


@dataclass(frozen=True)
class Cuts:
    """What may keep the second derivative from being right."""

    kept: tuple[str, ...] = ()
    """Values that forward keeps and that lose their graph by it, in forward's names."""
    are_copies: bool = False
    """All of them are equal to an input or an output."""
    calls: tuple[str, ...] = ()
    """Calls in backward and forward that cut the graph, quoted with their places."""


def graph_cuts(sample: Sample, second: VjpProblem) -> Cuts:
    """What forward keeps without its graph; where that is nothing, the calls in the source that cut it."""
    function = sample.subject.function_class
    if function is None or any(a.in_list for a in sample.arguments):
        return Cuts()
    found = guard.call(lambda: tuple(_kept(function, sample, second)))
    kept = () if isinstance(found, Raised) else found.value
    if kept:
        return Cuts(tuple(name for name, _ in kept), are_copies=all(is_copy for _, is_copy in kept))
    forwards, backwards = _Cutting(), _Cutting()
    guard.call(forwards.during(_forward_with_graph), function, sample, second)
    with wrapped_backward(function, backwards.during):  # torch.autograd.grad leaves a mode from outside
        second.graph(second.primals)
    calls = (*backwards.cut(own_backward(function)), *forwards.cut(function.forward))
    return Cuts(calls=tuple(dict.fromkeys(calls))[:MOST_NAMED])


class _Cutting(TorchFunctionMode):
    """Notes the lines on which a tensor that has a graph loses it, or is read where none is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: set[tuple[str, int, bool]] = set()
        """The last is whether a graph was recorded there."""

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, during whose calls they are noted."""

        def watched(*arguments: Any) -> Any:  # noqa: ANN401 - whatever the function's are
            with self:
                return function(*arguments)

        return watched

    def cut(self, method: Callable[..., Any]) -> Iterator[str]:
        """Each call of a method, and of what that calls, that was met as it cut the graph; with its place."""
        for cut in cuts(method, CALLS, MODES):
            if any((cut.file, line, cut.records) in self._lines for line in cut.lines):
                yield f"`{cut.shown}` ({Path(cut.file).name}:{cut.line})"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        given = (*args, *(kwargs or {}).values())
        is_read = getattr(func, "__name__", "") in CALLS or getattr(func, "__self__", None) is _DATA
        recorded = torch.is_grad_enabled()
        if (is_read or not recorded) and any(isinstance(one, Tensor) and one.requires_grad for one in given):
            frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback costs more
            while frame is not None:
                self._lines.add((frame.f_code.co_filename, frame.f_lineno, recorded))
                frame = frame.f_back
        return func(*args, **(kwargs or {}))


_DATA = Tensor.data
"""The property, as it is known to whoever watches its use."""


def _forward_with_graph(
    function: type[Function], sample: Sample, second: VjpProblem
) -> tuple[list[Any], Any, StandInContext, dict[str, Any]]:
    """Forward without autograd's wrapping: its arguments and its result, its ctx and its names of values."""
    leaves = [p.requires_grad_() for p in copies(second.primals)][: len(sample.problem.primals)]
    sample.problem.random_states.replay()
    with torch.enable_grad():
        arguments = substitute(sample.arguments, [leaf.clone() for leaf in leaves])
        return [*arguments], *run_watched(function, arguments)


def _kept(function: type[Function], sample: Sample, second: VjpProblem) -> Iterator[tuple[str, bool]]:
    """What forward keeps that depends on the inputs and is neither one of them nor an output.

    (its name, whether it is a copy of one).
    """
    arguments, result, context, names = _forward_with_graph(function, sample, second)
    known = [*arguments, *returned_tensors(result)]
    backward = Method.of(own_backward(function))
    taken = backward.unpacked if backward is not None else ()
    unpacked = next((one.names for one in taken if one.names), ())
    named = {id(value): name for name, value in names.items() if name != "ctx"}
    values: list[tuple[str, Any]] = [(f"ctx.{name}", value) for name, value in context.attributes.items()]
    for position, value in enumerate(context.saved_tensors):
        own = unpacked[position] if len(unpacked) == len(context.saved_tensors) else ""
        values.append((named.get(id(value)) or own or f"ctx.saved_tensors[{position}]", value))
    for name, value in values:
        if isinstance(value, Tensor) and value.requires_grad and not any(value is k for k in known):
            yield name, any(same_bits(value, k) for k in known if isinstance(k, Tensor))


FIRST_ORDER_ONLY = (
    "If no second derivative is meant, say so: @torch.autograd.function.once_differentiable above backward."
)


FIRST_ROWS = 16
"""So many entries of the outputs are asked for one on which the gradient depends: of a ReLU many are zero."""


def cut_by_kernel(sample: Sample) -> Finding | None:
    """No gradient has a graph, as a kernel leaves it; None where the gradients are zero, so nothing is lost.

    Backward is linear in grad_output, so its derivative by that is known without a measurement. A warning: of
    kernels hardly any second derivative is meant, and whoever asks for one must learn that it is lost.
    """
    problem = sample.problem
    for chosen in range(min(FIRST_ROWS, problem.outputs.size)):
        one = torch.zeros(problem.outputs.size, dtype=torch.float64)
        one[chosen] = 1.0
        row = problem.pull_back(problem.primals, problem.outputs.unflatten(one))
        flat = torch.zeros(1) if isinstance(row, Raised) else sample.inputs.flatten(row.value).nan_to_num(0.0)
        if flat.any():
            break
    else:
        return None
    worst = int(flat.abs().argmax())
    block = sample.inputs.blocks[sample.inputs.block_of(worst)]
    name = problem.input_names[sample.inputs.block_of(worst)]
    output = problem.outputs.blocks[problem.outputs.block_of(chosen)]
    entry = indexed("grad_output", output.index(chosen))
    place = f"d grad of {indexed(name, block.index(worst))} / d {entry} is {number(flat[worst].item())}"
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut by a kernel: for autograd the gradient of `{name}` depends "
        f"on nothing, but {place}",
        hint=FIRST_ORDER_ONLY,
        input=name,
        severity=Severity.WARNING,
        cause="detached",
    )


def offered(sample: Sample, finding: Finding) -> Finding:
    """The finding with the change that refuses a second derivative, where it is cut off."""
    function = sample.subject.function_class
    if finding.cause != "detached" or function is None or finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, changes=marked_first_order(function))


def because_of(finding: Finding, cuts: Cuts) -> Finding:
    """The finding with what leaves no graph, as reading and one run of forward show it."""
    if cuts.kept:
        return replace(finding, hint=f"{_of_kept(cuts)} {FIRST_ORDER_ONLY}", cause="detached")
    if cuts.calls:
        cut, what = ("cut", "they give") if len(cuts.calls) > 1 else ("cuts", "it gives")
        hint = (
            f"{' and '.join(cuts.calls)} {cut} the graph: what {what} is a constant for a second derivative."
        )
        return replace(finding, hint=f"{hint} {FIRST_ORDER_ONLY}", cause="detached")
    return finding


def _of_kept(cuts: Cuts) -> str:
    names = " and ".join(f"`{name}`" for name in cuts.kept)
    several = len(cuts.kept) > 1
    if cuts.are_copies:
        are = "are copies of inputs or outputs" if several else "is a copy of an input or output"
        return f"{names}, which forward keeps, {are}, without a graph: save the input or output itself."
    are, them, depend = (
        ("are neither inputs nor outputs", "them", "they depend")
        if several
        else ("is neither an input nor an output", "it", "it depends")
    )
    return (
        f"{names}, which forward keeps, {are}: in backward, {depend} on nothing for autograd. "
        f"Compute {them} in backward from saved inputs and outputs."
    )
