"""What names and annotations in a module's source tell of its targets.

Which may be Functions, operators, or the plain version of a Function; and by what names the author calls what
a `*args` parameter holds: what a tuple is unpacked to, what the Function is applied to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradverify.model import Parameter
from gradverify.source.module import Module, module_of
from gradverify.source.tree import (
    Def,
    assigned,
    bare_name,
    each,
    every_parameter,
    integer,
    last_name,
    name_of,
    parameters_of,
)

_NOT_A_TENSOR = re.compile(
    r"""['"]?(?:(?:\w+\.)*Optional\[)?(?:\w+\.)*(?:int|tuple|Tuple|Size|list|List|Sequence|Iterable)"""
    r"""(?:\[[^|]*\])?(?:\s*\|\s*None)?\]?['"]?"""
)
"""Annotations for which a bare list is no tensor shape but the value itself."""


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


def is_not_a_tensor(annotation: str) -> bool:
    """Whether an annotation says int, tuple, list or Size, so that a bare list cannot be a tensor's shape."""
    return _NOT_A_TENSOR.fullmatch(annotation) is not None


def parts_of(name: str, forward: Def, setup_context: Def | None, module: Module) -> tuple[Parameter, ...]:
    """What the `*args` of a Function's forward holds, by the author's names; empty where none are given.

    They stand where forward unpacks it or reads it by number, where `setup_context` unpacks its inputs, or
    where the module applies the Function, which is called `name`.
    """
    if forward.args.vararg is None:
        return ()
    variadic = forward.args.vararg.arg
    before = len(parameters_of(forward)) - (setup_context is None)
    found = _unpacked(variadic, forward)
    if not found and setup_context is not None:
        for packed in parameters_of(setup_context)[1:2]:
            found = _after(before, _unpacked(packed, setup_context))
    found = found or _after(before, _applied(name, module.tree)) or _numbered(variadic, forward)
    if len(found) < 2:
        return ()
    taken = {*parameters_of(forward), *(a.arg for a in forward.args.kwonlyargs), variadic}
    *names, rest = _unique(found, variadic, taken)
    annotation = _annotation(forward.args.vararg)
    several = (Parameter(rest, annotation=annotation, variadic=True),) if found[-1] else ()
    return (*(Parameter(n, annotation=annotation) for n in names), *several)


def _unpacked(packed: str, body: Def) -> tuple[str, ...]:
    """The names that a tuple is unpacked to, last that of what is left of it, as many as there are.

    Empty where it is unpacked to none, or to several sets of names.
    """
    several: set[tuple[str, ...]] = set()
    for node in each(ast.Assign, body):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=[*before, last])], value=ast.Name(id=name)) if (
                name == packed
            ):
                if any(isinstance(e, ast.Starred) for e in before):
                    return ()
                ends = [last.value] if isinstance(last, ast.Starred) else [last, None]
                several.add(tuple(map(name_of, [*before, *ends])))
            case _:
                pass
    return several.pop() if len(several) == 1 else ()


def _applied(function: str, tree: ast.Module) -> tuple[str, ...]:
    """What the module's calls of `function.apply` pass, if all pass as many, by the names in the first."""
    given = (node for node in tree.body if isinstance(node, ast.Assign) and applied(node.value) == function)
    aliases = {name_of(target) for node in given for target in node.targets} - {""}
    calls = [c for c in each(ast.Call, tree) if applied(c.func) == function or name_of(c.func) in aliases]
    unread = any(c.keywords or any(isinstance(a, ast.Starred) for a in c.args) for c in calls)
    if unread or len({len(c.args) for c in calls}) != 1:
        return ()
    return (*map(last_name, calls[0].args), "")


def _numbered(packed: str, body: Def) -> tuple[str, ...]:
    """The names that entries are given by number, if forward reads the tuple in no other way."""
    reads = [n for n in each(ast.Name, body) if n.id == packed and isinstance(n.ctx, ast.Load)]
    entries = [n for n in each(ast.Subscript, body) if name_of(n.value) == packed]
    numbers = {id(n): k for n in entries if (k := integer(n.slice)) is not None}
    names = dict.fromkeys(numbers.values(), "")
    for given, value in filter(None, map(assigned, each(ast.Assign, body))):
        if id(value) in numbers:
            names[numbers[id(value)]] = given
    whole = len(numbers) == len(reads) and sorted(names) == [*range(len(names))]
    return (*(names[k] for k in sorted(names)), "") if whole else ()


def applied(node: ast.expr) -> str:
    """The `f` of `f.apply`, empty for anything else."""
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "apply" else ""


def _after(count: int, found: tuple[str, ...]) -> tuple[str, ...]:
    return found[:-1][count:] + found[-1:]


def _unique(names: Sequence[str], variadic: str, taken: set[str]) -> Iterator[str]:
    """The names, and `args_1` for one that is none or is there already."""
    seen = set(taken)
    for place, name in enumerate(names):
        own = name if name.strip("_") and name not in seen else f"{variadic}_{place}"
        seen.add(own)
        yield own


_OPERATORS = frozenset({"custom_op", "triton_op", "register_autograd"})
"""Calls that define an operator or its backward: `torch.library.custom_op(…)`, as a decorator or not."""

_WORTH_PARSING = re.compile(rb"Function|custom_op|triton_op|register_autograd|backward|vjp")

MARKS = ("ref", "reference", "torch", "pytorch", "naive", "composite", "slow", "python", "native", "eager")
"""What authors add to the name of the plain version."""


def may_define(source: bytes) -> bool:
    """Whether a file's text holds a Function subclass or a custom operator, or is no Python and may."""
    if not _WORTH_PARSING.search(source):
        return False
    module = module_of(source)
    if module.error is not None:
        return bool(re.search(rb"\bautograd\b|custom_op|triton_op|register_autograd", source))
    renamed = {one.alias for one in module.imports if one.name.endswith("Function")}
    return any(_defines(node, renamed) for node in ast.walk(module.tree))


def _defines(node: ast.AST, renamed: set[str]) -> bool:
    if not isinstance(node, ast.ClassDef):
        return bare_name(node) in _OPERATORS
    if any(name in renamed - {""} or name.endswith("Function") for name in map(last_name, node.bases)):
        return True
    # A base from another file: what tells a Function apart is a static backward.
    return bool(node.bases) and any(
        isinstance(item, ast.FunctionDef)
        and item.name in {"backward", "vjp"}
        and "staticmethod" in map(last_name, item.decorator_list)
        for item in node.body
    )


def names_to_complete(source: bytes) -> list[str]:
    """Top-level classes first, since a Function is one; then functions, which a spec may name."""
    module = module_of(source)
    classes = [node.name for node in module.tree.body if isinstance(node, ast.ClassDef) and node.bases]
    return classes + [name for name in module.functions if not name.startswith("_")]


def siblings_of(source: str, target: str, own: Sequence[str]) -> list[str]:
    """The functions of a module that are meant as the plain version of a Function with parameters `own`."""
    functions = module_of(source).functions.items()
    return [name for name, node in functions if is_sibling(name, every_parameter(node), target, own)]


def is_sibling(name: str, parameters: Sequence[str], target: str, own: Sequence[str]) -> bool:
    """Whether a marked function, `foo_ref`, has the name of a Function, or takes the same parameters.

    `parameters` are the function's, `own` those of the Function, which is called `target`.
    """
    words = [w for w in name.lower().split("_") if w]
    rest = [w for w in words if w not in MARKS]
    if len(rest) == len(words):
        return False
    takes_the_same = len(own) > 1 and list(parameters[: len(own)]) == list(own)
    return "".join(rest) in _stems(target) or takes_the_same


def _stems(class_name: str) -> set[str]:
    """`SoftmaxFunction` -> `softmax`."""
    plain = class_name.replace("_", "").lower()
    return {plain, re.sub(r"(autograd|custom)?(function|func|fn|op|impl|backward)$", "", plain)} - {""}
