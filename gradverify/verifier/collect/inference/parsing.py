"""Sources as trees, each parsed once for all the targets of a module; nobody may change them."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

KEPT_TREES = 16
"""Files whose trees are kept: a module, and those of its package that call it."""


@lru_cache(maxsize=KEPT_TREES)
def tree_of(source: str | bytes) -> ast.Module:
    """The tree of a file's text.

    Raises as `ast.parse` does.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)
