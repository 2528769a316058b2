"""How a body of source uses its parameters: each use says something of what they are."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradverify.source import called_name, definition, integer, parameters_of, root_name
from gradverify.verifier.infer.facts import Context, Facts, numbers_beside
from gradverify.verifier.infer.helpers import function_called
from gradverify.verifier.infer.routines import (
    INDEX_ARGUMENT,
    KEEPING_SHAPE,
    KEYWORDS,
    KINDS_OF_ARGUMENTS,
    KINDS_OF_FIRST,
    OF_A_VECTOR,
    RANKS_OF_CALL,
    SHAPE_CALLS,
    TENSOR_ATTRIBUTES,
)

DEEPEST = 3
"""Functions within functions that are read."""

MOST_ENTERED = 30
"""Functions that are read for one target."""

_OF_OBJECTS = frozenset({"append", "lower", "upper", "items", "keys"})
"""Methods that no tensor has."""


@dataclass
class Reader:
    """Notes every use of a parameter, of a local name that is one, and of what ctx keeps of it."""

    facts: Mapping[str, Facts]
    alias: dict[str, str]
    """Parameters by the names that they have in this body."""
    ctx: Context = field(default_factory=Context)
    given: Mapping[str, Any] = field(default_factory=dict)
    """Global names of the body, for the user's own functions that it calls; empty to read none of them."""
    package: str = ""
    """What they belong to."""
    depth: int = 0
    entered: dict[tuple[object, ...], ast.FunctionDef] = field(default_factory=dict)
    """Those that were read, by what was passed."""
    packed: str = ""
    """A name that holds all parameters in order, as `inputs` of `setup_context` does."""

    def read(self, body: ast.FunctionDef) -> None:
        """Note all uses in a body."""
        self._name_of_ctx = next(iter(parameters_of(body)), "")
        for statement in body.body:
            self._visit(statement)

    def _parameter(self, node: ast.AST) -> str:
        """The parameter that an expression is; empty for any other."""
        match node:
            case ast.Name(id=name):
                return self.alias.get(name, "")
            case ast.Subscript(value=ast.Name(id=self.packed), slice=ast.Constant(value=int() as k)):
                return dict(enumerate(self.facts)).get(k, "")
            case _:
                return ""

    def _of(self, node: ast.AST) -> Facts:
        """The facts of the parameter that an expression is; such as nobody reads for any other."""
        return self.facts.get(self._parameter(node)) or Facts()

    def _of_kept(self, node: ast.AST) -> Facts:
        """The same, also of what ctx keeps."""
        match node:
            case ast.Attribute(value=ast.Name(id=self._name_of_ctx), attr=attr) if attr in self.ctx.kept:
                return self.facts[self.ctx.kept[attr]]
            case _:
                return self._of(node)

    def _note(self, node: ast.AST, kind: str) -> None:
        self._of(node).kinds.add(kind)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        self._use(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `a = x`, `n, d = x.shape`, `x, w = inputs`, `(x,) = ctx.saved_tensors` and `ctx.k = k`."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for one, other in zip(targets, values, strict=True):
                    if isinstance(one, ast.Attribute):
                        self._bind(one, other)
            case ast.Tuple(elts=targets), _:
                self._unpack([e.id if isinstance(e, ast.Name) else "" for e in targets], targets, value)
            case ast.Name(id=name), _:
                behind = name_behind(value)
                if behind in self.alias:
                    self.alias[name] = self.alias[behind]
                elif not self._parameter(value):
                    self.alias.pop(name, None)
            case ast.Attribute(attr=attr), ast.Name(id=name) if name in self.alias:
                self.ctx.kept[attr] = self.alias[name]
            case _:
                pass

    def _unpack(self, names: list[str], targets: Sequence[ast.expr], value: ast.expr) -> None:
        starred = any(isinstance(e, ast.Starred) for e in targets)
        match value:
            case ast.Name(id=self.packed) if not starred:
                self.alias.update({n: p for n, p in zip(names, self.facts, strict=False) if n})
            case ast.Attribute(attr="saved_tensors" | "saved_variables") if len(names) == len(self.ctx.saved):
                self.alias.update({n: p for n, p in zip(names, self.ctx.saved, strict=True) if n and p})
            case (
                ast.Attribute(value=tensor, attr="shape")
                | ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[])
            ):
                if starred:
                    self._of(tensor).has_dimensions(len(names) - 1)
                else:
                    self._of(tensor).has_rank(len(names), tuple(n.lower() for n in names))
            case _:
                pass

    def _use(self, node: ast.AST) -> None:
        """Note `x.device`, `~mask`, `not flag`, `if flag:`, `for x in xs`, `x @ w` and what has parts."""
        match node:
            case ast.Attribute(value=value, attr=attr) if attr in TENSOR_ATTRIBUTES:
                self._note(value, "tensor")
            case ast.Subscript():
                self._subscript(node)
            case ast.Call():
                self._call(node)
            case ast.Compare():
                self._compare(node)
            case ast.Match(subject=subject, cases=cases):
                patterns = [p for case in cases for p in ast.walk(case.pattern)]
                self._strings(subject, [p.value for p in patterns if isinstance(p, ast.MatchValue)])
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                self._note(operand, "bool")
            case ast.UnaryOp(op=ast.Not(), operand=test) | ast.If(test=test) | ast.IfExp(test=test):
                self._note(test, "flag")
            case ast.For(iter=several):
                self._note(several, "sequence")
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                self._of(left).has_dimensions(1)
                self._of(right).has_dimensions(1)
            case _:
                pass

    def _strings(self, subject: ast.AST, nodes: Sequence[ast.expr | None]) -> None:
        """Note the literal strings that something is compared with, or looked up among, if all are."""
        found = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        known = self._of_kept(subject).strings
        known += [s for s in found if s not in known and len(found) == len(nodes)]

    def _subscript(self, node: ast.Subscript) -> None:
        """Note `x.shape[3]`, `x[:, 0]`, `table[index]`, `{"sum": 1}[name]` and `ends[i + 1]`."""
        whole, index = node.value, node.slice
        if isinstance(whole, ast.Dict):
            self._strings(index, whole.keys)
        if isinstance(whole, ast.Attribute) and whole.attr == "shape":
            self._dimension(whole.value, index)
            return
        entries = index.elts if isinstance(index, ast.Tuple) else [index]
        if _is_next(index):
            self._note(whole, "offsets")
        if isinstance(index, ast.Tuple):
            no_size = [e for e in entries if isinstance(e, ast.Constant) and e.value in {None, ...}]
            self._of(whole).has_dimensions(len(entries) - len(no_size))
        for entry in entries:
            self._note(entry, "index")

    def _dimension(self, tensor: ast.expr, index: ast.expr) -> None:
        place = integer(index)
        self._of(tensor).has_dimensions(0 if place is None else place + 1 if place >= 0 else -place)

    def _call(self, node: ast.Call) -> None:
        """Note what a parameter is called with, on and as."""
        name, function = called_name(node), node.func
        self._of_kept(function).kinds.add("callable")
        operands = list(node.args)
        if isinstance(function, ast.Attribute):
            on, root = self._of(function.value), root_name(function.value)
            if name not in _OF_OBJECTS:
                on.kinds.add("tensor")
            if name == "item" and not on.least_rank:
                on.has_rank(0)
            if name in SHAPE_CALLS and node.args:
                self._dimension(function.value, node.args[0])
            if root in self.alias or not root:  # no function of a library
                operands.insert(0, function.value)
            for argument in node.args[:1] if root == "math" else ():
                self._note(argument, "float")
        self._ranks(name, operands)
        self._roles(name, node)
        if name == "save_for_backward" and not self.ctx.saved:
            starred = any(isinstance(a, ast.Starred) for a in node.args)
            self.ctx.saved += [] if starred else [self.alias.get(name_behind(a), "") for a in node.args]
        self._enter(node)

    def _enter(self, call: ast.Call) -> None:
        """Read one of the user's own functions, under its own names of what is passed before any `*args`."""
        called = function_called(call.func, self.given, self.package) if self.depth < DEEPEST else None
        body = definition(called) if called is not None else None
        if body is None or len(self.entered) == MOST_ENTERED:
            return
        plain = itertools.takewhile(lambda a: not isinstance(a, ast.Starred), call.args)
        passed = dict(zip(parameters_of(body), plain, strict=False))
        passed |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        behind = {name: name_behind(value) for name, value in passed.items()}
        own = {name: self.alias[value] for name, value in behind.items() if value in self.alias}
        key = (called, *sorted(own.items()))
        if own and key not in self.entered:
            self.entered[key] = body
            given = getattr(called, "__globals__", {})
            Reader(self.facts, own, Context(), given, self.package, self.depth + 1, self.entered).read(body)

    def _ranks(self, name: str, operands: Sequence[ast.expr]) -> None:
        """Note the dimensions that a routine asks of its operands."""
        for operand, rank in zip(operands, RANKS_OF_CALL.get(name, ()), strict=False):
            facts = self._of(operand)
            facts.kinds.add("tensor")
            facts.rank = rank if facts.rank is None else facts.rank
        match operands:
            case [ast.Constant(value=str() as equation), *several] if name == "einsum":
                terms = equation.replace(" ", "").split("->")[0].split(",")
                for operand, term in zip(several, terms, strict=False):
                    if "." not in term:
                        self._of(operand).has_rank(len(term), tuple(term.lower()))
            case _:
                pass

    def _roles(self, name: str, node: ast.Call) -> None:
        """Note what an argument is by its place in a call."""
        arguments, at = node.args, INDEX_ARGUMENT.get(name)
        if at is not None and -len(arguments) <= at < len(arguments):
            facts = self._of(arguments[at])
            facts.kinds.add("index")
            facts.rank = 1 if name in OF_A_VECTOR and facts.rank is None else facts.rank
        for table, several in ((KINDS_OF_ARGUMENTS, arguments), (KINDS_OF_FIRST, arguments[:1])):
            for argument in several:
                for kind in (k for names, k in table.items() if name in names):
                    self._note(argument, kind)
        for names, kind in KEYWORDS.items():
            for keyword in node.keywords:
                if keyword.arg in names:
                    self._note(keyword.value, kind)

    def _compare(self, node: ast.Compare) -> None:
        """Note `reduction == "mean"`, `bias is None`, `mode in ("a", "b")` and `p > 2`."""
        left = node.left
        for operator, other in zip(node.ops, node.comparators, strict=True):
            known = self._of_kept(left).numbers
            known += [n for n in numbers_beside(operator, other) if n not in known]
            match operator, other:
                case ast.Is() | ast.IsNot(), ast.Constant(value=None):
                    self._note(left, "none")
                case ast.Eq() | ast.NotEq(), ast.Constant(value=int()):
                    self._note(left, "int")
                case ast.Eq() | ast.NotEq(), _:
                    self._strings(left, [other])
                    self._strings(other, [left])
                case ast.In() | ast.NotIn(), ast.Tuple(elts=names) | ast.List(elts=names) | ast.Set(
                    elts=names
                ):
                    self._strings(left, names)
                case _:
                    pass


def name_behind(value: ast.expr) -> str:
    """The tensor whose shape an expression has; empty where it is none that is known."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in KEEPING_SHAPE:
            return ""
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_next(index: ast.expr) -> bool:
    """`[i + 1]` or `[1:]`: each entry is taken together with the next one."""
    match index:
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=1)):
            return True
        case ast.Slice(lower=ast.Constant(value=1), upper=None):
            return True
        case _:
            return False
