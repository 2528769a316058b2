"""What in a module has a backward: `torch.autograd.Function` subclasses, and operators that it registers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import MethodType, ModuleType
from typing import Any

from torch import nn
from torch.autograd import Function

from gradverify.model import Parameter, PassedOver, Target, TargetKind
from gradverify.verifier.collect.extensions import compiled_calls
from gradverify.verifier.collect.lines import line_of
from gradverify.verifier.collect.operators import (
    defaults_of_schema,
    operator_of,
    overloads_of,
    parameters_of_schema,
)
from gradverify.verifier.collect.registered import line_of_operator, registered_operators
from gradverify.verifier.collect.unreached import unreached


def discover(module: ModuleType, shown_path: str) -> tuple[tuple[Target, ...], tuple[PassedOver, ...]]:
    """What a module defines itself, in source order, and what was looked at but not taken."""
    targets, passed_over = registered_operators(module, shown_path)
    reached: set[str] = set()
    for name, value in _named_functions(module).items():
        line = line_of(value)
        reason = _reason_to_pass_over(value, module)
        reached.add(value.__qualname__)
        if reason:
            passed_over.append(PassedOver(name, line if value.__module__ == module.__name__ else 0, reason))
        else:
            reached |= _class_statements(value)
            targets.append(describe_target(value, name, name, shown_path))
    targets += unreached(module, shown_path, reached)
    return tuple(sorted(targets, key=lambda t: (t.line, t.name))), tuple(sorted(passed_over, key=_by_line))


def _named_functions(module: ModuleType) -> dict[str, type[Function]]:
    """The Functions that names of a module lead to, each once: by its own name before one of its `apply`.

    Those of other modules count only where a name holds the class itself.
    """
    found: dict[int, tuple[str, type[Function]]] = {}
    applied: list[tuple[str, type[Function]]] = []
    for name, value in _names_within(module, module.__name__):
        # Of other objects nothing is asked: a lazy module or a proxy may raise at any attribute.
        behind = target_behind(value) if issubclass(type(value), type | MethodType) else None
        if not isinstance(behind, type) or not _is_function_class(behind):
            continue
        if behind is value:
            found.setdefault(id(behind), (name, behind))
        elif behind.__module__ == module.__name__:
            applied.append((name, behind))
    for name, behind in applied:
        found.setdefault(id(behind), (name, behind))
    return dict(found.values())


def _names_within(owner: Any, module: str, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The names of a module with what they hold, then those within its own classes, as `Layer.Inner`."""
    values = {n: v.__func__ if isinstance(v, staticmethod) else v for n, v in vars(owner).items()}
    yield from ((prefix + name, value) for name, value in values.items())
    for name, value in values.items():
        is_own = issubclass(type(value), type) and value.__module__ == module
        if is_own and value.__qualname__ == prefix + name:
            yield from _names_within(value, module, f"{prefix}{name}.")


def describe_target(
    value: Any,  # noqa: ANN401
    name: str,
    attribute: str,
    shown_path: str,
    module: ModuleType | None = None,
) -> Target:
    """Describe a live Function class, operator, module class or callable."""
    operator = operator_of(value)
    return Target(
        name=name,
        attribute=attribute,
        kind=_kind_of(value),
        file=shown_path,
        line=line_of(value) if operator is None else line_of_operator(operator, module),
        parameters=parameters_of(value),
        compiled=compiled_calls(_differentiated(value)),
    )


def _differentiated(value: Any) -> tuple[Callable[..., Any], ...]:  # noqa: ANN401
    """Forward and backward, where they are Python functions of the author's."""
    operator = operator_of(value)
    if operator is not None:
        return tuple(f for f in (operator.implementation, operator.backward) if f is not None)
    if _kind_of(value) is not TargetKind.FUNCTION:
        return ()
    return value.forward, getattr(value, backward_name(value))


def parameters_of(value: Any) -> tuple[Parameter, ...]:  # noqa: ANN401
    """Parameters of a callable, or of a Function's forward without its `ctx`; empty where unknown."""
    operator = operator_of(value)
    if operator is not None:
        return parameters_of_schema(operator)
    kind = _kind_of(value)
    try:
        signature = inspect.signature(value if kind is TargetKind.CALLABLE else value.forward)
    except (TypeError, ValueError):
        return ()
    found = list(signature.parameters.values())
    if kind is TargetKind.MODULE or (kind is TargetKind.FUNCTION and not uses_setup_context(value)):
        found = found[1:]
    return tuple(
        Parameter(
            name=p.name,
            has_default=p.default is not p.empty,
            annotation="" if p.annotation is p.empty else inspect.formatannotation(p.annotation),
            variadic=p.kind is p.VAR_POSITIONAL,
            keyword_only=p.kind is p.KEYWORD_ONLY,
        )
        for p in found
        if p.kind is not p.VAR_KEYWORD
    )


def _kind_of(value: Any) -> TargetKind:  # noqa: ANN401
    if isinstance(value, type) and issubclass(value, Function):
        return TargetKind.FUNCTION
    if isinstance(value, type) and issubclass(value, nn.Module):
        return TargetKind.MODULE
    return TargetKind.CALLABLE if operator_of(value) is None else TargetKind.CUSTOM_OP


def defaults_of(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Parameters in call order, with their default or `...` for none; `*args` are left out.

    Those that are passed by name alone come last: `gradverify.verifier.collect.named` calls with them.
    """
    operator = operator_of(value)
    if operator is not None:
        return defaults_of_schema(operator)
    kind = _kind_of(value)
    is_function = kind is TargetKind.FUNCTION
    try:
        signature = inspect.signature(value if kind is TargetKind.CALLABLE else value.forward)
    except (TypeError, ValueError):
        return {}
    found = list(signature.parameters.values())
    if kind is TargetKind.MODULE or (is_function and not uses_setup_context(value)):
        found = found[1:]
    taken = [p for p in found if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    taken += [p for p in found if p.kind is p.KEYWORD_ONLY and not is_function]
    return {p.name: ... if p.default is p.empty else p.default for p in taken}


def target_behind(value: Any) -> Any:  # noqa: ANN401
    """What is verified under a name: the Function class where the name holds its `apply`."""
    owner = getattr(value, "__self__", None)
    applied = isinstance(owner, type) and issubclass(owner, Function) and value == owner.apply
    return owner if applied else value


def why_no_target(value: Any, *, init: bool) -> str:  # noqa: ANN401 - any live object
    """Why an object cannot be verified, as the end of a sentence; empty where it can."""
    overloads = overloads_of(value)
    if len(overloads) > 1:
        named = ", ".join(f"`{name}`" for name in overloads[:4])
        return f"an operator with several overloads: name one of {named} behind it"
    if not isinstance(value, type):
        return "" if callable(value) else f"{type(value).__name__}, not a Function or callable"
    if issubclass(value, Function):
        return "an autograd.Function: it takes no `init:`" if init else ""
    if not issubclass(value, nn.Module):
        return "a class that is neither an autograd.Function nor an nn.Module"
    return "" if init else "an nn.Module: say with `init:` how it is built (`init: {}` for no arguments)"


def uses_setup_context(function: type[Function]) -> bool:
    """Whether forward has no `ctx` because `setup_context` gets it."""
    return function.setup_context is not Function.setup_context


def is_old_style(function: type[Function]) -> bool:
    """Whether forward or backward lacks `@staticmethod`; a `@classmethod` is none, and nothing is wrong."""
    return any(
        not isinstance(inspect.getattr_static(function, name), staticmethod | classmethod)
        for name in ("forward", backward_name(function))
    )


def backward_name(function: type[Function]) -> str:
    """`backward`, or `vjp` where the class defines that instead."""
    return "vjp" if function.vjp is not Function.vjp else "backward"


def _is_function_class(value: type) -> bool:
    return issubclass(value, Function) and value is not Function


def _reason_to_pass_over(value: type[Function], module: ModuleType) -> str:
    if value.__module__ != module.__name__:
        return f"imported from {value.__module__}"
    if value.forward is Function.forward:
        return "an abstract base: it has no forward"
    has_backward = value.backward is not Function.backward or value.vjp is not Function.vjp
    heirs = [c.__name__ for c in value.__subclasses__() if c.__module__ == module.__name__]
    if not has_backward and heirs:
        return f"an abstract base of {', '.join(heirs)}: it has no backward"
    return "" if has_backward else "it has no backward"


def _class_statements(value: type[Function]) -> set[str]:
    """Qualified name of the class statement with both forward and backward; none where two have one each.

    The class may have been given another name since, or be a base of the one that is verified.
    """
    methods = (value.forward, getattr(value, backward_name(value)))
    forward, backward = (getattr(m, "__qualname__", "").rpartition(".")[0] for m in methods)
    return {forward} if forward == backward else set()


def _by_line(passed: PassedOver) -> tuple[int, str]:
    return passed.line, passed.name
