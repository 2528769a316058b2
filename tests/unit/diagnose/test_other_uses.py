"""One pass of a loop, one slice of a broadcast, another constant, a derivative that is not conjugated."""

from __future__ import annotations

import torch

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward, *, dtype="float64", **shapes):
    right = Right("f", forward, backward, shapes, dtype=dtype)
    return findings_on(function_of(right, backward), right.shapes, dtype=dtype)


def test_a_derivative_that_lacks_its_conjugate():
    def forward(z):
        return (torch.exp(z) * 2).sum(-1)

    (found,) = _found(
        forward, lambda a, y, g: (2 * g[:, None] * torch.exp(a[0]),), dtype="complex128", z="bn"
    )
    assert found.cause == "conjugate"
