"""The inputs a test gives: refused as torch refuses them, and which of them only torch can judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.api.options import Options

PLAIN = (Tensor, torch.nn.Parameter)
"""The tensors that are no subclass with a meaning of its own."""

DOUBLE = (torch.float64, torch.complex128)
"""The dtypes whose numerical derivatives are worth measuring."""


def as_tuple(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever a user gives or returns
    """A tuple of one thing, or of several."""
    if isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def is_differentiable(value: Any) -> bool:  # noqa: ANN401
    """Whether a gradient with respect to an input is asked for."""
    return isinstance(value, Tensor) and value.requires_grad


def require_usable(inputs: Sequence[Any]) -> None:
    """Refuse what torch refuses.

    Raises `ValueError` where no input requires grad and `RuntimeError` for an input that overlaps itself.
    """
    wanted = False
    for number, x in enumerate(inputs):
        if isinstance(x, Tensor) and x.requires_grad:
            wanted = True
            if x.layout is torch.strided and 0 in x.stride():
                _refuse_overlap(number, x)
    if not wanted:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, "
            "but none of them have requires_grad=True."
        )


def _refuse_overlap(number: int, x: Tensor) -> None:
    if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
        raise RuntimeError(
            f"The {number}th input has a dimension with stride 0. gradcheck only supports inputs that are "
            "non-overlapping to be able to compute the numerical gradients correctly. You should call "
            ".contiguous on the input before passing it to gradcheck."
        )


def only_for_torch(inputs: Sequence[Any], options: Options) -> bool:
    """Whether torch's own implementation has to decide: what it does there is defined by it alone.

    Sparse, quantised and MKL-DNN tensors, subclasses of Tensor, inputs of low precision, inputs that share
    memory, `masked`, and a check of forward mode without backward mode.
    """
    if options.masked or not options.check_backward_ad:
        return True
    memory: set[int] = set()
    several = len(inputs) > 1
    for x in inputs:
        if isinstance(x, Tensor):
            if not _is_plain(x) or (x.requires_grad and x.dtype not in DOUBLE):
                return True
            if several and x.numel():
                start = x.untyped_storage().data_ptr()
                if start in memory:
                    return True
                memory.add(start)
    return False


def _is_plain(x: Tensor) -> bool:
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_quantized
