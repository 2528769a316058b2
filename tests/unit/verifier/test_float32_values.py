"""When values are called float32: only where what they should be is known to have more digits."""

import torch

from gradverify.verifier.checks.wording import is_float32

MEASURED = 1 + 4e-16 * torch.arange(1, 9, dtype=torch.float64)


def test_a_measured_one_is_no_number_that_float32_loses():
    ones = torch.ones(8, dtype=torch.float64)
    assert is_float32(ones, MEASURED)
    assert not is_float32(ones, MEASURED, torch.full((8,), 1e-12, dtype=torch.float64))


def test_rounded_values_are_seen_beyond_the_error_of_the_measurement():
    expected = torch.linspace(0.1, 0.9, 8, dtype=torch.float64).sin()
    rounded = expected.float().double()
    assert is_float32(rounded, expected, torch.full((8,), 1e-12, dtype=torch.float64))
    assert not is_float32(expected, expected, torch.full((8,), 1e-12, dtype=torch.float64))
