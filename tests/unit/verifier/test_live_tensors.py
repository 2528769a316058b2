"""How many tensors of the input's size are alive at once while a large elementwise Function is verified."""

from __future__ import annotations

import gc
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradverify.events import Verify
from gradverify.model import Case, InputSource, Settings, TargetPlan, TensorInput
from gradverify.verifier.inputs.tensors import MANY
from gradverify.verifier.process.run import verify
from gradverify.verifier.targets.discover import describe_target
from gradverify.verifier.verify.verification import Live

ENTRIES = 2 * MANY

OURS = 80
"""Tensors of the input's size beyond a plain forward and backward; second order is of twice its size."""


class Alive(TorchDispatchMode):
    """The most bytes that storages of at least one byte an entry held at once."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, tuple[int, weakref.ref]] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self._see(value.untyped_storage())
        return result

    @property
    def tensors(self) -> float:
        """The same in float64 tensors of `ENTRIES` entries."""
        return self.most / ENTRIES / 8

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size >= ENTRIES and key not in self._sizes:
            self._sizes[key] = size, weakref.ref(storage, lambda _: self._gone(key))
            self.now += size
            self.most = max(self.most, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)[0]


class Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh() * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = x.tanh()
        return grad_output * (t + x * (1 - t * t))


def test_a_large_input_is_held_few_times() -> None:
    plain = Alive()
    with plain:
        x = torch.ones(ENTRIES, dtype=torch.float64, requires_grad=True)
        y = Elementwise.apply(x)
        y.backward(torch.ones_like(y))
    del x, y

    settings = Settings()
    case = Case("", settings.seed, inputs=(TensorInput("x", (ENTRIES,)),))
    plan = TargetPlan("Elementwise", "Elementwise", InputSource.SPEC, cases=(case,))
    target = describe_target(Elementwise, "Elementwise", "Elementwise", __file__)
    ours = Alive()
    with ours:
        events = list(verify(Verify(target, plan, settings), Live(Elementwise)))
    judged = [e for e in events if type(e).__name__ == "CaseVerified"]
    assert judged and not [e for e in events if type(e).__name__ == "Found"]
    assert ours.tensors <= plain.tensors + OURS
    gc.collect()
    assert not ours.now
