"""Sizes, the expressions over them (`2*n`, `h//s + 1`, `c % g`), and the conditions of `where:` on them.

A text is cut into tokens, parsed, and evaluated by a whitelist of nodes; nothing is ever handed to
`eval`. The tokens are checked first so that the parser sees nothing but names, integers, operators
and parentheses. Conditions are comparisons of expressions, joined by `and`, `or`, `not`.

Values of a spec that follow from sizes: expressions, tuples, what `init:` names.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gradverify.model import Nested, Scalar
from gradverify.spec.messages import Path, did_you_mean, shown
from gradverify.spec.source import Complaint

MAX_SIZE = 2**31 - 1
"""Largest value of a size or an expression: beyond it no tensor could be made."""
MAX_LENGTH = 200
"""Characters of an expression; keeps the parser's recursion shallow."""
RANK = "rank"
"""What the number of a rank is called in expressions."""
FIRST_SIZES = (4, 3, 5, 2, 7)
"""What undeclared sizes become, in order of appearance; further ones get the next primes."""

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<int>[0-9]+)(?!\w)|(?P<op>//|<=|>=|==|!=|[-+*%()<>]))")
_WORDS = frozenset({"and", "or", "not"})
_OF_CONDITIONS = frozenset({"<=", ">=", "==", "!=", "<", ">"})
_HINTS = {"=": "; use `==`", "/": "; use `//`", "&": "; use `and`", "|": "; use `or`", "!": "; use `not`"}
_NOT_ONE = "is not a size expression: sizes know only + - * // % and parentheses"
_KNOWN = "a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ExpressionError(Exception):
    """The text is not a size expression; the message says why."""


class SizeError(Exception):
    """The expression has no value at these sizes; the message names them."""


@dataclass(frozen=True)
class Expression:
    """A parsed size expression. Equal texts are equal expressions."""

    text: str
    body: ast.expr = field(compare=False, repr=False)
    names: tuple[str, ...] = ()
    """The sizes it depends on, in order of appearance."""

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return its value, or raise SizeError."""
        at = bindings({name: sizes[name] for name in self.names})
        try:
            value = _value(self.body, sizes)
        except ZeroDivisionError:
            raise SizeError(f"`{self.text}` divides by zero{at}") from None
        if abs(value) > MAX_SIZE:
            raise SizeError(f"`{self.text}` is larger than {MAX_SIZE}{at}")
        return value


@dataclass(frozen=True)
class Condition:
    """A parsed condition. Equal texts are equal conditions."""

    text: str
    body: ast.expr = field(compare=False, repr=False)
    names: tuple[str, ...] = ()
    """The sizes it depends on, in order of appearance."""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true; a condition that divides by zero, or overflows, is not."""
        try:
            return _truth(self.body, sizes)
        except (ZeroDivisionError, OverflowError):
            return False


def bindings(sizes: Mapping[str, int]) -> str:
    """Return ` at h=1, k=3`, or nothing without sizes."""
    return f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}" if sizes else ""


def is_size_name(name: str) -> bool:
    """Whether a size can be called so: a Python identifier, in the form that Python itself stores."""
    plain = unicodedata.normalize("NFKC", name) == name
    return name.isidentifier() and plain and not keyword.iskeyword(name)


def constant(value: int) -> Expression:
    """Return the expression of a plain integer."""
    return Expression(str(value), ast.Constant(value))


def parse_expression(text: str) -> Expression:
    """Parse a size expression. Raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters")
    tokens = list(_tokens(text, _in_expression))
    if not tokens:
        raise ExpressionError("an expression cannot be empty")
    body = _parsed(tokens)
    if body is None or not _is_arithmetic(body):
        raise ExpressionError(f"`{shown(text)}` {_NOT_ONE}")
    return Expression(" ".join(text.split()), body, _names(tokens))


def parse_condition(text: str) -> Condition:
    """Parse one condition. Raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"a condition has at most {MAX_LENGTH} characters")
    tokens = list(_tokens(text, _in_condition))
    if not tokens:
        raise ExpressionError("a condition cannot be empty")
    body = _parsed(tokens)
    if body is not None and _is_arithmetic(body):
        raise ExpressionError(f"`{shown(text)}` compares nothing: write a condition such as `h >= k`")
    if body is None or not _is_condition(body):
        raise ExpressionError(f"`{shown(text)}` is not a condition: {_KNOWN}")
    return Condition(" ".join(text.split()), body, _names(tokens))


def undeclared(names: Iterable[str], declared: Iterable[str]) -> list[str]:
    """Return the names that are not declared, each once, in order of appearance."""
    known = set(declared)
    return [name for name in dict.fromkeys(names) if name not in known]


def automatic(names: Iterable[str]) -> dict[str, int]:
    """Give undeclared sizes the values 4, 3, 5, 2, 7, 11, 13, … in order of appearance."""
    return dict(zip(dict.fromkeys(names), _defaults(), strict=False))


def unknown_size(name: str, declared: Sequence[str]) -> str:
    """Return the sentence for a name that the `sizes:` block does not declare."""
    known = did_you_mean(name, declared) or (f"; declared: {', '.join(declared)}" if declared else "")
    return f"`{shown(name)}` is not in `sizes`{known}"


def _names(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(token for token in tokens if is_size_name(token)))


def _parsed(tokens: Sequence[str]) -> ast.expr | None:
    try:
        return ast.parse(" ".join(tokens), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _in_expression(left: str) -> str:
    """Why a token cannot stand in an expression."""
    hint = "; use `//`" if left.startswith("/") else "; sizes know only + - * // % and parentheses"
    return f"`{shown(left)}` is not allowed in a size expression{hint}"


def _in_condition(left: str) -> str:
    """Why a token cannot stand in a condition."""
    return f"`{shown(left)}` is unknown here{_HINTS.get(left[0], f'; {_KNOWN}')}"


def _tokens(text: str, refusal: Callable[[str], str]) -> Iterator[str]:
    # `3in x` and `0x1F` never reach the parser: a number must not touch a letter.
    position, end, of_condition = 0, len(text.rstrip()), refusal is _in_condition
    while position < end:
        match = _TOKEN.match(text, position)
        token = match.group().strip() if match else ""
        if match is None or (token in _OF_CONDITIONS and not of_condition):
            raise ExpressionError(refusal(text[position:].strip()))
        if match["name"] and not is_size_name(token) and not (of_condition and token in _WORDS):
            raise ExpressionError(f"`{shown(token)}` cannot be the name of a size")
        yield str(int(token)) if match["int"] else token
        position = match.end()


def _is_arithmetic(node: ast.expr) -> bool:
    """Whether a parsed text is nothing but names, integers and the operators of sizes."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _is_arithmetic(left) and _is_arithmetic(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_arithmetic(operand)
        case ast.Name() | ast.Constant(value=int()):
            return True
        case _:
            return False


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return all(map(_is_condition, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_condition(operand)
        case ast.Compare(left=left, ops=ops, comparators=others):
            known = all(type(op) in _COMPARISONS for op in ops)
            return known and all(map(_is_arithmetic, [left, *others]))
        case _:
            return False


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """The value of an arithmetic node; ZeroDivisionError is the caller's."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, sizes)
            return -value if isinstance(op, ast.USub) else value
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int() as integer):
            return integer
        case _:
            raise AssertionError(ast.dump(node))


def _truth(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    match node:
        case ast.BoolOp(op=op, values=values):
            answers = (_truth(value, sizes) for value in values)
            return all(answers) if isinstance(op, ast.And) else any(answers)
        case ast.UnaryOp(operand=operand):
            return not _truth(operand, sizes)
        case ast.Compare(left=left, ops=ops, comparators=others):
            numbers = [_bounded(operand, sizes) for operand in [left, *others]]
            pairs = zip(ops, numbers, numbers[1:], strict=False)
            return all(_COMPARISONS[type(op)](low, high) for op, low, high in pairs)
        case _:
            raise AssertionError(ast.dump(node))


def _bounded(node: ast.expr, sizes: Mapping[str, int]) -> int:
    value = _value(node, sizes)
    if abs(value) > MAX_SIZE * MAX_SIZE:
        raise OverflowError
    return value


def _defaults() -> Iterator[int]:
    yield from FIRST_SIZES
    candidate = max(FIRST_SIZES)
    while True:
        candidate += 2
        if all(candidate % divisor for divisor in range(3, candidate, 2)):
            yield candidate


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
