"""The operations of a map carried out in float64, whatever shorter format it casts to inside.

Where forward rounds to bfloat16 it is a staircase, and no finite difference shows its slope. With every
floating dtype replaced by float64 it is the smooth map that its author differentiated, and backward, in which
the same is done, must be its derivative to the last digit. What rounding does to both is another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched


class InFloat64(Dispatched):  # type: ignore[no-untyped-call]
    """While it is on, every operation computes in float64 or complex128, and casts to less change nothing."""

    @property
    def may_leave(self) -> bool:
        """A call made again without it would be another map."""
        return False

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation in float64.

        Raises `NotImplementedError` for what depends on the bits of a shorter number, or writes into one.
        """
        if func in _OF_BITS:
            raise NotImplementedError(f"{func}: how many bits a number has")
        if func._schema.is_mutable and _is_short(args[0] if args else None):  # noqa: SLF001 - no public name
            raise NotImplementedError(f"{func} writes into a tensor of a shorter format")
        long_args, long_given = _pytree.tree_map(_in_float64, (args, dict(given)))
        return _pytree.tree_map(_in_float64, func(*long_args, **long_given))


_OF_BITS = frozenset({torch.ops.aten.view.dtype})
"""Operations whose result depends on how many bits a number has."""


def _is_short(value: Any) -> bool:  # noqa: ANN401 - any argument of an operation
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(dtype, torch.dtype) and _longest(dtype) is not dtype


def _longest(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _in_float64(value: Any) -> Any:  # noqa: ANN401
    if not _is_short(value):
        return value
    return value.to(_longest(value.dtype)) if isinstance(value, Tensor) else _longest(value)
