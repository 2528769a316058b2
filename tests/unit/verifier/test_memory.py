"""Fresh memory full of NaN: what torch allocates, and nothing left switched on."""

from __future__ import annotations

import pytest
import torch
from torch.utils import deterministic

from gradverify.verifier.guard.memory import filled_memory


def allocated() -> list[torch.Tensor]:
    like = torch.zeros(3, dtype=torch.float64)
    return [
        torch.empty(3, dtype=torch.float64),
        torch.empty_like(like),
        like.new_empty(3),
        torch.empty_strided((3,), (1,), dtype=torch.float64),
    ]


def test_what_is_allocated_is_full_of_nan() -> None:
    with filled_memory():
        assert all(t.isnan().all() for t in allocated())
        assert (torch.empty(3, dtype=torch.int64) == torch.iinfo(torch.int64).max).all()
        assert not torch.zeros(3).isnan().any()


def test_the_mode_alone_fills_nothing() -> None:
    held = torch.ones(1000, dtype=torch.float64)
    del held
    with filled_memory(fill=False):
        assert torch.are_deterministic_algorithms_enabled()
        assert not all(t.isnan().all() for t in allocated())


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("filled", [True, False])
def test_both_switches_are_set_back(mode, filled) -> None:
    before = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    try:
        torch.set_deterministic_debug_mode(mode)
        deterministic.fill_uninitialized_memory = filled
        with pytest.raises(KeyError), filled_memory():
            raise KeyError
        assert torch.get_deterministic_debug_mode() == mode
        assert deterministic.fill_uninitialized_memory is filled
    finally:
        torch.set_deterministic_debug_mode(before[0])
        deterministic.fill_uninitialized_memory = before[1]
