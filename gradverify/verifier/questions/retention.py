"""GV413: what backward saved comes back as another tensor, from memory elsewhere or from a second forward.

GV411: memory that nobody lets go of.

Activation offloading packs and unpacks what `save_for_backward` was given; a checkpoint
(`torch.utils.checkpoint`, not reentrant) drops it and runs forward again, and leaves the random states as
backward has them. The checkpoint is written out here: importing torch's takes a second.
"""

from __future__ import annotations

import gc
from itertools import pairwise

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gradverify.model import Severity
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.verified import Variant, Varied, Verified

HINT = (
    "Read what backward needs from ctx.saved_tensors alone: attributes of a tensor, its identity and what a "
    "call leaves behind elsewhere are not there when saved tensors are offloaded or recomputed."
)

CALLS = 8
"""Calls that must each leave more tensors alive: a cache of bounded size lets go of the first by then."""


def saved_elsewhere(base: Verified) -> Varied:
    """The gradient is the same where saved tensors are offloaded, and where they are recomputed."""
    # As with `torch.autograd.graph.save_on_cpu`: packed into a copy.
    ways = {"saved tensors offloaded": saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)}
    if not base.forward_draws:
        ways["saved tensors recomputed"] = _recomputed(base.sample)
    for words, saving in ways.items():
        with saving:
            call = called(base.sample)
        found = Variant("GV413", f"with its {words}", HINT).judged(base, call)
        if found is not None:
            return Varied.of(found, calls=[*ways])
    return Varied.of(calls=[*ways])


def _recomputed(sample: Sample) -> saved_tensors_hooks:
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

    return saved_tensors_hooks(pack, unpack)


def growing_memory(base: Verified) -> Varied:
    """An error when every call leaves tensors behind that outlive its graph."""
    grows = _alive_after_a_call(base) < _alive_after_a_call(base)
    if grows:
        counts = [_alive_after_a_call(base, collect=True) for _ in range(CALLS + 1)]
        grows = all(one < later for one, later in pairwise(counts))
    finding = base.finding(
        "GV411",
        f"memory grows with every call: {CALLS} of {CALLS} calls left tensors alive after their "
        "graph was gone",
        hint="Something outside ctx holds them: a list, a dict or an attribute of the class or the module. "
        "Keep what backward needs with ctx.save_for_backward.",
        severity=Severity.ERROR,
    )
    return Varied.of(finding if grows else None, calls=["freed"])


def _alive_after_a_call(base: Verified, *, collect: bool = False) -> int:
    """How many tensors Python knows; `collect`: without those in cycles, as one through ctx is."""
    call = called(base.sample)
    if not isinstance(call, Raised):
        backward(base.sample, call.value, base.grad_outputs())
    del call
    if collect:
        gc.collect()
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())
