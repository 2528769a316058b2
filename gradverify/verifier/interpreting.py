"""Triton's interpreter, which runs kernels in Python where there is no GPU to compile them for."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch

from gradverify.verifier import guard
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


@cache
def wrong_product(dtype: torch.dtype) -> str:
    """Why nothing can be judged in a dtype by interpreted kernels; empty where known products are right.

    The interpreter of Triton 3.9 multiplies the bits of bfloat16 as integers.
    """
    from gradverify.verifier.known_product import LEFT, RIGHT, product  # noqa: PLC0415 - imports Triton

    before = launches()
    expected = [left * right for left, right in zip(LEFT, RIGHT, strict=True)]
    result = guard.call(product, dtype)
    _forget_since(before)
    if not isinstance(result, guard.Raised) and result.value.tolist() == expected:
        return ""
    name = str(dtype).removeprefix("torch.")
    got = result.error.type if isinstance(result, guard.Raised) else f"{result.value[0].item():.3g}"
    return (
        f"Triton's interpreter, in which kernels run without a GPU, computes {name} wrongly ({LEFT[0]:g} * "
        f"{RIGHT[0]:g} is {got} there); `--device cuda` judges it on a GPU"
    )


def _forget_since(before: int) -> None:
    global _launches  # noqa: PLW0603 - see `watch_kernels`
    _launches = before


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
