"""From a request and live objects to a `Subject`: how each kind of target is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradverify.events import Verify
from gradverify.model import (
    Case,
    CasePoint,
    Finding,
    RaisedError,
    Target,
    TargetKind,
    TargetPlan,
    TensorInput,
)
from gradverify.rules import rule
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import Reader
from gradverify.verifier.checks.subject import Subject, Surrogate, first_line
from gradverify.verifier.collect.discover import defaults_of, uses_setup_context
from gradverify.verifier.collect.forward_itself import plain_forward
from gradverify.verifier.collect.module_target import BuiltModule, build_module
from gradverify.verifier.collect.named import by_name_last, with_keywords
from gradverify.verifier.collect.operators import operator_of
from gradverify.verifier.devices import others
from gradverify.verifier.guard import Raised


@dataclass(frozen=True)
class Live:
    """The objects behind a `Verify` request."""

    value: Any
    """The Function class, the callable, or the `nn.Module` class."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Reference, surrogate, hooks and the objects of inputs, by the path that the spec gives."""
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """What stands between the caller and the target: a planted fault, where no backward can be replaced."""


def build_subject(
    request: Verify, live: Live, case: Case, reader: Reader | None
) -> tuple[Subject, Case] | Finding:
    """The target ready to be called on one case; for a module, the case with its parameters as inputs."""
    plan, value, kind = request.plan, live.value, request.target.kind
    case = _by_name_last(case, request.target)
    called = _called(value, request, case)
    if isinstance(called, Raised):
        return _not_built(case, called.error)
    reference = live.named.get(plan.reference)
    if reference is not None and kind in {TargetKind.CALLABLE, TargetKind.CUSTOM_OP}:
        reference = _named(reference, request.target, case)
    return Subject(
        target=request.target,
        function=called.function if live.around is None else live.around(called.function),
        settings=request.settings,
        reader=reader,
        reference=reference,
        reference_arguments=plan.reference_arguments,
        surrogate=_surrogate(plan, live),
        outputs=plan.outputs,
        hook=live.named.get(case.hook),
        inferred=request.inferred,
        doubts=plan.doubts,
        dtypes=request.settings.dtypes or plan.dtypes,
        internals=plan.internals,
        live=live.named,
        defaults=defaults_of(value),
        own_forward=called.own_forward,
        function_class=value if kind is TargetKind.FUNCTION else None,
        operator=operator_of(value) if kind is TargetKind.CUSTOM_OP else None,
        other_devices=others(request.settings.device, plan.devices) if request.settings.every_device else (),
        rebuilt=partial(_rebuilt, value, case, request) if kind is TargetKind.MODULE else None,
        binds_defaults=kind is TargetKind.FUNCTION and uses_setup_context(value),
    ), replace(case, inputs=(*case.inputs, *called.parameters))


@dataclass(frozen=True)
class _Called:
    """How a target is called."""

    function: Callable[..., Any]
    own_forward: Callable[..., Any] | None = None
    """Forward without autograd's wrapping, where there is such a thing."""
    parameters: tuple[TensorInput, ...] = ()
    """What a module adds to its inputs."""


def _called(value: Any, request: Verify, case: Case) -> _Called | Raised:  # noqa: ANN401
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
            built = guard.call(_built_module, value, case, request, request.settings.device)
            if isinstance(built, Raised):
                return built
            return _Called(built.value.call, parameters=built.value.parameters)


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
    return Finding(
        "GV001",
        rule("GV001").severity,
        f"the module could not be built: {error.type}: {first_line(error.message)}",
        hint="`init:` gives the arguments of its constructor.",
        case=CasePoint(case.id, case.sizes, case.options),
        raised=error,
    )


def _built_module(module_class: Any, case: Case, request: Verify, device: str) -> BuiltModule:  # noqa: ANN401
    given = dict(case.init or ())
    positional = [given[key] for key in sorted((k for k in given if k.isdecimal()), key=int)]
    keywords = {key: value for key, value in given.items() if not key.isdecimal()}
    return build_module(
        module_class,
        positional,
        keywords,
        seed=case.seed,
        parameters=request.target.parameters,
        device=device,
    )


def _rebuilt(module_class: Any, case: Case, request: Verify, device: str) -> Callable[..., Any]:  # noqa: ANN401
    return _built_module(module_class, case, request, device).call
