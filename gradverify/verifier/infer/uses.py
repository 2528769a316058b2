"""How a body of source uses its parameters: each use says something of what they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradverify.source import called_name, integer, is_none, paired, parameters_of
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.options import keys_of, numbers_beside, strings_of, tables_of
from gradverify.verifier.infer.routines import (
    AXIS_CALLS,
    INDEX_ARGUMENT,
    KEEPING_SHAPE,
    KEYWORDS,
    MATH_CALLS,
    MODULE_METHODS,
    OF_A_VECTOR,
    RANK_OF_METHOD,
    RANKS_OF_CALL,
    SHAPE_CALLS,
    SIZE_CALLS,
    TENSOR_ATTRIBUTES,
)

_TESTED = (("Tensor", "tensor"), ("list", "sequence"), ("tuple", "sequence"), ("int", "int"))
"""Types that `isinstance` asks for, and what they say."""

_OF_OBJECTS = frozenset({"append", "lower", "upper", "items", "keys"})
"""Methods that no tensor has."""


def name_behind(value: ast.expr) -> str:
    """The tensor whose shape an expression has; empty where it is none that is known."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in KEEPING_SHAPE:
            return ""
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


@dataclass
class Reader:
    """Notes every use of a parameter, of a local name that is one, and of what ctx keeps of it."""

    facts: Mapping[str, Facts]
    alias: dict[str, str]
    """Parameters by the names that they have in this body."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Global names of the body."""
    entered: Callable[[ast.Call, Mapping[str, str]], None] | None = None
    """Told of every call, and of what the names of this body are there."""
    packed: str = ""
    """A name that holds parameters in order, as `inputs` of `setup_context` does, and `*args`."""
    packing: Sequence[str] = ()
    """The parameters that it holds."""
    kept: dict[str, str] = field(default_factory=dict)
    """Parameters by the attribute of ctx that keeps them."""
    saved: list[str] = field(default_factory=list)
    """What `save_for_backward` got: parameters by position, an empty name for what is computed."""

    def read(self, body: ast.FunctionDef) -> None:
        """Note all uses in a body."""
        self._ctx = next(iter(parameters_of(body)), "")
        self._tables = tables_of(body, self.given)
        for statement in body.body:
            self._visit(statement)

    def of(self, node: ast.AST) -> Facts | None:
        """The facts of the parameter that an expression is; None for any other."""
        order = tuple(self.packing)
        match node:
            case ast.Name(id=name) if name in self.alias:
                return self.facts[self.alias[name]]
            case ast.Subscript(value=ast.Name(id=self.packed), slice=ast.Constant(value=int() as k)) if (
                k < len(order)
            ):
                return self.facts[order[k]]
            case _:
                return None

    def _or_kept(self, node: ast.AST) -> Facts | None:
        """The same, also of what ctx keeps."""
        match node:
            case ast.Attribute(value=ast.Name(id=self._ctx), attr=attr) if attr in self.kept:
                return self.facts[self.kept[attr]]
            case _:
                return self.of(node)

    def _note(self, node: ast.AST, kind: str) -> None:
        facts = self.of(node)
        if facts is not None:
            facts.kinds.add(kind)

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
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for one, other in paired(targets, values):
                    if isinstance(one, ast.Attribute | ast.Tuple):
                        self._bind(one, other)
                    else:
                        self._name_size(one, other)
            case ast.Tuple(elts=targets), _:
                self._unpack([getattr(e, "id", "") for e in targets], targets, value)
            case ast.Name(id=name), _:
                self._name_size(target, value)
                behind = name_behind(value)
                if behind in self.alias:
                    self.alias[name] = self.alias[behind]
                elif self.of(value) is None:
                    self.alias.pop(name, None)
            case ast.Attribute(attr=attr), ast.Name(id=name) if name in self.alias:
                self.kept[attr] = self.alias[name]
            case _:
                pass

    def _name_size(self, target: ast.expr, value: ast.expr) -> None:
        """Note what forward calls one dimension: `d = x.shape[-1]`, not backward, of what was saved."""
        if self.entered is None:
            return
        match value:
            case (
                ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=index)
                | ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[index])
            ):
                facts, k = self.of(tensor), integer(index)
                if facts is not None and k is not None and isinstance(target, ast.Name):
                    facts.sizes.setdefault(k, target.id)
            case _:
                pass

    def _unpack(self, names: list[str], targets: Sequence[ast.expr], value: ast.expr) -> None:
        starred = any(isinstance(e, ast.Starred) for e in targets)
        whole = self.of(value)
        match value:
            case ast.Name(id=self.packed) if not starred or isinstance(targets[-1], ast.Starred):
                self.alias.update({n: p for n, p in zip(names, self.packing, strict=False) if n})
            case ast.Attribute(attr="saved_tensors" | "saved_variables") if len(names) == len(self.saved):
                self.alias.update({n: p for n, p in zip(names, self.saved, strict=True) if n and p})
            case (
                ast.Attribute(value=tensor, attr="shape")
                | ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[])
            ):
                facts = self.of(tensor)
                if facts is not None and starred:
                    facts.has_dimensions(len(names) - 1)
                elif facts is not None:
                    facts.has_rank(len(names), tuple(names))
            case ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=ast.Slice()):
                facts = self.of(tensor)
                if facts is not None:
                    facts.has_dimensions(len(names) - starred)
            case _ if whole is not None and not starred:
                whole.unpacked = len(names)

    def _use(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(value=value, attr=attr):
                facts = self.of(value)
                if facts is not None:
                    facts.attributes.add(attr)
                    facts.kinds |= {"tensor"} if attr in TENSOR_ATTRIBUTES else set()
            case ast.Subscript():
                self._subscript(node)
            case ast.Call():
                self._call(node)
            case ast.Compare():
                self._compare(node)
            case ast.Match(subject=subject, cases=cases):
                patterns = [p for case in cases for p in ast.walk(case.pattern)]
                self._named(subject, strings_of([p.value for p in patterns if isinstance(p, ast.MatchValue)]))
            case _:
                self._operator(node)

    def _operator(self, node: ast.AST) -> None:
        """Note `~mask`, `not flag`, `if flag:`, `for x in xs` and `x @ w`."""
        match node:
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                self._note(operand, "bool")
            case ast.UnaryOp(op=ast.Not(), operand=test) | ast.If(test=test) | ast.IfExp(test=test):
                self._note(test, "flag")
            case ast.For(iter=several) | ast.comprehension(iter=several):
                self._note(several, "sequence")
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                for facts in filter(None, (self.of(left), self.of(right))):
                    facts.has_dimensions(1)
            case _:
                pass

    def _named(self, subject: ast.AST, strings: Sequence[str]) -> None:
        facts = self._or_kept(subject)
        if facts is not None:
            facts.strings += [s for s in strings if s not in facts.strings]

    def _subscript(self, node: ast.Subscript) -> None:
        """Note `x.shape[3]`, `x[:, 0]`, `table[index]` and `ends[i + 1]`."""
        whole, index = node.value, node.slice
        self._named(index, self._keys(whole))
        if isinstance(whole, ast.Attribute) and whole.attr == "shape":
            self._dimension(whole.value, index)
            return
        facts = self.of(whole)
        entries = index.elts if isinstance(index, ast.Tuple) else [index]
        if facts is not None and _is_next(index):
            facts.kinds.add("offsets")
        if facts is not None and isinstance(index, ast.Tuple):
            facts.has_dimensions(len([e for e in entries if not is_none(e) and not _is_ellipsis(e)]))
        if facts is not None and isinstance(index, ast.Slice):
            facts.kinds.add("cut")
        for entry in entries:
            if isinstance(entry, ast.Name):
                self._note(entry, "index")
            elif isinstance(entry, ast.Slice):
                for end in filter(None, (entry.lower, entry.upper, entry.step)):
                    self._note(end, "int")

    def _dimension(self, tensor: ast.expr, index: ast.expr) -> None:
        facts = self.of(tensor)
        match index:
            case _ if facts is None:
                return
            case ast.Constant(value=int() as k):
                facts.has_dimensions(k + 1)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as k)):
                facts.has_dimensions(k)
            case _:
                facts.kinds.add("tensor")

    def _call(self, node: ast.Call) -> None:
        """Note what a parameter is called with, on and as."""
        name, function = called_name(node), node.func
        receiver = function.value if isinstance(function, ast.Attribute) else None
        called, on = self._or_kept(function), self.of(receiver) if receiver is not None else None
        if called is not None:
            self._called(called, node.args)
        if on is not None and name in MODULE_METHODS:
            on.kinds.add("module")
        elif on is not None and name not in _OF_OBJECTS and called is None:
            on.kinds.add("tensor")
            if name in RANK_OF_METHOD:
                on.has_rank(RANK_OF_METHOD[name])
            if name == "item" and not on.least_rank:
                on.has_rank(0)
            if name in SHAPE_CALLS and node.args and receiver is not None:
                self._dimension(receiver, node.args[0])
        self._operands(name, node, [*self._receiver(receiver), *node.args])
        self._roles(name, node, receiver)
        if name == "save_for_backward" and not self.saved:
            starred = any(isinstance(a, ast.Starred) for a in node.args)
            self.saved += [] if starred else [self.alias.get(name_behind(a), "") for a in node.args]
        if self.entered is not None:
            self.entered(node, self.alias)

    def _called(self, called: Facts, given: Sequence[ast.expr]) -> None:
        """Note what a parameter that is called gets."""
        called.kinds.add("callable")
        starred = [a.value for a in given if isinstance(a, ast.Starred)]
        called.arity = called.arity if starred else max(called.arity, len(given))
        for several in starred:
            self._note(several, "operands")

    def _receiver(self, receiver: ast.expr | None) -> list[ast.expr]:
        """What a method is called on; nothing for the function of a library."""
        root = receiver
        while isinstance(root, ast.Attribute):
            root = root.value
        is_library = receiver is None or (isinstance(root, ast.Name) and root.id not in self.alias)
        return [] if is_library or receiver is None else [receiver]

    def _operands(self, name: str, node: ast.Call, operands: Sequence[ast.expr]) -> None:
        """Note the dimensions that a routine asks of its operands."""
        for operand, rank in zip(operands, RANKS_OF_CALL.get(name, ()), strict=False):
            facts = self.of(operand)
            if facts is not None:
                facts.kinds.add("tensor")
                facts.rank = rank if facts.rank is None else facts.rank
        match node.args:
            case [ast.Constant(value=str() as equation), *several] if name == "einsum":
                terms = equation.replace(" ", "").split("->")[0].split(",")
                for operand, term in zip(several, terms, strict=False):
                    facts = self.of(operand)
                    if facts is not None and "." not in term:
                        facts.has_rank(len(term), tuple(term))
            case _:
                pass

    def _roles(self, name: str, node: ast.Call, receiver: ast.expr | None) -> None:
        """Note what an argument is by its place in a call."""
        arguments, at = node.args, INDEX_ARGUMENT.get(name)
        if at is not None and -len(arguments) <= at < len(arguments):
            facts = self.of(arguments[at])
            if facts is not None:
                facts.kinds.add("index")
                facts.rank = 1 if name in OF_A_VECTOR and facts.rank is None else facts.rank
        for names, kind in ((SIZE_CALLS, "int"), (AXIS_CALLS, "dim"), (("save_for_backward",), "tensor")):
            for argument in arguments if name in names else ():
                self._note(argument, kind)
        for keyword in node.keywords:
            for kind in (k for names, k in KEYWORDS.items() if keyword.arg in names):
                self._note(keyword.value, kind)
        if arguments:
            self._first(name, arguments, receiver)

    def _first(self, name: str, arguments: Sequence[ast.expr], receiver: ast.expr | None) -> None:
        """Note what the first argument of a call is."""
        match name, arguments:
            case "masked_fill" | "masked_fill_" | "masked_select" | "where", [first, *_]:
                self._note(first, "bool")
            case "int" | "bool" | "len", [first, *_]:
                self._note(first, {"int": "int", "bool": "flag", "len": "sequence"}[name])
            case "isinstance", [tested, types]:
                for word, kind in _TESTED:
                    if word in ast.unparse(types):
                        self._note(tested, kind)
            case "get", [key, *_] if receiver is not None:
                self._named(key, self._keys(receiver))
            case _, [first, *_] if name in MATH_CALLS and getattr(receiver, "id", "math") == "math":
                self._note(first, "float")
            case _:
                pass

    def _compare(self, node: ast.Compare) -> None:
        """Note `reduction == "mean"`, `bias is None`, `mode in MODES` and `p > 2`."""
        left, facts = node.left, self.of(node.left)
        for operator, other in zip(node.ops, node.comparators, strict=True):
            match operator, other:
                case ast.Eq() | ast.NotEq(), _:
                    self._named(left, strings_of([other]))
                    self._named(other, strings_of([left]))
                case ast.In() | ast.NotIn(), _:
                    self._named(left, self._keys(other))
                case _:
                    pass
            kept = self._or_kept(left)
            if kept is not None:
                kept.numbers += [n for n in numbers_beside(operator, other) if n not in kept.numbers]
            if facts is None:
                continue
            match operator, other:
                case ast.Is() | ast.IsNot(), ast.Constant(value=None):
                    facts.kinds.add("none")
                case ast.Eq() | ast.NotEq(), ast.Constant(value=int()):
                    facts.kinds.add("int")
                case _:
                    pass

    def _keys(self, table: ast.expr) -> list[str]:
        return keys_of(table, self._tables)


def _is_next(index: ast.expr) -> bool:
    """`[i + 1]` or `[1:]`: each entry is taken together with the next one."""
    match index:
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=1)):
            return True
        case ast.Slice(lower=ast.Constant(value=1), upper=None):
            return True
        case _:
            return False


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
