"""Samples of PyTorch's own operator database, as maps of their differentiable tensors.

Needs the `expecttest` package, which torch's own tests import; it is stubbed where it is missing.
"""

from __future__ import annotations

import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def operators() -> list[Any]:
    try:
        import expecttest  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return op_db


@dataclass(frozen=True)
class Called:
    """One sample as a map of its differentiable tensors."""

    name: str
    function: Callable[..., Any]
    primals: tuple[Tensor, ...]
    nondeterminism: float = 0.0


def samples_of(op: Any, count: int, entries: int, dtype: torch.dtype = torch.float64) -> Iterator[Called]:
    taken = 0
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=True)):
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [
            i
            for i, x in enumerate(leaves)
            if isinstance(x, Tensor) and x.requires_grad and (x.is_floating_point() or x.is_complex())
        ]
        if not places or any(leaves[i].layout is not torch.strided for i in places):
            continue

        def function(*tensors, leaves=leaves, structure=structure, places=places, sample=sample):
            values = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(values, structure)
            result = op.gradcheck_wrapper(op.get_op(), first, *args, **kwargs)
            if sample.output_process_fn_grad is not None:
                result = sample.output_process_fn_grad(result)
            return tuple(t for t in pytree.tree_flatten(result)[0] if isinstance(t, Tensor))

        size = sum(leaves[i].numel() for i in places)
        if size == 0 or size > entries:
            continue
        taken += 1
        yield Called(
            f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}:{number}",
            function,
            tuple(leaves[i].detach() for i in places),
            op.gradcheck_nondet_tol,
        )
        if taken == count:
            return
