"""Exceptions of user code as values: type, message, and the user's own frames.

Whether a name that code looks up in vain is bound anywhere in its file, and by what.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import linecache
import re
import sys
import sysconfig
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from gradverify.model import Frame, RaisedError
from gradverify.repeatable import repeatable
from gradverify.source import Binders, Module, module_of

OF_THE_INTERPRETER = "InterpreterError"
"""What Triton's interpreter raises for whatever happens in a kernel, its own gaps among it."""

_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")
"""Python's own message of a NameError."""

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
"""Python's own messages of an import that fails."""

OF_ANOTHER_VERSION = "`{owner}` has no `{name}` here: it is misspelt, or was written for another version."


_FAILS = "An import fails here: what needs it is verified where it does not."


class OutOfBoundsError(IndexError):
    """An interpreted kernel writes to memory that belongs to none of its tensors."""


def is_bound_nowhere(error: RaisedError) -> bool:
    """Whether an exception is that of a name which its file binds nowhere: no inputs make it one."""
    return _binders(error) == Binders((), otherwise=False)


def fails_to_import(error: RaisedError) -> bool:
    """Whether an import fails, or a name is unbound that nothing but one would have bound."""
    return bool(not_imported(error))


def not_imported(error: RaisedError) -> str:
    """What an import that fails misses, with what to do about it; empty for every other error."""
    if error.type in {"ModuleNotFoundError", "ImportError"} and not error.deliberate:
        missing, part = _NO_MODULE.match(error.message), _NO_NAME.match(error.message)
        if part is not None:
            return OF_ANOTHER_VERSION.format(owner=part[2], name=part[1])
        return (_not_installed(missing[1]) if missing is not None else "") or _FAILS
    binders = _binders(error)
    if binders is None or binders.otherwise or not binders.imports:
        return ""
    bound, file = binders.imports[0], Path(error.frames[-1].file).name
    unbound = (
        f"Nothing has bound `{bound.bound}` here: its import ({file}:{bound.line}) did not run, or failed."
    )
    return _not_installed(bound.module) or unbound


def _not_installed(module: str) -> str:
    """What to do about a package that Python does not find; empty where it does."""
    package = module.partition(".")[0]
    said = f"`{package}` cannot be imported here. Install it: what needs it is verified then."
    return said if package and not is_importable(package) else ""


def is_importable(module_name: str) -> bool:
    """Whether Python finds a module, without importing it (packages around it are)."""
    if module_name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def is_raised_by_hand(error: RaisedError) -> bool:
    """Whether it was raised by a `raise` or `assert` outside torch, and not by what that calls."""
    return _ends_in_raise(error.frames)


def _binders(error: RaisedError) -> Binders | None:
    """What binds the name that was looked up in vain where an exception was raised; None if unknown."""
    missing = _NOT_DEFINED.match(error.message) if error.type == "NameError" else None
    if missing is None or hasattr(builtins, missing[1]) or not error.frames:
        return None
    return _module_of(error.frames[-1]).binders(missing[1], error.frames[-1].line)


def _module_of(frame: Frame) -> Module:
    """The file that a frame runs in."""
    return module_of("".join(linecache.getlines(frame.file)))


_OUR_CODE = str(Path(__file__).resolve().parents[1])
_TORCH_CODE = (str(Path(torch.__file__).parent), str(Path(torch.__file__).resolve().parent))
"""Two where an installer links packages into an environment."""

_STANDARD = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib"))
_INSTALLED = "site-packages"
_IMPORT_CODE = str(Path(importlib.__file__).resolve().parent)
MAXIMAL_MESSAGE = 2000
"""Characters kept of an exception's message: some carry whole tensors."""

MAXIMAL_TRACEBACK = 20_000
"""Characters kept of a whole traceback, from its end."""

MAXIMAL_FRAMES = 12
"""Frames kept of a traceback: a RecursionError has a thousand."""

OF_THE_KERNEL = (OutOfBoundsError, NameError, ZeroDivisionError, AssertionError)
"""A kernel's own faults in the interpreter; whatever else it raises may be a gap of that."""


class RaisedElsewhereError(RuntimeError):
    """What user code raised in another process."""

    def __init__(self, error: RaisedError) -> None:
        """`error` as it was described there."""
        super().__init__(error.message)
        self.error = error


def describe(error: BaseException) -> RaisedError:
    """Tell an exception in the user's terms: type, message, the user's frames, raised on purpose or not."""
    if isinstance(error, RaisedElsewhereError):
        return error.error
    frames = _user_frames(error.__traceback__)
    inside = _in_a_kernel(error)
    if inside is not None:
        frames += _user_frames(inside.__traceback__)
        error = inside if isinstance(inside, OF_THE_KERNEL) else error
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        message = "(its message cannot be printed)"
    return RaisedError(
        type=type(error).__name__,
        message=repeatable(message)[:MAXIMAL_MESSAGE],
        frames=frames[-MAXIMAL_FRAMES:],
        deliberate=isinstance(error, NotImplementedError | AssertionError) or _ends_in_raise(frames),
        traceback=_whole_traceback(error),
        after=_first_of_chain(error) if inside is None else "",
    )


def _before(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _first_of_chain(error: BaseException) -> str:
    """What was raised first, where an exception was raised while it was handled; empty where nothing was."""
    first, before = error, _before(error)
    while before is not None:
        first, before = before, _before(before)
    if first is error:
        return ""
    try:
        said = repeatable(str(first)).strip().splitlines()
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        said = []
    return f"{type(first).__name__}: {said[0]}"[:MAXIMAL_MESSAGE] if said else type(first).__name__


def _in_a_kernel(error: BaseException) -> BaseException | None:
    """What was raised in a kernel that Triton interprets, which wraps it at each level; None elsewhere."""
    inside = error
    while type(inside).__name__ == OF_THE_INTERPRETER and inside.__cause__ is not None:
        inside = inside.__cause__
    return None if inside is error else inside


def raised_by_users(error: BaseException) -> RaisedError | None:
    """An exception that came through our own code, where the user's raised it; None where it is ours."""
    described = describe(error)
    own = tuple(
        f for f in described.frames if not (f.file.startswith(_STANDARD) and _INSTALLED not in f.file)
    )
    return replace(described, frames=own) if own else None


def _whole_traceback(error: BaseException) -> str:
    try:
        return repeatable("".join(traceback.format_exception(error)))[-MAXIMAL_TRACEBACK:]
    except Exception:  # noqa: BLE001 - a user's exception may refuse to be printed in any way
        return ""


def _triton_code() -> tuple[str, ...]:
    """Where Triton lies, once it is loaded."""
    found = getattr(sys.modules.get("triton"), "__file__", None)
    return () if found is None else (f"{Path(found).parent}/",)


def _user_frames(trace: TracebackType | None) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    for summary in traceback.extract_tb(trace):
        if summary.filename.startswith((_OUR_CODE, *_TORCH_CODE, _IMPORT_CODE, *_triton_code(), "<frozen ")):
            continue
        raw = linecache.getline(summary.filename, summary.lineno or 0)
        indent = len(raw) - len(raw.lstrip())
        caret = (0, 0)
        if (
            summary.colno is not None
            and summary.end_colno is not None
            and summary.end_lineno == summary.lineno
        ):
            caret = (max(0, summary.colno - indent), max(0, summary.end_colno - indent))
        frame = Frame(summary.filename, summary.lineno or 0, summary.name, raw.strip(), caret)
        if not frames or frame != frames[-1]:  # of a recursion, one frame tells all
            frames.append(frame)
    return tuple(frames)


def _ends_in_raise(frames: tuple[Frame, ...]) -> bool:
    """Whether the innermost user frame is on a `raise` or `assert` statement."""
    return bool(frames) and frames[-1].line in _module_of(frames[-1]).raising
