"""Whether a map computes in fewer digits than it is given."""

from __future__ import annotations

import pytest
import torch

from gradverify.verifier.questions.dtypes.lines import computes_in_fewer_digits

X = torch.linspace(-2.0, 3.0, 24, dtype=torch.float64).roll(5)


def norm(x, statistics):
    centred = x - x.mean()
    return centred * (centred.to(statistics).square().mean() + 1e-5).rsqrt().to(x.dtype)


MAPS = {
    "sine": torch.sin,
    "steep": lambda x: torch.sin(1e4 * x),
    "loss": lambda x: x.square().sum().reshape(1),
    "kinks": lambda x: torch.relu(x - X[::2].repeat_interleave(2)),
    "steps": torch.round,
    "badly conditioned": lambda x: (x + 1e4) - 1e4,
    "norm": lambda x: norm(x, torch.float64),
    "constant": torch.ones_like,
}

SHORT = {
    "sine": lambda x: torch.sin(x.float()).double(),
    "loss": lambda x: x.float().square().sum().double().reshape(1),
    "norm by statistics in float32": lambda x: norm(x, torch.float32),
    "one factor in float32": lambda x: x * torch.sigmoid(x.float()).double(),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_in_float64_does_not(name):
    assert not computes_in_fewer_digits(MAPS[name], X)


@pytest.mark.parametrize("name", SHORT)
def test_a_map_in_float32_does(name):
    assert computes_in_fewer_digits(SHORT[name], X)


def test_what_refuses_is_not_called_short():
    assert not computes_in_fewer_digits(lambda _: None, X)


def test_noise_that_another_call_does_not_repeat_is_no_rounding():
    calls = iter(range(100))

    def noisy(x):
        return 2 * x + 1e-6 * (next(calls) * 0.618 % 1)

    assert not computes_in_fewer_digits(noisy, torch.linspace(1, 2, 7, dtype=torch.float64))
