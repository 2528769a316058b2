"""What backward really returned is read before the engine sums, casts or refuses it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.questions.reading import Irregularity, Reader, reading_backward


def function_returning(gradients):
    class Subject(Function):
        @staticmethod
        def forward(ctx, x, w, p):
            ctx.save_for_backward(x, w)
            return (x * w).sum()

        @staticmethod
        def backward(ctx, g):
            return gradients(*ctx.saved_tensors, g)

    return Subject


def read(gradients):
    subject = function_returning(gradients)
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).requires_grad_()
    w = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    with reading_backward(subject, Reader()) as reader:
        y = subject.apply(x, w, 2.0)
        reader.expect(y, (x, w, 2.0))
        grads = torch.autograd.grad(y, (x, w), allow_unused=True)
    return reader, grads


def test_a_regular_return_is_not_remarked():
    reader, _ = read(lambda x, w, g: (g * w, g * x, None))
    assert reader.remarks == {}


@pytest.mark.parametrize(
    ("gradients", "kind", "position"),
    [
        (lambda x, w, g: (g * w, g * x), Irregularity.COUNT, 2),
        (lambda x, w, g: (g * w, g * x, None, g), Irregularity.COUNT, 4),
        (lambda x, w, g: (g * w, g * x, g), Irregularity.NOT_FOR_TENSOR, 2),
        (lambda x, w, g: ((g * w).t(), g * x, None), Irregularity.SHAPE_REFUSED, 0),
        (lambda x, w, g: (g * w.expand(4, 2, 3), g * x, None), Irregularity.SHAPE_SUMMED, 0),
        (lambda x, w, g: (g * w, (g * x).float(), None), Irregularity.DTYPE, 1),
    ],
)
def test_each_irregularity_is_remarked(gradients, kind, position):
    reader, _ = read(gradients)
    assert [(r.kind, r.position) for r in reader.remarks.values()] == [(kind, position)]


def test_extra_trailing_nones_are_what_the_engine_allows():
    reader, _ = read(lambda x, w, g: (g * w, g * x, None, None))
    assert reader.remarks == {}


def test_a_refused_shape_leaves_the_other_inputs_judged():
    _, (grad_x, grad_w) = read(lambda x, w, g: ((g * w).t(), g * x, None))
    assert grad_x is None
    assert torch.equal(grad_w, torch.arange(6.0, dtype=torch.float64).reshape(2, 3))


def test_none_in_every_call_is_known():
    reader, _ = read(lambda x, w, g: (None, g * x, None))
    assert reader.returned_none == {0: True, 1: False}


def test_the_class_is_left_as_it_was():
    subject = function_returning(lambda x, w, g: (g * w, g * x, None))
    before = vars(subject)["backward"]
    with reading_backward(subject, Reader()):
        assert vars(subject)["backward"] is not before
    assert vars(subject)["backward"] is before

    class Heir(subject):
        pass

    with reading_backward(Heir, Reader()):
        assert "backward" in vars(Heir)
    assert "backward" not in vars(Heir)


def test_what_is_read_meanwhile_is_forgotten():
    reader = Reader()
    reader.remark(Irregularity.SHAPE_SUMMED, 0, "[3]", "[1]")
    before = dict(reader.remarks)
    with reader.without_new_remarks():
        reader.remark(Irregularity.SHAPE_REFUSED, 1, "[3]", "[2]")
        assert len(reader.remarks) == 2
    assert reader.remarks == before
