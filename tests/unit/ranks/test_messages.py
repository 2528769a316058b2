"""Tensors cross to ranks as they lie in memory."""

import pytest
import torch

from gradverify.verifier.ranks.messages import packed, unpacked

BASE = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.t(),
        BASE[1:3, ::2],
        BASE[:1].expand(3, 6),
        BASE.to(torch.bfloat16),
        torch.complex(BASE, BASE).conj(),
        BASE > 3,
        torch.tensor(2.5),
        torch.empty(0, 3),
    ],
)
def test_values_and_strides_arrive(tensor):
    arrived = unpacked(packed(tensor))
    assert arrived.dtype == tensor.dtype
    assert arrived.stride() == tensor.resolve_conj().stride()
    assert torch.equal(arrived, tensor.resolve_conj())


def test_what_arrives_is_a_copy():
    tensor = BASE.clone()
    unpacked(packed(tensor)).zero_()
    assert torch.equal(tensor, BASE)
