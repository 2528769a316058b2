"""Test B: what rounding intermediates explains, and what no rounding does."""

import pytest
import torch

from gradverify.verifier.numerics.native_rounding import Noise, explained, format_of, noise_of, rounding_noise
from gradverify.verifier.numerics.round_off import RandomRounding

BF16 = format_of(torch.bfloat16)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def softmax_of(x):
    p = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return p / p.sum(dim=-1, keepdim=True)


@pytest.fixture(scope="module")
def case():
    """A softmax, its true value, and what bfloat16 rounding of every intermediate does to it."""
    x = normal(32, 24).to(torch.bfloat16).double()
    truth = softmax_of(x)
    runs = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(16):
        with RandomRounding(BF16.unit, generator):
            runs.append(softmax_of(x))
    return softmax_of(x.to(torch.bfloat16)).double(), truth, rounding_noise(truth, runs, (), BF16)


def test_a_computation_in_bfloat16_throughout_is_explained(case):
    value, truth, noise = case
    assert explained(value, truth, noise, BF16).ok


@pytest.mark.parametrize("factor", [1.02, 0.99])
def test_a_constant_factor_is_not_and_is_reported(case, factor):
    value, truth, noise = case
    found = explained(value * factor, truth, noise, BF16)
    assert not found.ok
    assert found.slope > 1
    assert found.factor == pytest.approx(factor - 1, abs=2e-3)


def test_a_bad_row_is_found_by_its_place(case):
    value, truth, noise = case
    value = value.clone()
    value[7] *= 1.1
    found = explained(value, truth, noise, BF16)
    assert not found.ok
    assert found.where == (0, 7)


def test_one_wild_entry_is_not_explained(case):
    value, truth, noise = case
    value = value.clone()
    value[3, 4] += 1.0
    assert explained(value, truth, noise, BF16).entry > 1


def test_nan_explains_nothing(case):
    value, truth, noise = case
    broken = Noise(noise.sigma * torch.nan, noise.null)
    assert not explained(value, truth, broken, BF16).ok
    assert not broken.usable
    missing = value.clone()
    missing[0, 0] = torch.nan
    assert not explained(missing, truth, noise, BF16).ok


def test_float32_is_held_to_wide_limits_and_no_factor():
    form = format_of(torch.float32)
    truth = normal(16, 16)
    noise = noise_of(truth, (), (), form.unit, form.tiny)
    assert explained(truth.float().double(), truth, noise, form).ok
    assert not explained(truth * (1 + 1e-4), truth, noise, form).ok
