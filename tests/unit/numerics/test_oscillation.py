"""Oscillations far below every step: sampled too coarsely they look like slow ones, with other slopes."""

import pytest
import torch

OSCILLATIONS = {
    "sin(1e9 x)": lambda x: torch.sin(1e9 * x),
    "cos(4e8 x)": lambda x: torch.cos(4e8 * x),
    "sawtooth(1e6 x)": lambda x: 1e6 * x - torch.floor(1e6 * x),
}

DRAWS = 20
"""Enough for several draws whose steps nearly are multiples of a period."""


@pytest.mark.parametrize("name", OSCILLATIONS)
def test_an_oscillation_below_every_step_is_never_wrong(name, maps):
    for seed in range(DRAWS):
        x = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert not maps.judged(OSCILLATIONS[name], x).comparison.wrong.any()


def test_an_oscillation_that_steps_resolve_is_judged(maps):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.sin(1e4 * x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 2e4 * torch.cos(1e4 * x) * grad_output

    x = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert maps.judged(Doubled.apply, x).comparison.wrong.diagonal().all()
