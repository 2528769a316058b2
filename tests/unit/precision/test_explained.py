"""Test B: what rounding intermediates explains, and what no rounding does."""

import pytest
import torch

from gradverify.verifier.checks.dtypes.formats import explained, format_of
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
    noise = torch.stack([run - truth for run in runs]) / BF16.unit
    return softmax_of(x.to(torch.bfloat16)).double(), truth, noise


def test_a_computation_in_bfloat16_throughout_is_explained(case):
    value, truth, noise = case
    assert explained(value, truth, BF16, noise).ok


@pytest.mark.parametrize("factor", [1.02, 0.99])
def test_a_constant_factor_is_not(case, factor):
    value, truth, noise = case
    found = explained(value * factor, truth, BF16, noise)
    assert not found.ok
    assert found.slope > 1


def test_a_bad_row_is_not_explained(case):
    value, truth, noise = case
    value = value.clone()
    value[7] *= 1.1
    found = explained(value, truth, BF16, noise)
    assert not found.ok
    assert found.slice > 1


def test_one_wild_entry_is_not_explained(case):
    value, truth, noise = case
    value = value.clone()
    value[3, 4] += 1.0
    assert explained(value, truth, BF16, noise).entry > 1


def test_nan_explains_nothing(case):
    value, truth, noise = case
    assert not explained(value, truth, BF16, noise * torch.nan).ok
    missing = value.clone()
    missing[0, 0] = torch.nan
    assert not explained(missing, truth, BF16, noise).ok


def test_float32_is_held_to_wide_limits_and_no_factor():
    form = format_of(torch.float32)
    truth = normal(16, 16)
    assert explained(truth.float().double(), truth, form).ok
    assert not explained(truth * (1 + 1e-4), truth, form).ok


def test_a_scalar_is_explained_by_what_was_measured_of_it():
    truth, noise = torch.tensor(0.7, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    assert explained(truth * (1 + BF16.unit), truth, BF16, noise).ok
    assert not explained(truth * 1.5, truth, BF16, noise).ok
