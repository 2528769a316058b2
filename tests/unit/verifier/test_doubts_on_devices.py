"""What is tried instead of a guess lies on the device of what was guessed."""

import pytest
import torch

from gradverify.verifier.neighbours.values import INTEGERS, OF_CONSTANTS, integers_like

ELSEWHERE = torch.device("meta")
"""A device beside the CPU that every machine has."""


@pytest.mark.parametrize("kind", INTEGERS)
def test_other_integers(kind):
    given = torch.zeros(2, 3, dtype=torch.int64, device=ELSEWHERE)
    assert integers_like(given, 4, kind).device == ELSEWHERE


@pytest.mark.parametrize("kind", OF_CONSTANTS, ids=lambda kind: kind.declared)
def test_other_constants(kind):
    given = [torch.zeros(shape, device=ELSEWHERE) for shape in ([4, 4], [4, 4, 3])]
    assert all(kind.move(x).device == ELSEWHERE for x in given if kind.fits(x))
