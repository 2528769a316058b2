"""Which devices are compared, arithmetic without short cuts, and what tells of a lost device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gradverify.events import Broken, DeviceLost
from gradverify.verifier import guard
from gradverify.verifier.guard import devices
from gradverify.verifier.guard.devices import exact_arithmetic, others
from gradverify.verifier.guard.global_state import EXACT, precisions
from gradverify.verifier.process.worker import ended_by


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many CUDA devices, none of which is touched."""

    def with_devices(count):
        monkeypatch.setattr(devices, "_accelerator", lambda: "cuda" if count else "")
        module = SimpleNamespace(device_count=lambda: count)
        monkeypatch.setattr(torch, "get_device_module", lambda _: module)

    return with_devices


@pytest.mark.parametrize(
    ("count", "device", "allowed", "compared"),
    [
        (0, "cpu", (), ()),
        (1, "cpu", (), ("cuda:0",)),
        (4, "cpu", (), ("cuda:0", "cuda:3")),
        (4, "cpu", ("cpu",), ()),
        (2, "cuda:0", ("cuda",), ("cuda:1",)),
        (2, "cuda", (), ("cpu", "cuda:1")),
    ],
)
def test_the_first_and_the_last_device_are_compared(machine, count, device, allowed, compared) -> None:
    machine(count)
    assert others(device, allowed) == compared


@pytest.mark.parametrize("frozen", [False, True])
def test_short_cuts_are_off_and_come_back(monkeypatch, frozen) -> None:
    """Also where tests of torch have frozen them."""
    torch.backends.cuda.matmul.allow_tf32 = True
    before = precisions()
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", not frozen)
    try:
        with pytest.raises(KeyError), exact_arithmetic():
            assert precisions()[1:] == EXACT[1:]
            raise KeyError
        assert precisions() == before
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        monkeypatch.undo()
        torch.backends.cuda.matmul.allow_tf32 = False


LOST = (
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."),
    type("AcceleratorError", (RuntimeError,), {})("unspecified launch failure"),
)
NOT_LOST = (
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu"),
    ValueError("CUDA error: a message of the author's own"),
)


@pytest.mark.parametrize("error", LOST)
def test_a_lost_device_ends_the_process(error) -> None:
    def fails():
        raise error

    with pytest.raises(guard.DeviceLostError) as caught:
        guard.call(fails)
    assert caught.value.error.message == str(error)
    assert isinstance(ended_by(caught.value), DeviceLost)
    assert isinstance(ended_by(error), DeviceLost)


@pytest.mark.parametrize("error", NOT_LOST)
def test_other_errors_cost_nothing_but_the_call(error) -> None:
    def fails():
        raise error

    assert isinstance(guard.call(fails), guard.Raised)
    assert isinstance(ended_by(error), Broken)
