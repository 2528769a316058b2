"""How many of Triton's kernels ran in this process, and the shims that interpreted ones are given."""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

import torch

from gradverify.verifier.guard.devices import accelerators

INTERPRET = "TRITON_INTERPRET"
"""`triton.jit` reads it when a kernel is defined: 1 has kernels run in Python, on tensors of the CPU.

https://triton-lang.org/main/programming-guide/chapter-3/debugging.html
"""

MODULE = "triton.runtime.interpreter"

_SAME_FOR_ALL = [0.0, 0.0, 0.0]
"""Median and quantiles of a configuration's time: of equal ones, Triton's autotuner takes the first."""

_launches = {"interpreted": 0, "compiled": 0}
"""Arguments of interpreted kernels, calls of compiled ones."""

_programs = [0]
"""Programs of interpreted kernels: each runs in Python, one after the other."""


def interpret_kernels() -> None:
    """Have Triton interpret this process's kernels where there is no GPU, unless the user has decided."""
    if not accelerators():
        os.environ.setdefault(INTERPRET, "1")


def launches() -> int:
    """A number that has grown where kernels ran, interpreted or compiled."""
    return sum(_launches.values())


def interpreted() -> int:
    """A number that has grown where kernels were interpreted."""
    return _launches["interpreted"]


def programs() -> int:
    """A number that has grown by the programs of interpreted kernels that ran."""
    return _programs[0]


def watch_kernels() -> None:
    """Count the kernels that run from here on, and give interpreted ones what the interpreter lacks.

    Triton's own ways of wrapping arguments and of launching stay in use. Nothing is done before they are
    loaded.
    """
    _watch_compiled(sys.modules.get("triton.runtime.jit"))
    interpreter: Any = sys.modules.get(MODULE)
    wrap = getattr(interpreter, "_implicit_cvt", None)
    if wrap is None or getattr(wrap, "is_watched", False):
        return

    def wrapped(argument: Any) -> Any:  # noqa: ANN401 - whatever a kernel is called with
        _launches["interpreted"] += 1
        return Number(argument) if type(argument) is float else wrap(argument)

    wrapped.is_watched = True  # type: ignore[attr-defined]
    interpreter._implicit_cvt = wrapped  # noqa: SLF001 - looked up anew at each launch
    from gradverify.verifier.interpreter import bounds, libdevice  # noqa: PLC0415 - where Triton interprets

    builder: Any = interpreter.interpreter_builder
    place = builder.set_grid_idx

    def placed(*index: int) -> None:
        _programs[0] += 1
        place(*index)

    builder.set_grid_idx = placed
    libdevice.install(interpreter)
    bounds.install(interpreter)
    autotuner: Any = sys.modules.get("triton.runtime.autotuner")
    if autotuner is not None:
        autotuner.Autotuner._bench = _untimed  # noqa: SLF001 - there is no public name for it


def _watch_compiled(compiler: Any) -> None:  # noqa: ANN401 - Triton's module, or None
    """Count the calls of compiled kernels."""
    kernel: Any = getattr(compiler, "JITFunction", None)
    run = getattr(kernel, "run", None)
    if run is None or hasattr(run, "__wrapped__"):
        return

    @wraps(run)
    def counted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever a kernel is called with
        _launches["compiled"] += 1
        return run(*arguments, **named)

    kernel.run = counted


def _untimed(*_: Any, **__: Any) -> list[float]:  # noqa: ANN401 - the autotuner, arguments and options
    """What an autotuner measures without a GPU: its kernel runs in the first configuration of its author's.

    Needed by dyt of liger-kernel 0.8.5 and by the layer norms of fla-core 0.6.0, which have several.
    """
    return _SAME_FOR_ALL


class Number(float):
    """A float that a kernel was called with, as the compiler has it: a scalar with a `to`.

    The interpreter of Triton 3 wraps integers and pointers, and hands on a float as it is. Needed by swiglu
    of liger-kernel 0.8.5 (`gate_multiplier.to(tl.float32)`).
    """

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - Triton's own types
        """The number as a scalar tensor of a dtype of `triton.language`."""
        interpreter: Any = sys.modules[MODULE]
        language: Any = interpreter.tl
        handle = interpreter.TensorHandle(interpreter.np.array([float(self)]), language.float64)
        return language.tensor(handle, language.float64).to(dtype)


def wrong_product(dtype: torch.dtype) -> str:
    """Why nothing can be judged in a dtype by interpreted kernels; empty where something can.

    The interpreter of Triton 3.9 multiplies the bits of bfloat16 as integers.
    """
    if dtype is not torch.bfloat16:
        return ""
    return (
        "Triton's interpreter, in which kernels run without a GPU, computes bfloat16 wrongly; "
        "`--device cuda` judges it on a GPU"
    )
