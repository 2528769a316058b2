"""What is judged: a target with its callables, and that target at one point of one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Case, CasePoint, Doubt, Finding, Point, Settings, Target, TargetKind
from gradverify.rules import Family, rule
from gradverify.verifier import guard
from gradverify.verifier.checks.no_sample import (
    ALL_CONSTANT,
    EIGHT_BITS,
    NOTHING_CHOSEN,
    RETURNS_NOTHING,
    SUBCLASS,
    NoSample,
    first_line,
    forward_raised,
    not_built,
    unusable,
)
from gradverify.verifier.checks.reading import Reader
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument, build_arguments, shown_inputs
from gradverify.verifier.inputs.hooks import call_hook
from gradverify.verifier.inputs.native_values import drawn_value, native_arguments
from gradverify.verifier.numerics.calling import foreign_kind
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, Counter, is_nested, returned_tensors, substitute
from gradverify.verifier.numerics.verdict import Judged

__all__ = [
    "NoSample",
    "Sample",
    "Subject",
    "Surrogate",
    "another_draw",
    "arguments_at",
    "called_with",
    "first_line",
    "prepare",
    "prepared",
    "with_defaults",
]


@dataclass(frozen=True)
class Surrogate:
    """What a spec declares about a deliberate gradient."""

    function: Callable[..., Any] | None = None
    """The composite whose gradient is meant; None where only a reason is given."""
    arguments: tuple[str, ...] = ()
    """Names of the inputs it is called with; empty: what forward got."""
    inputs: tuple[str, ...] = ()
    """Inputs whose gradient it replaces; empty: all."""

    def covers(self, name: str | None) -> bool:
        """Whether an input's gradient is the surrogate's."""
        return not self.inputs or name is None or name in self.inputs


@dataclass(frozen=True)
class Subject:
    """A target ready to be called."""

    target: Target
    function: Callable[..., Any]
    """`Class.apply` or the callable itself."""
    settings: Settings
    reader: Reader | None = None
    """Reads backward's raw returns; None for callables, whose backward is not one Python function."""
    reference: Callable[..., Any] | None = None
    reference_arguments: tuple[str, ...] = ()
    """Names of the arguments that the reference is called with; empty: what forward got."""
    outputs: tuple[int, ...] | None = None
    """Positions of the outputs to differentiate; None for all that are differentiable."""
    hook: Callable[..., Any] | None = None
    inferred: bool = False
    doubts: tuple[Doubt, ...] = ()
    """What of inferred inputs was invented."""
    spares: tuple[Case, ...] = ()
    """Of inferred inputs: cases at other sizes, at which a mismatch may be looked for again."""
    surrogate: Surrogate | None = None
    """What the spec declares about a gradient that is deliberately not the derivative."""
    native: str = ""
    """The dtype in which it is called where it has no float64 path; empty: float64."""
    why_native: str = ""
    """Why it has none."""
    brief: bool = False
    """A call of it is slow: of the variations only those run that find the commonest mistakes."""
    dtypes: tuple[str, ...] = ()
    """Dtypes it is judged in, as the command line or the spec lists them; empty for the default."""
    internals: str = ""
    """`float32`: the spec says that nothing inside is rounded to a shorter dtype."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """The objects that the spec's inputs name, by their path."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Every parameter of forward in call order; those with a default have it as value, the others `...`."""
    own_forward: Callable[..., Any] | None = None
    """A Function's forward without autograd's wrapping; None for anything else."""
    function_class: type[Function] | None = None
    """The Function itself; None for anything else."""
    operator: Operator | None = None
    """The operator of torch's dispatcher that it is; None for anything else."""
    binds_defaults: bool = False
    """torch fills in the defaults of forward: it does where `setup_context` gets the ctx."""
    other_devices: tuple[str, ...] = ()
    """Devices on which its gradients must be the same."""
    rebuilt: Callable[[str], Callable[..., Any]] | None = None
    """A module's call with the module built on another device; None for what needs no building."""

    def on(self, device: str) -> Subject:
        """The target on another device. Raises what building a module there does."""
        function = self.function if self.rebuilt is None else self.rebuilt(device)
        return replace(self, function=function, settings=replace(self.settings, device=device))

    @property
    def has_python_backward(self) -> bool:
        """Backward is one Python function with a ctx: it can mark outputs, and may get undefined grads."""
        return self.function_class is not None or (
            self.operator is not None and self.operator.backward is not None
        )

    def call(self, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        """Call the target, and let the reader know what backward has to answer for."""
        result = self.function(*arguments)
        if self.reader is not None:
            self.reader.expect(result, arguments)
        return result

    def reference_by_name(self, parameters: Sequence[str]) -> Callable[..., Any] | None:
        """The reference as a function of what forward gets, None where there is none."""
        if self.reference is None or not self.reference_arguments:
            return self.reference
        return called_with(self.reference, [parameters.index(name) for name in self.reference_arguments])


@dataclass(frozen=True)
class Sample:
    """A subject at one point of one case: what every check starts from."""

    subject: Subject
    case: Case
    point: Point
    draw: int
    arguments: tuple[Argument, ...]
    problem: CallProblem
    outputs_returned: int
    disconnected: tuple[int, ...] = ()
    """Floating outputs of a callable that carry no graph."""
    exact: tuple[Argument, ...] = ()
    """The arguments in float64, where the target is called in a native dtype."""
    judged: dict[int, Judged] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Both whole Jacobians as they were compared here, by order of the derivative; a sample that is made
    of this one begins without."""

    @property
    def is_native(self) -> bool:
        """Whether it is called in a native dtype: some argument was rounded to it."""
        return bool(self.exact)

    @property
    def family(self) -> Family:
        """The family of checks to which what is said of its first derivative belongs."""
        return Family.PRECISION if self.is_native else Family.GRADCHECK

    @property
    def key(self) -> int:
        """A small number that differs between the samples of a case: chooses probes."""
        return self.case.seed % 8191 + self.draw

    @property
    def inputs(self) -> Layout:
        """Layout of the differentiable inputs."""
        return Layout.of(self.problem.primals)

    def position_of(self, name: str) -> int:
        """Position in the call of an argument, or of the list that it is an item of.

        Raises `KeyError` for a name that is not an argument.
        """
        position, open_list = -1, ""
        for argument in self.arguments:
            position += not (argument.in_list and argument.in_list == open_list)
            open_list = argument.in_list
            if name in {argument.name, argument.in_list}:
                return position
        raise KeyError(name)

    def finding(self, code: str, message: str, **fields: Any) -> Finding:  # noqa: ANN401 - fields of Finding
        """A finding made here, with its rule's severity unless another is given."""
        made = Finding(
            code=code,
            severity=rule(code).severity,
            message=message,
            case=self.where,
            shown_inputs=shown_inputs(self.arguments),
        )
        return replace(made, **fields)

    @property
    def where(self) -> CasePoint:
        """The case, point and draw, for a finding."""
        return CasePoint(self.case.id, self.case.sizes, self.case.options, self.point, self.draw)


def prepare(subject: Subject, case: Case, point: Point, draw: int) -> Sample | NoSample:
    """Draw the arguments, run forward once with its graph, and see which outputs are differentiable."""
    where = CasePoint(case.id, case.sizes, case.options, point, draw)
    exact = exact_arguments_at(subject, case, point, draw)
    if isinstance(exact, Raised):
        return not_built(exact.error, where)
    called = _as_called(subject, exact)
    sample = prepared(subject, case, where, called)
    return replace(sample, exact=exact) if isinstance(sample, Sample) and called is not exact else sample


def prepared(
    subject: Subject, case: Case, where: CasePoint, arguments: tuple[Argument, ...]
) -> Sample | NoSample:
    """The same for arguments that are drawn already."""
    states = guard.RandomStates(case.seed)
    states.replay()
    leaves = [a.value.detach().clone().requires_grad_() for a in arguments if a.differentiable]
    with torch.enable_grad():
        result = guard.call(subject.call, *substitute(arguments, [leaf.clone() for leaf in leaves]))
    if isinstance(result, Raised):
        return forward_raised(arguments, result.error, where, inferred=subject.inferred)
    returned = returned_tensors(result.value)
    continuous = [i for i, r in enumerate(returned) if _is_continuous(r)]
    connected = [i for i in continuous if returned[i].requires_grad]
    marks = subject.has_python_backward
    foreign = foreign_kind(result.value)
    if foreign or not any(isinstance(r, Tensor) for r in returned):
        reason = EIGHT_BITS if foreign.startswith("torch.") else SUBCLASS if foreign else RETURNS_NOTHING
        return unusable(reason, where, foreign or subject.target.name)
    if continuous and marks and not any(a.differentiable for a in arguments):
        return unusable(ALL_CONSTANT, where)
    if not continuous or (marks and not connected):
        return NoSample(no_gradient=True)
    # In a dict or deeper there are figures for a log as well, which nobody differentiates.
    of_graph = marks or (is_nested(result.value) and bool(connected))
    judged = [
        i for i in (connected if of_graph else continuous) if subject.outputs is None or i in subject.outputs
    ]
    if not judged:
        return unusable(NOTHING_CHOSEN, where, ", ".join(map(str, subject.outputs or ())))
    problem = CallProblem(
        function=subject.call,
        arguments=arguments,
        output_positions=tuple(judged),
        outputs=Layout.of([returned[i] for i in judged]),
        random_states=states,
        counter=Counter(forward=1),
    )
    disconnected = tuple(i for i in judged if i not in connected)
    return Sample(subject, case, where.point, where.draw, arguments, problem, len(returned), disconnected)


def another_draw(sample: Sample, *, exact: bool = False) -> tuple[Argument, ...] | None:
    """The arguments of the same case at other values; None where they cannot be built.

    `exact`: in float64, whatever the target is called in.
    """
    draw = exact_arguments_at if exact else arguments_at
    drawn = draw(sample.subject, sample.case, Point.TYPICAL, sample.draw + 1)
    return None if isinstance(drawn, Raised) else drawn


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


def called_with(function: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """A function of all arguments that calls one with some of them."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        return function(*(arguments[p] for p in positions))

    return call


def arguments_at(subject: Subject, case: Case, point: Point, draw: int) -> tuple[Argument, ...] | Raised:
    """What the target is called with at one point; the same values whenever it is asked."""
    exact = exact_arguments_at(subject, case, point, draw)
    return exact if isinstance(exact, Raised) else _as_called(subject, exact)


def _as_called(subject: Subject, exact: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """The arguments in the dtype in which the target is called, as far as they fit into it."""
    pair = native_arguments(exact, subject.native, drawn_value) if subject.native else None
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
