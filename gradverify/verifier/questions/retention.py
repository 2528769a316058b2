"""GV413: what backward saved comes back as another tensor, from memory elsewhere or from a second forward.

GV411: memory that nobody lets go of.

Activation offloading packs and unpacks what `save_for_backward` was given; a checkpoint
(`torch.utils.checkpoint`, not reentrant) drops it and runs forward again, and leaves the random states as
backward has them. The checkpoint is written out here: importing torch's takes a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from gradverify.model import Finding, Severity, Swept
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.verified import Variant, Varied, Verified
from gradverify.verifier.questions.writes import attributes, saved_tensors

HINT = (
    "Read what backward needs from ctx.saved_tensors alone: attributes of a tensor, its identity and what a "
    "call leaves behind elsewhere are not there when saved tensors are offloaded or recomputed."
)

CALLS = 2
"""Calls after which tensors of the earlier ones must be gone; the last may be cached."""

MORE_CALLS = 8
"""Further calls where they are not: a cache of bounded size lets go of the first ones by then."""


def saved_elsewhere(base: Verified) -> Varied:
    """The gradient is the same where saved tensors are offloaded, and where they are recomputed."""
    # As with `torch.autograd.graph.save_on_cpu`: packed into a copy.
    offloaded = saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
    ways: dict[str, AbstractContextManager[object]] = {"saved tensors offloaded": offloaded}
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


def growing_memory(base: Verified) -> Varied:
    """An error when every call leaves tensors behind that outlive its graph."""
    swept = Swept(calls=("freed",))
    if not all(_every_call_keeps(base, count) for count in (CALLS, MORE_CALLS)):
        return Varied(swept=swept)
    finding = base.finding(
        "GV411",
        f"memory grows with every call: {MORE_CALLS} of {MORE_CALLS} calls left tensors alive after their "
        "graph was gone",
        hint="Something outside ctx holds them: a list, a dict or an attribute of the class or the module. "
        "Keep what backward needs with ctx.save_for_backward.",
        severity=Severity.ERROR,
    )
    return Varied((finding,), swept)


def _every_call_keeps(base: Verified, count: int) -> bool:
    """Whether each call but the last leaves storages alive that no other call has seen."""
    seen = [_call_and_let_go(base) for _ in range(count)]
    if not _is_kept_by_each(seen):
        return False
    gc.collect()  # a cycle through ctx is freed by the collector, which takes its time
    return _is_kept_by_each(seen)


def _is_kept_by_each(seen: list[list[StorageWeakRef]]) -> bool:
    for number, own in enumerate(seen[:-1]):
        others = {ref.cdata for k, other in enumerate(seen) if k != number for ref in other}
        alive = (ref for ref in own if not ref.expired())  # type: ignore[no-untyped-call]
        if all(ref.cdata in others for ref in alive):
            return False
    return True


class _Noting(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the storage of every tensor that an operation makes, without holding it."""

    def __init__(self) -> None:
        super().__init__()
        self.refs: dict[int, StorageWeakRef] = {}

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run an operation, and note what it returns."""
        result = func(*args, **given)
        self.note(result if isinstance(result, tuple | list) else (result,))
        return result

    def note(self, values: Iterable[Any]) -> None:
        """Note the tensors among some values."""
        for value in values:
            if isinstance(value, Tensor) and value.layout is torch.strided and value.numel():
                storage = value.untyped_storage()
                key = storage._cdata  # noqa: SLF001 - its only name
                self.refs.setdefault(key, StorageWeakRef(storage))  # type: ignore[no-untyped-call]


def _call_and_let_go(base: Verified) -> list[StorageWeakRef]:
    """Forward and backward of one call; weak references to every storage seen on the way."""
    grad_outputs = copies(base.grad_outputs())
    with _Noting() as noting:
        made = called(base.sample)
        if isinstance(made, Raised):
            return []
        call = made.value
        noting.note((*call.leaves, *call.passed, *call.returned, *saved_tensors(call), *grad_outputs))
        noting.note(t for _, t in attributes(call.node))
        result = backward(base.sample, call, grad_outputs)
        noting.note(() if isinstance(result, Raised) else result.value)
    return list(noting.refs.values())
