"""Operators of torch's dispatcher as targets: what their schema says, and where their backward is.

`torch.library.custom_op` and `triton_op` give a definition whose backward is one Python function; what is
found as `torch.ops.namespace.name` may be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from gradverify.model import Parameter

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
