"""From a request and live objects to a `Subject`: how each kind of target is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradverify.events import Verify
from gradverify.model import (
    Case,
    CasePoint,
    Finding,
    Point,
    RaisedError,
    Target,
    TargetKind,
    TargetPlan,
    TensorInput,
)
from gradverify.rules import rule
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.devices import others
from gradverify.verifier.inputs.arguments import build_arguments, seeded
from gradverify.verifier.inputs.native_values import call_hook
from gradverify.verifier.numerics.problem import substitute
from gradverify.verifier.questions.reading import Reader
from gradverify.verifier.questions.subject import Float64, Native, Subject, Surrogate, first_line
from gradverify.verifier.ranks.program import Program
from gradverify.verifier.ranks.worlds import Worlds
from gradverify.verifier.targets.discover import defaults_of, uses_setup_context
from gradverify.verifier.targets.forward_itself import plain_forward
from gradverify.verifier.targets.module_target import BuiltModule, ModuleState, Writes, build_module
from gradverify.verifier.targets.operators import by_name_last, operator_of, with_keywords
from gradverify.verifier.verify.kept import Kept

NATIVE_ASKED = "it is judged in its own dtypes, as requested"


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
    if plan.surrogate is None:
        return None
    declared = plan.surrogate
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
