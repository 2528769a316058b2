"""Second order: the double backward is right, refused clearly, or silently cut (GV201 to GV203), and by what.

Autograd gives a saved input or output back with its graph. Everything else that forward keeps is a constant
in backward, silently: what is cut by it is one mistake, and one finding.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from gradverify.model import (
    Finding,
    LinePatch,
    Outcome,
    RaisedError,
    Severity,
    SourceChange,
    indexed,
    shown_path,
)
from gradverify.source import Method, cuts, definition, import_line, is_bound_above
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import run_every_node
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.numerics.calling import copies, returned_tensors, same_bits, substitute
from gradverify.verifier.numerics.problem import Graph, VjpProblem
from gradverify.verifier.questions.findings import FIRST_ORDER_ONLY, not_known, wrong_second
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.result import CheckResult, outcome_of
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.witnessing import Witnesses, cotangents_of, second_order
from gradverify.verifier.questions.wording import apart, listed_names, number
from gradverify.verifier.targets.discover import compiled_calls, wrapped_backward
from gradverify.verifier.targets.forward_itself import StandInContext, run_watched
from gradverify.verifier.witnesses.answers import Asked, NotJudged, Right, Unknown, Wrong
from gradverify.verifier.witnesses.claim import Claim, spread_of_rows, units
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.proof import differing
from gradverify.verifier.witnesses.rounding import FACTOR
from gradverify.verifier.witnesses.values import Values, probe

MOST_INPUTS = 4
"""So many inputs require grad alone."""

FIRST_ROWS = 16
"""So many entries of the outputs are asked for one on which the gradient depends: of a ReLU many are zero."""

MOST_NAMED = 3
"""Calls that one sentence names."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that are never raised to refuse a double backward."""

CALLS = frozenset({"detach", "detach_", "item", "numpy", "tolist"})
"""Methods that give a tensor back without its graph, or its numbers."""

MODES = frozenset({"no_grad", "inference_mode"})
"""What records no graph while it lasts."""

ALONE = (
    "With all inputs it is right. Is something detached, or left out, where ctx.needs_input_grad says that "
    "another input needs no gradient?"
)

DECORATOR = once_differentiable.__name__


def ask_second(
    sample: Sample, graph: Graph, first: Asked, witnesses: Witnesses, *, prove: bool
) -> CheckResult:
    """Judge the derivative of backward at one grad_output, in the inputs and in grad_output.

    At values that nobody declared both witnesses must speak against it.
    """
    second = second_problem(sample)
    anew = prove or graph.is_stale
    made = second.graph(second.primals) if anew else second.graph_from(graph, second.cotangents)
    if isinstance(made, Raised) and not anew:  # the backward before may have freed what it keeps
        made = second.graph(second.primals)
    if isinstance(made, Raised):
        return _raised(sample, made.error, "under create_graph=True")
    refused = refusal(made.value, second) if prove else None
    asked = second_order(sample, first, witnesses, made.value, second)
    found = judge(asked, prove=prove) if refused is None else Raised(refused)
    if isinstance(found, Raised):
        return _raised(sample, found.error)
    wrong = {pair: a for pair, a in found.answers.items() if isinstance(a, Wrong) and not a.rounded}
    if not asked.declared:
        wrong = {pair: a for pair, a in wrong.items() if a.both and not a.nonfinite}
    if wrong:
        findings = _of_wrong(sample, asked, second, wrong)
        return CheckResult(findings, outcome_of(findings), capability="wrong")
    for (of, by), answer in found.answers.items():
        if isinstance(answer, Unknown) and answer.mismatch:
            told = not_known(sample, of, second.input_names[by], answer, second=True)
            return CheckResult((told,), Outcome.INCONCLUSIVE)
    alone = wrong_alone(sample, asked, second) if prove else None
    if alone is not None:
        return CheckResult((alone,), Outcome.FAILED, capability="wrong")
    known = any(isinstance(a, Right | NotJudged) for a in found.answers.values())
    return CheckResult(capability="yes" if known else "")


def second_problem(sample: Sample) -> VjpProblem:
    """The backward of a sample as a map of its own, at one grad_output."""
    return VjpProblem(sample.problem, cotangents_of(sample))


def _of_wrong(
    sample: Sample, asked: Asked, second: VjpProblem, wrong: dict[tuple[int, int], Wrong]
) -> tuple[Finding, ...]:
    """A finding for each gradient and what it is differentiated by; one of all that is cut by the same."""
    cut, because, names = is_cut(asked), graph_cuts(sample, second), second.input_names
    shown = sorted(wrong.items(), key=lambda item: -item[1].largest)
    found = [
        wrong_second(sample, second, names, pair, a, cut=cut) for pair, a in (shown[:1] if cut else shown)
    ]
    if because:
        worst, *others = found
        more = " and ".join(f"`{names[f.output or 0]}` by `{f.input}`" for f in others)
        more = f" The same cuts the gradient of {more}." if more else ""
        found = [replace(worst, hint=f"{because}{more} {FIRST_ORDER_ONLY}", cause="detached")]
    return tuple(_with_change(sample, f) for f in found)


def is_cut(asked: Asked) -> bool:
    """Whether autograd has the gradient depend on nothing at all."""
    return bool(asked.claim.missing) and all(asked.claim.missing.values())


def _raised(sample: Sample, error: RaisedError, when: str = "at the second differentiation") -> CheckResult:
    if error.type in ACCIDENTS and not error.deliberate:
        return CheckResult((backward_raised(sample, error, f" {when}"),), Outcome.FAILED, capability="no")
    is_marked = "once_differentiable" in error.message
    what = "an explicit error" if error.deliberate or is_marked else error.type
    finding = sample.finding(
        "GV203",
        f"the double backward raises {what} {when}: {first_line(error.message)}",
        raised=None if is_marked else error,
    )
    return CheckResult((finding,), capability="no")


def refusal(graph: Graph, second: VjpProblem) -> RaisedError | None:
    """What differentiating the gradients raises, None if it does not.

    `once_differentiable` raises only when the whole graph runs: `torch.autograd.grad` skips nodes that lead
    to no wanted input and returns None in silence.
    """
    connected = [g for g in graph.outputs if g.requires_grad]
    if not connected:
        return None
    with second.around():
        result = guard.call(run_every_node, connected, [torch.ones_like(g) for g in connected])
    for leaf in graph.leaves:
        leaf.grad = None
    return result.error if isinstance(result, Raised) else None


def graph_alone(sample: Sample) -> CheckResult:
    """Whether backward refuses to be differentiated, or a kernel cuts its graph: no number is measured."""
    second, before = second_problem(sample), launches()
    graph = second.graph(second.primals)
    if isinstance(graph, Raised):
        return _raised(sample, graph.error, "under create_graph=True")
    refused = refusal(graph.value, second)
    if refused is not None:
        return _raised(sample, refused)
    function, operator = sample.subject.function_class, sample.subject.operator
    backward = own_backward(function) if function is not None else getattr(operator, "backward", None)
    is_kernel = launches() > before or (backward is not None and bool(compiled_calls([backward])))
    is_cut_off = is_kernel and not any(g.requires_grad for g in graph.value.outputs)
    cut = _cut_by_kernel(sample) if is_cut_off else None
    return CheckResult((cut,) if cut else (), Outcome.NOT_RUN, capability="wrong" if cut else "")


def _cut_by_kernel(sample: Sample) -> Finding | None:
    """No gradient has a graph, as a kernel leaves it; None where the gradients are zero, so nothing is lost.

    Backward is linear in grad_output, so its derivative by that is known without a measurement. A warning: of
    kernels hardly any second derivative is meant, and whoever asks for one must learn that it is lost.
    """
    problem, inputs = sample.problem, sample.inputs
    for chosen in range(min(FIRST_ROWS, problem.outputs.size)):
        row = Claim(problem).row(units(problem.outputs.size, [chosen])[0])
        flat = torch.zeros(1) if isinstance(row, Raised) else row.nan_to_num(0.0)
        if flat.any():
            break
    else:
        return None
    worst = int(flat.abs().argmax())
    of = inputs.block_of(worst)
    name = problem.input_names[of]
    entry = indexed("grad_output", problem.outputs.blocks[problem.outputs.block_of(chosen)].index(chosen))
    place = f"d grad of {indexed(name, inputs.blocks[of].index(worst))} / d {entry}"
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut by a kernel: for autograd the gradient of `{name}` depends "
        f"on nothing, but {place} is {number(flat[worst].item())}",
        hint=FIRST_ORDER_ONLY,
        input=name,
        severity=Severity.WARNING,
        cause="detached",
    )


def wrong_alone(sample: Sample, asked: Asked, second: VjpProblem) -> Finding | None:
    """The first input whose second derivative is another one where it alone requires grad.

    `second` is verified with all inputs; grad_output requires grad with either. Where the gradient itself is
    another one alone, GV406 says it.
    """
    differentiable = [k for k, a in enumerate(sample.arguments) if a.differentiable]
    free = all(sample.arguments[k].step is None and not sample.arguments[k].holds for k in differentiable)
    if len(differentiable) < 2 or not free:
        return None
    each = enumerate(differentiable[:MOST_INPUTS])
    found = (_alone(sample, asked, second, number_of, place) for number_of, place in each)
    return next(filter(None, found), None)


def _alone(sample: Sample, asked: Asked, second: VjpProblem, number_of: int, place: int) -> Finding | None:
    arguments = tuple(
        replace(a, differentiable=a.differentiable and k == place) for k, a in enumerate(sample.arguments)
    )
    alone = VjpProblem(replace(sample.problem, arguments=arguments), second.cotangents)
    own, name = sample.inputs.blocks[number_of], sample.problem.input_names[number_of]
    weights = torch.zeros(sample.inputs.size, dtype=torch.float64)
    weights[own.start : own.stop] = probe(own.stop - own.start, asked.key + 401 + number_of)
    given = weights[own.start : own.stop]
    usual, got = Claim(second).row(weights), Claim(alone).row(given)
    if isinstance(usual, Raised):
        return None
    if isinstance(got, Raised):
        if got.error.deliberate or not _has_same_gradient(second, alone, own.start):
            return None
        said = f"the double backward raises {got.error.type} where only `{name}` requires grad"
        message = f"{said}: {first_line(got.error.message)}"
        return sample.finding("GV202", message, hint=ALONE, input=name, raised=got.error)
    wanted = torch.cat([usual[own.start : own.stop], usual[sample.inputs.size :]])
    there = replace(asked, problem=alone, values=Values(alone, steps=asked.values.steps))
    wrong = differing(there, got[None], wanted[None], given[None])[0] & wanted.isfinite()
    if wrong.any():
        moved = spread_of_rows(alone, given[None], asked.values.steps.epsilon)
        wrong &= (got - wanted).abs() > (0.0 if moved is None else FACTOR * moved[0])
    if not wrong.any() or not _has_same_gradient(second, alone, own.start):
        return None
    off = (got - wanted).abs().nan_to_num(torch.inf)
    worst, layout = int(torch.where(wrong, off, -1.0).argmax()), there.values.inputs
    by = alone.input_names[layout.block_of(worst)]
    entry = indexed(by, layout.blocks[layout.block_of(worst)].index(worst))
    gives, due = apart(got[worst].item(), wanted[worst].item())
    return sample.finding(
        "GV202",
        f"where only `{name}` requires grad, the second derivative of its gradient by `{entry}` is {gives}, "
        f"not {due} as with all inputs",
        hint=ALONE,
        input=by,
        output=number_of,
    )


def _has_same_gradient(second: VjpProblem, alone: VjpProblem, start: int) -> bool:
    """Whether the first derivative by an input is the same where that input alone requires grad."""
    u = second.first_order.outputs.flatten(second.cotangents)
    usual, got = Claim(second.first_order).row(u), Claim(alone.first_order).row(u)
    if isinstance(usual, Raised) or isinstance(got, Raised):
        return False
    return torch.allclose(usual[start : start + len(got)], got, equal_nan=True)


def _with_change(sample: Sample, finding: Finding) -> Finding:
    """The finding with the change that refuses a second derivative, where it is cut off."""
    function = sample.subject.function_class
    if finding.cause != "detached" or function is None or finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, changes=marked_first_order(function))


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


def graph_cuts(sample: Sample, second: VjpProblem) -> str:
    """What forward keeps without its graph, else the calls that cut it, in words; empty if none."""
    function = sample.subject.function_class
    if function is None or any(a.in_list for a in sample.arguments):
        return ""
    found = guard.call(lambda: tuple(_kept(function, sample, second)))
    if not isinstance(found, Raised) and found.value:
        return _of_kept([name for name, _ in found.value], all(is_copy for _, is_copy in found.value))
    forwards, backwards = _Cutting(), _Cutting()
    guard.call(forwards.during(_forward_with_graph), function, sample, second)
    with wrapped_backward(function, backwards.during):  # torch.autograd.grad leaves a mode from outside
        second.graph(second.primals)
    every = (*backwards.cut(own_backward(function)), *forwards.cut(function.forward))
    calls = tuple(dict.fromkeys(every))[:MOST_NAMED]
    cut, what = ("cut", "they give") if len(calls) > 1 else ("cuts", "it gives")
    said = f"{' and '.join(calls)} {cut} the graph: what {what} is a constant for a second derivative."
    return said if calls else ""


def _of_kept(names: Sequence[str], are_copies: bool) -> str:  # noqa: FBT001
    kept, several = f"{listed_names(names)}, which forward keeps,", len(names) > 1
    if are_copies:
        are = "are copies of inputs or outputs" if several else "is a copy of an input or output"
        return f"{kept} {are}, without a graph: save the input or output itself."
    if several:
        return (
            f"{kept} are neither inputs nor outputs: in backward, they depend on nothing for autograd. "
            "Compute them in backward from saved inputs and outputs."
        )
    return (
        f"{kept} is neither an input nor an output: in backward, it depends on nothing for autograd. "
        "Compute it in backward from saved inputs and outputs."
    )


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
