"""One method of a Function, read off its source: parameters, names, and what it does with its ctx."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradverify.source.tree import (
    bindings,
    called_name,
    definition,
    last_name,
    own_nodes_of,
    parameters_of,
)

TRANSPARENT = frozenset({"staticmethod", "once_differentiable", "custom_fwd", "custom_bwd"})
"""Decorators that hand arguments and results on as they are."""

_ASKING = frozenset({"hasattr", "getattr"})
"""Builtins that read one attribute of ctx and keep nothing."""


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
        return tuple(called_name(d) or last_name(d) for d in self.node.decorator_list)

    @property
    def ctx(self) -> str:
        """What the method calls its context; empty for none."""
        return self.parameters[0] if self.parameters else ""

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything that runs when the body runs, in source order."""
        return tuple(own_nodes_of(self.node.body))

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
    def is_abstract(self) -> bool:
        """Whether its body is a docstring, `pass` or a `raise` alone."""
        return all(
            isinstance(s, ast.Pass | ast.Raise)
            or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            for s in self.node.body
        )

    @cached_property
    def attributes(self) -> tuple[ast.Attribute, ...]:
        """Every `ctx.name`, in source order; functions inside the method see the same ctx."""
        found = (
            node
            for node in ast.walk(self.node)
            if isinstance(node, ast.Attribute) and self.is_ctx(node.value)
        )
        return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset)))

    @property
    def attributes_set(self) -> set[str]:
        """Names of the attributes of ctx that the method sets on some path."""
        return {node.attr for node in self.attributes if isinstance(node.ctx, ast.Store)}

    @property
    def attributes_read(self) -> list[ast.Attribute]:
        """Attributes of ctx that are read, in source order."""
        return [node for node in self.attributes if isinstance(node.ctx, ast.Load)]

    @property
    def attributes_probed(self) -> set[str]:
        """Attributes whose absence the method allows for: `hasattr(ctx, "bias")`."""
        return {
            call.args[1].value
            for call in self._probes()
            if len(call.args) > 1
            and isinstance(call.args[1], ast.Constant)
            and isinstance(call.args[1].value, str)
        }

    @property
    def saved(self) -> list[ast.Call]:
        """Calls of `ctx.save_for_backward(...)`, in source order."""
        return self.calls_of_ctx("save_for_backward")

    def calls_of_ctx(self, name: str) -> list[ast.Call]:
        """Calls of `ctx.name(...)`, in source order."""
        functions = {id(node) for node in self.attributes if node.attr == name}
        calls = (n for n in ast.walk(self.node) if isinstance(n, ast.Call) and id(n.func) in functions)
        return sorted(calls, key=lambda node: (node.lineno, node.col_offset))

    def lets_ctx_out(self) -> bool:
        """Whether other code gets hold of ctx and may set what it likes: a call, another name, `__dict__`."""
        plain = {id(node.value) for node in self.attributes}
        plain |= {id(argument) for call in self._probes() for argument in call.args[:1]}
        passed_on = any(self.is_ctx(node) and id(node) not in plain for node in ast.walk(self.node))
        return passed_on or any(a.attr.startswith("__") for a in self.attributes)

    def is_ctx(self, node: ast.AST) -> bool:
        """Whether an expression is the context itself."""
        return isinstance(node, ast.Name) and node.id == self.ctx

    def _probes(self) -> list[ast.Call]:
        calls = (n for n in ast.walk(self.node) if isinstance(n, ast.Call))
        return [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in _ASKING]
