"""How an object of one of the author's classes is put together: what its constructor asks for, made up."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gradverify.verifier.collect.inference.objects import PLAIN
from gradverify.verifier.inputs.stand_ins import STAND_IN

DEEPEST = 2
"""Constructors within constructors."""

MOST_CLASSES = 3
"""Classes that are tried for one parameter."""

MOST_MODULES = 400
"""Loaded modules of the author's package that are looked through."""

_CALLED = re.compile(
    r"^(f|g|fn|func|function|net|model|module|layer|block|act|activation|kernel|op|inner|fm|gm)\d*$"
    r"|.*_(fn|func|net|module|layer|block|fm|gm)$",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"^(n|num|max|in|out)_.*|.*_(size|dim|bits|channels|features|groups|depth|heads|count|steps)$"
    r"|^(dim|size|channels|features|bits|groups|depth|heads|n|k|split_dim)$|.*size$"
)


def builders(read: Collection[str], module: ModuleType | None) -> Iterator[tuple[type, dict[str, Any]]]:
    """(class, recipe) pairs of the package's classes that have every attribute which is read."""
    found = 0
    for kind in _classes(module):
        if not _has_all(kind, read):
            continue
        recipe = recipe_of(kind)
        if recipe is not None:
            yield kind, recipe
            found += 1
        if found == MOST_CLASSES:
            return


def is_own(kind: type, module: ModuleType | None) -> bool:
    """Whether a class is of the author's package, and one whose objects may be passed."""
    package = getattr(module, "__name__", "").partition(".")[0]
    return kind.__module__.partition(".")[0] == package and not issubclass(kind, _NEVER)


def _classes(module: ModuleType | None) -> Iterator[type]:
    """Classes that a module knows, then those of the package's other modules that are loaded."""
    name = getattr(module, "__name__", "")
    package = name.partition(".")[0]
    others = [
        m for n, m in list(sys.modules.items()) if package and n.startswith(f"{package}.") and m is not module
    ]
    seen: set[type] = set()
    for one in [module, *others[:MOST_MODULES]]:
        for value in list(vars(one).values()) if one is not None else ():
            own = isinstance(value, type) and value.__module__.partition(".")[0] == package
            if own and value not in seen and not issubclass(value, _NEVER):
                seen.add(value)
                yield value


_NEVER = (torch.autograd.Function, BaseException, enum.Enum, torch.Tensor)


def _has_all(kind: type, read: Collection[str]) -> bool:
    """Whether a class has the attributes, as methods or as what its constructor gives to `self`."""
    missing = [a for a in read if not hasattr(kind, a)]
    return not missing or set(missing) <= _given_to_self(kind)


def _given_to_self(kind: type) -> set[str]:
    names: set[str] = set()
    for owner in kind.__mro__:
        definition = _parsed(vars(owner).get("__init__"))
        for node in ast.walk(definition) if definition is not None else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
        names |= set(getattr(owner, "__annotations__", {}))
    return names


def _parsed(function: Any) -> ast.AST | None:  # noqa: ANN401
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def recipe_of(kind: type, depth: int = 0) -> dict[str, Any] | None:
    """How an object of a class is made; None where its constructor asks for what cannot be made up."""
    if inspect.isabstract(kind) or depth > DEEPEST:
        return None
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):
        return None
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    if any(p.kind is p.KEYWORD_ONLY for p in needed):
        return None
    called = _called_on_self(kind)
    own = vars(sys.modules.get(kind.__module__, object()))
    entries = [_entry(p, called, own, depth) for p in needed]
    return {"call": f"{kind.__module__}:{kind.__qualname__}", "arguments": entries}


def _called_on_self(kind: type) -> set[str]:
    tree = _parsed(kind)
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree is not None else []
    return {f.attr for f in calls if isinstance(f, ast.Attribute) and getattr(f.value, "id", "") == "self"}


def _entry(parameter: inspect.Parameter, called: Collection[str], own: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401
    stand_in = {"call": ":".join(STAND_IN.rsplit(".", 1)), "arguments": []}
    text = "" if parameter.annotation is parameter.empty else inspect.formatannotation(parameter.annotation)
    text = text.strip("'\"")
    kind = (
        parameter.annotation if isinstance(parameter.annotation, type) else own.get(text.rpartition(".")[2])
    )
    if text in PLAIN:
        return PLAIN[text]
    if "Tensor" in text:
        return {"tensor": [4, 3], "name": parameter.name}
    if "Module" in text or "Callable" in text or parameter.name in called or _CALLED.match(parameter.name):
        return stand_in
    if (
        isinstance(kind, type)
        and kind.__module__ not in {"builtins", "typing"}
        and not issubclass(kind, nn.Module)
    ):
        return recipe_of(kind, depth + 1) or stand_in
    if text == "str":
        return ""
    return 2 if _COUNT.match(parameter.name) else 0.75
