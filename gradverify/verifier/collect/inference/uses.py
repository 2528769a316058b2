"""How a body of source uses its parameters: each use says something of what they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from gradverify.verifier.collect.inference.called_names import name_behind
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.routines import (
    AXIS_CALLS,
    INDEX_ARGUMENT,
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


def is_none(node: ast.expr) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def called_name(call: ast.Call) -> str:
    """The last name of what is called: `mm` of `torch.mm(a, b)` and of `a.mm(b)`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class UseReader(ast.NodeVisitor):
    """Notes every use of a parameter, or of a local name that is one."""

    def __init__(
        self,
        facts: Mapping[str, Facts],
        own: Mapping[str, str],
        packed: str = "",
        order: Sequence[str] = (),
        entered: Callable[[ast.Call, Mapping[str, str]], None] | None = None,
    ) -> None:
        """`entered` is told of every call, and what the names of this body are at that place."""
        self._facts, self._alias, self._packed, self._order = facts, dict(own), packed, tuple(order)
        self._entered = entered
        self.kept: dict[str, str] = {}
        """Parameters by the attribute, of ctx as a rule, that keeps them."""

    def numbers_of(self, node: ast.expr) -> list[float] | None:
        """The same for its numbers."""
        facts = self._of(node)
        return None if facts is None else facts.numbers

    def strings_of(self, node: ast.expr) -> list[str] | None:
        """Where the strings that a parameter may be are noted; None for what is no parameter."""
        facts = self._of(node)
        return None if facts is None else facts.strings

    def _of(self, node: ast.AST) -> Facts | None:
        if isinstance(node, ast.Name) and node.id in self._alias:
            return self._facts[self._alias[node.id]]
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._packed
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, int)
            and node.slice.value < len(self._order)
        ):
            return self._facts[self._order[node.slice.value]]
        return None

    def _note(self, node: ast.AST, kind: str) -> None:
        facts = self._of(node)
        if facts is not None:
            facts.kinds.add(kind)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Follow `a = x`, `n, d = x.shape` and `x, w = inputs`."""
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                self._unpacked(target, node.value)
            elif isinstance(target, ast.Name):
                behind = name_behind(node.value)
                if behind in self._alias:
                    self._alias[target.id] = self._alias[behind]
                elif self._of(node.value) is None:
                    self._alias.pop(target.id, None)
            elif isinstance(target, ast.Attribute):
                self._note_kept(target, node.value)
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Subscript | ast.Attribute):
                self.visit(target)

    def _unpacked(self, target: ast.Tuple, value: ast.expr) -> None:
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for place, one in zip(target.elts, value.elts, strict=True):
                if isinstance(place, ast.Attribute):
                    self._note_kept(place, one)
        names = [e.id if isinstance(e, ast.Name) else "" for e in target.elts]
        starred = any(isinstance(e, ast.Starred) for e in target.elts)
        if isinstance(value, ast.Name) and value.id == self._packed and not starred:
            self._alias.update({n: p for n, p in zip(names, self._order, strict=False) if n})
            return
        whole = self._of(value)
        if whole is not None and not starred:
            whole.unpacked = len(names)
        source = None
        if isinstance(value, ast.Attribute) and value.attr == "shape":
            source = self._of(value.value)
        elif isinstance(value, ast.Call) and called_name(value) == "size" and not value.args:
            source = self._of(value.func.value) if isinstance(value.func, ast.Attribute) else None
        if source is not None:
            source.kinds.add("tensor")
            if starred:
                source.least_rank = max(source.least_rank, len(names) - 1)
            else:
                source.rank = len(names)
                source.names = tuple(n.lower() for n in names)

    def _note_kept(self, place: ast.Attribute, value: ast.expr) -> None:
        if isinstance(value, ast.Name) and value.id in self._alias:
            self.kept[place.attr] = self._alias[value.id]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note `x.shape`, and what else only tensors have."""
        facts = self._of(node.value)
        if facts is not None:
            facts.attributes.add(node.attr)
        if node.attr in TENSOR_ATTRIBUTES:
            self._note(node.value, "tensor")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Note `x.shape[3]`, `x[:, 0]` and `table[index]`."""
        whole = node.value
        if isinstance(whole, ast.Attribute) and whole.attr == "shape":
            self._dimension(whole.value, node.slice)
        facts = self._of(whole)
        if facts is not None and _is_next(node.slice):
            facts.kinds.add("offsets")
        if facts is not None and isinstance(node.slice, ast.Tuple):
            given = [e for e in node.slice.elts if not is_none(e) and not _is_ellipsis(e)]
            facts.least_rank = max(facts.least_rank, len(given))
            facts.kinds.add("tensor")
        for entry in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if isinstance(entry, ast.Name) and not (
                isinstance(whole, ast.Attribute) and whole.attr == "shape"
            ):
                self._note(entry, "index")
        self.generic_visit(node)

    def _dimension(self, tensor: ast.expr, index: ast.expr) -> None:
        facts = self._of(tensor)
        if facts is None:
            return
        facts.kinds.add("tensor")
        match index:
            case ast.Constant(value=int() as k):
                facts.least_rank = max(facts.least_rank, k + 1)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as k)):
                facts.least_rank = max(facts.least_rank, k)
            case _:
                return

    def visit_Call(self, node: ast.Call) -> None:
        """Note what a parameter is called with, on and as."""
        name = called_name(node)
        if isinstance(node.func, ast.Name):
            self._note(node.func, "callable")
            called = self._of(node.func)
            if called is not None and not any(isinstance(a, ast.Starred) for a in node.args):
                called.arity = len(node.args)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        facts = self._of(receiver) if receiver is not None else None
        if facts is not None and name in MODULE_METHODS:
            facts.kinds.add("module")
        elif facts is not None and name not in {"append", "lower", "upper", "items", "keys"}:
            facts.kinds.add("tensor")
            if name in RANK_OF_METHOD:
                facts.rank = facts.rank or RANK_OF_METHOD[name]
            if name == "item" and facts.rank is None and not facts.least_rank:
                facts.rank = 0
            if name in SHAPE_CALLS and node.args:
                self._dimension(receiver, node.args[0])  # type: ignore[arg-type]
        arguments = self._operands(node, receiver)
        self._ranks(name, arguments, node)
        self._roles(name, node)
        if self._entered is not None:
            self._entered(node, self._alias)
        self.generic_visit(node)

    def _operands(self, node: ast.Call, receiver: ast.expr | None) -> list[ast.expr]:
        root = receiver
        while isinstance(root, ast.Attribute):
            root = root.value
        is_library = isinstance(root, ast.Name) and root.id not in self._alias
        return [*([receiver] if receiver is not None and not is_library else []), *node.args]

    def _ranks(self, name: str, arguments: Sequence[ast.expr], node: ast.Call) -> None:
        for argument, rank in zip(arguments, RANKS_OF_CALL.get(name, ()), strict=False):
            facts = self._of(argument)
            if facts is not None:
                facts.kinds.add("tensor")
                facts.rank = rank if facts.rank is None else facts.rank
        equation = node.args[0] if name == "einsum" and node.args else None
        if isinstance(equation, ast.Constant) and isinstance(equation.value, str):
            terms = equation.value.replace(" ", "").split("->")[0].split(",")
            for argument, term in zip(node.args[1:], terms, strict=False):
                facts = self._of(argument)
                if facts is not None and "." not in term:
                    facts.kinds.add("tensor")
                    facts.rank, facts.names = len(term), tuple(term.lower())

    def _roles(self, name: str, node: ast.Call) -> None:
        if name in INDEX_ARGUMENT and -len(node.args) <= INDEX_ARGUMENT[name] < len(node.args):
            self._note(node.args[INDEX_ARGUMENT[name]], "index")
            facts = self._of(node.args[INDEX_ARGUMENT[name]])
            if facts is not None and name in OF_A_VECTOR and facts.rank is None:
                facts.rank = 1
        for argument in node.args if name in {"save_for_backward", "save_for_forward"} else ():
            self._note(argument, "tensor")
        if node.args:
            self._first_argument(name, node.args[0], node.func)
        for names, kind in ((SIZE_CALLS, "int"), (AXIS_CALLS, "dim")):
            for argument in node.args if name in names else ():
                self._note(argument, kind)
        for keyword in node.keywords:
            kind = next((k for names, k in KEYWORDS.items() if keyword.arg in names), "")
            if kind:
                self._note(keyword.value, kind)
        if name == "isinstance" and len(node.args) == 2:
            self._tested(node.args[0], ast.unparse(node.args[1]))

    def _first_argument(self, name: str, argument: ast.expr, function: ast.expr) -> None:
        if name in {"masked_fill", "masked_fill_", "masked_select", "where"}:
            self._note(argument, "bool")
        elif name in {"int", "bool", "len"}:
            self._note(argument, {"int": "int", "bool": "flag", "len": "sequence"}[name])
        elif name in MATH_CALLS:
            owner = function.value if isinstance(function, ast.Attribute) else None
            if owner is None or getattr(owner, "id", "") == "math":
                self._note(argument, "float")

    def _tested(self, argument: ast.expr, types: str) -> None:
        for word, kind in (("Tensor", "tensor"), ("list", "sequence"), ("tuple", "sequence"), ("int", "int")):
            if word in types:
                self._note(argument, kind)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Note `reduction == "mean"` and `bias is None`."""
        for operator, other in zip(node.ops, node.comparators, strict=True):
            facts = self._of(node.left)
            if facts is None:
                continue
            if isinstance(other, ast.Attribute) and isinstance(other.value, ast.Name):
                facts.compared.append(f"{other.value.id}.{other.attr}")
            if isinstance(operator, ast.Is | ast.IsNot) and is_none(other):
                facts.kinds.add("none")
            elif isinstance(operator, ast.Eq | ast.NotEq):
                if isinstance(other, ast.Constant) and isinstance(other.value, str):
                    facts.strings.append(other.value)
                elif isinstance(other, ast.Constant) and isinstance(other.value, int):
                    facts.kinds.add("int")
            elif isinstance(operator, ast.In) and isinstance(other, ast.List | ast.Tuple | ast.Set):
                facts.strings += [
                    e.value for e in other.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)
                ]
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Note `~mask` and `not flag`."""
        if isinstance(node.op, ast.Invert):
            self._note(node.operand, "bool")
        elif isinstance(node.op, ast.Not):
            self._note(node.operand, "flag")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Note `if training:`."""
        self._note(node.test, "flag")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Note `a if flag else b`."""
        self._note(node.test, "flag")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        """Note `for x in xs`."""
        self._note(node.iter, "sequence")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Note `x @ w`."""
        if isinstance(node.op, ast.MatMult):
            for operand in (node.left, node.right):
                facts = self._of(operand)
                if facts is not None:
                    facts.kinds.add("tensor")
                    facts.least_rank = max(facts.least_rank, 1)
        self.generic_visit(node)


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
