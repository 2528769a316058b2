"""What is tried instead of a guess lies on the device of what was guessed."""

import pytest
import torch

from gradverify.verifier.neighbours.values import INTEGERS, KINDS

ELSEWHERE = torch.device("meta")
"""A device beside the CPU that every machine has."""


@pytest.mark.parametrize("make", INTEGERS)
def test_other_integers(make):
    assert make(torch.zeros(2, 3, dtype=torch.int64, device=ELSEWHERE), 4).device == ELSEWHERE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.words)
def test_other_constants(kind):
    given = [torch.zeros(shape, device=ELSEWHERE) for shape in ([4, 4], [4, 4, 3])]
    assert all(kind.of(x).device == ELSEWHERE for x in given if kind.fits(x))
