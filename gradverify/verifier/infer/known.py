"""What is known of a target before anything is tried."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gradverify.model import Parameter, Target, TargetKind
from gradverify.verifier.collect.discover import backward_name, defaults_of, uses_setup_context
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.collect.operators import operator_of
from gradverify.verifier.infer.evidence import gather, trained
from gradverify.verifier.infer.facts import Evidence, Facts
from gradverify.verifier.infer.trial import Caller


@dataclass(frozen=True)
class Known:
    """What the source, the schema and the call sites say of a target, and how it is called."""

    parameters: tuple[Parameter, ...]
    """Those that arguments are to be found for."""
    evidence: Evidence
    trained: frozenset[str]
    """Parameters that layers of the module pass an `nn.Parameter` for."""
    caller: Caller

    def facts(self, name: str) -> Facts:
        """What the source says of a parameter."""
        return self.evidence.facts[name]


def known_of(value: Any, target: Target, module: ModuleType | None) -> Known:  # noqa: ANN401
    """Everything that is known of a live target without calling it."""
    # What is passed by name alone and has a default is left to it.
    parameters = tuple(p for p in target.parameters if not (p.keyword_only and p.has_default))
    names = [p.name for p in parameters]
    evidence = _evidence(value, target, names)
    in_training = trained(_source(module), getattr(value, "__name__", ""), names)
    return Known(parameters, evidence, in_training, _caller(value, target, names))


def _evidence(value: Any, target: Target, names: Sequence[str]) -> Evidence:  # noqa: ANN401
    operator = operator_of(value)
    if operator is not None:
        return gather(names, operator.implementation, operator.setup_context, operator.backward, 0)
    if target.kind is not TargetKind.FUNCTION:
        return gather(names, value, extra_parameters=0)
    context = value.setup_context if uses_setup_context(value) else None
    return gather(names, value.forward, context, getattr(value, backward_name(value)), int(context is None))


def _source(module: ModuleType | None) -> str:
    try:
        return inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""


def _caller(value: Any, target: Target, names: Sequence[str]) -> Caller:  # noqa: ANN401
    call = value.apply if target.kind is TargetKind.FUNCTION else value
    if target.kind is not TargetKind.FUNCTION:
        call = with_keywords(call, [p for p in target.parameters if p.name in names], names)
    variadic = frozenset(p.name for p in target.parameters if p.variadic)
    return Caller(call, defaults_of(value), variadic)
