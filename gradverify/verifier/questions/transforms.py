"""What torch's transforms make of a verified sample: the capability table and what is wrong in it.

Only where the first order is verified: each transform is then held against the verified gradient.

GV505: torch.func must give the verified gradient of a Function with `setup_context`.

GV503: `torch.compile` must give the same values and gradients.

The backend is `aot_eager`: it traces and partitions as any other does, and needs no compiler.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import without_reading
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import (
    Tensors,
    copies,
    substitute,
    with_zeros,
)
from gradverify.verifier.questions.answers import NOT_RUN, UNSUPPORTED, Answer, outputs_of, refusal
from gradverify.verifier.questions.call import called
from gradverify.verifier.questions.forward_mode import forward_mode
from gradverify.verifier.questions.opcheck import registration
from gradverify.verifier.questions.verified import Variant, Verified, known
from gradverify.verifier.questions.vmap import batched

FUNC = Variant(
    "GV505",
    "under torch.func.vjp",
    "Keep tensors with ctx.save_for_backward alone and compute in forward and backward from what they are "
    "given: under torch.func a tensor kept elsewhere belongs to another level.",
)


def functional(base: Verified) -> Answer:
    """Hold `torch.func.vjp` against the verified gradient; a forward that takes ctx is refused by torch.

    So is the Function that torch makes of a custom op.
    """
    subject = base.sample.subject
    generated = subject.operator is not None and subject.operator.definition is not None
    if subject.function_class is None and not generated:
        return NOT_RUN
    if not subject.binds_defaults:
        return UNSUPPORTED
    problem = base.sample.problem
    problem.counter.forward += 1
    problem.counter.backward += 1
    problem.random_states.replay()
    result = guard.call(_vjp, base, base.grad_outputs())
    if isinstance(result, Raised):
        return Answer.of(refusal(base, FUNC.code, "torch.func.vjp", result.error))
    return Answer.of(FUNC.both(base, *result.value))


def _vjp(base: Verified, grad_outputs: Tensors) -> tuple[Tensors, Tensors]:
    """Pull back inside the transform's own level, which is what `torch.func.vjp`'s second value does later.

    That value loads torch's compiler when it is called (1.2 s, torch 2.13), to ask whether it is
    being compiled.
    """

    def call(*leaves: Tensor) -> tuple[Tensors, Tensors]:
        # Copies, as in an ordinary call: `mark_dirty` refuses the tensor itself.
        given = substitute(base.sample.arguments, [leaf.clone() for leaf in leaves])
        outputs = outputs_of(base.sample, base.sample.subject.function(*given))
        return outputs, with_zeros(vjp(outputs, leaves, grad_outputs, create=True), leaves)

    pulled: Any = torch.func.vjp(call, *copies(base.sample.problem.primals), has_aux=True)
    outputs, _, gradients = pulled
    return outputs, gradients


COMPILED = Variant(
    "GV503",
    "when compiled",
    "torch.compile traces forward and backward once: what they read from Python (attributes, counters, "
    "globals, .item()) is a constant in the compiled code. Pass it as an argument or keep it in tensors. If "
    "there is no such thing, torch.compile itself is wrong here, as it may be where forward writes in place.",
    is_mistake=lambda _: False,
)


def compiled(base: Verified) -> Answer:
    """Hold the compiled target against the verified values and gradient.

    Where torch cannot compile the whole call, the parts that it can must still be right: the answer is
    then `no`, and a wrong value an error all the same.
    """
    if base.draws:
        return NOT_RUN
    with without_reading(base.sample.subject.function_class):
        found = _compiled(base, whole=True)
        if found is not None and found.severity is Severity.NOTE:
            found = _compiled(base, whole=False) or found
    return Answer.of(found)


def _compiled(base: Verified, *, whole: bool) -> Finding | None:
    """What is wrong with the compiled target; a note where torch refuses it."""
    sample, target = base.sample, base.sample.subject.function

    def plain(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        return target(*arguments)

    made = guard.call(_made, plain, whole)
    if isinstance(made, Raised):
        return COMPILED.raised(base, made.error, "torch")
    problem = replace(sample.problem, function=made.value)
    return COMPILED.judged(base, called(replace(sample, problem=problem)))


def _made(function: Callable[..., Any], whole: bool) -> Callable[..., Any]:  # noqa: FBT001 - called through guard
    torch._dynamo.reset()  # noqa: SLF001 - the documented way to forget what was compiled for another case
    return torch.compile(function, backend="aot_eager", fullgraph=whole)


@dataclass(frozen=True)
class _Transform:
    name: str
    """In the capability table."""
    code: str
    run: Callable[[Verified, FirstOrder], Answer]
    on_request: bool = False
    """Only where it is selected by its whole code: torch's compiler has mistakes of its own."""


_TRANSFORMS = (
    _Transform("jvp", "GV501", forward_mode),
    _Transform("vmap", "GV502", lambda base, _: batched(base)),
    _Transform("func", "GV505", lambda base, _: functional(base)),
    _Transform("compile", "GV503", lambda base, _: compiled(base), on_request=True),
    _Transform("opcheck", "GV504", lambda base, _: registration(base)),
)

COMPILE = re.compile(r"\btorch\.compile\b")
"""Where a module's source has this, its Functions run compiled, and are tried so by default."""

TRANSFORM_CODES = frozenset(t.code for t in _TRANSFORMS)
"""Codes that only a transform can give."""


def transforms(sample: Sample, first: FirstOrder) -> CheckResult:
    """Run every transform that is asked for on a verified sample.

    A module is left out: its parameters are no arguments of its call. So is a target whose gradient is
    deliberately not the derivative, and a point with nothing to differentiate.
    """
    subject = sample.subject
    wanted = [t for t in _TRANSFORMS if _is_asked(t, subject)]
    is_module = subject.target.kind is TargetKind.MODULE or not subject.is_first_of_options
    if is_module or subject.short or subject.surrogate is not None or not first.verified or not wanted:
        return CheckResult()
    base = known(sample)
    if base is None:
        return CheckResult()
    answers = [(t.name, t.run(base, first)) for t in wanted]
    findings = tuple(f for _, answer in answers for f in answer.findings)
    capabilities = tuple((name, answer.capability) for name, answer in answers)
    return CheckResult(findings, outcome_of(findings), capabilities=capabilities)


def _is_asked(transform: _Transform, subject: Subject) -> bool:
    settings = subject.settings
    if any(transform.code.startswith(prefix) for prefix in settings.ignore):
        return False
    if transform.code in settings.select:
        return True
    if transform.on_request and (settings.select or not _compiles(subject)):
        return False
    return not settings.select or any(transform.code.startswith(prefix) for prefix in settings.select)


def _compiles(subject: Subject) -> bool:
    """Whether the source of the target's module itself speaks of torch.compile."""
    module = sys.modules.get(getattr(subject.function_class, "__module__", ""))
    lines = linecache.getlines(getattr(module, "__file__", None) or "")
    return any(COMPILE.search(line) for line in lines)
