"""Parameters that are taken apart in forward: what is read of an object stands beside the parameters.

`rulebook.rows`, `options["eps"]`, `weight, bias = held`, `dequantize()` and each of `for block in blocks` are
parts with facts of their own, which are looked for as parameters are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradverify.verifier.collect.inference.loops import looped, pairs_of_loop

Route = tuple[str, ...]
"""Steps from a parameter to a part: `.name`, `[key]`, `#place`, `*` for an entry, `()` for what it gives."""

KNOWN = frozenset(dir(torch.Tensor)) | frozenset(dir(dict)) | frozenset(dir(list)) | frozenset(dir(str))
"""Attributes that say of nothing that it is an object of the author's."""

OF_MODULES = frozenset(
    {
        "forward",
        "eval",
        "train",
        "training",
        "parameters",
        "named_parameters",
        "modules",
        "children",
        "state_dict",
        "buffers",
    }
)
"""Methods of a module, which are no parts of it."""

OF_LISTS = frozenset({"append", "extend", "insert", "reverse", "sort"})
"""What a list is told to do to itself, in a statement of its own: a tensor gives back what it sorts."""

MOST_PARTS = 16
"""Parts of all parameters together: what reads more is built by its author's own code alone."""


@dataclass(frozen=True)
class Part:
    """What is read of a parameter."""

    owner: str
    route: Route
    name: str
    """What it is called among the parameters."""


@dataclass
class Taken:
    """Bodies of source in which parts are told from one another, and rewritten to their names."""

    parameters: Sequence[str]
    routes: dict[tuple[str, Route], None] = field(default_factory=dict)
    called: set[tuple[str, Route]] = field(default_factory=set)
    """Routes whose end is called with arguments."""
    tested: dict[tuple[str, Route], str] = field(default_factory=dict)
    """The class that a body tests for."""
    splatted: set[tuple[str, Route]] = field(default_factory=set)
    """What is passed on as keywords, `f(x, **options)`: parameters, or each entry of one."""

    listed: set[str] = field(default_factory=set)
    """Parameters that are asked for what lists alone can do."""

    def read(self, definition: ast.FunctionDef, names: Mapping[str, str]) -> None:
        """Note every route in a body; `names` gives the parameter behind a local name, or `ctx.name`."""
        walker = _Walker({}, self)
        walker.alias |= {name: (parameter, ()) for name, parameter in names.items()}
        for statement in copy.deepcopy(definition).body:
            walker.visit(statement)

    def prefixes(self) -> Mapping[tuple[str, Route], set[str]]:
        """What is read by name of a parameter, or of an entry of it, where only objects have that."""
        read: dict[tuple[str, Route], set[str]] = {}
        for owner, route in self.routes:
            start = route[:1] if route[:1] == ("*",) else ()
            if len(route) > len(start) and route[len(start)][0] == ".":
                read.setdefault((owner, start), set()).add(route[len(start)][1:])
        return {key: names for key, names in read.items() if not names <= KNOWN | OF_MODULES}

    def parts(self) -> tuple[Part, ...]:
        """The parts of those parameters that are no tensors, lists or numbers by what is read of them."""
        composite = {o for o, r in self.routes if self._tells(o, r)}
        ends = [
            (o, r)
            for o, r in self.routes
            if o in composite
            and r
            and not any(o == p and len(q) > len(r) and q[: len(r)] == r for p, q in self.routes)
        ]
        taken = set(self.parameters)
        found = []
        for owner, route in ends:
            name = next((s.strip(".[]") for s in reversed(route) if s[0] in ".["), "")
            name = name if name.isidentifier() and name not in taken else f"{owner}_{name or 'part'}"
            while name in taken:
                name += "_"
            taken.add(name)
            found.append(Part(owner, route, name))
        return tuple(found) if len(found) <= MOST_PARTS else ()

    def _tells(self, owner: str, route: Route) -> bool:
        """Whether only an object of the author's can be read like that."""
        if not route:
            return False
        first = route[0]
        if first[0] == ".":
            return first[1:] not in KNOWN | OF_MODULES
        if first == "*":
            return (owner, route[:1]) in self.called or (len(route) > 1 and self._tells(owner, route[1:]))
        return first[0] in "[(#"


class _Walker(ast.NodeTransformer):
    """Follows local names, notes routes, and puts names in the place of parts."""

    def __init__(self, names: Mapping[tuple[str, Route], str], noting: Taken | None) -> None:
        self.names, self._noting = names, noting
        self.alias: dict[str, tuple[str, Route]] = {}

    def route(self, node: ast.AST) -> tuple[str, Route] | None:  # noqa: PLR0911 - one for each form
        """The parameter behind an expression, and the steps to it; None for anything else."""
        match node:
            case ast.Name(id=name):
                return self.alias.get(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" in self.alias:
                return self.alias[f"{owner}.{name}"]
            case ast.Attribute(value=ast.Subscript(value=several, slice=ast.Name()), attr=name) if (
                name not in KNOWN | OF_MODULES and self.route(several) is not None
            ):
                owner, route = self.route(several) or ("", ())
                return owner, (*route, "*", f".{name}")
            case ast.Attribute(value=value, attr=name):
                return self._further(value, f".{name}")
            case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)):
                return self._further(value, f"[{key}]")
            case ast.Call(
                func=ast.Attribute(value=value, attr="get" | "pop"),
                args=[ast.Constant(value=str() as key), *_],
            ):
                return self._further(value, f"[{key}]")
            case ast.Call(func=function, args=[], keywords=[]):
                found = self.route(function)
                plain = found is None or (bool(found[1]) and found[1][-1][1:] in KNOWN | OF_MODULES)
                return None if found is None or plain else (found[0], (*found[1], "()"))
            case _:
                return None

    def _further(self, value: ast.AST, step: str) -> tuple[str, Route] | None:
        found = self.route(value)
        return None if found is None else (found[0], (*found[1], step))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Note the longest route that ends here, or go on below."""
        found = self.route(node) if isinstance(node, ast.expr) else None
        if found is None:
            return super().generic_visit(node)
        if self._noting is not None:
            self._note(found)
        name = self.names.get(found)
        if name is not None:
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        return node if isinstance(node, ast.Name) else super().generic_visit(node)

    def _note(self, found: tuple[str, Route]) -> None:
        owner, route = found
        # What a tensor has tells nothing of a part further: `obj.weight.shape` is about `obj.weight`.
        for place, step in enumerate(route):
            if place and step[0] == "." and step[1:] in KNOWN:
                route = route[:place]
                break
        assert self._noting is not None  # noqa: S101 - it is asked before
        self._noting.routes[owner, route] = None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        noting = self._noting
        match node.func:
            case ast.Subscript(value=several, slice=ast.Name()):
                found, entry = self._further(several, "*"), True
            case function:
                found, entry = self.route(function), False
        if found is not None and noting is not None and (node.args or node.keywords):
            noting.called.add(found)
            if entry:
                noting.routes[found] = None
        match node:
            case ast.Call(
                func=ast.Name(id="isinstance"), args=[tested, ast.Name() | ast.Attribute() as kind]
            ):
                found = self.route(tested)
                if found is not None and self._noting is not None:
                    self._noting.tested.setdefault(found, ast.unparse(kind).rpartition(".")[2])
            case _:
                pass
        for keyword in node.keywords:
            splatted = self.route(keyword.value) if keyword.arg is None else None
            if noting is not None and splatted is not None and splatted[1] in {(), ("*",)}:
                noting.splatted.add(splatted)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Note a parameter that is told what only a list does to itself."""
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name() as value, attr=attribute)) if (
                attribute in OF_LISTS
            ):
                found = self.route(value)
                if found is not None and not found[1] and self._noting is not None:
                    self._noting.listed.add(found[0])
            case _:
                pass
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: ANN401
        """Follow `o = held`, `ctx.o = held` and `weight, bias = held`."""
        found = self.route(node.value)
        target = node.targets[0]
        if found is not None and found[1][-1:] != ("()",) and isinstance(target, ast.Tuple):
            names = [e.id for e in target.elts if isinstance(e, ast.Name)]
            if len(names) == len(target.elts):
                for place, name in enumerate(names):
                    self.alias[name] = (found[0], (*found[1], f"#{place}"))
                    if self._noting is not None:
                        self._noting.routes[self.alias[name]] = None
                return node
        node.value = self.visit(node.value)
        for one in node.targets:
            self._bind(one, found)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: ANN401
        """Follow `system: System = ctx.system`."""
        if node.value is None:
            return node
        plain = ast.Assign([node.target], node.value)
        return self.visit_Assign(ast.copy_location(plain, node))

    def _bind(self, target: ast.expr, found: tuple[str, Route] | None) -> None:
        match target:
            case ast.Name(id=name):
                self.alias.pop(name, None)
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                name = f"{owner}.{attribute}"
            case _:
                return
        if found is not None:
            self.alias[name] = found

    def visit_For(self, node: ast.For) -> ast.AST:
        """Follow `for block in blocks` to what each entry is."""
        for target, several in pairs_of_loop(node.target, node.iter):
            self._enter(target, several)
        node.body = [self.visit(s) for s in node.body]
        return node

    def _enter(self, target: ast.expr, several: ast.expr) -> None:
        """Let a name stand for each entry of what a loop goes through."""
        found = self.route(looped(several))
        if found is not None and isinstance(target, ast.Name):
            self.alias[target.id] = (found[0], (*found[1], "*"))
            if self._noting is not None:
                self._noting.routes[self.alias[target.id]] = None

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """Follow `[block(x) for block in blocks]` as any loop."""
        for target, several in pairs_of_loop(node.target, node.iter):
            self._enter(target, several)
        node.ifs = [self.visit(test) for test in node.ifs]
        return node

    def _comprehended(self, node: Any) -> ast.AST:  # noqa: ANN401 - list, set and generator
        node.generators = [self.visit(g) for g in node.generators]
        node.elt = self.visit(node.elt)
        return node  # type: ignore[no-any-return]

    visit_ListComp = _comprehended  # noqa: N815 - names of the standard library
    visit_SetComp = _comprehended  # noqa: N815
    visit_GeneratorExp = _comprehended  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Inner functions read what is around them."""
        node.body = [self.visit(s) for s in node.body]
        return node


def rewritten(
    definition: ast.FunctionDef, names: Mapping[str, str], parts: Sequence[Part]
) -> ast.FunctionDef:
    """The same body with the name of a part wherever it is read."""
    walker = _Walker({(p.owner, p.route): p.name for p in parts}, None)
    walker.alias |= {name: (parameter, ()) for name, parameter in names.items()}
    changed = copy.deepcopy(definition)
    changed.body = [walker.visit(s) for s in changed.body]
    return ast.fix_missing_locations(changed)


def kept_on_context(definition: ast.FunctionDef, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(`ctx.name`, parameter) of what a body keeps for backward as it is."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            for target in node.targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    yield f"ctx.{target.attr}", names[node.value.id]
