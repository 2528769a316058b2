"""Whether kernels are interpreted in this process, how many were, and the shims they are given."""

from __future__ import annotations

import os
import sys
from typing import Any

from gradverify.verifier.devices import accelerators
from gradverify.verifier.interpreter import autotuning, libdevice
from gradverify.verifier.interpreter.scalars import Number

INTERPRET = "TRITON_INTERPRET"
"""`triton.jit` reads it when a kernel is defined: 1 has kernels run in Python, on tensors of the CPU.

https://triton-lang.org/main/programming-guide/chapter-3/debugging.html
"""

MODULE = "triton.runtime.interpreter"

_launches = 0


def interpret_kernels() -> None:
    """Have Triton interpret this process's kernels where there is no GPU, unless the user has decided."""
    if not accelerators():
        os.environ.setdefault(INTERPRET, "1")


def launches() -> int:
    """Arguments of kernels that were interpreted in this process: none where no kernel ran."""
    return _launches


def forget_launches_since(before: int) -> None:
    """Count as if no kernel had run since: ours are not the target's."""
    global _launches  # noqa: PLW0603 - see `watch_kernels`
    _launches = before


def watch_kernels() -> None:
    """Count the kernels that are interpreted from here on, and give them what the interpreter lacks.

    Triton's own way of wrapping arguments stays in use. Nothing is done before its interpreter is loaded.
    """
    interpreter: Any = sys.modules.get(MODULE)
    wrap = getattr(interpreter, "_implicit_cvt", None)
    if wrap is None or getattr(wrap, "is_watched", False):
        return

    def wrapped(argument: Any) -> Any:  # noqa: ANN401 - whatever a kernel is called with
        global _launches  # noqa: PLW0603 - Triton calls this function, which belongs to no object of ours
        _launches += 1
        return Number(argument) if type(argument) is float else wrap(argument)

    wrapped.is_watched = True  # type: ignore[attr-defined]
    interpreter._implicit_cvt = wrapped  # noqa: SLF001 - looked up anew at each launch
    libdevice.install(interpreter)
    autotuning.install()
