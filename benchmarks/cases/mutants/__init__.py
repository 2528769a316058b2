"""Mistakes that a Function's source can be given: edits of the syntax tree of its backward.

A mutant changes one place: an expression or statement of backward, or of what forward and `setup_context`
leave on the ctx. Names in the field's words: `sum-to-mean`, `conj-dropped`, `gradients-swapped`.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cases.mutants.mistakes import edits_of, method_of


@dataclass(frozen=True)
class Mutant:
    """A Function with one mistake."""

    function: str
    name: str
    kind: str
    line: str
    """The place as it was, and as it is."""
    source: str


def mutants_of(class_node: ast.ClassDef) -> list[Mutant]:
    """Every mutant of a Function, each source once."""
    seen = {ast.unparse(class_node)}
    found: list[Mutant] = []
    for kind, before, after, changed in _changed(class_node):
        source = ast.unparse(changed)
        if source in seen:
            continue
        seen.add(source)
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        name = f"{class_node.name}__{kind.replace('-', '_')}_{digest}"
        line = f"{before}  →  {after}"
        found.append(Mutant(class_node.name, name, kind, line, renamed(changed, name)))
    return found


def chosen(mutants: list[Mutant], count: int) -> list[Mutant]:
    """`count` of them, by hash: those that hide and the others in turn, each kind once first."""

    def order(m: Mutant) -> str:
        return hashlib.sha256(m.name.encode()).hexdigest()

    ranked: list[tuple[int, int, bool, str, Mutant]] = []
    seen: dict[str, int] = {}
    for mutant in sorted(mutants, key=order):
        times = seen[mutant.kind] = seen.get(mutant.kind, 0) + 1
        of_these = [r for r in ranked if r[0] == times and r[2] == (mutant.kind in PLAIN)]
        ranked.append((times, len(of_these), mutant.kind in PLAIN, order(mutant), mutant))
    return [r[-1] for r in sorted(ranked, key=lambda r: r[:4])[:count]]


PLAIN = frozenset(
    [
        "sign-of-a-term",
        "term-dropped",
        "order-of-a-difference",
        "times-for-over",
        "factor-dropped",
        "squared",
        "power",
        "sign-dropped",
        "constant",
        "small-error",
        "gradients-swapped",
        "gradient-none",
        "gradient-negated",
        "float32-inside",
        "tail-zero",
        "gradient-too-many",
        "saved-swapped",
        "saved-wrong-tensor",
    ]
)
"""Mistakes that an ordinary backward shows; the others hide in layouts, subsets, sizes, calls."""


def renamed(node: ast.ClassDef, name: str) -> str:
    node = copy.deepcopy(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == node.name:
            inner.id = name
    node.name = name
    return ast.unparse(node)


def _changed(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    nodes = list(ast.walk(class_node))
    for node in _places(class_node):
        number = nodes.index(node)
        for kind, replacement in edits_of(node, class_node):
            copied = copy.deepcopy(class_node)
            place = list(ast.walk(copied))[number]
            changed = _Replacing(place, copy.deepcopy(replacement)).visit(copied)
            after = "; ".join(ast.unparse(ast.fix_missing_locations(r)) for r in replacement)
            yield kind, ast.unparse(node), after, ast.fix_missing_locations(changed)
    yield from _class_state(class_node)
    yield from _decorators(class_node)


class _Replacing(ast.NodeTransformer):
    def __init__(self, place: ast.AST, replacement: list[ast.AST]) -> None:
        self.place, self.replacement = place, replacement

    def visit(self, node: ast.AST):
        if node is not self.place:
            return self.generic_visit(node)
        if isinstance(node, ast.stmt):
            return self.replacement or [ast.Pass()]
        return self.replacement[0]


def _places(class_node: ast.ClassDef) -> Iterator[ast.AST]:
    """What may be wrong: all of backward, and what is left on the ctx for it."""
    backward = method_of(class_node, "backward")
    if backward is not None:
        for statement in backward.body:
            yield from ast.walk(statement)
    for name in ("forward", "setup_context"):
        method = method_of(class_node, name)
        for statement in ast.walk(method) if method is not None else ():
            if isinstance(statement, (ast.Expr, ast.Assign)) and _leaves_on_ctx(statement, method):
                yield from ast.walk(statement)


def _ctx_of(method: ast.FunctionDef) -> str:
    return method.args.args[0].arg if method.args.args else ""


def _leaves_on_ctx(statement: ast.Expr | ast.Assign, method: ast.FunctionDef) -> bool:
    place = statement.value if isinstance(statement, ast.Expr) else statement.targets[0]
    if isinstance(place, ast.Call):
        place = place.func
    places = place.elts if isinstance(place, ast.Tuple) else [place]
    return any(
        isinstance(p, ast.Attribute) and isinstance(p.value, ast.Name) and p.value.id == _ctx_of(method)
        for p in places
    )


def _class_state(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    """An attribute of ctx kept on the class, where the next call overwrites it."""
    own = frozenset(
        [
            "save_for_backward",
            "saved_tensors",
            "needs_input_grad",
            "mark_dirty",
            "mark_non_differentiable",
            "set_materialize_grads",
            "materialize_grads",
            "save_for_forward",
        ]
    )

    def of_ctx(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctx"

    names = sorted({n.attr for n in ast.walk(class_node) if of_ctx(n)} - own)
    for name in names:
        copied = copy.deepcopy(class_node)
        for node in ast.walk(copied):
            if of_ctx(node) and node.attr == name:
                node.value.id = class_node.name
        yield "kept-on-the-class", f"ctx.{name}", f"{class_node.name}.{name}", copied
    backward = method_of(class_node, "backward")
    if backward is not None and any(of_ctx(n) and n.attr == "saved_tensors" for n in ast.walk(backward)):
        copied = copy.deepcopy(class_node)
        for node in ast.walk(copied):
            if isinstance(node, ast.Attribute) and node.attr == "saved_tensors":
                node.attr = "kept"
        rewritten = _Saving().visit(copied)
        yield (
            "saved-as-attribute",
            "save_for_backward(…)",
            "ctx.kept = (…)",
            ast.fix_missing_locations(rewritten),
        )


class _Saving(ast.NodeTransformer):
    """`ctx.save_for_backward(a, b)` as `ctx.kept = (a, b)`."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "save_for_backward"
        ):
            target = ast.Attribute(call.func.value, "kept", ast.Store())
            return ast.Assign([target], ast.Tuple(call.args, ast.Load()))
        return node


def _decorators(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    backward = method_of(class_node, "backward")
    for decorator in backward.decorator_list if backward is not None else ():
        if "once_differentiable" in ast.unparse(decorator):
            copied = copy.deepcopy(class_node)
            method = method_of(copied, "backward")
            method.decorator_list = [
                d for d in method.decorator_list if ast.unparse(d) != ast.unparse(decorator)
            ]
            yield "once-differentiable-dropped", "@once_differentiable", "", copied
