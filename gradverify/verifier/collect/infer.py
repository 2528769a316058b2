"""The simplest inference: every required parameter a float64 tensor of one shape, until forward runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradverify.model import Point, RaisedError, Target, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import build_tensor

SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (3, 3), (5,), (2, 3, 4), ())
"""Tried in this order: non-square first, since a transposed gradient fits a square input."""


def infer_inputs(
    call: Callable[..., Any], target: Target, seed: int = 0
) -> tuple[TensorInput, ...] | tuple[tuple[str, RaisedError], ...]:
    """Inputs that forward accepts, or every attempt with the error forward answered it with.

    Parameters with a default are left to it.
    """
    names = [p.name for p in target.parameters if not (p.has_default or p.variadic or p.keyword_only)]
    attempts: list[tuple[str, RaisedError]] = []
    for shape in SHAPES:
        inputs = tuple(TensorInput(name, shape) for name in names)
        tensors = [build_tensor(i, seed, Point.TYPICAL, 0, "cpu").requires_grad_().clone() for i in inputs]
        with torch.enable_grad():
            result = guard.call(call, *tensors)
        if not isinstance(result, Raised):
            return inputs
        described = f"every argument a float64 tensor of shape {list(shape)}"
        attempts.append((described, result.error))
    return tuple(attempts)
