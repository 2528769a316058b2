"""Operators of torch's dispatcher as targets: what their schema says, and where their backward is.

`torch.library.custom_op` and `triton_op` give a definition whose backward is one Python function; what is
found as `torch.ops.namespace.name` may be compiled.

Calling with values by position alone: parameters that a callable takes only by name come last.

Which operators a module registers: `custom_op` and `triton_op` definitions, and those of a `Library`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket
from torch.library import Library

from gradverify.model import Parameter, PassedOver, Target, TargetKind
from gradverify.source import module_of


def with_keywords(
    function: Callable[..., Any], parameters: Sequence[Parameter], given: Sequence[str]
) -> Callable[..., Any]:
    """The function as one of positional values, in the order of its parameters.

    `given` names what is passed; it tells where the keywords begin behind a `*args`.
    """
    by_name = [p.name for p in parameters if p.keyword_only]
    if not by_name:
        return function
    first: int | None = len(parameters) - len(by_name)
    if any(p.variadic for p in parameters):
        by_name = [name for name in by_name if name in given]
        first = -len(by_name) or None

    def call(*values: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        named = values[first:] if first is not None else ()
        return function(*values[:first], **dict(zip(by_name, named, strict=False)))

    return call


def by_name_last(names: Sequence[str], parameters: Sequence[Parameter]) -> list[str]:
    """Names of inputs, those that are passed by name alone behind the others."""
    order = [p.name for p in parameters if p.keyword_only]
    return sorted(names, key=lambda name: order.index(name) + 1 if name in order else 0)


_SCHEMA = re.compile(r"(?:(\w+)::)?(\w+)(?:\.\w+)?\s*(?:\(|$)")
"""`mylib::mul`, or a schema `mul(Tensor x) -> Tensor` with or without the namespace."""


def registered_operators(module: ModuleType, shown_path: str) -> tuple[list[Target], list[PassedOver]]:
    """The operators that a module registers with a backward, and those that it registers without one.

    A definition is called as the module names it; another operator as torch does: `torch.ops.mylib.mul`.
    """
    targets: list[Target] = []
    passed_over: list[PassedOver] = []
    for name, operator, line in _found(module):
        reason = _reason_to_pass_over(operator, module)
        if reason:
            own = _is_own(operator, module)
            passed_over.append(PassedOver(name, line if own else 0, reason))
        else:
            targets.append(_described(operator, name, shown_path, line))
    return targets, passed_over


def line_of_operator(operator: Operator, module: ModuleType | None) -> int:
    """Line of its definition, or of the string that declares it; 1 where neither can be found."""
    if operator.implementation is not None:
        try:
            return inspect.getsourcelines(inspect.unwrap(operator.implementation))[1]
        except (OSError, TypeError):
            return 1
    return _declared(module).get(operator.name, 1) if module is not None else 1


def _described(operator: Operator, name: str, shown_path: str, line: int) -> Target:
    return Target(name, name, TargetKind.CUSTOM_OP, shown_path, line, parameters_of_schema(operator))


def _found(module: ModuleType) -> Iterator[tuple[str, Operator, int]]:
    """(name, operator, line), each operator once: by its own name before that of the dispatcher."""
    seen: set[str] = set()
    for name, value in list(vars(module).items()):
        operator = operator_of(value) if isinstance(value, CustomOpDef) else None
        if operator is not None and operator.name not in seen:
            seen.add(operator.name)
            yield name, operator, line_of_operator(operator, module)
    declared = _declared(module)
    unnamed = [d for d in list(OPDEFS.values()) if getattr(d._init_fn, "__module__", "") == module.__name__]  # noqa: SLF001
    for full_name in dict.fromkeys([*(d._qualname for d in unnamed), *declared]):  # noqa: SLF001
        operator = operator_of(_packet(full_name))
        if operator is not None and operator.name not in seen and _is_new(operator, module):
            seen.add(operator.name)
            yield f"torch.ops.{full_name.replace('::', '.')}", operator, line_of_operator(operator, module)


def _declared(module: ModuleType) -> Mapping[str, int]:
    """Full names of the operators that strings of the module's source declare, with the line."""
    try:
        strings = module_of(inspect.getsource(module)).strings
    except (OSError, TypeError):
        return {}
    libraries = [value for value in vars(module).values() if isinstance(value, Library)]
    own = {full for library in libraries for full in getattr(library, "_op_defs", ())}
    found: dict[str, int] = {}
    for text, line in strings:
        match = _SCHEMA.match(text)
        if match is None:
            continue
        names = [f"{match[1]}::{match[2]}"] if match[1] else [o for o in own if o.endswith(f"::{match[2]}")]
        for full in names:
            found[full] = min(line, found.get(full, line))
    return found


def _packet(full_name: str) -> Any:  # noqa: ANN401 - torch's own class, or None
    namespace, _, name = full_name.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None)


def _is_new(operator: Operator, module: ModuleType) -> bool:
    """Whether it is not a definition that another module made, and only mentioned here."""
    return operator.definition is None or _is_own(operator, module)


def _is_own(operator: Operator, module: ModuleType) -> bool:
    made_in = getattr(operator.implementation, "__module__", module.__name__)
    return bool(made_in == module.__name__)


def _reason_to_pass_over(operator: Operator, module: ModuleType) -> str:
    if not _is_own(operator, module):
        return f"imported from {getattr(operator.implementation, '__module__', '')}"
    return "" if operator.is_differentiable else "no backward is registered for it (register_autograd)"


AUTOGRAD_KEYS = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
"""Dispatch keys under which an operator says how it is differentiated."""

_WITHOUT_TYPE = frozenset({"ScalarType", "Layout", "MemoryFormat"})
"""Types of a schema that its `type` shows as the integer which encodes them."""


@dataclass(frozen=True)
class Operator:
    """One overload of an operator."""

    overload: OpOverload
    definition: CustomOpDef | None = None
    """What `custom_op` or `triton_op` gave; None where the operator was registered otherwise."""

    @property
    def name(self) -> str:
        """`mylib::mul`."""
        return self.overload._schema.name  # noqa: SLF001 - its only name

    @property
    def name_with_overload(self) -> str:
        """`mylib::mul`, or `mylib::mul.out`: what the dispatcher knows it by."""
        schema = self.overload._schema  # noqa: SLF001 - its only name
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name

    @property
    def implementation(self) -> Callable[..., Any] | None:
        """The Python function that was decorated; None for anything else."""
        return None if self.definition is None else self.definition._init_fn  # noqa: SLF001

    @property
    def backward(self) -> Callable[..., Any] | None:
        """The Python function that `register_autograd` got; None where it cannot be seen."""
        return None if self.definition is None else self.definition._backward_fn  # noqa: SLF001

    @property
    def setup_context(self) -> Callable[..., Any] | None:
        """What `register_autograd` got beside it."""
        return None if self.definition is None else self.definition._setup_context_fn  # noqa: SLF001

    @property
    def vmap_rule(self) -> Callable[..., Any] | None:
        """What `register_vmap` got."""
        return None if self.definition is None else getattr(self.definition, "_vmap_fn", None)

    @property
    def is_differentiable(self) -> bool:
        """Whether anybody registered how it is differentiated."""
        if self.definition is not None:  # torch registers a kernel that raises for each of these
            return self.backward is not None
        registered = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
        return any(registered(self.name_with_overload, key) for key in AUTOGRAD_KEYS)


def operator_of(value: Any) -> Operator | None:  # noqa: ANN401 - any live object
    """The operator behind a live object, None where it is none or has several overloads."""
    if isinstance(value, CustomOpDef):
        return Operator(value._opoverload, value)  # noqa: SLF001
    if isinstance(value, OpOverload):
        return Operator(value, definition_of(value._schema.name))  # noqa: SLF001
    overloads = overloads_of(value)
    return operator_of(getattr(value, overloads[0])) if len(overloads) == 1 else None


def overloads_of(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any live object
    """Names of the overloads of `torch.ops.namespace.name`; none for anything else."""
    if not isinstance(value, OpOverloadPacket):
        return ()
    return tuple(value.overloads())  # type: ignore[no-untyped-call]


def definition_of(name: str) -> CustomOpDef | None:
    """The definition of `namespace::name`, None where the operator was registered otherwise."""
    return OPDEFS.get(name)


def parameters_of_schema(operator: Operator) -> tuple[Parameter, ...]:
    """The parameters of an operator in call order, with the types of its schema as annotations."""
    return tuple(
        Parameter(
            name=argument.name,
            has_default=argument.has_default_value(),
            annotation=_type(argument),
            keyword_only=argument.kwarg_only,
            exact=True,
        )
        for argument in operator.overload._schema.arguments  # noqa: SLF001
    )


def defaults_of_schema(operator: Operator) -> dict[str, Any]:
    """The parameters with their default, `...` for none; lists as tuples."""
    return {
        argument.name: _plain(argument.default_value) if argument.has_default_value() else ...
        for argument in operator.overload._schema.arguments  # noqa: SLF001
    }


def _type(argument: Any) -> str:  # noqa: ANN401 - torch's own class has no stub
    real = str(argument.real_type)
    if any(word in real for word in _WITHOUT_TYPE):
        return real
    return str(argument.type)


def _plain(default: Any) -> Any:  # noqa: ANN401
    return tuple(default) if isinstance(default, list) else default
