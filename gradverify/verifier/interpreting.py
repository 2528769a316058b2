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


def are_interpreted() -> bool:
    """Whether some kernel was defined in this process that Triton interprets: only then is that loaded."""
    return _MODULE in sys.modules


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


def give_numbers_their_methods() -> None:
    """Have kernels that are interpreted get `Number` for float. Triton's own way of wrapping stays in use."""
    interpreter: Any = sys.modules.get(_MODULE)
    wrap = getattr(interpreter, "_implicit_cvt", None)
    if wrap is None or getattr(wrap, "knows_numbers", False):
        return

    def wrapped(argument: Any) -> Any:  # noqa: ANN401 - whatever a kernel is called with
        return Number(argument) if type(argument) is float else wrap(argument)

    wrapped.knows_numbers = True  # type: ignore[attr-defined]
    interpreter._implicit_cvt = wrapped  # noqa: SLF001 - looked up anew at each launch
