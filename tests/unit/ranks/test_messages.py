"""Tensors cross to ranks as they lie in memory."""

import subprocess
import sys

import pytest
import torch

from gradverify import gradcheck_distributed
from gradverify.errors import UsageError
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


def test_without_numpy():
    """It is no dependency: a fresh environment has none."""
    run = (
        "import sys; sys.modules['numpy'] = None; import torch\n"
        "from gradverify.verifier.ranks.collectives import seed_of_ranks\n"
        "from gradverify.verifier.ranks.messages import packed, unpacked\n"
        "print(unpacked(packed(torch.arange(3.0))).tolist(), seed_of_ranks() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[0] == "[0.0, 1.0, 2.0] True", done.stderr[-500:]


def test_a_check_in_a_program_says_that_torch_needs_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="needs NumPy"):
        gradcheck_distributed(lambda x: x, torch.ones(2, dtype=torch.float64))
