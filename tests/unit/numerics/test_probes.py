"""How far each input moves."""

import pytest
import torch

from gradverify.verifier.numerics.probes import SAMPLE, WIDE, sizes_of


def drawn(count):
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [SAMPLE // 2, 100 * SAMPLE])
def test_entries_move_by_their_own_size_within_what_is_typical(count):
    x = drawn(count) * 1e-3
    x[0] = 1e-9
    moved, median = sizes_of(x), x.abs().median().item()
    assert moved.max().item() == pytest.approx(median, rel=0.3)
    assert moved.min().item() == pytest.approx(median / WIDE, rel=0.3)
    assert sizes_of(torch.full((count,), 3.0).double()).eq(3).all()


@pytest.mark.parametrize("count", [SAMPLE // 2, 100 * SAMPLE])
def test_zeros_and_what_is_not_finite_do_not_tell_what_is_typical(count):
    x = torch.zeros(count, dtype=torch.float64)
    x[3], x[5], x[7] = -2.0, torch.inf, torch.nan
    moved = sizes_of(x)
    assert (moved[3].item(), moved[5].item(), moved[7].item()) == (2.0, 0.0, 0.0)
    assert moved[0].item() == 2.0 / WIDE
    assert sizes_of(torch.zeros(count, dtype=torch.float64)).eq(1 / WIDE).all()


def test_a_column_of_zeros_is_no_sample_of_its_matrix():
    x = drawn(100 * SAMPLE).view(-1, SAMPLE)
    median = x.abs().median().item()
    x[:, ::5] = 0.0
    assert sizes_of(x).max().item() == pytest.approx(median, rel=0.3)
