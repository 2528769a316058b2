"""Test A against the definition of rounding, in every 16-bit format."""

import pytest
import torch

from gradverify.verifier.questions.dtypes.calls import format_of
from gradverify.verifier.questions.dtypes.judging import LIMIT, half_ulp, of_correct_rounding

SHORT = (torch.bfloat16, torch.float16)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [*SHORT, torch.float32])
def test_half_an_ulp_is_half_the_distance_to_the_next_number(dtype):
    form = format_of(dtype)
    near = torch.tensor([1.0, 1.5, 3.0, 1 / 3, 1e-3], dtype=dtype)
    # The next number away from zero, by one more in its bits.
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    after = (near.view(bits) + 1).view(dtype)
    assert torch.equal(half_ulp(near.double(), form), (after.double() - near.double()) / 2)
    assert half_ulp(torch.zeros(1, dtype=torch.float64), form).item() == form.tiny
    # Half of the smallest number there is, is the most that rounding to zero may lose.
    assert torch.tensor(form.tiny * 2.01, dtype=torch.float64).to(dtype) > 0


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("size", [1.0, 1e-7, 1e3])
def test_a_rounded_value_is_at_most_the_limit_itself(dtype, size):
    truth = normal(64, 32) * size
    found = of_correct_rounding(truth.to(dtype).double(), truth, format_of(dtype))
    assert 0.9 < found.max() <= 1


@pytest.mark.parametrize("factor", [1.001, 0.997])
def test_a_factor_below_half_an_ulp_of_bfloat16_is_seen(factor):
    truth = normal(64, 32)
    form = format_of(torch.bfloat16)
    found = of_correct_rounding((truth * factor).to(torch.bfloat16).double(), truth, form)
    assert (found > LIMIT).double().mean() > 0.05


def test_the_noise_of_float32_inside_is_allowed():
    truth = normal(64, 32)
    single = (truth * (1 + 1e-7)).float().to(torch.bfloat16).double()
    assert (of_correct_rounding(single, truth, format_of(torch.bfloat16)) <= LIMIT).all()


def test_a_nan_is_never_correct():
    truth = normal(4, 4)
    broken = truth.clone()
    broken[1, 2] = torch.nan
    form = format_of(torch.bfloat16)
    assert not (of_correct_rounding(broken, truth, form) <= LIMIT).all()
    assert not (of_correct_rounding(truth, truth, form, torch.full((2, 4, 4), torch.nan)) <= LIMIT).all()
