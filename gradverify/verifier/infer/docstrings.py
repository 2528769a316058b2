"""Shapes that docstrings tell: `q (torch.Tensor): queries of shape [B, T, H, K]`, `A: r(D N)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

FURTHEST = 120
"""Characters between the name of a parameter and its shape."""

_SHAPE = r"[\[(]\s*((?:[A-Za-z_]\w*|\d+)(?:\s*[,x ]\s*(?:[A-Za-z_]\w*|\d+)){0,5})\s*,?\s*[\])]"
"""One to six sizes in brackets, each a name or a number."""

_WORDS = re.compile(r"tensor|optional|float|int|bool|default|none", re.IGNORECASE)
"""What stands in brackets and is no shape."""


def shapes_told(bodies: Iterable[ast.AST], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The sizes of each parameter by the first docstring that tells them, in the author's names."""
    found: dict[str, tuple[str, ...]] = {}
    for body in bodies:
        said = ast.get_docstring(body) if isinstance(body, ast.FunctionDef | ast.ClassDef) else None
        for name in names if said else ():
            shape = _shape_of(name, said or "")
            if shape:
                found.setdefault(name, shape)
    return found


def _shape_of(name: str, said: str) -> tuple[str, ...]:
    """The first shape that follows `name` and a colon, before an empty line or the next parameter."""
    for start in re.finditer(rf"^\W*{re.escape(name)}\b[^:\n]*:", said, re.MULTILINE):
        text = said[start.end() : start.end() + FURTHEST].partition("\n\n")[0]
        text = re.split(r"\n\s*\w+ *(?:\([^)]*\))? *:", text)[0]
        for shape in re.finditer(_SHAPE, text):
            alone = shape[0].startswith("(") and re.fullmatch(r"\w+", shape[1])
            if not alone and not _WORDS.search(shape[1]):
                return tuple(re.split(r"[,\s]+|(?<=\w) x (?=\w)", shape[1].strip()))
    return ()
