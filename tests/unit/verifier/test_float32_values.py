"""When values are called float32: only where what they should be is known to have more digits."""

import torch

from gradverify.verifier.questions.wording import is_float32


def test_rounded_values_are_told_from_those_with_more_digits():
    expected = torch.linspace(0.1, 0.9, 8, dtype=torch.float64).sin()
    rounded = expected.float().double()
    assert is_float32(rounded, expected)
    assert not is_float32(expected, expected)
