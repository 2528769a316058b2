"""GV413: what backward saved comes back as another tensor, from memory elsewhere or from a second forward.

Activation offloading packs and unpacks what `save_for_backward` was given; a checkpoint
(`torch.utils.checkpoint`, not reentrant) drops it and runs forward again, and leaves the random states as
backward has them. Neither keeps what hangs on the tensor object itself, or on a call. The checkpoint is
written out here: importing torch's takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gradverify.model import Finding, Severity, Swept
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.variations.call import called
from gradverify.verifier.variations.variation import Variant, Varied
from gradverify.verifier.variations.verified import Verified

HINT = (
    "Read what backward needs from ctx.saved_tensors alone: attributes of a tensor, its identity and what a "
    "call leaves behind elsewhere are not there when saved tensors are offloaded or recomputed."
)


def saved_elsewhere(base: Verified) -> Varied:
    """The gradient is the same where saved tensors are offloaded, and where they are recomputed."""
    ways: dict[str, AbstractContextManager[object]] = {"saved tensors offloaded": _offloaded()}
    if not base.forward_draws:
        ways["saved tensors recomputed"] = _recomputed(base.sample)
    found = [_found(base, words, saving) for words, saving in ways.items()]
    return Varied(tuple(f for f in found if f is not None)[:1], Swept(calls=tuple(ways)))


def _found(base: Verified, words: str, saving: AbstractContextManager[object]) -> Finding | None:
    variant = Variant("GV413", f"with its {words}", HINT)
    with saving:
        call = called(base.sample)
    found = call.error if isinstance(call, Raised) else variant.gradient(base, call.value)
    if found is None or isinstance(found, Finding):
        return found
    raised = variant.raised(base, found)
    return raised if raised.severity is Severity.ERROR else replace(raised, hint="")


def _offloaded() -> AbstractContextManager[object]:
    """As with `torch.autograd.graph.save_on_cpu`: packed into a copy."""
    return saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


@contextmanager
def _recomputed(sample: Sample) -> Iterator[None]:
    """As in a checkpoint: dropped, and taken from a second forward when backward asks for the first."""
    saved: list[None] = []
    again: list[Tensor] = []

    def pack(_: Tensor) -> int:
        saved.append(None)
        return len(saved) - 1

    def pack_again(tensor: Tensor) -> Tensor:
        again.append(tensor.detach())
        return again[-1]

    def unpack(number: int) -> Tensor:
        if not again:
            states = sample.problem.random_states.aside()
            with states, saved_tensors_hooks(pack_again, lambda t: t):
                called(sample)
            if len(again) != len(saved):
                message = f"forward saved {len(saved)} tensors at first, {len(again)} when it ran again"
                raise RuntimeError(message)
        return again[number]

    with saved_tensors_hooks(pack, unpack):
        yield
