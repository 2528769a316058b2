"""The right numbers in an order that the data make: told by what was sorted, or as another order."""

from __future__ import annotations

import pytest
import torch

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _sorted_squares(x):
    return x.sort(1)[0] ** 2


def _slope(a, g):
    s, order = a[0].sort(1)
    return 2 * s * g, order


def _put(order, d):
    return torch.zeros_like(d).scatter(1, order, d)


def _hint(forward, backward, shapes):
    right = Right("f", forward, backward, shapes)
    found = findings_on(function_of(right, backward), right.shapes)
    return [(f.input, f.cause, f.hint) for f in found]


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda d, order: d, "in the order of `x` sorted along dimension 1, and not put back"),
        (
            lambda d, order: d.gather(1, order),
            "order of `x` along dimension 1 is to be undone, it is applied",
        ),
        (lambda d, order: _put(order.flip(1), d), "by the opposite of the order of `x`"),
        (
            lambda d, order: _put(order.roll(1, 1), d),
            "along dimension 1 it is in another order",
        ),
    ],
    ids=["not-put-back", "gathered", "opposite", "another"],
)
def test_the_order_is_told_by_what_was_sorted(backward, words):
    ((_, cause, hint),) = _hint(_sorted_squares, lambda a, y, g: (backward(*_slope(a, g)),), {"x": "bm"})
    assert cause == "permuted"
    assert words in hint


def test_the_order_of_another_input_is_told():
    def distance(x, y):
        return ((x.sort(1)[0] - y.sort(1)[0]) ** 2).sum(1)

    def backward(a, y, g):
        one, other = (t.sort(1) for t in a)
        d = 2 * (one[0] - other[0]) * g[:, None]
        return _put(one[1], d), _put(one[1], -d)

    ((name, cause, hint),) = _hint(distance, backward, {"x": "bm", "y": "bm"})
    assert (name, cause) == ("y", "permuted")
    assert "of the orders of `x` and `y` along dimension 1, one stands where the other should" in hint


def test_one_number_that_is_not_among_the_right_ones_is_no_order():
    def backward(a, y, g):
        d, _ = _slope(a, g)
        return (torch.cat([d[:, :1] * 1.5, d[:, 1:]], 1),)

    ((_, cause, _),) = _hint(_sorted_squares, backward, {"x": "bm"})
    assert cause != "permuted"


def test_signs_that_are_turned_are_no_order():
    """Of ±a, the wrong sign everywhere gives the same numbers in another order."""

    def backward(a, y, g):
        return (-g[:, None] * (a[0] - a[0].mean(1, keepdim=True)).sign(),)

    def spread(x):
        return (x - x.mean(1, keepdim=True).detach()).abs().sum(1)

    found = _hint(spread, backward, {"x": "bd"})
    assert all(cause != "permuted" for _, cause, _ in found)
