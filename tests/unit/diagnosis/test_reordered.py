"""The right numbers in another order: halves, groups, slices moved on."""

from __future__ import annotations

import pytest
import torch

from gradverify.verifier.numerics.diagnosis.reordered import _reorderings

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _halves(x):
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


def _of_halves(a, y, g):
    one, two = a[0].chunk(2, -1)
    return g * torch.sigmoid(two), g * one * torch.sigmoid(two) * torch.sigmoid(-two)


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        (
            _halves,
            lambda a, y, g: (torch.cat(_of_halves(a, y, g)[::-1], -1),),
            "exchanged by halves along dimension 1",
        ),
        (
            lambda x: torch.cat([x[:1] * 0, torch.sin(x)[:-1]]),
            lambda a, y, g: (torch.cat([g[2:], g[:1] * 0, g[:1] * 0]) * torch.cos(a[0]).roll(-1, 0),),
            "moved back by 1",
        ),
    ],
    ids=["halves", "moved"],
)
def test_the_order_is_told(forward, backward, words):
    right = Right("f", forward, backward, {"x": "bd"})
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    assert found.cause == "permuted"
    assert words in found.hint


def test_groups_are_crossed():
    """The gradient of `stack` and `flatten` for that of `cat`."""
    by_kind = {named.kind: named.apply for named in _reorderings(1)}
    six = torch.arange(6)[None]
    assert by_kind["interleaved in 2 groups"](six).tolist() == [[0, 3, 1, 4, 2, 5]]
    assert by_kind["apart in groups of 2"](six).tolist() == [[0, 2, 4, 1, 3, 5]]
    assert by_kind["apart in groups of 4"](six).tolist() == [[0, 1, 2, 3, 4, 5]]
