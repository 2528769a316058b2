"""An index is below what forward reads with it: the rows of a table, or a count that is passed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.deduced import Deduced, DeducedSize
from gradverify.model import Target, TargetKind
from gradverify.verifier.collect.discover import parameters_of
from gradverify.verifier.infer.deduce import deduce


class SegmentSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, num_segments: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(num_segments, x.shape[1]).index_add_(0, index, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad[ctx.saved_tensors[0]], None, None


class Lookup(Function):
    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows = grad.new_zeros(ctx.rows, grad.shape[-1])
        return None, rows.index_add_(0, ctx.saved_tensors[0].reshape(-1), grad.reshape(-1, grad.shape[-1]))


class Repeated(Function):
    """A count that has nothing to do with the index."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rounds: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape, ctx.rounds = x.shape, rounds
        return x.gather(1, index[:, None]) * rounds

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return (
            torch.zeros(ctx.shape, dtype=grad.dtype).scatter(1, index[:, None], grad * ctx.rounds),
            None,
            None,
        )


def found_for(function: type[Function]) -> Deduced:
    target = Target(
        function.__name__,
        function.__name__,
        TargetKind.FUNCTION,
        "m.py",
        1,
        parameters_of(function.forward)[1:],
    )
    found = deduce(function, target, None)
    assert isinstance(found, Deduced)
    return found


def deduced(function: type[Function]) -> dict[str, Any]:
    return {one.name: one for one in found_for(function).inputs}


def test_an_index_is_below_the_count_that_is_passed():
    inputs = deduced(SegmentSum)
    x, index, count = inputs["x"], inputs["index"], inputs["num_segments"]
    assert isinstance(count, DeducedSize)
    assert index.range == ("0", count.expression)
    assert count.expression not in x.shape


def test_a_count_whose_meaning_is_known_is_no_guess():
    """A backward that is wrong for every count fails: the doubt would make it inconclusive."""
    assert [doubt.name for doubt in found_for(SegmentSum).doubts] == ["index"]


def test_an_index_is_below_the_rows_of_its_table():
    inputs = deduced(Lookup)
    index, weight = inputs["index"], inputs["weight"]
    assert index.range == ("0", weight.shape[0])
    assert weight.shape[0] not in index.shape
    assert weight.shape[0] != weight.shape[1]


def test_a_count_that_bounds_no_index_stays_a_number():
    inputs = deduced(Repeated)
    assert not isinstance(inputs["rounds"], DeducedSize)
