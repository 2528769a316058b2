"""Functions that no file defines, such as those of a notebook's cell: verified in this very process."""

from __future__ import annotations

import linecache
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.autograd import Function

from gradverify.api.messages import cell_of, name_of_cell
from gradverify.api.states import states_kept
from gradverify.errors import UsageError
from gradverify.model import Report, shown_path
from gradverify.session.request import Request
from gradverify.session.run import check as run_check
from gradverify.session.selection import Selection
from gradverify.verifier import guard

STEM = "gradverify_cell"
"""The name of the file that stands for a cell while its Function is verified."""


def check_cell(function: type[Function], request: Request) -> Report:
    """The report on a Function of an interactive session; its lines are those of its cell.

    It runs here, without limits. Raises `UsageError` where its source is not known.
    """
    cell = _cell_of(function)
    with _as_module(function, "".join(linecache.getlines(cell))) as path:
        selections = (Selection(path, function.__name__),)
        with states_kept(), guard.LeavingTheCallers():
            report = run_check(replace(request, selections=selections, in_process=True))
        paths = (str(path), path.name, cell, shown_path(Path(cell)))
        named: Report = _with_names(report, dict.fromkeys(paths, name_of_cell(cell)))
        return named


def _cell_of(function: type[Function]) -> str:
    """What Python calls the source of a Function. Raises `UsageError`."""
    cell = cell_of(function)
    if not cell:
        name = function.__qualname__
        raise UsageError(f"check: the source of {name} is not known: define it in a module or in a cell")
    return cell


@contextmanager
def _as_module(function: type[Function], source: str) -> Iterator[Path]:
    """A file with the text of the cell, whose module is loaded already: it holds the Function."""
    with tempfile.TemporaryDirectory(prefix="gradverify-") as folder:
        path = Path(folder).resolve() / f"{STEM}.py"
        path.write_text(source, encoding="utf-8")
        module = ModuleType(function.__module__)
        known = getattr(sys.modules.get(function.__module__), "__dict__", {})
        module.__dict__.update({**known, function.__name__: function, "__file__": str(path)})
        others = [key for key, one in vars(module).items() if _is_other_target(one, function)]
        for key in others:
            del module.__dict__[key]
        sys.modules[STEM] = module
        try:
            yield path
        finally:
            del sys.modules[STEM]
            if folder in sys.path:
                sys.path.remove(folder)


def _is_other_target(one: Any, function: type[Function]) -> bool:  # noqa: ANN401 - whatever has a name
    """Whether a name of the session is a class of another cell, or an earlier one: it is not asked about."""
    return isinstance(one, type) and one is not function and one.__module__ == function.__module__


def _with_names(value: Any, names: dict[str, str]) -> Any:  # noqa: ANN401 - any part of a report
    """A report with other words for files, and without commands that no shell could run."""
    if type(value) is str:  # and no word of an enumeration
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, tuple):
        return tuple(_with_names(one, names) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _with_names(getattr(value, f.name), names) for f in fields(value) if f.init}
        if "reproduce" in changed:
            changed["reproduce"] = ""
        return replace(value, **changed)
    return value
