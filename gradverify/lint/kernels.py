"""Calls that read memory behind autograd's back: `kernel[grid](...)`, and functions that get addresses."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from gradverify.source import dotted


def launched_kernel(call: ast.Call) -> str:
    """The kernel that `kernel[grid](...)` launches, empty for another call."""
    if not isinstance(call.func, ast.Subscript) or not isinstance(call.func.value, ast.Name):
        return ""
    name, index = call.func.value.id, call.func.slice
    is_grid = isinstance(index, ast.Tuple | ast.Lambda) or (
        isinstance(index, ast.Name) and "grid" in index.id
    )
    return name if is_grid and ("kernel" in name or len(call.args) + len(call.keywords) > 3) else ""


def addresses_given(call: ast.Call, imported: Mapping[str, str]) -> tuple[ast.Call, ...]:
    """The `x.data_ptr()` given to a call that reads memory; empty for one that may only keep them.

    An address alone may be a key of a dictionary. A function that computes gets two at least, or one through
    ctypes.
    """
    given = tuple(
        a
        for a in call.args
        if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute) and a.func.attr == "data_ptr"
    )
    by_ctypes = dotted(call.func, imported).startswith("ctypes.")
    return given if len(given) > 1 or by_ctypes else ()
