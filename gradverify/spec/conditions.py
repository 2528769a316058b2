"""The conditions of `where:`: comparisons of size expressions, joined by `and`, `or`, `not`.

Cut into tokens, parsed, and evaluated by a whitelist of nodes; nothing is ever handed to `eval`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gradverify.spec.sizes import (
    MAX_LENGTH,
    MAX_SIZE,
    ExpressionError,
    evaluate_node,
    is_arithmetic,
    is_size_name,
)
from gradverify.spec.wording import shown

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<int>[0-9]+)(?!\w)|(?P<op>//|<=|>=|==|!=|[-+*%()<>]))")
_WORDS = {"and", "or", "not"}
_KNOWN = "a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"
_HINTS = {"=": "; use `==`", "/": "; use `//`", "&": "; use `and`", "|": "; use `or`", "!": "; use `not`"}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


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


def parse_condition(text: str) -> Condition:
    """Parse one condition. Raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"a condition has at most {MAX_LENGTH} characters")
    tokens = list(_tokens(text))
    if not tokens:
        raise ExpressionError("a condition cannot be empty")
    try:
        body = ast.parse(" ".join(tokens), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"`{shown(text)}` is not a condition: {_KNOWN}") from None
    if is_arithmetic(body):
        raise ExpressionError(f"`{shown(text)}` compares nothing: write a condition such as `h >= k`")
    if not _is_condition(body):
        raise ExpressionError(f"`{shown(text)}` is not a condition: {_KNOWN}")
    names = dict.fromkeys(token for token in tokens if is_size_name(token))
    return Condition(" ".join(text.split()), body, tuple(names))


def _tokens(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            left = text[position:].strip()
            raise ExpressionError(f"`{shown(left)}` is unknown here{_HINTS.get(left[0], f'; {_KNOWN}')}")
        token = match.group().strip()
        if match["name"] and token not in _WORDS and not is_size_name(token):
            raise ExpressionError(f"`{shown(token)}` cannot be the name of a size")
        yield str(int(token)) if match["int"] else token
        position = match.end()


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return all(_is_condition(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_condition(operand)
        case ast.Compare(left=left, ops=ops, comparators=others):
            known = all(type(op) in _COMPARISONS for op in ops)
            return known and all(is_arithmetic(operand) for operand in [left, *others])
        case _:
            return False


def _truth(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    match node:
        case ast.BoolOp(op=op, values=values):
            answers = (_truth(value, sizes) for value in values)
            return all(answers) if isinstance(op, ast.And) else any(answers)
        case ast.UnaryOp(operand=operand):
            return not _truth(operand, sizes)
        case ast.Compare(left=left, ops=ops, comparators=others):
            numbers = [_number(operand, sizes) for operand in [left, *others]]
            pairs = zip(ops, numbers, numbers[1:], strict=False)
            return all(_COMPARISONS[type(op)](low, high) for op, low, high in pairs)
        case _:
            raise AssertionError(ast.dump(node))


def _number(node: ast.expr, sizes: Mapping[str, int]) -> int:
    value = evaluate_node(node, sizes)
    if abs(value) > MAX_SIZE * MAX_SIZE:
        raise OverflowError
    return value
