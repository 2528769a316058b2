"""`verify` in a test: what the command would say of the same Function, raised."""

from pathlib import Path

import pytest
import torch
from torch.autograd import Function

import gradverify
from gradverify.demo import functions as demo
from gradverify.errors import UsageError
from gradverify.model import Verdict


def tensor(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class NoGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.long()

    @staticmethod
    def backward(ctx, g):
        return None


class Stochastic(Function):
    count = 0

    @staticmethod
    def forward(ctx, x):
        Stochastic.count += 1
        return x * Stochastic.count

    @staticmethod
    def backward(ctx, g):
        return g


def test_a_right_function_returns_its_report():
    inputs = (tensor(3, 4), tensor(2, 4), None)
    report = gradverify.verify(demo.Linear, inputs, torch.nn.functional.linear)
    assert report.status is Verdict.PASSED
    assert dict(report.checks) == dict.fromkeys(
        ("gradcheck", "gradgradcheck", "reference", "contract", "precision"), "passed"
    )
    assert gradverify.verify(demo.Linear.apply, inputs).target.name == "Linear"
    by_name = {"input": tensor(3, 4), "weight": tensor(2, 4), "bias": tensor(2)}
    assert gradverify.verify(demo.Linear, by_name).status is Verdict.PASSED
    assert gradverify.verify(torch.tanh, tensor(3), name="my tanh").target.name == "my tanh"


@pytest.mark.parametrize(
    ("function", "inputs", "reference", "said"),
    [
        (
            demo.SoftmaxUncoupled,
            tensor(3, 4),
            None,
            "GV101 SoftmaxUncoupled: the gradient with respect to `x`",
        ),
        (demo.LinearTransposed.apply, (tensor(3, 4), tensor(2, 4)), None, "GV103 LinearTransposed"),
        (demo.SigmoidDetached, tensor(3), None, "GV202"),
        (demo.GELU, tensor(3), torch.tanh, "GV301"),
        (NoGradient, tensor(3), None, "declares no gradient"),
        (Stochastic, tensor(3), None, "GV109"),
    ],
)
def test_what_is_not_verified_raises_the_report(function, inputs, reference, said):
    with pytest.raises(gradverify.GradientError) as caught:
        gradverify.verify(function, inputs, reference)
    assert said in str(caught.value)
    assert "gradverify check" not in str(caught.value)


def test_only_inputs_that_require_grad_are_differentiated():
    def half(x, y):
        return x * y.detach()

    x, y = tensor(3).requires_grad_(), tensor(3)
    assert gradverify.verify(half, (x, y)).status is Verdict.PASSED
    with pytest.raises(gradverify.GradientError, match="`y`"):
        gradverify.verify(half, (x.detach(), y))


def test_the_tolerance_is_the_callers():
    class Off(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2.0001 * g

    with pytest.raises(gradverify.GradientError):
        gradverify.verify(Off, tensor(3))
    with pytest.warns(UserWarning, match="GV110"):
        gradverify.verify(Off, tensor(3), rtol=1e-3)


def test_nothing_to_differentiate_is_misuse():
    with pytest.raises(UsageError, match="none of the inputs"):
        gradverify.verify(demo.GELU, (3,))


def test_what_cannot_be_called_is_misuse():
    with pytest.raises(UsageError, match="not int"):
        gradverify.verify(3, tensor(2))


def test_check_is_the_command():
    report = gradverify.check(f"{Path(demo.__file__)}::GELU", select=["GV1"])
    assert [(t.target.name, t.status) for t in report.targets] == [("GELU", Verdict.PASSED)]
    assert report.exit_code == 0
    with pytest.raises(UsageError, match="GELUU"):
        gradverify.check(f"{Path(demo.__file__)}::GELUU")


@pytest.mark.parametrize("ask", [gradverify.verify, gradverify.gradcheck])
def test_a_failure_is_the_report_and_shows_no_frame_of_ours(ask):
    x = tensor(3, 4).requires_grad_()
    with pytest.raises(gradverify.GradientError) as failed:
        ask(demo.SoftmaxUncoupled.apply, (x,))
    assert "printed" not in str(failed.value)
    shown = [str(entry.path) for entry in failed.traceback.filter(failed)]
    assert shown == [__file__]
