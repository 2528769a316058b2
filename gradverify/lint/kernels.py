"""Kernel launches: `kernel[grid](...)`, as Triton and its relatives write them."""

from __future__ import annotations

import ast


def launched_kernel(call: ast.Call) -> str:
    """The kernel that `kernel[grid](...)` launches, empty for another call."""
    if not isinstance(call.func, ast.Subscript) or not isinstance(call.func.value, ast.Name):
        return ""
    name, index = call.func.value.id, call.func.slice
    is_grid = isinstance(index, ast.Tuple | ast.Lambda) or (
        isinstance(index, ast.Name) and "grid" in index.id
    )
    return name if is_grid and ("kernel" in name or len(call.args) + len(call.keywords) > 3) else ""
