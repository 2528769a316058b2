"""Floats that kernels are called with, as the compiler has them: scalars with a `to`.

Needed by swiglu of liger-kernel 0.8.5 (`gate_multiplier.to(tl.float32)`).
"""

from __future__ import annotations

import sys
from typing import Any


class Number(float):
    """A float that a kernel was called with.

    The interpreter of Triton 3 wraps integers and pointers, and hands on a float as it is.
    """

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - Triton's own types
        """The number as a scalar tensor of a dtype of `triton.language`."""
        interpreter: Any = sys.modules["triton.runtime.interpreter"]
        language: Any = interpreter.tl
        handle = interpreter.TensorHandle(interpreter.np.array([float(self)]), language.float64)
        return language.tensor(handle, language.float64).to(dtype)
