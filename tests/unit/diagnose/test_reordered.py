"""The right numbers in another order: slices moved on."""

from __future__ import annotations

import torch

from .diagnosing import findings_on
from .right_functions import Right, function_of


def test_slices_that_are_moved_on_are_told():
    right = Right(
        "f",
        lambda x: torch.cat([x[:1] * 0, torch.sin(x)[:-1]]),
        lambda a, y, g: (torch.cat([g[2:], g[:1] * 0, g[:1] * 0]) * torch.cos(a[0]).roll(-1, 0),),
        {"x": "bd"},
    )
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    assert found.cause == "permuted"
    assert "moved back by 1" in found.hint
