"""What a module defines, read from its source by `ast`: nothing is imported.

Only what the source alone decides is answered. A class whose forward is inherited, a decorated
function, a name defined twice: `signature` is then None and binding decides with live objects.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import util
from importlib.machinery import PathFinder
from pathlib import Path as FilePath

from gradverify.model import Parameter
from gradverify.source import parts_of
from gradverify.spec.signature import Signature

_Def = ast.FunctionDef | ast.AsyncFunctionDef
_KEEPS_SIGNATURE = {"staticmethod", "custom_fwd", "no_grad", "enable_grad", "ignore"}
"""Decorators under which `forward` still takes the parameters that its source shows."""
_TAKES_CTX = {"Function", "InplaceFunction", "NestedIOFunction", "Module"}
"""Bases whose `forward` has a first parameter that callers do not pass."""
_DYNAMIC = {"globals", "vars", "exec", "setattr"}
"""Calls at the top of a module that may define any name."""


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        return _names_of(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_module(dotted: str, folder: FilePath) -> FilePath | None:
    """Find the source of a dotted module beside the spec or above it, else on the path; import nothing."""
    parts = dotted.split(".")
    for start in (folder, *folder.parents):
        stem = start.joinpath(*parts)
        for candidate in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate
    return _on_path(parts)


def dotted_name(path: FilePath) -> str:
    """Return the dotted name of a source file, from the chain of packages that it lies in."""
    path = path.resolve()
    parts = [] if path.name == "__init__.py" else [path.stem]
    for parent in path.parents:
        if not (parent / "__init__.py").is_file():
            break
        parts.insert(0, parent.name)
    return ".".join(parts)


def _on_path(parts: list[str]) -> FilePath | None:
    """Find a module where imports find it, by a hook too, as that of an editable installation.

    Only its top is asked for: for a submodule `find_spec` would import what is above it.
    """
    try:
        found = util.find_spec(parts[0])
        for count, part in enumerate(parts[1:], start=2):
            if found is None:
                return None
            search = list(found.submodule_search_locations or [])
            # By its last name alone: what a folder without `__init__.py` holds is looked up under the dotted
            # one in the loaded modules.
            inner = PathFinder.find_spec(part, search)
            found = inner or PathFinder.find_spec(".".join(parts[:count]), search)
    except (ImportError, ValueError, OSError):
        return None
    origin = found.origin if found is not None else None
    return FilePath(origin) if origin and origin.endswith(".py") else None


def _names_of(tree: ast.Module) -> ModuleNames:
    seen: list[str] = []
    definitions: dict[str, ast.stmt] = {}
    dynamic = False
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef | _Def):
            seen.append(node.name)
            definitions[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            seen.append(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            dynamic = dynamic or "*" in names
            seen.extend(names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            dynamic = dynamic or node.func.id in _DYNAMIC
        elif isinstance(node, ast.Global):
            seen.extend(node.names)
    signatures = {
        name: signature
        for name, node in definitions.items()
        if seen.count(name) == 1 and (signature := _signature(node, tree)) is not None
    }
    dynamic = dynamic or "__getattr__" in definitions
    return ModuleNames(frozenset(seen), frozenset(definitions), signatures, dynamic)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that run at import; of a function's body only its `global` statements."""
    pending: list[ast.AST] = list(reversed(body))
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.ClassDef | _Def | ast.Lambda):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Global))
        else:
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def _signature(node: ast.stmt, tree: ast.Module) -> Signature | None:
    if isinstance(node, _Def):
        return None if node.decorator_list else _of_arguments(node.name, node.args, skip_first=0)
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return None
    methods = [item for item in node.body if isinstance(item, _Def)]
    forwards = [method for method in methods if method.name == "forward"]
    if (
        len(forwards) != 1
        or not {_last_name(decorator) for decorator in forwards[0].decorator_list} <= _KEEPS_SIGNATURE
    ):
        return None
    skip_first = _leading(node, forwards[0], {method.name for method in methods})
    if skip_first is None:
        return None
    signature = _of_arguments(f"{node.name}.forward", forwards[0].args, skip_first=skip_first)
    return signature if signature is None else _with_parts(signature, node, forwards[0], tree)


def _with_parts(signature: Signature, node: ast.ClassDef, forward: _Def, tree: ast.Module) -> Signature:
    """The signature with what a `*args` of forward holds."""
    if not isinstance(forward, ast.FunctionDef) or not any(p.variadic for p in signature.parameters):
        return signature
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    context = next((f for f in functions if f.name == "setup_context"), None)
    parts = parts_of(node.name, forward, context, tree)
    changed = (replace(p, parts=parts) if p.variadic else p for p in signature.parameters)
    return replace(signature, parameters=tuple(changed))


def _leading(node: ast.ClassDef, forward: _Def, methods: set[str]) -> int | None:
    """Return how many first parameters are not inputs (`ctx`, `self`), None where a base decides."""
    if "setup_context" in methods:
        return 0
    arguments = [*forward.args.posonlyargs, *forward.args.args]
    by_name = bool(arguments) and arguments[0].arg in {"ctx", "self", "context"}
    by_base = bool(node.bases) and all(_last_name(base) in _TAKES_CTX for base in node.bases)
    return 1 if arguments and (by_name or by_base) else None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _of_arguments(label: str, arguments: ast.arguments, *, skip_first: int) -> Signature | None:
    if arguments.kwarg:
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    parameters = [
        Parameter(argument.arg, index >= first_default, _annotation(argument))
        for index, argument in enumerate(positional)
    ][skip_first:]
    if arguments.vararg:
        parameters.append(
            Parameter(arguments.vararg.arg, annotation=_annotation(arguments.vararg), variadic=True)
        )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            Parameter(argument.arg, default is not None, _annotation(argument), keyword_only=True)
        )
    return Signature(label, tuple(parameters))


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""
