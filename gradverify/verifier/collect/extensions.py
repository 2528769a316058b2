"""Which functions of compiled extensions a target calls: kernels whose source cannot be read."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

from gradverify.source import definitions_behind, dotted
from gradverify.verifier.collect.operators import operator_of

_WELL_KNOWN = {*sys.stdlib_module_names, "numpy", "torch"}
"""Packages whose compiled functions are no kernels of an author's own."""

_OF_TORCH = ("aten", "prim")
"""Namespaces of torch's own operators: `aten::add` is shown as `aten.add`."""


def compiled_calls(methods: Iterable[Callable[..., Any]]) -> tuple[str, ...]:
    """Names of the compiled functions that methods and their helpers call, in order."""
    return tuple(dict.fromkeys(name for method in methods for name in _called(method)))


def _called(method: Callable[..., Any]) -> Iterator[str]:
    for node, known in definitions_behind(method):
        for call in ast.walk(node):
            name = dotted(call.func, {}) if isinstance(call, ast.Call) else ""
            if name and _is_compiled(_found(name, known)):
                yield name


def _found(name: str, known: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever it names
    first, *rest = name.split(".")
    value = known.get(first)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _is_compiled(value: Any) -> bool:  # noqa: ANN401
    """Whether it is of an extension, and autograd sees nothing of what it does."""
    if isinstance(value, OpOverload | OpOverloadPacket):
        operator = operator_of(value)
        foreign = operator is not None and operator.definition is None and not operator.is_differentiable
        return foreign and not str(value).startswith(_OF_TORCH)
    package = str(getattr(value, "__module__", None) or "torch").partition(".")[0]
    return isinstance(value, BuiltinFunctionType) and package not in _WELL_KNOWN
