"""Seeing every operation that torch runs, without loading torch's compiler for it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import gradverify

_COMPILER = "torch._dynamo"

_IN_MEMORY = {torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default}  # noqa: SLF001
"""Zeros without memory, which torch makes in double backwards (of `abs`), and the same in memory: what
a mode writes into the first ends the process (torch 2.13)."""

_NOT_THE_USERS = (*(str(Path(file).parent) for file in (torch.__file__, gradverify.__file__)), "<frozen")


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is given each operation below autograd.

    Torch keeps its compiler away from what a mode does, and loads it for that (1.4 s, torch 2.13). Where
    nobody else has loaded it, it is nowhere near.
    """

    missed = False
    """A call raised while it was on, and was made again without: it has not seen that one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._apart: Callable[..., Any] | None = None

    @property
    def may_leave(self) -> bool:
        """Whether a call may be made again without it."""
        return True

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation, an OpOverload, and return its result."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if self._apart is None and _COMPILER in sys.modules:
            self._apart = torch.compiler.disable(self.operation)  # type: ignore[no-untyped-call]
        return (self._apart or self.operation)(_IN_MEMORY.get(func, func), tuple(args), kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to load its compiler to keep it away: we do that above."""
        return False


def active() -> tuple[Dispatched, ...]:
    """The modes of ours that are on, the outermost first; none where one of another's is on as well."""
    if not torch._C._len_torch_dispatch_stack():  # noqa: SLF001 - it has no public name
        return ()
    stack = _get_current_dispatch_mode_stack()
    ours = tuple(mode for mode in stack if isinstance(mode, Dispatched))
    return ours if len(ours) == len(stack) else ()


@contextmanager
def left(modes: Sequence[Dispatched]) -> Iterator[None]:
    """Without these modes, as user code runs in a program of its own."""
    for mode in reversed(modes):
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        mode.missed = True
    try:
        yield
    finally:
        for mode in modes:
            mode.__enter__()  # type: ignore[no-untyped-call]


def line_of_caller() -> str:
    """The line of user code that runs, as `x = torch.zeros(3)` (line 7); empty where none does."""
    frame = users_frame()
    text = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"`{text}` (line {frame.f_lineno})" if frame is not None and text else ""


def users_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect's copies every frame
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return frame


def is_compiler_loaded() -> bool:
    """Whether anybody has loaded torch's compiler."""
    return _COMPILER in sys.modules


def is_of_compiler(error: BaseException) -> bool:
    """Whether torch's compiler raised it."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    raised_in = innermost.tb_frame.f_globals.get("__name__", "") if innermost is not None else ""
    return type(error).__module__.startswith(_COMPILER) or str(raised_in).startswith(_COMPILER)


def forget_compiled() -> None:
    """Let the compiler begin anew: it gives up on what it has compiled for many layouts, sizes and dtypes."""
    sys.modules[_COMPILER].reset()
