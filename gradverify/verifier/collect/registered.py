"""Which operators a module registers: `custom_op` and `triton_op` definitions, and those of a `Library`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch.library import Library

from gradverify.model import PassedOver, Target, TargetKind
from gradverify.verifier.collect.operators import Operator, operator_of, parameters_of_schema

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
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    libraries = [value for value in vars(module).values() if isinstance(value, Library)]
    own = {full for library in libraries for full in getattr(library, "_op_defs", ())}
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        match = _SCHEMA.match(node.value)
        if match is None:
            continue
        names = [f"{match[1]}::{match[2]}"] if match[1] else [o for o in own if o.endswith(f"::{match[2]}")]
        for full in names:
            found[full] = min(node.lineno, found.get(full, node.lineno))
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
