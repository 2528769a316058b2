"""Values of a spec that follow from sizes: expressions, tuples, what `init:` names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from gradverify.model import Nested, Scalar
from gradverify.spec.messages import Path
from gradverify.spec.sizes import Expression, ExpressionError, SizeError, bindings, parse_expression
from gradverify.spec.source import Complaint


class InfeasibleError(Exception):
    """No valid values exist at these sizes: the case is dropped, unless it is the base case."""

    def __init__(self, complaint: Complaint) -> None:
        """Keep what is wrong, in case it is the base case."""
        super().__init__(complaint.message)
        self.complaint = complaint


def at_sizes(sizes: Mapping[str, int], names: Iterable[str]) -> str:
    """Return ` at h=1, k=3` for the sizes that matter, or nothing without any."""
    return bindings({name: sizes[name] for name in names if name in sizes})  # `rank` is none


def evaluated(expression: Expression, sizes: Mapping[str, int], path: Path) -> int:
    """Return the value of an expression. Raises InfeasibleError where it has none."""
    try:
        return expression.evaluate(sizes)
    except SizeError as error:
        raise InfeasibleError(Complaint(path, str(error))) from None


def nested(value: object, sizes: Mapping[str, int], path: Path) -> Nested:
    """Return nested tuples with their expressions evaluated."""
    if isinstance(value, tuple):
        return tuple(nested(item, sizes, (*path, index)) for index, item in enumerate(value))
    if isinstance(value, Expression):
        return evaluated(value, sizes, path)
    return cast("Scalar", value)


def size_expression(value: object, sizes: Iterable[str]) -> Expression | None:
    """Return the expression that a value of `init:` is, None where it is a literal.

    A string is one if it is made of sizes; `"3"` and `"mean"` stay the strings that they are.
    """
    if not isinstance(value, str):
        return None
    try:
        expression = parse_expression(value)
    except ExpressionError:
        return None
    return expression if expression.names and set(expression.names) <= set(sizes) else None


def init_value(value: object, sizes: Mapping[str, int], path: Path) -> Nested:
    """Return one argument of `init:` at given sizes; lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(init_value(item, sizes, (*path, index)) for index, item in enumerate(value))
    expression = size_expression(value, sizes)
    return cast("Scalar", value) if expression is None else evaluated(expression, sizes, path)


def init_scalar(value: object, sizes: Mapping[str, int]) -> Scalar:
    """Return one argument of an object's `init` at given sizes."""
    expression = size_expression(value, sizes)
    return cast("Scalar", value) if expression is None else evaluated(expression, sizes, ("init",))
