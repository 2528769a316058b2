"""Samples of a subject: its arguments drawn, in float64 or its own dtype, and forward run once.

The operations of a map carried out in float64, whatever shorter format it casts to inside.

Where forward rounds to bfloat16 it is a staircase, and no finite difference shows its slope. With every
floating dtype replaced by float64 it is the smooth map that its author differentiated, and backward, in which
the same is done, must be its derivative to the last digit. What rounding does to both is another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from gradverify.model import Case, CasePoint, Point, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.inputs.arguments import Argument, build_arguments
from gradverify.verifier.inputs.native_values import call_hook, native_arguments
from gradverify.verifier.numerics.calling import Tensors, bits_of, foreign_kind
from gradverify.verifier.numerics.problem import (
    CallProblem,
    Counter,
    Graph,
    Layout,
    is_nested,
    returned_tensors,
    substitute,
)
from gradverify.verifier.questions.subject import (
    ALL_CONSTANT,
    NO_TENSORS,
    NOT_BUILT,
    NOTHING_CHOSEN,
    NoSample,
    Sample,
    Subject,
    forward_raised,
    nothing,
)


class InFloat64(Dispatched):  # type: ignore[no-untyped-call]
    """While it is on, every operation computes in float64 or complex128, and casts to less change nothing."""

    @property
    def may_leave(self) -> bool:
        """A call made again without it would be another map."""
        return False

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation in float64.

        Raises `NotImplementedError` for what depends on the bits of a shorter number, or writes into one.
        """
        if func in _OF_BITS:
            raise NotImplementedError(f"{func}: how many bits a number has")
        if func._schema.is_mutable and _is_short(args[0] if args else None):  # noqa: SLF001 - no public name
            raise NotImplementedError(f"{func} writes into a tensor of a shorter format")
        long_args, long_given = _pytree.tree_map(_in_float64, (args, dict(given)))
        return _pytree.tree_map(_in_float64, func(*long_args, **long_given))


_OF_BITS = frozenset({torch.ops.aten.view.dtype})
"""Operations whose result depends on how many bits a number has."""


def _is_short(value: Any) -> bool:  # noqa: ANN401 - any argument of an operation
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(dtype, torch.dtype) and _longest(dtype) is not dtype


def _longest(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _in_float64(value: Any) -> Any:  # noqa: ANN401
    if not _is_short(value):
        return value
    return value.to(_longest(value.dtype)) if isinstance(value, Tensor) else _longest(value)


def prepare(subject: Subject, case: Case, point: Point, draw: int) -> Sample | NoSample:
    """Draw the arguments, run forward once with its graph, and see which outputs are differentiable."""
    where = CasePoint(case.id, case.sizes, case.options, point, draw)
    exact = exact_arguments_at(subject, case, point, draw)
    if isinstance(exact, Raised):
        said = f"{exact.error.type}: {exact.error.message}"
        return nothing("GV001", NOT_BUILT, where, said, exact.error)
    called = _as_called(subject, exact)
    sample = prepared(subject, case, where, called)
    return replace(sample, exact=exact) if isinstance(sample, Sample) and called is not exact else sample


def prepared(
    subject: Subject, case: Case, where: CasePoint, arguments: tuple[Argument, ...]
) -> Sample | NoSample:
    """The same for arguments that are drawn already."""
    states = guard.RandomStates(case.seed)
    states.replay()
    leaves = tuple(a.value.detach().clone().requires_grad_() for a in arguments if a.differentiable)
    around = InFloat64 if subject.short else nullcontext
    with torch.enable_grad(), around():
        result = guard.call(subject.call, *substitute(arguments, [leaf.clone() for leaf in leaves]))
    if isinstance(result, Raised):
        return forward_raised(arguments, result.error, where, inferred=subject.inferred)
    returned = returned_tensors(result.value)
    continuous = [i for i, r in enumerate(returned) if _is_continuous(r)]
    connected = [i for i in continuous if returned[i].requires_grad]
    marks = subject.has_python_backward
    foreign = foreign_kind(result.value) or "no tensor" * (not any(isinstance(r, Tensor) for r in returned))
    unread = (f"output {i}, which cannot be read" for i in continuous if bits_of(returned[i]) is None)
    if foreign := foreign or next(unread, ""):
        return nothing("GV001", NO_TENSORS, where, foreign)
    if continuous and marks and not any(a.differentiable for a in arguments):
        return nothing("GV001", ALL_CONSTANT, where)
    if not continuous or (marks and not connected):
        return NoSample(no_gradient=True)
    # In a dict or deeper there are figures for a log as well, which nobody differentiates.
    of_graph = marks or (is_nested(result.value) and bool(connected))
    judged = connected if of_graph else continuous
    if subject.outputs is not None:
        judged = [i for i in judged if i in subject.outputs]
    if not judged:
        return nothing("GV001", NOTHING_CHOSEN, where, ", ".join(map(str, subject.outputs or ())))
    problem = CallProblem(
        function=subject.call,
        arguments=arguments,
        output_positions=tuple(judged),
        outputs=Layout.of([returned[i] for i in judged]),
        random_states=states,
        counter=Counter(forward=1),
        around=around,
        of_module=subject.target.kind is TargetKind.MODULE,
    )
    disconnected = tuple(i for i in judged if i not in connected)
    graph = Graph(leaves, tuple(returned[i] for i in judged), of_module=problem.of_module)
    subject.learnt[Graph] = (problem, graph)
    return Sample(subject, case, where.point, where.draw, arguments, problem, len(returned), disconnected)


def values_of(sample: Sample) -> Returned[Tensors] | Raised:
    """Forward's values at a sample: of the call that made it, as long as that is the last one."""
    made = sample.subject.learnt.get(Graph)
    if isinstance(made, tuple) and made[0] is sample.problem:
        return Returned(tuple(t.detach() for t in made[1].outputs))
    return sample.problem.evaluate(sample.problem.primals)


def graph_of(sample: Sample) -> Returned[Graph] | Raised:
    """Forward at a sample with its graph: the first time it is that of the call which made the sample."""
    made = sample.subject.learnt.pop(Graph, None)
    if isinstance(made, tuple) and made[0] is sample.problem:
        return Returned(made[1])
    return sample.problem.graph(sample.problem.primals)


def with_defaults(arguments: tuple[Argument, ...], subject: Subject) -> tuple[Argument, ...]:
    """Fill in the defaults that the call needs.

    `Function.apply` takes positional arguments alone, so a parameter left out before a given one must be
    given its default. Where forward has no `ctx`, torch itself binds all of them, and backward answers for
    each.
    """
    defaults = subject.defaults
    given: dict[str, tuple[Argument, ...]] = {}
    trained: list[Argument] = []
    for argument in arguments:
        name = argument.in_list or argument.name
        if name in defaults:
            given[name] = (*given.get(name, ()), argument)
        elif subject.target.kind is TargetKind.MODULE and name.startswith("self."):
            trained.append(argument)
        else:
            return arguments
    last = max((k for k, name in enumerate(defaults) if name in given), default=-1)
    if subject.binds_defaults:
        last = len(defaults) - 1
    called = list(defaults.items())[: last + 1]
    filled = [a for name, default in called for a in given.get(name, (Argument(name, default),))]
    return (*filled, *trained)


def arguments_at(subject: Subject, case: Case, point: Point, draw: int) -> tuple[Argument, ...] | Raised:
    """What the target is called with at one point; the same values whenever it is asked."""
    exact = exact_arguments_at(subject, case, point, draw)
    return exact if isinstance(exact, Raised) else _as_called(subject, exact)


def _as_called(subject: Subject, exact: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """The arguments in the dtype in which the target is called, as far as they fit into it."""
    pair = native_arguments(exact, subject.native) if subject.native else None
    return exact if pair is None else pair[0]


def exact_arguments_at(
    subject: Subject, case: Case, point: Point, draw: int
) -> tuple[Argument, ...] | Raised:
    """The same in float64, whatever the target is called in."""
    device = subject.settings.device
    if subject.hook is None:
        built = guard.call(build_arguments, case, point, draw, device, subject.live)
        return built if isinstance(built, Raised) else with_defaults(built.value, subject)
    built = call_hook(subject.hook, case, draw, device, subject.target.parameters)
    return built if isinstance(built, Raised) else built.value


def _is_continuous(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def is_given_short(sample: Sample) -> bool:
    """Whether every input that is differentiated is itself of fewer digits than float64."""
    return all(_is_short(p) for p in sample.problem.primals)


def placed_on(device: str, sample: Sample) -> Returned[Sample] | Raised:
    """The same sample on another device: the arguments are built there, and given the same values."""
    subject = guard.call(sample.subject.on, device)
    if isinstance(subject, Raised):
        return subject
    arguments = arguments_at(subject.value, sample.case, sample.point, sample.draw)
    if isinstance(arguments, Raised):
        return arguments
    same = tuple(
        replace(there, value=here.value.to(device)) if isinstance(here.value, Tensor) else there
        for here, there in zip(sample.problem.arguments, arguments, strict=True)
    )
    where = torch.device(device)
    blocks = tuple(replace(b, device=where) for b in sample.problem.outputs.blocks)
    problem = replace(
        sample.problem,
        function=subject.value.call,
        arguments=same,
        outputs=Layout(blocks),
        random_states=guard.RandomStates(sample.case.seed),
    )
    return Returned(replace(sample, subject=subject.value, arguments=same, problem=problem))
