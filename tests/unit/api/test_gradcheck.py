"""The drop-ins against torch's own functions: the same verdict, and a message that says where."""

from __future__ import annotations

import inspect
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.gradcheck import GradcheckError

import gradverify
from gradverify.api import by_torch


def tensor(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def made(forward, backward, **more):
    """A Function of one input from two functions; `backward` gets (x, grad_output)."""

    def of_ctx(ctx, *grads):
        return backward(*ctx.saved_tensors, *grads)

    def keeping(ctx, x):
        ctx.save_for_backward(x)
        return forward(x)

    body = {"forward": staticmethod(keeping), "backward": staticmethod(of_ctx), **more}
    return type("Made", (Function,), body).apply


def scaled_at(gradient, place, factor):
    gradient = gradient.clone()
    gradient[place] *= factor
    return gradient


class Both(Function):
    """x → (2x, 3x), whose backward is wrong where no grad_output is defined."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, g, h):
        if g is None and h is None:
            return torch.ones(3, 4, dtype=torch.float64)
        return (0 if g is None else 2 * g) + (0 if h is None else 3 * h)


class BothButNotUndefined(Both):
    @staticmethod
    def backward(ctx, g, h):
        if g is None:
            return torch.ones_like(h)
        return 2 * g + (0 if h is None else 3 * h)


class WrongJvp(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 3 * t


class ComplexJvp(WrongJvp):
    @staticmethod
    def jvp(ctx, t):
        return (2 * t).to(torch.complex128)


class Unbatched(Function):
    """Its backward looks at a value, which vmap cannot."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g if g.sum().item() < 1e9 else g


SIN = made(torch.sin, lambda x, g: g * x.cos())
WRONG_ENTRY = made(torch.sin, lambda x, g: scaled_at(g * x.cos(), (0, 1), 1.01))
SLIGHTLY_OFF = made(torch.sin, lambda x, g: g * x.cos() * (1 + 1e-5))
RANDOM_BACKWARD = made(torch.sin, lambda x, g: g * x.cos() * (1 + 1e-12 * torch.rand(1, dtype=x.dtype)))
IGNORES_GRAD_OUTPUT = made(lambda x: x.sin().sum(), lambda x, g: x.cos())
SQUARES_GRAD_OUTPUT = made(torch.sin, lambda x, g: g * g * x.cos())
CUT = made(torch.sin, lambda x, g: g * x.detach().cos())
LINEAR = torch.nn.Linear(3, 2).double()


def captures(x, *parameters):
    return LINEAR(x)


X = tensor(3, 4)
VERDICTS = {
    "right": (SIN, (X,), {}, True),
    "one wrong entry": (WRONG_ENTRY, (X,), {}, False),
    "two inputs": (lambda x, w: torch.tanh(x @ w.mT), (X, tensor(2, 4)), {}, True),
    "complex": (torch.sin, (tensor(2, 2, dtype=torch.complex128),), {}, True),
    "complex output": (torch.fft.fft, (tensor(4),), {}, True),
    "an integer argument": (lambda x, i: x[i], (X, torch.tensor([0, 2])), {}, True),
    "not a leaf": (torch.sin, (X * 2,), {}, True),
    "no output requires grad": (lambda x: x.detach() * 0, (X,), {}, True),
    "detached": (lambda x: x.detach() * 2, (X,), {}, False),
    "captures its inputs": (captures, (tensor(4, 3), *LINEAR.parameters()), {}, True),
    "the same tensor twice": (torch.mul, (X, X), {}, True),
    "differentiates inside": (
        lambda x: torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0],
        (X,),
        {},
        True,
    ),
    "a kink": (torch.relu, (torch.tensor([0.0, 1.0], dtype=torch.float64).requires_grad_(),), {}, False),
    "within a coarse tolerance": (WRONG_ENTRY, (X,), {"rtol": 0.1}, True),
    "sparse": (
        torch.Tensor.to_dense,
        (torch.eye(2).double().to_sparse().requires_grad_(),),
        {"masked": True},
        True,
    ),
    "backward draws numbers": (RANDOM_BACKWARD, (X,), {}, False),
    "backward draws numbers, tolerated": (RANDOM_BACKWARD, (X,), {"nondet_tol": 1e-9}, True),
    "ignores grad_output": (IGNORES_GRAD_OUTPUT, (X,), {}, False),
    "undefined grads": (Both.apply, (X,), {}, False),
    "undefined grads unchecked": (Both.apply, (X,), {"check_undefined_grad": False}, True),
    "one undefined grad": (BothButNotUndefined.apply, (X,), {}, False),
    "wrong jvp unchecked": (WrongJvp.apply, (X,), {}, True),
    "wrong jvp": (WrongJvp.apply, (X,), {"check_forward_ad": True}, False),
    "jvp alone": (WrongJvp.apply, (X,), {"check_forward_ad": True, "check_backward_ad": False}, False),
    "dtype of the jvp unchecked": (ComplexJvp.apply, (X,), {"check_forward_ad": True}, True),
    "dtype of the jvp": (
        ComplexJvp.apply,
        (X,),
        {"check_forward_ad": True, "check_grad_dtypes": True},
        False,
    ),
    "batched": (SIN, (X,), {"check_batched_grad": True}, True),
    "not batched": (Unbatched.apply, (X,), {"check_batched_grad": True}, False),
    "fast": (SIN, (X,), {"fast_mode": True}, True),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_is_torchs(name):
    function, inputs, options, right = VERDICTS[name]
    assert gradverify.gradcheck(function, inputs, raise_exception=False, **options) is right
    assert torch.autograd.gradcheck(function, inputs, raise_exception=False, **options) is right
    if not right:
        with pytest.raises(gradverify.GradientError):
            gradverify.gradcheck(function, inputs, **options)


def test_what_torch_lets_through_may_be_wrong_all_the_same():
    """A backward that is not linear, a relative error of 1e-5: torch's slow mode sees neither."""
    assert torch.autograd.gradcheck(SQUARES_GRAD_OUTPUT, (X,))
    with pytest.raises(gradverify.GradientError, match="GV106"):
        gradverify.gradcheck(SQUARES_GRAD_OUTPUT, (X,))
    assert torch.autograd.gradcheck(SLIGHTLY_OFF, (X,))
    with pytest.warns(UserWarning, match="GV110.*slightly off"):
        assert gradverify.gradcheck(SLIGHTLY_OFF, (X,))


def test_the_message_names_the_input_the_output_and_the_entry():
    def second_wrong(x, y):
        return x + 0, WRONG_ENTRY(y)

    with pytest.raises(GradcheckError) as caught:
        gradverify.gradcheck(second_wrong, (X, tensor(3, 4, seed=1)))
    said = str(caught.value)
    assert "GV101" in said
    assert "d y1[0,1] / d inputs[1][0,1]" in said
    assert "test_gradcheck.py:" in said
    assert [f.input for f in caught.value.findings] == ["inputs[1]"]


def test_one_wrong_entry_of_a_jacobian_too_large_to_build_is_named():
    with pytest.raises(gradverify.GradientError, match=r"d y\[0,1\] / d inputs\[0\]\[0,1\]"):
        gradverify.gradcheck(WRONG_ENTRY, tensor(50, 60))


def test_a_pass_by_torch_alone_is_said():
    with pytest.warns(UserWarning, match="not verified by gradverify.*copies"):
        assert gradverify.gradcheck(captures, (tensor(4, 3), *LINEAR.parameters()))


def test_a_right_gradient_passes_in_silence_and_leaves_no_trace():
    random.seed(5)
    torch.manual_seed(5)
    np.random.seed(5)
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    x = tensor(3, 4)
    kept = x.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradverify.gradcheck(SIN, x)
        assert gradverify.gradgradcheck(SIN, x, torch.ones(3, 4, dtype=torch.float64, requires_grad=True))
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    assert (before[2] == np.random.get_state()[1]).all()
    assert torch.equal(x, kept)
    assert x.grad is None


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda check: check(torch.sin, (X.detach(),)), ValueError),
        (lambda check: check(torch.sin, (tensor(1).expand(3),)), RuntimeError),
        (lambda check: check(torch.sin, X, check_backward_ad=False), AssertionError),
        (lambda check: check(torch.sin, X, check_batched_forward_grad=True), AssertionError),
        (lambda check: check(lambda x: 1 / 0, X), ZeroDivisionError),
        (lambda check: check(made(torch.sin, lambda x, g: g.nothing), X), AttributeError),
    ],
)
def test_misuse_raises_what_torch_raises(call, error):
    for check in (torch.autograd.gradcheck, gradverify.gradcheck):
        with pytest.raises(error):
            call(check)


def test_low_precision_warns_as_torch_does():
    for check in (torch.autograd.gradcheck, gradverify.gradcheck):
        with pytest.warns(UserWarning, match="not a double precision"):
            check(torch.sin, tensor(2, dtype=torch.float32), raise_exception=False)


def test_ctrl_c_ends_the_check():
    calls = []

    def interrupted(x):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return x.sin()

    with pytest.raises(KeyboardInterrupt):
        gradverify.gradcheck(interrupted, X)


SECOND = {
    "right": (SIN, (X,), None, {}, True),
    "silently cut": (CUT, (X,), None, {}, False),
    "linear": (lambda x: 2 * x, (X,), None, {}, True),
    "two inputs": (lambda x, w: torch.tanh(x @ w.mT), (X, tensor(2, 4)), None, {}, True),
    "grad_outputs that do not require grad": (SIN, (X,), torch.ones(3, 4).double(), {}, True),
    "cut, grad_outputs that do not require grad": (CUT, (X,), torch.ones(3, 4).double(), {}, False),
    "not contiguous": (SIN, (X,), None, {"gen_non_contig_grad_outputs": True}, True),
    "complex": (torch.sin, (tensor(2, 2, dtype=torch.complex128),), None, {}, True),
    "forward over reverse": (torch.sin, (X,), None, {"check_fwd_over_rev": True}, True),
    "batched": (SIN, (X,), None, {"check_batched_grad": True}, True),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SECOND)
def test_the_second_verdict_is_torchs(name):
    function, inputs, grad_outputs, options, right = SECOND[name]
    for check in (torch.autograd.gradgradcheck, gradverify.gradgradcheck):
        assert check(function, inputs, grad_outputs, raise_exception=False, **options) is right


def test_the_second_message_says_what_is_cut():
    with pytest.raises(gradverify.GradientError, match=r"GV202.*silently cut"):
        gradverify.gradgradcheck(CUT, (X,))


def test_what_is_found_beside_a_place_that_only_torch_decides_is_reported():
    """At 0, sqrt(|x|) has no derivative; elsewhere this backward is off by 1e-5."""

    class Root(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs().sqrt()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            slope = (1 + 1e-5) * x.sign() / (2 * x.abs().sqrt())
            return g * torch.where(x == 0, 0.0, slope)

    x = torch.tensor([0.0, 0.5, -1.5], dtype=torch.float64, requires_grad=True)
    with pytest.warns(UserWarning) as caught:
        assert gradverify.gradcheck(Root.apply, (x,))
    said = [str(w.message) for w in caught]
    assert any("not verified by gradverify" in text for text in said)
    assert any("GV110" in text and "2 of 9 entries" in text for text in said)


def test_a_failure_that_only_torch_sees_is_called_torchs():
    """At a jump no derivative is measured; torch's difference quotient is a huge number."""

    class Step(Function):
        @staticmethod
        def forward(ctx, x):
            return x.floor() + 0.5 * x

        @staticmethod
        def backward(ctx, g):
            return 0.5 * g

    x = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    with pytest.raises(gradverify.GradientError) as caught:
        gradverify.gradcheck(Step.apply, (x,))
    said = str(caught.value)
    assert "own check fails where gradverify could not tell" in said
    assert "torch's verdict alone" in said
    assert "forward jumps" in said
    assert "numerical:" not in said
    assert "numerical:" in str(caught.value.__cause__)


class SlightlyOffTwice(Function):
    """Its gradient is right, and that gradient's own derivative by x is off by 1e-5 of itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        off = x + 1e-5 * (x - x.detach())
        return g * off.cos()


def test_the_second_warning_names_the_gradient_and_by_what_it_is_off():
    with pytest.warns(
        UserWarning, match=r"gradient of `inputs\[0\]` by `inputs\[0\]`\) is slightly off at 12 of 144"
    ):
        assert gradverify.gradgradcheck(SlightlyOffTwice.apply, (X,))


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def test_once_differentiable_fails_as_in_torch_and_is_named():
    assert not torch.autograd.gradgradcheck(Once.apply, (X,), raise_exception=False)
    with pytest.raises(gradverify.GradientError, match=r"GV203.*once_differentiable"):
        gradverify.gradgradcheck(Once.apply, (X,))


def test_signatures_are_torchs():
    for name in ("gradcheck", "gradgradcheck"):
        ours, theirs = (inspect.signature(getattr(m, name)) for m in (gradverify, torch.autograd))
        assert list(ours.parameters) == list(theirs.parameters)
        for parameter, expected in zip(ours.parameters.values(), theirs.parameters.values(), strict=True):
            assert (parameter.kind, parameter.default) == (expected.kind, expected.default)


def test_ours_in_the_place_of_torchs_own_asks_torchs_own(monkeypatch):
    module = sys.modules["torch.autograd.gradcheck"]
    for name in ("gradcheck", "gradgradcheck"):
        monkeypatch.setattr(torch.autograd, name, getattr(gradverify, name))
        monkeypatch.setattr(module, name, getattr(gradverify, name))
    x = torch.eye(3, dtype=torch.float64).to_sparse().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: s.coalesce().values().sin(), (x,), masked=True)
    assert torch.autograd.gradgradcheck(torch.sin, torch.ones(2, dtype=torch.float64, requires_grad=True))


def test_a_function_that_is_another_where_nothing_requires_grad_is_judged_as_it_is_differentiated():
    def upper_of_square(a):
        symmetric = (a + a.mT) / 2 if a.requires_grad else a
        return torch.tril(symmetric @ symmetric)

    a = tensor(3, 3).detach()
    inputs = ((a + a.mT).requires_grad_(),)
    assert torch.autograd.gradcheck(upper_of_square, inputs)
    assert gradverify.gradcheck(upper_of_square, inputs)


class TimeLimit(BaseException):
    """As the one that a test runner raises in the midst of whatever runs."""


@pytest.mark.parametrize("check", [gradverify.gradcheck, gradverify.gradgradcheck, gradverify.verify])
@pytest.mark.parametrize("interruption", [TimeLimit, KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_caller_reaches_it(check, interruption):
    calls = iter(range(1_000))

    def interrupted(x):
        if next(calls) == 2:
            raise interruption
        return x.sin()

    with pytest.raises(interruption):
        check(interrupted, (tensor(3),))


class Stair(Function):
    """A step at 0, where some of these inputs lie: neither side's slope is the other's."""

    @staticmethod
    def forward(ctx, x):
        return torch.where(x > 0, 1.0 + x, x)

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.fixture
def asked_of_torch(monkeypatch):
    """The modes torch was asked in; it passes everything."""
    asked = []

    def passing(*_, fast_mode, **__):
        asked.append(fast_mode)
        return True

    for name in ("torch_gradcheck", "torch_gradgradcheck"):
        monkeypatch.setattr(sys.modules["gradverify.api.orders"], name, passing)
    return asked


ON_THE_STAIR = torch.tensor([0.0, 0.5, -1.5], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_VALUES"])
def test_what_slow_mode_cannot_build_is_left_to_fast_mode(asked_of_torch, monkeypatch, limit):
    with pytest.warns(UserWarning, match="torch's own check decided"):
        assert gradverify.gradcheck(Stair.apply, (ON_THE_STAIR,))
    monkeypatch.setattr(by_torch, limit, 8)
    with pytest.warns(UserWarning, match="not verified by gradverify, torch's fast mode.*slow mode would"):
        assert gradverify.gradcheck(Stair.apply, (ON_THE_STAIR,))
    assert asked_of_torch == [False, True]


def test_who_asks_for_fast_mode_gets_it(asked_of_torch, monkeypatch):
    monkeypatch.setattr(by_torch, "MOST_ENTRIES", 8)
    with pytest.warns(UserWarning, match="torch's own check decided"):
        assert gradverify.gradcheck(Stair.apply, (ON_THE_STAIR,), fast_mode=True)
    assert asked_of_torch == [True]


def test_what_torch_alone_can_tell_is_reported_by_fast_mode_where_slow_mode_cannot(
    asked_of_torch, monkeypatch
):
    monkeypatch.setattr(by_torch, "MOST_ENTRIES", 8)
    with pytest.warns(UserWarning, match="torch alone can tell was decided by torch's fast mode"):
        assert gradverify.gradcheck(torch.sin, (tensor(3),), check_forward_ad=True)
    with pytest.warns(UserWarning, match="torch alone can tell was decided by torch's fast mode"):
        assert gradverify.gradgradcheck(torch.sin, (tensor(3),), check_fwd_over_rev=True)
    assert asked_of_torch == [True, True]
