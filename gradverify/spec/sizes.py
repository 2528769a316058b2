"""Sizes and the expressions over them: `2*n`, `h//s + 1`, `c % g`.

An expression is cut into tokens, parsed, and evaluated by a whitelist of nodes; nothing is ever
handed to `eval`. The tokens are checked first so that the parser sees nothing but names, integers,
`+ - * // %` and parentheses.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradverify.spec.wording import did_you_mean, shown

MAX_SIZE = 2**31 - 1
"""Largest value of a size or an expression: beyond it no tensor could be made."""
MAX_LENGTH = 200
"""Characters of an expression; keeps the parser's recursion shallow."""
FIRST_SIZES = (4, 3, 5, 2, 7)
"""What undeclared sizes become, in order of appearance; further ones get the next primes."""

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<int>[0-9]+)(?!\w)|(?P<op>//|[-+*%()]))")
_NOT_ONE = "is not a size expression: sizes know only + - * // % and parentheses"
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
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
            value = evaluate_node(self.body, sizes)
        except ZeroDivisionError:
            raise SizeError(f"`{self.text}` divides by zero{at}") from None
        if abs(value) > MAX_SIZE:
            raise SizeError(f"`{self.text}` is larger than {MAX_SIZE}{at}")
        return value


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
    tokens = list(_tokens(text))
    if not tokens:
        raise ExpressionError("an expression cannot be empty")
    clean = " ".join(tokens)
    try:
        body = ast.parse(clean, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"`{shown(text)}` {_NOT_ONE}") from None
    if not is_arithmetic(body):
        raise ExpressionError(f"`{shown(text)}` {_NOT_ONE}")
    names = dict.fromkeys(token for token in tokens if is_size_name(token))
    return Expression(" ".join(text.split()), body, tuple(names))


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


def _tokens(text: str) -> Iterator[str]:
    # `3in x` and `0x1F` never reach the parser: a number must not touch a letter.
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            left = text[position:].strip()
            hint = "; use `//`" if left.startswith("/") else "; sizes know only + - * // % and parentheses"
            raise ExpressionError(f"`{shown(left)}` cannot stand in a size expression{hint}")
        token = match.group().strip()
        if match["name"] and not is_size_name(token):
            raise ExpressionError(f"`{shown(token)}` cannot be the name of a size")
        yield str(int(token)) if match["int"] and len(token) < MAX_LENGTH else token
        position = match.end()


def is_arithmetic(node: ast.expr) -> bool:
    """Whether a parsed text is nothing but names, integers and the operators of sizes."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return is_arithmetic(left) and is_arithmetic(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return is_arithmetic(operand)
        case ast.Name() | ast.Constant(value=int()):
            return True
        case _:
            return False


def evaluate_node(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Return the value of an arithmetic node; ZeroDivisionError is the caller's."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](evaluate_node(left, sizes), evaluate_node(right, sizes))
        case ast.UnaryOp(op=op, operand=operand):
            value = evaluate_node(operand, sizes)
            return -value if isinstance(op, ast.USub) else value
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int() as integer):
            return integer
        case _:
            raise AssertionError(ast.dump(node))


def _defaults() -> Iterator[int]:
    yield from FIRST_SIZES
    candidate = max(FIRST_SIZES)
    while True:
        candidate += 2
        if all(candidate % divisor for divisor in range(3, candidate, 2)):
            yield candidate
