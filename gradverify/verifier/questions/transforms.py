"""What torch's transforms make of a verified sample: the capability table and what is wrong in it.

Only where the first order is verified: each transform is then held against the verified gradient.

GV505: torch.func must give the verified gradient of a Function with `setup_context`.

GV502: a Function's vmap rule against a loop over the batch. The loop is a call like any other: of all the
elements at once, and of one tensor where they share it.

GV503: `torch.compile` must give the same values and gradients.

The backend is `aot_eager`: it traces and partitions as any other does, and needs no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Severity, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import vjp
from gradverify.verifier.numerics.calling import (
    Tensors,
    copies,
    substitute,
    with_zeros,
)
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.questions.call import called, outputs_of
from gradverify.verifier.questions.forward_mode import forward_mode
from gradverify.verifier.questions.opcheck import registration
from gradverify.verifier.questions.reading import without_reading
from gradverify.verifier.questions.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.questions.subject import Sample, Subject
from gradverify.verifier.questions.verified import (
    NOT_RUN,
    UNSUPPORTED,
    Answer,
    Variant,
    Verified,
    cotangents,
    drawn_again,
    known,
    lines_of,
    verified,
)
from gradverify.verifier.questions.wording import listed_names

FUNC = Variant(
    "GV505",
    "under torch.func.vjp",
    "Keep tensors with ctx.save_for_backward alone and compute in forward and backward from what they are "
    "given: under torch.func a tensor kept elsewhere belongs to another level.",
    is_mistake=lambda _: False,
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
        return Answer.of(FUNC.raised(base, result.error, "the call"))
    outputs, gradients = result.value
    return Answer.of(FUNC.forward(base, outputs) or FUNC.differs(base, base.difference(gradients)))


def _vjp(base: Verified, grad_outputs: Tensors) -> tuple[Tensors, Tensors]:
    """Pull back inside the transform's own level, which is what `torch.func.vjp`'s second value does later.

    That value loads torch's compiler when it is called (1.2 s, torch 2.13), to ask whether it is
    being compiled.
    """

    def call(*leaves: Tensor) -> tuple[Tensors, Tensors]:
        # Copies, as in an ordinary call: `mark_dirty` refuses the tensor itself.
        given = substitute(base.sample.arguments, [leaf.clone() for leaf in leaves])
        outputs = outputs_of(base.sample.problem, base.sample.subject.function(*given))
        return outputs, with_zeros(vjp(outputs, leaves, grad_outputs, create=True), leaves)

    pulled: Any = torch.func.vjp(call, *copies(base.sample.problem.primals), has_aux=True)
    outputs, _, gradients = pulled
    return outputs, gradients


BATCH = 3
"""Elements of the batch where no dimension is as short as `LARGEST_BATCH`."""

LARGEST_BATCH = 8
"""Elements of a batch that is as long as another dimension: one taken for the other does not raise."""

MOST_ALONE = 4
"""So many tensors are left out of the batch in turn."""

GENERATED = (
    "torch generates this rule (generate_vmap_rule): it says nothing of backward. "
    "A rule of its own is judged."
)

HINT = (
    "vmap(info, in_dims, *args) gets the batched arguments with the place of the batch dimension of each "
    "in in_dims (None: not batched), and returns (outputs, out_dims)."
)

SIDES = {"first": 0, "last": -1}
"""Where the batch dimension is."""

Dims = tuple[int | None, ...]
"""The batch dimension of each argument; None where all elements share it."""


def batched(base: Verified) -> Answer:
    """Hold `torch.vmap` of the Function against one call for each element of a batch.

    The first batch that is wrong is reported, and the first that is refused. A rule that torch generates
    fails nothing: what it gives is torch's.
    """
    sample = base.sample
    function_class, operator = sample.subject.function_class, sample.subject.operator
    own_rule = function_class is not None and function_class.vmap is not Function.vmap
    if function_class is not None and not own_rule and not function_class.generate_vmap_rule:
        return UNSUPPORTED
    if function_class is None:  # without a rule torch calls an operator once for each element
        own_rule = operator is not None and operator.vmap_rule is not None
    if base.draws or not (own_rule or function_class is not None):
        return NOT_RUN
    found: list[Finding | None] = []
    for said, dims, count in _batchings(sample, own_rule=own_rule):
        loop = _loop(sample, dims, count)
        if loop is None:
            continue
        by_rule = partial(_by_rule, sample, dims)
        call = called(replace(loop.sample, problem=replace(loop.sample.problem, function=by_rule)))
        wrong = Variant("GV502", f"under vmap {said}", HINT).judged(loop, call)
        if wrong is not None and not own_rule:
            wrong = replace(wrong, severity=Severity.NOTE, hint=GENERATED)
        if wrong is not None and wrong.severity is Severity.ERROR:
            return Answer.of(wrong)
        found.append(wrong)
    refused = [one for one in found if one is not None][:1]
    return Answer("yes" if None in found else "no", tuple(refused)) if found else NOT_RUN


def _batchings(sample: Sample, *, own_rule: bool) -> Iterator[tuple[str, Dims, int]]:
    """All over one dimension, each left out; of an own rule a batch of one and different dimensions, too."""
    names = {p: a.name for p, a in enumerate(sample.arguments) if isinstance(a.value, Tensor)}
    sizes = [n for p in names for n in sample.arguments[p].value.shape]
    count = min((n for n in sizes if 1 < n <= LARGEST_BATCH), default=BATCH)
    sides = [*SIDES][: 1 + bool(sizes)]
    rows: list[tuple[dict[int, str], int]] = [(dict.fromkeys(names, side), count) for side in sides]
    rows += [(dict.fromkeys(names, "first"), 1)] if own_rule else []
    others = dict.fromkeys(names, sides[-1] if own_rule else "first")
    for left_out in [*names][:MOST_ALONE] if len(names) > 1 else ():
        rows.append(({p: side for p, side in others.items() if p != left_out}, count))
    rows += [(dict(zip(names, cycle(sides), strict=False)), count)] if own_rule and len(names) > 1 else []
    for of, length in rows:
        over = {side: listed_names([names[p] for p in of if of[p] == side]) for side in of.values()}
        said = [f"over the {side} dimension of {which}" for side, which in over.items()]
        said += [f"with `{names[p]}` not batched (in_dims None)" for p in names if p not in of]
        dims = tuple(SIDES[of[p]] if p in of else None for p in range(len(sample.arguments)))
        yield f"{' and '.join(said)}, in a batch of {length}", dims, length


def _loop(sample: Sample, dims: Dims, count: int) -> Verified | None:
    """One ordinary call for each element of a batch, as a call of all; None where nothing is known of it."""
    drawn = [sample.arguments, *(drawn_again(sample, number) for number in range(1, count))]
    elements = [one for one in drawn if one is not None]
    if len(elements) < count or any(a.in_list for a in sample.arguments):
        return None
    alike = zip(dims, zip(*elements, strict=True), strict=True)
    arguments = tuple(
        a
        if dim is None
        else replace(a, value=torch.stack([one.value for one in (a, *others)], dim), step=None)
        for dim, (a, *others) in alike
    )
    problem = sample.problem
    outputs = [torch.stack([zero] * count) for zero in problem.outputs.unflatten(cotangents(sample))]

    def one_by_one(*given: Any) -> Tensors:  # noqa: ANN401 - user code's arguments
        problem.counter.forward += count - 1
        problem.counter.backward += (count - 1) * torch.is_grad_enabled()
        pairs = list(zip(given, dims, strict=True))
        elements = [[v if d is None else v.select(d, k).clone() for v, d in pairs] for k in range(count)]
        rows = [outputs_of(sample.problem, problem.function(*element)) for element in elements]
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    positions = tuple(range(len(outputs)))
    batch = replace(problem, function=one_by_one, arguments=arguments, outputs=Layout.of(outputs))
    return verified(replace(sample, arguments=arguments, problem=replace(batch, output_positions=positions)))


def _by_rule(sample: Sample, dims: Dims, *given: Any) -> Any:  # noqa: ANN401 - user code's arguments
    """The same by the rule: a call of the Function itself, whose backward nobody reads."""

    def call(*one: Any) -> Tensors:  # noqa: ANN401
        return outputs_of(sample.problem, sample.subject.function(*one))

    return torch.vmap(call, in_dims=dims)(*given)


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
    is_module = subject.target.kind is TargetKind.MODULE or not subject.is_base
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
    runs_compiled = subject.function_class is not None and any(map(COMPILE.search, lines_of(subject)))
    if transform.on_request and (settings.select or not runs_compiled):
        return False
    return not settings.select or any(transform.code.startswith(prefix) for prefix in settings.select)
