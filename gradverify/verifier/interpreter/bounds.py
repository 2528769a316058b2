"""What an interpreted kernel reads or writes outside of the tensors it was given.

On a GPU such a write spoils another tensor or ends the process, and it would end this one: it is an error
instead. What is read there is NaN (0 of integers), so whatever depends on it shows. Needed by
swiglu, geglu and rope of liger-kernel 0.8.5, whose wrappers take inputs of shapes that do not go together.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.guard.raised_errors import OutOfBoundsError

BFLOAT16_NAN = 0x7FC0
"""The interpreter holds bfloat16 as bits."""


@dataclass(frozen=True)
class _Region:
    """The memory of one tensor that a kernel was given."""

    start: int
    stop: int
    name: str


_regions: list[_Region] = []
"""Those of the kernel that runs; kernels are not launched by kernels."""

_others: list[_Region] = []
"""Those of all other tensors, once one was asked for while it runs."""


def install(interpreter: Any) -> None:  # noqa: ANN401 - Triton's module
    """Have the interpreter look at each address that a kernel reads from or writes to."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    executor.__call__ = _remembering(executor.__call__)
    builder.create_masked_load = _reading(builder.create_masked_load, interpreter)
    builder.create_masked_store = _writing(builder.create_masked_store)


def _remembering(launch: Any) -> Any:  # noqa: ANN401 - Triton's method
    @wraps(launch)
    def launched(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as Triton calls it
        given = {**dict(zip(self.arg_names, arguments, strict=False)), **named}
        _others.clear()
        _regions[:] = [r for name, value in given.items() for r in _regions_of(name, value)]
        return launch(self, *arguments, **named)

    return launched


def _regions_of(name: str, value: Any) -> Iterator[_Region]:  # noqa: ANN401 - whatever a kernel is called with
    tensor = getattr(value, "base", value)  # of a descriptor, or of a tensor in another dtype
    if isinstance(tensor, Tensor):
        storage = tensor.untyped_storage()
        dtype = str(tensor.dtype).removeprefix("torch.")
        said = f"`{name}` ({dtype}{list(tensor.shape)})"
        yield _Region(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), said)


def _reading(load: Any, interpreter: Any) -> Any:  # noqa: ANN401 - Triton's method and module
    @wraps(load)
    def loaded(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:  # noqa: ANN401
        outside = _outside(pointers, mask)
        if outside is None:
            return load(self, pointers, mask, other, *rest)
        inside = interpreter.TensorHandle(mask.data & ~outside, mask.dtype)
        result = load(self, pointers, inside, other, *rest)
        is_float = result.data.dtype.kind == "f"
        nothing = BFLOAT16_NAN if result.dtype.scalar.is_bf16() else 0
        result.data[outside] = float("nan") if is_float else nothing
        return result

    return loaded


def _writing(store: Any) -> Any:  # noqa: ANN401 - Triton's method
    @wraps(store)
    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:  # noqa: ANN401
        outside = _outside(pointers, mask)
        if outside is not None:
            raise OutOfBoundsError(_said(int(pointers.data[outside].flat[0])))
        return store(self, pointers, value, mask, *rest)

    return stored


def _outside(pointers: Any, mask: Any) -> Any:  # noqa: ANN401 - handles in, an array of bool out
    """Which addresses that the mask lets through lie in no tensor; None where all lie in one."""
    addresses, asked = pointers.data, mask.data
    if not asked.any():
        return None
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    low, high = int(addresses[asked].min()), int(addresses[asked].max()) + size
    if any(r.start <= low and high <= r.stop for r in _regions):
        return None
    outside = asked & ~_within(addresses, size, _regions)
    if outside.any():  # a kernel may be given a table of addresses of other tensors
        if not _others:
            _others.extend(_alive())
        outside &= ~_within(addresses, size, _others)
    return outside if outside.any() else None


def _within(addresses: Any, size: int, regions: list[_Region]) -> Any:  # noqa: ANN401 - arrays
    each = [(addresses >= r.start) & (addresses + size <= r.stop) for r in regions]
    return reduce(operator.or_, each, addresses < 0)


def _alive() -> list[_Region]:
    """Every tensor that Python holds."""
    tensors = (one for one in gc.get_objects() if type(one) in {Tensor, torch.nn.Parameter})
    return [r for tensor in tensors for r in _regions_of("", tensor)]


def _said(address: int) -> str:
    """`the kernel writes 8 bytes past the end of `x` (float32[3, 5])`."""
    nearest = max((r for r in _regions if r.stop <= address), key=lambda r: r.stop, default=None)
    if nearest is None:
        return "the kernel writes to memory before all of its tensors"
    return f"the kernel writes {address - nearest.stop} bytes past the end of {nearest.name}"
