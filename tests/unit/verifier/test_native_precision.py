"""Native dtypes beside float64: what is certain, what is a warning, and what nobody is accused of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.autograd import Function

from gradverify.model import (
    Case,
    Closeness,
    Effort,
    Outcome,
    Point,
    Settings,
    Severity,
    Target,
    TargetKind,
    TensorInput,
)
from gradverify.verifier.questions.dtypes.asked import beside_float64
from gradverify.verifier.questions.dtypes.deciding import native_dtype
from gradverify.verifier.questions.results import judged_alone, no_float64_path
from gradverify.verifier.questions.subject import Native, NoSample, Subject, prepare
from gradverify.verifier.targets.forward_itself import plain_forward

CASE = Case("base", 11, inputs=(TensorInput("x", (12, 16)),))


def function_of(forward, backward):
    """A Function of one input that saves it."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad_output):
            return backward(ctx.saved_tensors[0], grad_output)

    return Made


def subject_of(function, dtypes=(), **more):
    return Subject(
        target=Target("Made", "Made", TargetKind.FUNCTION, "made.py", 1),
        function=function.apply,
        settings=more.pop("settings", Settings()),
        own_forward=plain_forward(function),
        dtypes=dtypes,
        **more,
    )


def judged(function, *dtypes, case=CASE, **more):
    sample = prepare(subject_of(function, dtypes, **more), case, Point.TYPICAL, 0)
    return beside_float64(sample)


def codes(result, severity=Severity.ERROR):
    return [f.code for f in result.findings if f.severity is severity]


def closeness(result, dtype):
    return {p.value: p.closeness for p in result.swept.precision if p.dtype == dtype}


square = function_of(torch.square, lambda x, g: 2 * x * g)


def test_float32_is_judged_unless_speed_is_asked_for():
    assert judged(square).swept.dtypes == ("float32",)
    assert judged(square, settings=Settings(effort=Effort.QUICK)).outcome is Outcome.NOT_RUN
    assert judged(square, "float64").outcome is Outcome.NOT_RUN
    found = judged(square, "bfloat16", "float16")
    assert found.swept.dtypes == ("bfloat16", "float16")
    assert not codes(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_factor_in_one_dtype_alone_is_an_error(dtype):
    def backward(x, g):
        return (2.05 if x.dtype is getattr(torch, dtype) else 2) * x * g

    found = judged(function_of(torch.square, backward), "float32", "bfloat16", "float16")
    assert codes(found) == ["GV601"]
    assert closeness(found, dtype)["x"] is Closeness.WRONG


def test_rounding_intermediates_passes_unless_the_spec_says_that_nothing_is_rounded():
    softmax = function_of(
        lambda x: torch.softmax(x, -1),
        lambda x, g: (y := torch.softmax(x, -1)) * (g - (g * y).sum(-1, keepdim=True)),
    )
    found = judged(softmax, "bfloat16")
    assert closeness(found, "bfloat16")["x"] is Closeness.ROUNDED
    assert not codes(found)
    assert "GV601" in codes(found, Severity.NOTE)
    assert codes(judged(softmax, "bfloat16", internals="float32")) == ["GV601"]


def test_nan_is_an_error_whatever_the_composite_gives():
    lost = function_of(torch.square, lambda x, g: x * 65000 * (2 * g) / 65000)
    assert set(codes(judged(lost, "float16"))) == {"GV602"}
    both = function_of(
        lambda x: (x * 65000).square() / 65000**2,
        lambda x, g: 2 * x * g,
    )
    assert "GV602" in codes(judged(both, "float16"))


def test_a_gradient_is_not_judged_where_the_output_is_beyond_the_dtype_by_right():
    function = function_of(lambda x: (30000 * x).square(), lambda x, g: 30000 * (30000 * x) * 2 * g)
    assert not codes(judged(function, "float16"))


def test_what_draws_its_own_random_numbers_is_not_accused():
    def noise(x):
        return torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))

    function = function_of(lambda x: x * noise(x), lambda x, g: g * noise(x))
    assert not judged(function).findings
    found = judged(function, "float32")
    assert {f.code for f in found.findings} == {"GV109"}
    assert set(closeness(found, "float32").values()) == {Closeness.UNKNOWN}
    assert not found.swept.dtypes


def test_a_listed_dtype_that_is_refused_is_not_green_and_float32_by_default_is_silent():
    def only_double(x):
        if x.dtype is not torch.float64:
            raise TypeError("float64 alone")
        return x.square()

    function = function_of(only_double, lambda x, g: 2 * x * g)
    assert judged(function).findings == ()
    found = judged(function, "bfloat16")
    assert [f.code for f in found.findings] == ["GV109"]
    assert found.outcome is Outcome.INCONCLUSIVE


IN_A_RANGE = Case("base", 5, inputs=(TensorInput("x", (4, 3), range=(-2.0, 2.0)),))


@pytest.mark.parametrize(
    ("large", "case", "said"),
    [
        (1e3, IN_A_RANGE, Severity.NOTE),
        (1e6, IN_A_RANGE, "GV601"),
        (1e6, CASE, "GV601"),
    ],
)
def test_what_its_own_rounding_explains_has_a_cap(large, case, said):
    """Within it a note; an error of typical values far beyond it, whether a range is declared or not."""

    def backward(x, g):
        return ((x + large) - large) * 2 * g

    found = judged(function_of(torch.square, backward), case=case)
    assert codes(found) == (["GV601"] if said == "GV601" else [])
    assert set(codes(found, Severity.WARNING)) == ({"GV109"} if said == "GV109" else set())
    assert found.outcome is {"GV109": Outcome.INCONCLUSIVE, "GV601": Outcome.FAILED}.get(said, Outcome.PASSED)
    assert (
        closeness(found, "float32")["x"]
        is {
            (1e3, IN_A_RANGE): Closeness.WITHIN,
            (1e6, IN_A_RANGE): Closeness.WRONG,
            (1e6, CASE): Closeness.WRONG,
        }[large, case]
    )
    assert "GV601" not in codes(judged(square, "float32"), Severity.WARNING)


def test_a_listed_dtype_whose_own_rounding_is_beyond_the_cap_is_inconclusive():
    found = judged(function_of(torch.square, lambda x, g: ((x + 5e4) - 5e4) * 2 * g), "float32")
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "GV109" in codes(found, Severity.WARNING)


@pytest.mark.parametrize("by_numpy", [False, True])
def test_a_target_that_refuses_float64_is_judged_alone(by_numpy):
    def forward(x):
        assert x.dtype is torch.float32
        return torch.from_numpy(np.sin(x.detach().numpy())) if by_numpy else torch.sin(x)

    for factor, wrong in ((1.0, []), (1.1, ["GV101"])):
        function = function_of(forward, lambda x, g, f=factor: f * torch.cos(x) * g)
        assert isinstance(prepare(subject_of(function), CASE, Point.TYPICAL, 0), NoSample)
        found = alone(function)
        assert codes(found) == wrong
        assert found.swept.native
        row = found.swept.precision[-1]
        assert row.closeness is (
            Closeness.WRONG if wrong else Closeness.COARSE if by_numpy else Closeness.WITHIN
        )


def test_complex_inputs_are_judged_in_complex64_and_not_in_16_bits():
    case = Case("base", 5, inputs=(TensorInput("x", (4, 3), dtype="complex128"),))
    function = function_of(lambda z: z * z, lambda z, g: 2 * z.conj() * g)
    assert judged(function, "float32", case=case).swept.dtypes == ("float32",)
    assert [f.code for f in judged(function, "float16", case=case).findings] == ["GV109"]


def test_what_overflows_inside_plain_torch_too_is_silence_at_values_that_no_spec_declares():
    """(x + 1000)^2 is beyond float16, and so 1 / (1 + x^2) is 0 in torch's own float16 as well."""
    found = judged(
        function_of(lambda x: 1 / (1 + x * x), lambda x, g: -2 * x * g / (1 + x * x) ** 2), "float16"
    )
    assert not codes(found)
    assert not codes(found, Severity.WARNING)


def test_what_is_lost_at_values_that_nobody_declared_fails_nothing():
    """Softmax without its maximum, whose composite is its own forward; and a backward that alone is lost."""
    plain = function_of(
        lambda x: (e := torch.exp(x)) / e.sum(-1, keepdim=True),
        lambda x, g: (
            (y := (e := torch.exp(x)) / e.sum(-1, keepdim=True)) * (g - (g * y).sum(-1, keepdim=True))
        ),
    )
    assert judged(plain, "float16").outcome is Outcome.PASSED
    alone = function_of(torch.tanh, lambda x, g: g / torch.cosh(x) ** 2 * (1 + 0 * torch.exp(x.abs())))
    assert judged(alone, "float16").outcome is Outcome.PASSED


def kernel_of(forward, backward, allowed):
    """A Function that no operation of torch's is seen of, in the dtypes that it allows."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            if x.dtype not in allowed:
                raise TypeError("another dtype")
            ctx.save_for_backward(x)
            return through_numpy(forward, x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return through_numpy(backward, x, grad_output)

    return Made


def through_numpy(function, *tensors):
    wide = [t.detach().numpy() if t.is_complex() else t.detach().float().numpy() for t in tensors]
    return torch.from_numpy(function(*wide)).to(tensors[0].dtype)


SHORT_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def alone(function, *dtypes, case=CASE):
    subject = subject_of(function, dtypes)
    dtype = native_dtype(subject, case)
    native = replace(subject, precision=Native(dtype, "forward refuses float64"))
    sample = prepare(native, case, Point.TYPICAL, 0)
    assert no_float64_path(sample).severity is Severity.NOTE
    return judged_alone(sample).result


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_kernel_in_16_bits_without_a_composite_is_open(dtype):
    right = alone(kernel_of(np.sin, lambda x, g: np.cos(x) * g, SHORT_AND_SINGLE), dtype)
    assert right.outcome is Outcome.INCONCLUSIVE
    assert any(f"{dtype} was not judged" in f.message for f in right.findings)


def test_a_formula_that_is_wrong_in_every_dtype_shows_in_the_slope_of_float32():
    wrong = alone(kernel_of(np.sin, lambda x, g: 1.1 * np.cos(x) * g, SHORT_AND_SINGLE), "bfloat16")
    assert codes(wrong) == ["GV101"]
    assert wrong.outcome is Outcome.FAILED


def test_a_kernel_of_16_bits_alone_is_inconclusive():
    made = alone(kernel_of(np.sin, lambda x, g: np.cos(x) * g, (torch.float16,)), "float16")
    assert made.outcome is Outcome.INCONCLUSIVE
    assert "GV109" in codes(made, Severity.WARNING)


def test_the_slope_of_a_complex_kernel_is_measured_in_complex64():
    case = Case("base", 11, inputs=(TensorInput("z", (4, 3), dtype="complex128"),))
    right = kernel_of(lambda z: z**2, lambda z, g: 2 * z.conj() * g, (torch.complex64,))
    assert alone(right, "float32", case=case).outcome is Outcome.INCONCLUSIVE
    wrong = kernel_of(lambda z: z**2, lambda z, g: 2 * z * g, (torch.complex64,))
    assert codes(alone(wrong, "float32", case=case)) == ["GV101"]


@pytest.mark.parametrize(("factor", "found"), [(2, []), (2.05, ["GV601"])])
def test_a_sparse_gradient_of_a_dense_input_is_judged_as_a_dense_one(factor, found):
    def backward(x, g):
        return ((factor if x.dtype is torch.bfloat16 else 2) * x * g).to_sparse()

    result = judged(function_of(torch.square, backward), "bfloat16")
    assert codes(result) == found
    assert closeness(result, "bfloat16")["x"] is (Closeness.WRONG if found else Closeness.CORRECT)
