"""Where in forward's source an operation was called, and what its arguments are called there."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils import _pytree

_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]))
"""Folders whose frames are no user's: torch's and the verifier's."""

LONGEST_TEXT = 60
"""Characters of source that a sentence quotes at most."""


@dataclass(frozen=True)
class Site:
    """One call of an operation in the source: the same at every point, however often a loop passes it."""

    file: str
    """Empty where the code has no file: a graph that was recorded."""
    line: int
    start: int
    """Column of the expression's first character."""
    end: int
    """Column behind its last one, on the same line; -1 where it spans several."""
    operation: str
    part: int = 0
    """Which of the operations that this one is made of, in order."""
    outer: str = ""
    """The operation that is made of others, of a part."""


def site_of_call(operation: str, part: int) -> Site:
    """The call that user code is in now."""
    frame = _users_frame()
    if frame is None:
        return Site("", 0, 0, -1, operation, part)
    file = frame.f_code.co_filename
    line, start, end = _position(frame.f_code, frame.f_lasti)
    return Site("" if file.startswith("<") else file, line, start, end, operation, part)


def text_of(site: Site) -> str:
    """The expression as the user wrote it; empty where it cannot be quoted."""
    if not site.file or site.end < 0:
        return ""
    line = linecache.getline(site.file, site.line)
    # Columns count bytes.
    return line.encode()[site.start : site.end].decode(errors="replace").strip()


ArgumentPath = tuple[int | str, ...]
"""Where an argument stands in a call: its position or name, then positions in lists."""


def paths_of(call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[ArgumentPath, ...]:
    """Where each leaf of a call's arguments stands, in the order in which pytrees are opened."""
    found, _ = _pytree.tree_flatten_with_path(call)
    return tuple(tuple(_key(key) for key in path[1:]) for path, _ in found)


def _key(key: Any) -> int | str:  # noqa: ANN401 - one of the kinds of keys of a pytree
    return key.idx if hasattr(key, "idx") else str(getattr(key, "key", ""))


def argument_text(site: Site, path: ArgumentPath) -> str:
    """What the source calls an argument of the operation; empty where that cannot be told."""
    try:
        expression = ast.parse(text_of(site), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    argument = None if site.part or not path else _argument(expression, site.operation, path[0])
    if argument is None:
        return ""
    rest = path[1:]
    while rest and isinstance(argument, ast.List | ast.Tuple):
        if not isinstance(rest[0], int) or rest[0] >= len(argument.elts):
            return ""
        argument, rest = argument.elts[rest[0]], rest[1:]
    found = ast.unparse(argument) + "".join(f"[{key}]" for key in rest)
    return found if len(found) <= LONGEST_TEXT else ""


def _argument(expression: ast.expr, operation: str, place: int | str) -> ast.expr | None:
    if isinstance(place, str):
        named = expression.keywords if isinstance(expression, ast.Call) else []
        return next((k.value for k in named if k.arg == place), None)
    arguments = _arguments(expression, operation)
    return arguments[place] if place < len(arguments) else None


def _arguments(expression: ast.expr, operation: str) -> list[ast.expr]:
    """The arguments in the operation's own order; empty where something else stands in the source."""
    match expression:
        case ast.BinOp(left=left, right=right):
            turned = operation in {"rsub", "rdiv", "rpow"}
            return [right, left] if turned else [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args) if _is(name, operation):
            if any(isinstance(a, ast.Starred) for a in args):
                return []
            return list(args) if _is_module(value) else [value, *args]
        case ast.Call(func=ast.Name(id=name), args=args) if _is(name, operation):
            return [] if any(isinstance(a, ast.Starred) for a in args) else list(args)
        case _:
            return []


def _is(name: str, operation: str) -> bool:
    return name == operation or operation.endswith(f"_{name}")


def _is_module(value: ast.expr) -> bool:
    """`torch`, `F`, `torch.linalg`: whose functions take all their tensors in brackets."""
    match value:
        case ast.Name(id=name):
            return name in {"torch", "F", "functional", "linalg"}
        case ast.Attribute(value=inner):
            return _is_module(inner)
        case _:
            return False


def bracketed(expression: str) -> str:
    """In brackets where an operator stands outside of any."""
    depth = 0
    for c in expression:
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c in "+-*/@ ":
            return f"({expression})"
    return expression


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> tuple[int, int, int]:
    """Line, first column and last column of an instruction."""
    found = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
    line, last_line, start, end = (-1 if n is None else n for n in found)
    return line, start, end if line == last_line else -1


def operation_name(function: Callable[..., Any]) -> str:
    """What a torch function is called in sentences: `mul` for `Tensor.__mul__`."""
    name = getattr(function, "__name__", "") or ""
    bare = name.split(".")[0].strip("_")
    if name == "__get__":
        owner = getattr(function, "__self__", None)
        return f"get {getattr(owner, '__name__', '')}"
    return _PLAIN.get(bare, bare)


_PLAIN = {
    "truediv": "div",
    "rtruediv": "rdiv",
    "rdiv": "rdiv",
    "rsub": "rsub",
    "radd": "add",
    "rmul": "mul",
    "rpow": "rpow",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "true": "div",
    "negative": "neg",
}
"""Names under which one operation is called."""
