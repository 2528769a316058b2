"""GV503: `torch.compile` must give the same values and gradients.

The backend is `aot_eager`: it traces and partitions as any other does, and needs no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gradverify.model import RaisedError
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import without_reading
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors, copies, differentiate
from gradverify.verifier.variations.call import called
from gradverify.verifier.variations.variation import NOT_RUN, Answer, Variant, refusal, wrong
from gradverify.verifier.variations.verified import Verified

COMPILED = Variant(
    "GV503",
    "when compiled",
    "torch.compile traces forward and backward once: what they read from Python (attributes, counters, "
    "globals, .item()) is a constant in the compiled code. Pass it as an argument or keep it in tensors. If "
    "there is no such thing, torch.compile itself is wrong here, as it may be where forward writes in place.",
)


def compiled(base: Verified) -> Answer:
    """Hold the compiled target against the verified values and gradient.

    Where torch cannot compile the whole call, the parts that it can must still be right: the answer is
    then `no`, and a wrong value an error all the same.
    """
    if base.draws:
        return NOT_RUN
    with without_reading(base.sample.subject.function_class):
        whole = _compiled(base, whole=True)
        parts = _compiled(base, whole=False) if isinstance(whole, Raised) else whole
    if isinstance(parts, Raised):
        return Answer("no", (refusal(base, COMPILED.code, "torch.compile", parts.error),))
    finding = COMPILED.both(base, *parts.value)
    if finding is not None:
        return wrong(finding)
    if isinstance(whole, Raised):
        said = "torch.compile of the whole call"
        return Answer("no", (refusal(base, COMPILED.code, said, whole.error),))
    return Answer("yes")


def _compiled(base: Verified, *, whole: bool) -> Returned[tuple[Tensors, Gradients]] | Raised:
    """Values and gradients of the compiled target."""
    sample, target = base.sample, base.sample.subject.function

    def plain(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        return target(*arguments)

    made = guard.call(_made, plain, whole)
    if isinstance(made, Raised):
        return made
    call = called(replace(sample, problem=replace(sample.problem, function=made.value)))
    if isinstance(call, Raised):
        return call
    if [tuple(t.shape) for t in call.value.outputs] != [tuple(t.shape) for t in base.grad_outputs()]:
        return Raised(RaisedError("ValueError", "the compiled forward returns other shapes"))
    outputs = copies(call.value.outputs)
    sample.problem.counter.backward += 1
    sample.problem.random_states.replay()
    result = guard.call(differentiate, call.value.outputs, call.value.leaves, base.grad_outputs())
    return result if isinstance(result, Raised) else Returned((outputs, result.value))


def _made(function: Callable[..., Any], whole: bool) -> Callable[..., Any]:  # noqa: FBT001 - called through guard
    torch._dynamo.reset()  # noqa: SLF001 - the documented way to forget what was compiled for another case
    return torch.compile(function, backend="aot_eager", fullgraph=whole)
