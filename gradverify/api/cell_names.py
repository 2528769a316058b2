"""Where a class of a notebook's cell is defined, in the words of the notebook."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable
from pathlib import Path


def cell_of(function: type) -> str:
    """What Python calls the cell that defines a Function; empty where its source is not known."""
    code = getattr(inspect.unwrap(getattr(function, "forward", function)), "__code__", None)
    file = str(getattr(code, "co_filename", ""))
    return file if linecache.getlines(file) else ""


def name_of_cell(cell: str) -> str:
    """`In[3]` where IPython knows the cell by its number, else what Python calls it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named: Callable[[str], tuple[str, str] | None] | None = getattr(
        getattr(shell, "compile", None), "format_code_name", None
    )
    found = None if named is None else named(cell)
    return found[1] if found else Path(cell).name


def place_of(function: type) -> tuple[str, int]:
    """The cell of a class and its line there; `<python>` where no source is known."""
    cell = cell_of(function)
    if not cell:
        return "<python>", 1
    lines = linecache.getlines(cell)
    heads = (f"class {function.__name__}(", f"class {function.__name__}:")
    starts = (k for k, line in enumerate(lines, 1) if line.startswith(heads))
    return name_of_cell(cell), next(starts, 1)
