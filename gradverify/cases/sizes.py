"""Sizes, the expressions over them (`2*n`, `h//s + 1`, `c % g`), and the conditions of `where:` on them.

A text is cut into tokens, parsed, and evaluated by a whitelist of nodes; nothing is ever handed to
`eval`. The tokens are checked first so that the parser sees nothing but names, integers, operators
and parentheses. Conditions are comparisons of expressions, joined by `and`, `or`, `not`.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Any

from gradverify.cases.messages import Path, shown
from gradverify.model import Nested

MAX_SIZE = 2**31 - 1
"""Largest value of a size or an expression: beyond it no tensor could be made."""
MAX_LENGTH = 200
"""Characters of an expression; keeps the parser's recursion shallow."""
RANK = "rank"
"""What the number of a rank is called in expressions."""
FIRST_SIZES = (4, 3, 5, 2, 7)
"""What undeclared sizes become, in order of appearance; further ones get the next odd numbers."""

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<int>[0-9]+)(?!\w)|(?P<op>//|<=|>=|==|!=|[-+*%()<>]))")
_WORDS = frozenset({"and", "or", "not"})
_OF_CONDITIONS = frozenset({"<=", ">=", "==", "!=", "<", ">"})
_HINTS = {"=": "; use `==`", "/": "; use `//`", "&": "; use `and`", "|": "; use `or`", "!": "; use `not`"}
_NOT_ONE = "is not a size expression: sizes know only + - * // % and parentheses"
_KNOWN = "a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"
_OPERATORS: Mapping[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ExpressionError(ValueError):
    """The text is not a size expression; the message says why."""


class Infeasible(Exception):  # noqa: N818 - an answer as often as an error
    """No valid values exist at some sizes: such a case is dropped, unless it is the base case."""

    def __init__(self, path: Path, message: str) -> None:
        """Keep what is wrong and where, in case it is the base case."""
        super().__init__(message)
        self.path, self.message = path, message

    def under(self, prefix: Path) -> Infeasible:
        """Return the same, its path seen from further up."""
        return Infeasible(prefix + self.path, self.message)


@dataclass(frozen=True)
class Expression:
    """A size expression by its text. Equal texts are equal expressions."""

    text: str

    @cached_property
    def body(self) -> ast.expr:
        """Return its syntax tree. The text has been checked."""
        return ast.parse(" ".join(_tokens(self.text, of_condition=True)), mode="eval").body

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the sizes it depends on, in order of appearance."""
        return tuple(dict.fromkeys(t for t in _tokens(self.text, of_condition=True) if is_size_name(t)))

    def value(self, sizes: Mapping[str, int], path: Path) -> int:
        """Return its value. Raises `Infeasible`, with `path`, where it has none."""
        try:
            value = _value(self.body, sizes)
        except ZeroDivisionError:
            raise Infeasible(path, f"`{self.text}` divides by zero{at_sizes(sizes, self.names)}") from None
        if abs(value) > MAX_SIZE:
            raise Infeasible(path, f"`{self.text}` is larger than {MAX_SIZE}{at_sizes(sizes, self.names)}")
        return value


class Condition(Expression):
    """A condition by its text."""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true; a condition that divides by zero, or overflows, is not."""
        try:
            return bool(_value(self.body, sizes))
        except (ZeroDivisionError, OverflowError):
            return False


Size = int | Expression
"""What a dimension is before sizes are bound."""


def at_sizes(sizes: Mapping[str, int], names: Iterable[str]) -> str:
    """Return ` at h=1, k=3` for the sizes that matter, or nothing without any."""
    known = ", ".join(f"{name}={sizes[name]}" for name in names if name in sizes)  # `rank` is none
    return known and f" at {known}"


def size(text: str) -> Size:
    """Return a dimension from the text that a spec would have."""
    return int(text) if re.fullmatch(r"-?\d+", text) else Expression(text)


def is_size_name(name: str) -> bool:
    """Whether a size can be called so: a Python identifier, in the form that Python itself stores."""
    plain = unicodedata.normalize("NFKC", name) == name
    return name.isidentifier() and plain and not keyword.iskeyword(name)


def parse_expression(text: str) -> Expression:
    """Parse a size expression. Raises ExpressionError."""
    if _kind(_parsed(text, "an expression")) is not int:
        raise ExpressionError(f"`{shown(text)}` {_NOT_ONE}")
    return Expression(" ".join(text.split()))


def parse_condition(text: str) -> Condition:
    """Parse one condition. Raises ExpressionError."""
    kind = _kind(_parsed(text, "a condition"))
    if kind is int:
        raise ExpressionError(f"`{shown(text)}` compares nothing: write a condition such as `h >= k`")
    if kind is None:
        raise ExpressionError(f"`{shown(text)}` is not a condition: {_KNOWN}")
    return Condition(" ".join(text.split()))


def automatic(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Give undeclared sizes the values 4, 3, 5, 2, 7, 9, 11, … in order of appearance."""
    values = chain(FIRST_SIZES, count(max(FIRST_SIZES) + 2, 2))
    return tuple(zip(dict.fromkeys(names), values, strict=False))


def evaluated(value: object, sizes: Mapping[str, int], path: Path) -> Any:  # noqa: ANN401 - as nested as it was
    """Return a value, or nested tuples of values, with expressions evaluated. Raises `Infeasible`."""
    if isinstance(value, tuple):
        return tuple(evaluated(item, sizes, (*path, index)) for index, item in enumerate(value))
    return value.value(sizes, path) if isinstance(value, Expression) else value


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


def init_value(value: Nested, sizes: Mapping[str, int], path: Path) -> Any:  # noqa: ANN401 - as above
    """Return one argument of `init:` at given sizes. Raises `Infeasible`."""
    if isinstance(value, tuple):
        return tuple(init_value(item, sizes, (*path, index)) for index, item in enumerate(value))
    expression = size_expression(value, sizes)
    return value if expression is None else expression.value(sizes, path)


def _parsed(text: str, what: str) -> ast.expr | None:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{what} has at most {MAX_LENGTH} characters")
    tokens = list(_tokens(text, of_condition=what == "a condition"))
    if not tokens:
        raise ExpressionError(f"{what} cannot be empty")
    try:
        return ast.parse(" ".join(tokens), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _refused(left: str, *, of_condition: bool) -> str:
    if of_condition:
        return f"`{shown(left)}` is unknown here{_HINTS.get(left[0], f'; {_KNOWN}')}"
    hint = "; use `//`" if left.startswith("/") else "; sizes know only + - * // % and parentheses"
    return f"`{shown(left)}` is not allowed in a size expression{hint}"


def _tokens(text: str, *, of_condition: bool) -> Iterator[str]:
    # `3in x` and `0x1F` never reach the parser: a number must not touch a letter.
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        token = match.group().strip() if match else ""
        if match is None or (token in _OF_CONDITIONS and not of_condition):
            raise ExpressionError(_refused(text[position:].strip(), of_condition=of_condition))
        if match["name"] and not is_size_name(token) and not (of_condition and token in _WORDS):
            raise ExpressionError(f"`{shown(token)}` cannot be the name of a size")
        yield str(int(token)) if match["int"] else token
        position = match.end()


def _parts(node: ast.expr) -> list[ast.expr]:
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]


def _kind(node: ast.expr | None) -> type[int] | None:
    """`int` for nothing but names, integers and their operators, `bool` for a condition, else None."""
    of: type[int] = int
    made: type[int] = int
    match node:
        case ast.BinOp() | ast.UnaryOp(op=ast.USub() | ast.UAdd()) | ast.Name() | ast.Constant():
            pass
        case ast.UnaryOp() | ast.BoolOp():
            of = made = bool
        case ast.Compare():
            made = bool
        case _:
            return None
    return made if all(_kind(part) is of for part in _parts(node)) else None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """The value of a node, of a condition too. ZeroDivisionError and OverflowError are the caller's."""
    values = (_value(part, sizes) for part in _parts(node))
    match node:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int() as integer):
            return integer
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            return _OPERATORS[type(op)](*values)
        case ast.BoolOp(op=op):
            return all(values) if isinstance(op, ast.And) else any(values)
        case ast.Compare(ops=ops):
            numbers = [*values]
            if max(map(abs, numbers)) > MAX_SIZE * MAX_SIZE:
                raise OverflowError
            pairs = zip(ops, numbers, numbers[1:], strict=False)
            return all(_OPERATORS[type(op)](low, high) for op, low, high in pairs)
        case _:
            raise AssertionError(ast.dump(node))
