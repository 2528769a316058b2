"""From a request and live objects to a `Subject`: how each kind of target is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradverify.events import Verify
from gradverify.model import Case, CasePoint, Finding, RaisedError, TargetKind, TargetPlan
from gradverify.rules import rule
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import Reader
from gradverify.verifier.checks.subject import Subject, Surrogate, first_line
from gradverify.verifier.collect.discover import defaults_of, uses_setup_context
from gradverify.verifier.collect.forward_itself import plain_forward
from gradverify.verifier.collect.module_target import BuiltModule, build_module
from gradverify.verifier.devices import others
from gradverify.verifier.guard import Raised


@dataclass(frozen=True)
class Live:
    """The objects behind a `Verify` request."""

    value: Any
    """The Function class, the callable, or the `nn.Module` class."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Reference, surrogate, hooks and the objects of inputs, by the path that the spec gives."""


def build_subject(
    request: Verify, live: Live, case: Case, reader: Reader | None
) -> tuple[Subject, Case] | Finding:
    """The target ready to be called on one case; for a module, the case with its parameters as inputs."""
    plan, value = request.plan, live.value
    defaults: Mapping[str, Any] = {}
    rebuilt: Callable[[str], Callable[..., Any]] | None = None
    own_forward = plain_forward(value) if request.target.kind is TargetKind.FUNCTION else None
    match request.target.kind:
        case TargetKind.FUNCTION:
            function, defaults = value.apply, defaults_of(value)
        case TargetKind.CALLABLE:
            function, defaults = value, defaults_of(value)
        case TargetKind.MODULE:
            built = guard.call(_built_module, value, case, request.settings.device)
            if isinstance(built, Raised):
                return _not_built(case, built.error)
            rebuilt = partial(_rebuilt, value, case)
            function, case = built.value.call, replace(case, inputs=(*case.inputs, *built.value.parameters))
    return Subject(
        target=request.target,
        function=function,
        settings=request.settings,
        reader=reader,
        reference=live.named.get(plan.reference),
        reference_arguments=plan.reference_arguments,
        surrogate=_surrogate(plan, live),
        outputs=plan.outputs,
        hook=live.named.get(case.hook),
        inferred=request.inferred,
        doubts=plan.doubts,
        live=live.named,
        defaults=defaults,
        own_forward=own_forward,
        function_class=value if request.target.kind is TargetKind.FUNCTION else None,
        other_devices=others(request.settings.device, plan.devices) if request.settings.every_device else (),
        rebuilt=rebuilt,
        binds_defaults=request.target.kind is TargetKind.FUNCTION and uses_setup_context(value),
    ), case


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


def _built_module(module_class: Any, case: Case, device: str) -> BuiltModule:  # noqa: ANN401
    given = dict(case.init or ())
    positional = [given[key] for key in sorted((k for k in given if k.isdecimal()), key=int)]
    keywords = {key: value for key, value in given.items() if not key.isdecimal()}
    return build_module(module_class, positional, keywords, device=device)


def _rebuilt(module_class: Any, case: Case, device: str) -> Callable[..., Any]:  # noqa: ANN401
    return _built_module(module_class, case, device).call
