"""Triton's interpreter, which runs kernels in Python where there is no GPU to compile them for."""

from __future__ import annotations

import os
import sys
from typing import Any

from gradverify.verifier.devices import accelerators

INTERPRET = "TRITON_INTERPRET"
"""`triton.jit` reads it when a kernel is defined: 1 has kernels run in Python, on tensors of the CPU.

https://triton-lang.org/main/programming-guide/chapter-3/debugging.html
"""

_MODULE = "triton.runtime.interpreter"


def interpret_kernels() -> None:
    """Have Triton interpret this process's kernels where there is no GPU, unless the user has decided."""
    if not accelerators():
        os.environ.setdefault(INTERPRET, "1")


_launches = 0


def launches() -> int:
    """Arguments of kernels that were interpreted in this process: none where no kernel ran."""
    return _launches


class Number(float):
    """A float that a kernel was called with. To the compiler it is a scalar, which has a `to`.

    The interpreter of Triton 3 wraps integers and pointers, and hands on a float as it is.
    """

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - Triton's own types
        """The number as a scalar tensor of a dtype of `triton.language`."""
        interpreter: Any = sys.modules[_MODULE]
        language: Any = interpreter.tl
        handle = interpreter.TensorHandle(interpreter.np.array([float(self)]), language.float64)
        return language.tensor(handle, language.float64).to(dtype)


def watch_kernels() -> None:
    """Count the kernels that are interpreted from here on, and hand them `Number` for float.

    Triton's own way of wrapping arguments stays in use. Nothing is done before its interpreter is loaded.
    """
    interpreter: Any = sys.modules.get(_MODULE)
    wrap = getattr(interpreter, "_implicit_cvt", None)
    if wrap is None or getattr(wrap, "is_watched", False):
        return

    def wrapped(argument: Any) -> Any:  # noqa: ANN401 - whatever a kernel is called with
        global _launches  # noqa: PLW0603 - Triton calls this function, which belongs to no object of ours
        _launches += 1
        return Number(argument) if type(argument) is float else wrap(argument)

    wrapped.is_watched = True  # type: ignore[attr-defined]
    interpreter._implicit_cvt = wrapped  # noqa: SLF001 - looked up anew at each launch
