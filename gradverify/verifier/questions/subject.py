"""What is judged: a target with its callables, and its samples: that target at one point of one case.

A sample's arguments are drawn, in float64 or the target's own dtype, and forward is run once. Where nothing
can be judged at a point, it is known why.

Where forward rounds to bfloat16 it is a staircase, and no finite difference shows its slope. With every
floating dtype replaced by float64 it is the smooth map that its author differentiated, and backward, in which
the same is done, must be its derivative to the last digit. What rounding does to both is another question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils import _pytree

from gradverify.model import (
    Case,
    CasePoint,
    Doubt,
    Finding,
    Point,
    RaisedError,
    Settings,
    Target,
    TargetKind,
    TensorInput,
    tensors_of,
)
from gradverify.rules import Family, rule
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned, lacking, needs_the_cpu
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.inputs.arguments import Argument, build_arguments, shown_inputs
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
from gradverify.verifier.questions.reading import Reader
from gradverify.verifier.targets.operators import Operator

if TYPE_CHECKING:  # loaded where a target runs on ranks
    from gradverify.verifier.ranks.across import Across

UserCode = Callable[..., Any]
"""What it takes and returns is not known."""

NOT_BUILT = (
    "the inputs could not be built: {said}",
    "Correct what builds them: `arguments:` is f(generator, device, dtype, **sizes), `make:` f(..., shape).",
)
ALL_CONSTANT = (
    "none of the inputs requires grad, so backward is never called",
    "Leave out `requires_grad: false` or `mutated: true` on a differentiated input, or write `skip:`.",
)
NOTHING_CHOSEN = (
    "none of the chosen outputs ({said}) is differentiable",
    "`outputs:` counts positions from 0, as forward returned them.",
)
NO_TENSORS = (
    "forward returns {said}: that is not supported",
    "Name a function in `target:` that returns plain tensors, of more than 8 bits.",
)
WRITES_PARAMETERS = (
    "forward writes into {said}: what it returns is no function of the values that it was given",
    "Verify the Function inside, or as `target:` a function that calls a module which is initialised.",
)
"""Message and hint of GV001."""


@dataclass(frozen=True)
class NoSample:
    """Nothing can be judged at this point: why, or that the target declares no gradient."""

    findings: tuple[Finding, ...] = ()
    no_gradient: bool = False
    raised: RaisedError | None = None


def nothing(
    reason: tuple[str, str],
    where: CasePoint,
    said: str = "",
    raised: RaisedError | None = None,
    code: str = "GV001",
    **fields: Any,  # noqa: ANN401 - of Finding
) -> NoSample:
    """A point without a sample, for one of the reasons above or another message with its hint."""
    message, hint = reason
    found = Finding(code, rule(code).severity, message.format(said=said), hint=hint, case=where)
    return NoSample((replace(found, raised=raised, **fields),), raised=raised)


def forward_raised(
    arguments: tuple[Argument, ...], error: RaisedError, where: CasePoint, *, inferred: bool
) -> NoSample:
    """Forward raised, on inputs that a spec declares valid or on `inferred` ones."""
    tensors: Sequence[Tensor] = [a.value for a in arguments if isinstance(a.value, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    hint = lacking(error, device) or needs_the_cpu(error, device) or ""
    after = f" (after {first_line(error.after)})" if error.after else ""
    code, on = "GV001", "on inferred inputs forward" if inferred and not hint else "forward"
    empty = " for an empty input" * (not inferred and not hint and not all(t.numel() for t in tensors))
    if inferred:
        hint = hint or "Write a spec that gives this Function valid inputs."
    elif empty:
        code = "GV412"
        hint = "An empty batch is an ordinary input. If size 0 is not valid, leave it out of the spec."
    elif not hint:
        code = "GV002"
        hint = "If these inputs are not valid, narrow `shape`, `range` or `domain` in the spec"
        hint += ", or list what goes together as `cases:`." if where.options else "."
    said = f"{on} raised {error.type}{empty}: {first_line(error.message)}{after}"
    return nothing(("{said}", hint), where, said, error, code, shown_inputs=shown_inputs(arguments))


def first_line(text: str) -> str:
    """The first line of a message, shortened."""
    line = text.strip().splitlines()[0] if text.strip() else "(no message)"
    return line if len(line) <= 160 else line[:157] + "..."


@dataclass(frozen=True)
class Surrogate:
    """What a spec declares about a deliberate gradient."""

    function: UserCode | None = None
    """The composite whose gradient is meant; None where only a reason is given."""
    arguments: tuple[str, ...] = ()
    """Names of the inputs it is called with; empty: what forward got."""
    inputs: tuple[str, ...] = ()
    """Inputs whose gradient it replaces; empty: all."""

    def covers(self, name: str | None) -> bool:
        """Whether an input's gradient is the surrogate's."""
        return not self.inputs or name is None or name in self.inputs


@dataclass(frozen=True)
class Float64:
    """It takes float64, and computes in it: the fields of `Native` say that it has no other dtype."""

    dtype, why, brief = "", "", False


@dataclass(frozen=True)
class Native:
    """It has no float64 path."""

    dtype: str
    """The dtype in which it is called."""
    why: str
    """Why it has none, as the end of a sentence."""
    brief: bool = False
    """A call is long: only the questions that find the commonest mistakes are asked."""


@dataclass(frozen=True)
class Subject:
    """A target ready to be called."""

    target: Target
    function: UserCode
    """`Class.apply` or the callable itself."""
    settings: Settings
    reader: Reader | None = None
    """Reads backward's raw returns; None for callables, whose backward is not one Python function."""
    reference: UserCode | None = None
    reference_arguments: tuple[str, ...] = ()
    """Names of the arguments that the reference is called with; empty: what forward got."""
    outputs: tuple[int, ...] | None = None
    """Positions of the outputs to differentiate; None for all that are differentiable."""
    hook: UserCode | None = None
    inferred: bool = False
    doubts: tuple[Doubt, ...] = ()
    """What of inferred inputs was invented."""
    spares: tuple[Case, ...] = ()
    """Of inferred inputs: cases at other sizes, at which a mismatch may be looked for again."""
    surrogate: Surrogate | None = None
    """What the spec declares about a gradient that is deliberately not the derivative."""
    precision: Float64 | Native = Float64()
    """What its gradient is judged in: decided for each combination of options before any check."""
    short: str = ""
    """The format of 16 bits or fewer in which it computes inside: its float64 path has those operations in
    float64. Empty for none."""
    dtypes: tuple[str, ...] = ()
    """Dtypes it is judged in, as the command line or the spec lists them; empty for the default."""
    internals: str = ""
    """`float32`: the spec says that nothing inside is rounded to a shorter dtype."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """The objects that the spec's inputs name, by their path."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Every parameter of forward in call order; those with a default have it as value, the others `...`."""
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values of each option in all cases, by its name."""
    own_forward: UserCode | None = None
    """A Function's forward without autograd's wrapping; None for anything else."""
    function_class: type[Function] | None = None
    """The Function itself; None for anything else."""
    operator: Operator | None = None
    """The operator of torch's dispatcher that it is; None for anything else."""
    binds_defaults: bool = False
    """torch fills in the defaults of forward: it does where `setup_context` gets the ctx."""
    other_devices: tuple[str, ...] = ()
    """Devices on which its gradients must be the same."""
    across: Across | None = None
    """The target on several ranks; None in one process."""
    is_base: bool = True
    """No listed case comes before this one: what is asked once is asked here."""
    is_first_of_options: bool = True
    """No case before this one has its combination of options: what is asked once for each is asked here."""
    again: Callable[[Sequence[Any]], UserCode] | None = None
    """Of a module: see `BuiltModule.again`."""
    learnt: dict[object, Any] = field(default_factory=dict)
    """What was learnt of the target from sample to sample."""
    rebuilt: Callable[[str], UserCode] | None = None
    """A module's call with the module built on another device; None for what needs no building."""

    @property
    def native(self) -> str:
        """The dtype in which it is called where it has no float64 path; empty: float64."""
        return self.precision.dtype

    @property
    def why_native(self) -> str:
        """Why it has none; empty where it has one."""
        return self.precision.why

    @property
    def brief(self) -> bool:
        """Only the questions that find the commonest mistakes are asked."""
        return self.precision.brief

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

    def reference_by_name(self, places: Mapping[str, Sequence[int]]) -> UserCode | None:
        """The reference as a function of what forward gets at these places, None where there is none."""
        if self.reference is None or not self.reference_arguments:
            return self.reference
        return called_with(self.reference, [k for name in self.reference_arguments for k in places[name]])


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
    written: bool = False
    """Torch counted a write into an input."""

    @property
    def is_native(self) -> bool:
        """Whether it is called in a native dtype: some argument was rounded to it."""
        return bool(self.exact)

    @property
    def is_first_draw(self) -> bool:
        """Whether what is asked once for each case is asked here."""
        return (self.point, self.draw) == (Point.TYPICAL, 0)

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

    @property
    def differentiable(self) -> list[Argument]:
        """The arguments that have a gradient."""
        return [a for a in self.arguments if a.differentiable]

    def position_of(self, name: str) -> int:
        """Position in the call of an argument, or of the list that it is an item of.

        Raises `KeyError` for a name that is not an argument.
        """
        return places_of(self.arguments)[name][0]

    def finding(self, code: str, message: str, **fields: Any) -> Finding:  # noqa: ANN401 - fields of Finding
        """A finding made here, with its rule's severity unless another is given."""
        shown = shown_inputs(self.arguments)
        made = Finding(code, rule(code).severity, message, case=self.where, shown_inputs=shown)
        return replace(made, **fields)

    @property
    def where(self) -> CasePoint:
        """The case, point and draw, for a finding."""
        return CasePoint(self.case.id, self.case.sizes, self.case.options, self.point, self.draw)


def tensors_in(case: Case) -> list[TensorInput]:
    """The tensors that the inputs of a case draw."""
    return [t for an_input in case.inputs for t in tensors_of(an_input)]


def places_of(arguments: Iterable[Argument]) -> dict[str, list[int]]:
    """Positions in a call by name: of an argument, of a list, and of all items of one that is splatted."""
    found: dict[str, list[int]] = {}
    position, open_list = -1, ""
    for argument in arguments:
        position += not (argument.in_list and argument.in_list == open_list)
        open_list = argument.in_list
        for name in {argument.name, argument.in_list or argument.name.partition("[")[0]}:
            found.setdefault(name, []).append(position)
    return {name: list(dict.fromkeys(places)) for name, places in found.items()}


def called_with(function: UserCode, positions: Sequence[int]) -> UserCode:
    """A function of all arguments that calls one with some of them."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        return function(*(arguments[p] for p in positions))

    return call


class InFloat64(Dispatched):  # type: ignore[no-untyped-call]
    """While it is on, every operation computes in float64 or complex128, and casts to less change nothing."""

    may_leave = False
    """A call made again without it would be another map."""

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation in float64.

        Raises `NotImplementedError` for what depends on the bits of a shorter number, or writes into one.
        """
        if func is torch.ops.aten.view.dtype:
            raise NotImplementedError(f"{func}: how many bits a number has")
        if func._schema.is_mutable and _is_short(args[0] if args else None):  # noqa: SLF001 - no public name
            raise NotImplementedError(f"{func} writes into a tensor of a shorter format")
        long_args, long_given = _pytree.tree_map(_in_float64, (args, dict(given)))
        return _pytree.tree_map(_in_float64, func(*long_args, **long_given))


def _is_short(value: Any) -> bool:  # noqa: ANN401 - any argument of an operation
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(dtype, torch.dtype) and longest(dtype) is not dtype


def longest(dtype: torch.dtype) -> torch.dtype:
    """The floating dtype of the most digits that holds numbers of this one; of others the same."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _in_float64(value: Any) -> Any:  # noqa: ANN401
    if not _is_short(value):
        return value
    return value.to(longest(value.dtype)) if isinstance(value, Tensor) else longest(value)


def prepare(subject: Subject, case: Case, point: Point, draw: int) -> Sample | NoSample:
    """Draw the arguments, run forward once with its graph, and see which outputs are differentiable."""
    where = CasePoint(case.id, case.sizes, case.options, point, draw)
    exact = exact_arguments_at(subject, case, point, draw)
    if isinstance(exact, Raised):
        said = f"{exact.error.type}: {exact.error.message}"
        return nothing(NOT_BUILT, where, said, exact.error)
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
        passed = [leaf.clone() for leaf in leaves]
        result = guard.call(subject.call, *substitute(arguments, passed))
    if isinstance(result, Raised):
        return forward_raised(arguments, result.error, where, inferred=subject.inferred)
    returned = returned_tensors(result.value)
    tensors = [(i, r) for i, r in enumerate(returned) if isinstance(r, Tensor)]
    continuous = [i for i, t in tensors if t.is_floating_point() or t.is_complex()]
    connected = [i for i in continuous if returned[i].requires_grad]
    marks = subject.has_python_backward
    foreign = foreign_kind(result.value) or "no tensor" * (not tensors)
    unread = (f"output {i}, which cannot be read" for i in continuous if bits_of(returned[i]) is None)
    foreign, own = foreign or next(unread, ""), _written_parameters(subject, arguments, passed)
    if foreign or own:
        return nothing(NO_TENSORS if foreign else WRITES_PARAMETERS, where, foreign or own)
    if continuous and marks and not any(a.differentiable for a in arguments):
        return nothing(ALL_CONSTANT, where)
    if not continuous or (marks and not connected):
        return NoSample(no_gradient=True)
    # In a dict or deeper there are figures for a log as well, which nobody differentiates.
    of_graph = marks or (is_nested(result.value) and bool(connected))
    every = connected if of_graph else continuous
    judged = [i for i in every if subject.outputs is None or i in subject.outputs]
    if not judged:
        return nothing(NOTHING_CHOSEN, where, ", ".join(map(str, subject.outputs or ())))
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
    written = any(t._version for t in passed)  # noqa: SLF001 - torch's only name for it
    return Sample(
        subject,
        case,
        where.point,
        where.draw,
        arguments,
        problem,
        len(returned),
        disconnected,
        written=written,
    )


def _written_parameters(subject: Subject, arguments: tuple[Argument, ...], passed: Sequence[Tensor]) -> str:
    """Parameters of a module that its forward has given other values: initialised, or held to a norm."""
    is_module = subject.target.kind is TargetKind.MODULE
    own = ((a, p) for a, p in zip((a for a in arguments if a.differentiable), passed, strict=True))
    names = [f"`{a.name}`" for a, p in own if a.name.startswith("self.") and not p.equal(a.value)]
    return " and ".join(names) if is_module else ""


def values_of(sample: Sample) -> Returned[Tensors] | Raised:
    """Forward's values at a sample: of the call that made it, as long as that is the last one."""
    made = sample.subject.learnt.get(Graph)
    if made and made[0] is sample.problem:
        return Returned(tuple(t.detach() for t in made[1].outputs))
    return sample.problem.evaluate(sample.problem.primals)


def graph_of(sample: Sample) -> Returned[Graph] | Raised:
    """Forward at a sample with its graph: the first time it is that of the call which made the sample."""
    made = sample.subject.learnt.pop(Graph, None)
    if made and made[0] is sample.problem:
        return Returned(made[1])
    return sample.problem.graph(sample.problem.primals)


def with_defaults(arguments: tuple[Argument, ...], subject: Subject) -> tuple[Argument, ...]:
    """Fill in the defaults that the call needs.

    `Function.apply` takes positional arguments alone, so a parameter left out before a given one must be
    given its default. Where forward has no `ctx`, torch itself binds all of them, and backward answers for
    each.
    """
    defaults = subject.defaults
    given: dict[str, list[Argument]] = {}
    trained: list[Argument] = []
    for argument in arguments:
        name = argument.in_list or argument.name
        if name in defaults:
            given.setdefault(name, []).append(argument)
        elif subject.target.kind is TargetKind.MODULE and name.startswith("self."):
            trained.append(argument)
        else:
            return arguments
    last = max((k for k, name in enumerate(defaults) if name in given), default=-1)
    if subject.binds_defaults:
        last = len(defaults) - 1
    called = list(defaults.items())[: last + 1]
    filled = [a for name, default in called for a in given.get(name, [Argument(name, default)])]
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
