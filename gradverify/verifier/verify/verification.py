"""One target while it is verified: how its samples are built, what was asked of it, and what was found.

From a request and live objects to a `Subject`: how each kind of target is called. Of several ranks also what
all of them must share, and that they wait for each other in vain: GV721 to GV723.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradverify.events import CaseStarted, CaseVerified, Event, Found, Verify
from gradverify.model import (
    Case,
    CasePoint,
    Finding,
    Point,
    RaisedError,
    Settings,
    Severity,
    Target,
    TargetKind,
    TargetPlan,
    TensorInput,
    indexed,
)
from gradverify.rules import RULES, Family, rule
from gradverify.verifier import guard
from gradverify.verifier.guard import NotJudgedError, OutOfStepError, Raised, default_dtype
from gradverify.verifier.guard.devices import exact_arithmetic, others
from gradverify.verifier.inputs.arguments import build_arguments, seeded
from gradverify.verifier.inputs.native_values import call_hook
from gradverify.verifier.neighbours.guesses import Excuses
from gradverify.verifier.numerics.problem import Counter, VjpProblem, multi_index, substitute
from gradverify.verifier.questions.dtypes.deciding import deciding_cases, precision_at
from gradverify.verifier.questions.findings import number
from gradverify.verifier.questions.reading import Reader, reading_backward, reading_operator
from gradverify.verifier.questions.subject import (
    Float64,
    Native,
    Sample,
    Subject,
    Surrogate,
    first_line,
)
from gradverify.verifier.targets.discover import (
    applied_functions,
    defaults_of,
    is_old_style,
    uses_setup_context,
)
from gradverify.verifier.targets.forward_itself import plain_forward
from gradverify.verifier.targets.module_target import BuiltModule, ModuleState, Writes, build_module
from gradverify.verifier.targets.operators import by_name_last, operator_of, with_keywords
from gradverify.verifier.verify.kept import Kept, Place

if TYPE_CHECKING:  # loaded where a target runs on ranks
    from gradverify.verifier.ranks.across import Difference
    from gradverify.verifier.ranks.program import Program
    from gradverify.verifier.ranks.worlds import Worlds

NATIVE_ASKED = "it is judged in its own dtypes, as requested"

HINTS = {
    "output": (
        "Is a reduction or a gather missing in forward? Where each rank is to have a value of its own, say "
        "`output_placement: local`, or `partial` where their sum is meant."
    ),
    "gradient": (
        "Is a reduction missing in backward? Where each rank is to return its part of the gradient, declare "
        "`gradient: partial` beside `placement: replicate`."
    ),
}


def is_wanted(code: str, settings: Settings, ignored: Sequence[str]) -> bool:
    """Whether findings with this code are asked for.

    What speaks of the run itself (no inputs, a forward that raises, what could not be judged) always is,
    unless it is ignored by name: else `--select` could turn "not verified" into green.
    """
    if code.startswith((*settings.ignore, *ignored)):
        return False
    always = rule(code).family is Family.RUN or code in {"GV002", "GV102", "GV109"}
    return always or not settings.select or code.startswith(settings.select)


@dataclass
class Verification:
    """A request, its live objects, and what is known of the target so far."""

    request: Verify
    live: Live
    reader: Reader | None
    visited: list[Place] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    has_gradient: bool = False
    """Some case has one."""
    lacks_gradient: bool = False
    """Some case has none, and was not verified."""
    traced: set[tuple[tuple[str, object], ...]] = field(default_factory=set)
    """Combinations of options of which it is known which Functions they apply."""
    excuses: Excuses = field(default_factory=Excuses)
    """What was guessed that explains a mistake."""
    is_old_style: bool = False
    """A method of the Function lacked `@staticmethod` before any of them was called."""

    @property
    def wanted(self) -> frozenset[Family]:
        """Families with at least one code that is asked for."""
        wanted = frozenset(r.family for r in RULES if self.wants(r.code))
        ranks = self.request.plan.ranks
        return wanted if ranks is None or ranks.second_order else wanted - {Family.GRADGRADCHECK}

    @property
    def has_no_error(self) -> bool:
        """Whether some case has a gradient and nothing is wrong so far."""
        return self.has_gradient and all(f.severity is not Severity.ERROR for f in self.findings)

    @property
    def is_verified(self) -> bool:
        """Whether every case was verified, and nothing is wrong or open."""
        return self.has_no_error and not self.lacks_gradient and all(f.code != "GV109" for f in self.findings)

    def wants(self, code: str) -> bool:
        """Whether findings with a code are asked for."""
        return is_wanted(code, self.request.settings, self.request.ignored)

    def build(self, case: Case) -> tuple[Subject, Case] | Finding:
        """The target ready to be called on a case; a finding where it cannot be built."""
        built = self._in_float64(case)
        if isinstance(built, Finding) or self.live.native:
            return built
        for _ in self.deciding(case):
            pass
        subject = replace(built[0], precision=self.live.kept.precision[case.options])
        return subject, built[1]

    def deciding(self, case: Case) -> Iterator[Event]:
        """Decide in which precision a combination of options is judged, where that is not known.

        It tells at which case: a call there may end the process.
        """
        plan, precision = self.request.plan, self.live.kept.precision
        if case.options in precision or self.live.native:
            return
        declared = plan.declared or plan.cases
        own = declared if any(c.options == case.options for c in declared) else (case,)
        found: Float64 | Native = Float64()
        for one in deciding_cases(case.options, own):
            yield CaseStarted(one.id, Point.TYPICAL, 0)
            found = precision_at(one, self._in_float64)
            if isinstance(found, Native):
                break
        precision[case.options] = found

    def _in_float64(self, case: Case) -> tuple[Subject, Case] | Finding:
        return build_subject(self.request, self.live, case, self.reader)

    def sample(self, case: Case) -> Sample | None:
        """The first typical draw of a case, None where forward refuses it."""
        sample = self.live.kept.sample(Place(case, Point.TYPICAL, 0), self.build)
        if not isinstance(sample, Sample):
            return None
        # Its calls so far are counted with its case.
        return replace(sample, problem=replace(sample.problem, counter=Counter()))

    def applied(self, sample: Sample) -> set[tuple[str, str]]:
        """Which Functions a target applies: (file, qualified name), at one sample for all options alike.

        A Function applies others only in its double backward, which nobody else may reach either.
        """
        subject, options = sample.subject, sample.case.options
        alone = subject.function_class is not None and not self.live.has_unreached
        if alone or subject.across is not None or options in self.traced:
            return set()
        self.traced.add(options)
        outputs = sample.problem.outputs
        cotangents = outputs.unflatten(torch.ones(outputs.size, dtype=torch.float64))
        graph = VjpProblem(sample.problem, cotangents).graph((*sample.problem.primals, *cotangents))
        if isinstance(graph, Raised):
            graph = sample.problem.graph(sample.problem.primals)
        if isinstance(graph, Raised):
            return set()
        return applied_functions((*graph.value.outputs, *graph.value.behind))

    def reported(self, findings: Iterable[Finding]) -> Iterator[Event]:
        """Those findings that are asked for, as events."""
        return (Found(f) for f in findings if self.wants(f.code))

    def noted(self, events: Iterable[Event], case: Case) -> Iterator[Event]:
        """The events of a case as they come; what they say is remembered."""
        for event in events:
            match event:
                case CaseStarted():
                    self.visited.append(Place(case, event.point, event.draw))
                case Found():
                    self.findings.append(event.finding)
                case CaseVerified():
                    self.has_gradient |= not event.no_gradient
                    self.lacks_gradient |= event.no_gradient
                case _:
                    pass
            yield event


@contextmanager
def verifying(request: Verify, live: Live) -> Iterator[Verification]:
    """Read what backward returns while the context lasts, in the dtype and arithmetic of the request."""
    with ExitStack() as stack:
        stack.enter_context(default_dtype(request.plan.default_dtype))
        stack.enter_context(exact_arithmetic())
        reader = None
        kind = request.target.kind if request.plan.ranks is None else TargetKind.CALLABLE
        operator = operator_of(live.value) if kind is TargetKind.CUSTOM_OP else None
        if kind is TargetKind.FUNCTION:
            reader = stack.enter_context(reading_backward(live.value, live.kept.reader))
        elif operator is not None and operator.backward is not None:
            reader = stack.enter_context(reading_operator(operator, live.kept.reader))
        old = kind is TargetKind.FUNCTION and is_old_style(live.value)
        yield Verification(request, live, reader, is_old_style=old)


@dataclass(frozen=True)
class Live:
    """The objects behind a `Verify` request."""

    value: Any
    """The Function class, the callable, or the `nn.Module` class."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Reference, surrogate, hooks and the objects of inputs, by the path that the spec gives."""
    kept: Kept = field(default_factory=Kept)
    """What was drawn and measured of the target so far."""
    native: str = ""
    """The dtype in which it is called from the start: who asks says that there is no float64 path."""
    worlds: Worlds | Program | None = None
    """Where it runs on several ranks."""
    has_unreached: bool = False
    """Its module defines Functions that no name of it leads to."""
    state: ModuleState = ModuleState.NEW
    """Of an `nn.Module`: what has happened to it."""


def build_subject(
    request: Verify, live: Live, case: Case, reader: Reader | None
) -> tuple[Subject, Case] | Finding:
    """The target ready to be called on one case; for a module, the case with its parameters as inputs."""
    plan, value, kind = request.plan, live.value, request.target.kind
    case = _by_name_last(case, request.target)
    across = live.worlds.across(case, plan) if live.worlds and plan.ranks and case.world else None
    called = _called(live, request, case) if across is None else _Called(across)
    if isinstance(called, Raised):
        return _not_built(case, called.error)
    reference = live.named.get(plan.reference)
    if reference is not None and kind in {TargetKind.CALLABLE, TargetKind.CUSTOM_OP}:
        reference = _named(reference, request.target, case)
    return Subject(
        target=request.target,
        function=called.function,
        settings=request.settings,
        reader=reader,
        reference=reference,
        reference_arguments=plan.reference_arguments,
        surrogate=_surrogate(plan, live),
        outputs=plan.outputs,
        hook=live.named.get(case.hook),
        inferred=request.inferred,
        doubts=plan.doubts,
        spares=tuple(_by_name_last(s, request.target) for s in plan.spares) if request.inferred else (),
        precision=Native(live.native, NATIVE_ASKED) if live.native else Float64(),
        short=live.kept.short,
        learnt=live.kept.learnt,
        dtypes=request.settings.dtypes or plan.dtypes,
        internals=plan.internals,
        live=live.named,
        defaults=defaults_of(value),
        options=_options(plan.declared or plan.cases),
        own_forward=called.own_forward,
        function_class=value if kind is TargetKind.FUNCTION and across is None else None,
        operator=operator_of(value) if kind is TargetKind.CUSTOM_OP and across is None else None,
        other_devices=others(request.settings.device, plan.devices) if request.settings.every_device else (),
        rebuilt=partial(_rebuilt, live, case, request, called.held) if kind is TargetKind.MODULE else None,
        again=called.again,
        binds_defaults=kind is TargetKind.FUNCTION and uses_setup_context(value),
        across=across,
        is_base=case.id not in {c.id for c in plan.cases[1:]},
        is_first_of_options=_is_first_of_options(case, plan.cases),
    ), replace(case, inputs=(*case.inputs, *called.parameters))


def _is_first_of_options(case: Case, listed: Iterable[Case]) -> bool:
    """Whether no listed case before this one has its options, on as many ranks; one that is not listed is."""
    same = [c.id for c in listed if (c.options, c.world) == (case.options, case.world)]
    return case.id not in same[1:]


def _options(cases: Iterable[Case]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, dict[Any, None]] = {}
    for name, value in (pair for case in cases for pair in case.options):
        found.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in found.items()}


@dataclass(frozen=True)
class _Called:
    """How a target is called."""

    function: Callable[..., Any]
    own_forward: Callable[..., Any] | None = None
    """Forward without autograd's wrapping, where there is such a thing."""
    parameters: tuple[TensorInput, ...] = ()
    """What a module adds to its inputs."""
    held: list[Writes] | None = None
    """What a module wrote into its buffers at its first call."""
    again: Callable[[Sequence[Any]], Callable[..., Any]] | None = None
    """Of a module: the call beside another one of the same instance."""


def _called(live: Live, request: Verify, case: Case) -> _Called | Raised:
    value = live.value
    match request.target.kind:
        case TargetKind.FUNCTION:
            return _Called(value.apply, plain_forward(value))
        case TargetKind.CUSTOM_OP:
            operator = operator_of(value)
            plain = operator.implementation if operator is not None else None
            own = None if plain is None else _named(plain, request.target, case)
            return _Called(_named(value, request.target, case), own)
        case TargetKind.CALLABLE:
            return _Called(_named(value, request.target, case))
        case TargetKind.MODULE:
            built = guard.call(_built_module, live, case, request, request.settings.device)
            if isinstance(built, Raised):
                return built
            module = built.value
            return _Called(module.call, parameters=module.parameters, held=module.held, again=module.again)


def _named(function: Callable[..., Any], target: Target, case: Case) -> Callable[..., Any]:
    """A callable of positional values, whatever of them it takes by name alone."""
    return with_keywords(function, target.parameters, [i.name for i in case.inputs])


def _by_name_last(case: Case, target: Target) -> Case:
    order = by_name_last([i.name for i in case.inputs], target.parameters)
    return replace(case, inputs=tuple(sorted(case.inputs, key=lambda i: order.index(i.name))))


def _surrogate(plan: TargetPlan, live: Live) -> Surrogate | None:
    declared = plan.surrogate
    if declared is None:
        return None
    return Surrogate(live.named.get(declared.path), declared.arguments, declared.inputs)


def _not_built(case: Case, error: RaisedError) -> Finding:
    """Why there is no module."""
    return Finding(
        "GV001",
        rule("GV001").severity,
        f"the module could not be built: {error.type}: {first_line(error.message)}",
        hint="`init:` gives the arguments of its constructor; names in it are sizes if `sizes:` lists them.",
        case=CasePoint(case.id, case.sizes, case.options),
        raised=error,
    )


def _built_module(
    live: Live, case: Case, request: Verify, device: str, held: list[Writes] | None = None
) -> BuiltModule:
    given = dict(case.init or ())
    positional = [given[key] for key in sorted((k for k in given if k.isdecimal()), key=int)]
    keywords = {key: value for key, value in given.items() if not key.isdecimal()}
    return build_module(
        partial(seeded, case.seed, live.value, *positional, **keywords),
        parameters=request.target.parameters,
        device=device,
        arguments=partial(_arguments, live, case, request, device),
        state=live.state,
        held=held,
    )


def _arguments(live: Live, case: Case, request: Verify, device: str, draw: int) -> list[Any]:
    """What forward is called with at a typical draw of a case. Raises what building it raises."""
    parameters = request.target.parameters
    if case.hook:
        hooked = call_hook(live.named[case.hook], case, draw, device, parameters)
        if isinstance(hooked, Raised):
            raise ValueError(f"the hook raised {hooked.error.type}: {first_line(hooked.error.message)}")
        arguments = hooked.value
    else:
        arguments = build_arguments(case, Point.TYPICAL, draw, device, live.named)
    return substitute(arguments, [a.value.detach().clone() for a in arguments if a.differentiable])


def _rebuilt(
    live: Live, case: Case, request: Verify, held: list[Writes] | None, device: str
) -> Callable[..., Any]:
    return _built_module(live, case, request, device, held).call


def disagreements(sample: Sample) -> Iterator[Finding]:
    """What ranks had different values of since this was last asked: one finding for each output and input."""
    across = sample.subject.across
    if across is None:
        return
    met, across.differences = across.differences, {}
    names = [a.name for a in sample.arguments if isinstance(a.value, Tensor)]
    for (what, position), difference in sorted(met.items()):
        is_output = what == "output"
        named = f"output {position}" if is_output else f"the gradient of `{names[position]}`"
        code = "GV721" if is_output else "GV722"
        yield Finding(
            code,
            rule(code).severity,
            f"{named} is not the same on every rank: {_where(difference)}",
            hint=HINTS[what],
            case=sample.where,
            output=position if is_output else None,
            input=None if is_output else names[position],
        )


def _where(difference: Difference) -> str:
    """The first entry that differs, on both ranks, in words."""
    one, other = difference.of_first, difference.of_rank
    if one.shape != other.shape or one.dtype != other.dtype:
        reported = f"{list(one.shape)} {one.dtype} on rank 0, {list(other.shape)} {other.dtype}"
        return f"{reported} on rank {difference.rank}".replace("torch.", "")
    at = int(one.ne(other).reshape(-1).int().argmax())
    place = indexed("", multi_index(at, one.shape))
    first, second = (_shown(t.reshape(-1)[at]) for t in (one, other))
    return f"{first} on rank 0, {second} on rank {difference.rank}{f', at {place}' if place else ''}"


def _shown(value: Tensor) -> str:
    plain: Any = value.item()
    return number(plain) if isinstance(plain, float) else str(plain)


def stopped_by(error: OutOfStepError | NotJudgedError, where: CasePoint | None) -> Finding:
    """Why nothing more was judged: outputs that do not lie on the ranks as the spec says, or ranks that wait.

    Of these none answers any more.
    """
    if isinstance(error, NotJudgedError):
        return Finding("GV001", rule("GV001").severity, str(error), hint=error.hint, case=where)
    return Finding(
        "GV723",
        rule("GV723").severity,
        f"ranks are out of step: {error}",
        hint=(
            "Every rank of a group must enter the same collectives in the same order, whatever its own "
            "values and its number are. Nothing more was asked of this target."
        ),
        case=where,
    )
