"""One method of a Function, read off its source: parameters, names, and what it does with its ctx.

What it returns on each path, as far as the source says it with certainty.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradverify.source.live import definition
from gradverify.source.tree import (
    Place,
    bare_name,
    bindings,
    dotted,
    each,
    integer,
    is_none,
    name_of,
    own_nodes,
    parameters_of,
)

TRANSPARENT = frozenset({"staticmethod", "once_differentiable", "custom_fwd", "custom_bwd"})
"""Decorators that hand arguments and results on as they are."""

SAVED = frozenset({"saved_tensors", "saved_variables"})
"""Attributes of ctx that hold what was saved."""

_ASKING = frozenset({"hasattr", "getattr"})
"""Builtins that read one attribute of ctx and keep nothing."""


@dataclass(frozen=True)
class Unpacked:
    """Where saved tensors are taken apart."""

    place: Place
    count: int
    at_least: bool = True
    """Whether more may have been saved."""
    names: tuple[str, ...] = ()
    """What they are called, where all are taken; empty for one that gets no name."""


@dataclass(frozen=True)
class Method:
    """One method of a Function."""

    node: ast.FunctionDef

    @classmethod
    def of(cls, function: Any) -> Method | None:  # noqa: ANN401 - whatever the user's is
        """That of a live function; None where its source cannot be had."""
        node = definition(function)
        return None if node is None else cls(node)

    @property
    def name(self) -> str:
        """Its own name."""
        return self.node.name

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Those that can be given by position, `ctx` included."""
        return parameters_of(self.node)

    @property
    def defaults(self) -> int:
        """How many of them have a default."""
        return len(self.node.args.defaults)

    @property
    def variadic(self) -> str:
        """The name of `*args`, empty without one."""
        return self.node.args.vararg.arg if self.node.args.vararg is not None else ""

    @cached_property
    def decorators(self) -> tuple[str, ...]:
        """Last name of each."""
        return tuple(map(bare_name, self.node.decorator_list))

    @property
    def ctx(self) -> str:
        """What the method calls its context; empty for none."""
        return self.parameters[0] if self.parameters else ""

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything that runs when the body runs, in source order."""
        return tuple(own_nodes(*self.node.body))

    @cached_property
    def bindings(self) -> Mapping[str, list[ast.expr | None]]:
        """What each local name is bound to, everywhere; None for what cannot be read off."""
        return bindings(self.node.body)

    @property
    def is_static(self) -> bool:
        """Whether it is a `@staticmethod`."""
        return "staticmethod" in self.decorators

    @property
    def is_wrapped(self) -> bool:
        """Whether a decorator may change what it gets or gives."""
        return any(name not in TRANSPARENT and "custom_" not in name for name in self.decorators)

    @property
    def only_raises(self) -> str:
        """The exception that is all there is besides a docstring; empty for any other body."""
        match self.node.body[ast.get_docstring(self.node) is not None :]:
            case [ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name)))]:
                return name
            case _:
                return ""

    @property
    def literals(self) -> set[object]:
        """Every constant in it."""
        return {node.value for node in each(ast.Constant, self.node)}

    @cached_property
    def attributes(self) -> tuple[ast.Attribute, ...]:
        """Every `ctx.name`, in source order; functions inside the method see the same ctx."""
        found = (node for node in each(ast.Attribute, self.node) if self._is_ctx(node.value))
        return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset)))

    @property
    def attributes_read(self) -> dict[str, Place]:
        """The attributes of ctx that are read, by name, and where they are first."""
        read = [node for node in self.attributes if isinstance(node.ctx, ast.Load)]
        return {node.attr: Place.of(node) for node in reversed(read)}

    @property
    def attributes_known(self) -> set[str]:
        """Those that it sets on some path, or whose absence it allows for: `hasattr(ctx, "bias")`."""
        asked = (getattr(a, "value", None) for call in self._probes() for a in call.args[1:2])
        stored = (node.attr for node in self.attributes if isinstance(node.ctx, ast.Store))
        return {*stored, *(name for name in asked if isinstance(name, str))}

    @property
    def saved_counts(self) -> set[int] | None:
        """How many tensors the calls of `ctx.save_for_backward` are given; None where that is open."""
        saved = [call.args for call in self.calls_of_ctx("save_for_backward")]
        starred = any(isinstance(argument, ast.Starred) for given in saved for argument in given)
        return None if starred else {len(given) for given in saved}

    @property
    def unpacked(self) -> Iterator[Unpacked]:
        """Where it takes apart what was saved, in source order."""
        reads = {id(n) for n in self.attributes if isinstance(n.ctx, ast.Load) and n.attr in SAVED}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and id(node.value) in reads:
                for target in node.targets:
                    if isinstance(target, ast.Tuple | ast.List):
                        starred = any(isinstance(element, ast.Starred) for element in target.elts)
                        names = tuple(map(name_of, target.elts))
                        yield Unpacked(Place.of(target), len(names) - starred, starred, names)
            elif isinstance(node, ast.Subscript) and id(node.value) in reads:
                index = integer(node.slice)
                if index is not None and index >= 0:
                    yield Unpacked(Place.of(node), index + 1)

    def calls_of_ctx(self, name: str) -> list[ast.Call]:
        """Calls of `ctx.name(...)`."""
        functions = {id(node) for node in self.attributes if node.attr == name}
        return [call for call in each(ast.Call, self.node) if id(call.func) in functions]

    def calls(
        self, functions: Collection[str], method: str, imported: Mapping[str, str]
    ) -> Iterator[tuple[Place, str]]:
        """Calls of functions by their full names, or of a value's method without ctx; each as written."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                own = isinstance(node.func, ast.Attribute) and node.func.attr == method
                if dotted(node.func, imported) in functions or (own and "ctx" not in map(name_of, node.args)):
                    yield Place.of(node), ast.unparse(node.func)

    def lets_ctx_out(self) -> bool:
        """Whether other code gets hold of ctx and may set what it likes: a call, another name, `__dict__`."""
        plain = {id(node.value) for node in self.attributes}
        plain |= {id(argument) for call in self._probes() for argument in call.args[:1]}
        passed_on = any(self._is_ctx(node) and id(node) not in plain for node in ast.walk(self.node))
        return passed_on or any(a.attr.startswith("__") for a in self.attributes)

    def _is_ctx(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.ctx

    def _probes(self) -> list[ast.Call]:
        return [call for call in each(ast.Call, self.node) if name_of(call.func) in _ASKING]


_TENSOR_METHODS = frozenset(
    {"abs", "clamp", "clone", "contiguous", "cos", "div", "double", "exp", "expand", "expand_as"}
    | {"float", "half", "log", "matmul", "mean", "mm", "mul", "neg", "permute", "pow", "reshape", "sign"}
    | {"sin", "sum", "t", "tanh", "to", "transpose", "type_as", "unsqueeze", "view", "view_as", "zero_"}
)
"""Methods of a tensor that give one tensor."""
_TENSOR_OPERATORS = (ast.Mult, ast.Div, ast.MatMult, ast.Sub, ast.Pow)
"""Operators that, with a tensor on one side, give one tensor; `+` may join tuples."""


@dataclass(frozen=True)
class Returned:
    """One `return`, or one branch of a conditional one."""

    node: ast.Return
    values: tuple[ast.expr, ...] | None
    """What is returned, one by one; None where that is not known."""


def returned(method: Method) -> tuple[Returned, ...]:
    """Every path that returns, in source order."""
    return tuple(
        Returned(node, _values(expression, method))
        for node in method.nodes
        if isinstance(node, ast.Return)
        for expression in _branches(node.value or ast.Constant(None))
    )


def is_always_none(expression: ast.expr, method: Method) -> bool:
    """Whether an expression is certainly None: the literal, or a name that is bound to nothing else."""
    if isinstance(expression, ast.IfExp):
        return all(is_always_none(branch, method) for branch in _branches(expression))
    is_name = isinstance(expression, ast.Name)
    bound = method.bindings.get(name_of(expression), []) if is_name else [expression]
    return bool(bound) and all(map(is_none, bound))


def gives_gradient(method: Method) -> bool:
    """Whether some path returns something that is not certainly None."""
    return any(
        path.values is None or not all(is_always_none(value, method) for value in path.values)
        for path in returned(method)
    )


def _branches(expression: ast.expr) -> Iterator[ast.expr]:
    if isinstance(expression, ast.IfExp):
        yield from _branches(expression.body)
        yield from _branches(expression.orelse)
    else:
        yield expression


def _values(expression: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    if is_none(expression) or is_tensor(expression, _gradients_given(method)):
        return (expression,)
    return _display(expression, method)


def _gradients_given(method: Method) -> frozenset[str]:
    """The parameters after ctx that stay one tensor whatever they are bound to on the way."""
    given = frozenset(method.parameters[1:])
    return frozenset(
        name for name in given if all(is_tensor(value, given) for value in method.bindings.get(name, []))
    )


def _display(
    expression: ast.expr | None, method: Method, *, starred: bool = False
) -> tuple[ast.expr, ...] | None:
    """The entries of a tuple that is written out, also as a sum, a multiple or a local name.

    What stands behind a star may be a list, too.
    """
    parts: list[tuple[ast.expr, ...] | None] = [None]
    match expression:
        case ast.List() if not starred:
            pass
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            parts = [_entry(entry, method) for entry in entries]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_display(left, method), _display(right, method)]
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            parts = [_display(left, method, starred=starred)] * times
        case ast.Name(id=name) if name not in method.parameters:
            bound = method.bindings.get(name, [])
            if len(bound) == 1 and not isinstance(bound[0], ast.Name):
                parts = [_display(bound[0], method)]
        case _:
            pass
    known = [part for part in parts if part is not None]
    return sum(known, ()) if len(known) == len(parts) else None


def _entry(entry: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    """What one entry of a tuple holds; several for `*[grad]` and `*[None] * 3`."""
    if not isinstance(entry, ast.Starred):
        return (entry,)
    return None if isinstance(entry.value, ast.Name) else _display(entry.value, method, starred=True)


def is_tensor(expression: ast.expr | None, tensors: frozenset[str]) -> bool:
    """Whether an expression is certainly one tensor, given names that are."""
    match expression:
        case ast.Name(id=name):
            return name in tensors
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return is_tensor(operand, tensors)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _TENSOR_OPERATORS):
            return is_tensor(left, tensors) or is_tensor(right, tensors)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return attr in _TENSOR_METHODS and is_tensor(value, tensors)
        case _:
            return False
