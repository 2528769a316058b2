"""Torch's backward engine, called directly where its checked front door would have nothing to object to.

`torch.autograd.grad` and `torch.autograd.backward` look at their arguments first. That takes as long as
backward itself does for a small problem (13 µs of 30), and the first time it loads torch's symbolic shapes,
and sympy with them: half a second. There is no public name for what they call then: where it is missing, and
for all that they might refuse or hand on to a subclass, we take the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.overrides import has_torch_function

ENGINE: Any = getattr(getattr(Variable, "_execution_engine", None), "run_backward", None)


def vjp(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    keep: bool = False,
    create: bool = False,
) -> tuple[Tensor | None, ...]:
    """What `torch.autograd.grad` gives: None where nothing connects. Raises what backward raises."""
    if not _fit(outputs, leaves, cotangents):
        return torch.autograd.grad(
            outputs, leaves, cotangents, retain_graph=keep, create_graph=create, allow_unused=True
        )
    allow_unused = True
    found: tuple[Tensor | None, ...] = ENGINE(
        tuple(outputs), tuple(cotangents), keep, create, tuple(leaves), allow_unused, accumulate_grad=False
    )
    return found


def run_every_node(outputs: Sequence[Tensor], cotangents: Sequence[Tensor], *, keep: bool = True) -> None:
    """What `torch.autograd.backward` does: nodes that lead to no wanted input run too."""
    if not _fit(outputs, (), cotangents):
        torch.autograd.backward(outputs, cotangents, retain_graph=keep)
        return
    create, allow_unreachable = False, True
    ENGINE(tuple(outputs), tuple(cotangents), keep, create, (), allow_unreachable, accumulate_grad=True)


def _fit(outputs: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor]) -> bool:
    return (
        ENGINE is not None
        and all(map(_fits, outputs, cotangents))
        and not has_torch_function((*outputs, *leaves))
    )


def _fits(output: Tensor, cotangent: Tensor) -> bool:
    """Of another floating dtype it may be: the engine itself casts it."""
    return output.shape == cotangent.shape and output.is_complex() == cotangent.is_complex()
