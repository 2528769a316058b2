"""What a module's names are and how its targets are called, as far as the source alone decides that.

A class whose forward is inherited, a decorated function, a name defined twice: there is no signature then,
and binding decides with live objects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradverify.model import Parameter
from gradverify.source.module import UNREADABLE, Module, imports_of, module_of
from gradverify.source.tree import bare_name, defaults_of, each, is_none, last_name, parameters_of
from gradverify.source.unpacking import parts_of

_Def = ast.FunctionDef | ast.AsyncFunctionDef
_KEEPS_SIGNATURE = {"staticmethod", "custom_fwd", "no_grad", "enable_grad", "ignore"}
"""Decorators under which `forward` still takes the parameters that its source shows."""
_TAKES_CTX = {"Function", "InplaceFunction", "NestedIOFunction", "Module"}
"""Bases whose `forward` has a first parameter that callers do not pass."""
_DYNAMIC = {"globals", "vars", "exec", "setattr"}
"""Calls at the top of a module that may define any name."""
_NOT_A_TENSOR = {"int", "tuple", "Tuple", "Size", "list", "List", "Sequence", "Iterable"}
"""Annotations for which a bare list is no tensor shape but the value itself."""
_NEUTRAL = {"None", "Optional", "Union", "Annotated"}


@dataclass(frozen=True)
class Signature:
    """How a target is called."""

    label: str
    """`Linear.forward` for a class, the function's own name else."""
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        """Return `Linear.forward(input, weight, bias)`."""
        names = (
            f"*{parameter.name}" if parameter.variadic else parameter.name for parameter in self.parameters
        )
        return f"{self.label}({', '.join(names)})"


@dataclass(frozen=True)
class ModuleNames:
    """The names at the top of one module."""

    names: frozenset[str]
    definitions: frozenset[str]
    """The classes and functions among them."""
    signatures: Mapping[str, Signature]
    dynamic: bool
    """Star imports, `__getattr__` or `globals()`: there may be more names than the source shows."""


def read_names(source: bytes) -> ModuleNames | None:
    """Return what a module defines, or None where its source does not parse."""
    module = module_of(source)
    if module.error is not None:
        return None
    nodes = [*_top_level(module.tree)]
    imported = [one.bound for one in imports_of(nodes)]
    seen, dynamic = [*imported], "*" in imported
    definitions: dict[str, ast.ClassDef | _Def] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef | _Def):
            seen.append(node.name)
            definitions[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            seen.append(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            dynamic = dynamic or node.func.id in _DYNAMIC
        elif isinstance(node, ast.Global):
            seen.extend(node.names)
    signatures = {
        name: signature
        for name, node in definitions.items()
        if seen.count(name) == 1 and (signature := _signature(node, module)) is not None
    }
    dynamic = dynamic or "__getattr__" in definitions
    return ModuleNames(frozenset(seen), frozenset(definitions), signatures, dynamic)


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run at import; of a function's body only its `global` statements."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.ClassDef | _Def | ast.Lambda):
            yield from each(ast.Global, node)
        else:
            pending.extend(ast.iter_child_nodes(node))


def _signature(node: ast.ClassDef | _Def, module: Module) -> Signature | None:
    if isinstance(node, _Def):
        return None if node.decorator_list else _of_arguments(node.name, node.args)
    methods = [item for item in node.body if isinstance(item, _Def)]
    named = {method.name: method for method in methods}
    forward, context = named.get("forward"), named.get("setup_context")
    if (
        node.decorator_list
        or node.keywords
        or forward is None
        or sum(method.name == "forward" for method in methods) > 1
        or not {bare_name(decorator) for decorator in forward.decorator_list} <= _KEEPS_SIGNATURE
    ):
        return None
    leading = 0 if context is not None else _leading(node, forward)
    if leading is None:
        return None
    parts = parts_of(node.name, forward, context, module)
    return _of_arguments(f"{node.name}.forward", forward.args, leading, parts)


def _leading(node: ast.ClassDef, forward: _Def) -> int | None:
    """Return how many first parameters are not inputs (`ctx`, `self`), None where a base decides."""
    first = next(iter(parameters_of(forward)), "")
    by_base = bool(node.bases) and all(bare_name(base) in _TAKES_CTX for base in node.bases)
    return 1 if first in {"ctx", "self", "context"} or (first and by_base) else None


def _of_arguments(
    label: str, arguments: ast.arguments, leading: int = 0, parts: tuple[Parameter, ...] = ()
) -> Signature | None:
    """None where `**kwargs` are taken; the `leading` parameters are left out."""
    by_name = arguments.kwonlyargs
    parameters = [
        Parameter(a.arg, default is not None, _annotation(a), keyword_only=a in by_name)
        for a, default in defaults_of(arguments)
    ]
    if arguments.vararg:
        annotation = _annotation(arguments.vararg)
        variadic = Parameter(arguments.vararg.arg, annotation=annotation, variadic=True, parts=parts)
        parameters.insert(len(parameters) - len(by_name), variadic)
    return None if arguments.kwarg else Signature(label, tuple(parameters[leading:]))


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


def is_not_a_tensor(annotation: str) -> bool:
    """Whether an annotation says int, tuple, list or Size, so that a bare list cannot be a tensor's shape."""
    try:
        heads = set(_heads(ast.parse(annotation.strip(), mode="eval").body)) - _NEUTRAL
    except UNREADABLE:
        return False
    return bool(heads) and heads <= _NOT_A_TENSOR


def _heads(node: ast.expr) -> list[str]:
    """Return the outermost names of an annotation: `Optional[Tuple[int, int]]` gives `None` and `Tuple`."""
    match node:
        case ast.Constant(value=str() as text):
            return _heads(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _heads(left) + _heads(right)
        case ast.Subscript(value=value, slice=inner):
            outer = _heads(value)
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if outer == ["Annotated"]:
                return _heads(members[0])
            return [h for m in members for h in _heads(m)] if outer in (["Optional"], ["Union"]) else outer
        case _:
            return ["None" if is_none(node) else last_name(node) or "?"]
