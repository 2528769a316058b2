"""GV413: what backward saved comes back as another tensor, from memory elsewhere or from a second forward.

Activation offloading packs and unpacks what `save_for_backward` was given; a checkpoint
(`torch.utils.checkpoint`, not reentrant) drops it and runs forward again. Neither keeps what hangs on the
tensor object itself, or on a call. The checkpoint is written out here: importing torch's takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gradverify.model import Finding, Severity, Swept
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.variations.running import backward, called, is_accident
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.guard import Raised

Saving = Callable[[Sample], AbstractContextManager[None]]
"""What holds while forward runs."""

HINT = (
    "Read what backward needs from ctx.saved_tensors alone: attributes of a tensor, its identity and what a "
    "call leaves behind elsewhere are not there when saved tensors are offloaded or recomputed."
)


def saved_elsewhere(base: Verified) -> Varied:
    """The gradient is the same where saved tensors are offloaded, and where they are recomputed."""
    findings: list[Finding] = []
    ways: list[tuple[str, Saving]] = [("saved tensors offloaded", _offloaded)]
    if not base.forward_draws:
        ways.append(("saved tensors recomputed", _recomputed))
    for words, saving in ways:
        finding = _found(base, words, saving)
        if finding is not None:
            findings.append(finding)
    return Varied(tuple(findings[:1]), Swept(calls=tuple(words for words, _ in ways)))


def _found(base: Verified, words: str, saving: Saving) -> Finding | None:
    with saving(base.sample):
        call = called(base.sample)
    result = call if isinstance(call, Raised) else backward(base.sample, call.value, base.grad_outputs())
    if isinstance(result, Raised):
        accident = is_accident(result.error)
        return base.finding(
            "GV413",
            f"with its {words} backward raises {result.error.type}: {first_line(result.error.message)}",
            severity=Severity.ERROR if accident else Severity.NOTE,
            hint=HINT if accident else "",
            raised=result.error,
        )
    difference = base.difference(result.value)
    if difference is None:
        return None
    return base.finding(
        "GV413",
        f"with its {words} the gradient of `{difference.name}` is another one: {difference.place} is "
        f"{difference.values}",
        hint=HINT,
        input=difference.name,
    )


@contextmanager
def _offloaded(_: Sample) -> Iterator[None]:
    """As with `torch.autograd.graph.save_on_cpu`: packed into a copy."""
    with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        yield


@contextmanager
def _recomputed(sample: Sample) -> Iterator[None]:
    """As in a checkpoint: dropped, and taken from a second forward when backward asks for the first."""
    saved = 0
    again: list[Tensor] = []

    def pack(_: Tensor) -> int:
        nonlocal saved
        saved += 1
        return saved - 1

    def unpack(number: int) -> Tensor:
        if not again:
            with saved_tensors_hooks(_kept_in(again), lambda t: t):
                called(sample)
            if len(again) != saved:
                message = f"forward saved {saved} tensors at first, {len(again)} when it ran again"
                raise RuntimeError(message)
        return again[number]

    with saved_tensors_hooks(pack, unpack):
        yield


def _kept_in(found: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor.detach())
        return found[-1]

    return pack
