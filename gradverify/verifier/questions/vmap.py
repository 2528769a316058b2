"""GV502: a Function's vmap rule against a loop over the batch, values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Point, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.samples import arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Gradients, Tensors, copies, differentiate, returned_tensors
from gradverify.verifier.questions.answers import NOT_RUN, UNSUPPORTED, Answer, refusal, wrong
from gradverify.verifier.questions.call import is_accident
from gradverify.verifier.questions.verified import Variant, Verified

CODE = "GV502"

BATCH = 3
"""Elements of the batch: not the size of a dimension that two would often be."""

LARGEST_BATCH = 8
"""Elements of a batch that is as long as another dimension."""

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

FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class _Batching:
    """Where the batch dimension of each tensor argument lies, and how long it is."""

    said: str
    dims: dict[int, str | None]
    """By position: before the other dimensions, behind them, or None for a tensor that all elements share."""
    count: int = BATCH

    @property
    def left_out(self) -> int | None:
        """Position of the tensor argument that all elements share."""
        return next((place for place, where in self.dims.items() if where is None), None)

    def dim_of(self, place: int, element: Any) -> int | None:  # noqa: ANN401
        """The batch dimension of an argument, None where it has none."""
        where = self.dims.get(place)
        return None if where is None else element.dim() if where == LAST else 0


def batched(base: Verified) -> Answer:
    """Hold `torch.vmap` of the Function against one call for each element of a batch.

    The first batch that is wrong is reported, and the first that is refused. A rule that torch generates
    fails nothing: what it gives is torch's.
    """
    function_class, operator = base.sample.subject.function_class, base.sample.subject.operator
    own_rule = function_class is not None and function_class.vmap is not Function.vmap
    if function_class is not None and not own_rule and not function_class.generate_vmap_rule:
        return UNSUPPORTED
    if function_class is None:  # without a rule torch calls an operator once for each element
        own_rule = operator is not None and operator.vmap_rule is not None
    if base.draws or not (own_rule or function_class is not None):
        return NOT_RUN
    notes: list[Finding] = []
    answered = False
    for batching in _batchings(base.sample, own_rule=own_rule):
        elements = _elements(base, batching)
        if elements is None:
            continue
        finding = _judged(elements, batching, own_rule=own_rule)
        if finding is not None and finding.severity is Severity.ERROR:
            return wrong(finding)
        notes += [] if finding is None else [finding]
        answered = answered or finding is None
    if not answered and not notes:
        return NOT_RUN
    return Answer("yes" if answered else "no", tuple(notes[:1]))


def _batchings(sample: Sample, *, own_rule: bool) -> Iterator[_Batching]:
    """All over one dimension, each left out; of an own rule a batch of one and over different ones as well.

    There the batch is as long as a dimension: one taken for another is an exception at most other sizes.
    """
    places = [p for p, a in enumerate(sample.arguments) if isinstance(a.value, Tensor)]
    names = {p: sample.arguments[p].name for p in places}
    sizes = [n for p in places for n in sample.arguments[p].value.shape]
    yield _Batching("over the first dimension", dict.fromkeys(places, FIRST))
    if sizes:
        yield _Batching("over the last dimension", dict.fromkeys(places, LAST))
    if own_rule:
        yield _Batching("over the first dimension, in a batch of one,", dict.fromkeys(places, FIRST), 1)
    count = next((n for n in sizes if 1 < n <= LARGEST_BATCH), BATCH)
    for where in (FIRST, LAST)[: 1 + (own_rule and bool(sizes))] if len(places) > 1 else ():
        others = "" if where == FIRST else ", the others over the last dimension"
        for place in places[:MOST_ALONE]:
            said = f"with `{names[place]}` not batched (in_dims None){others}"
            dims = {p: None if p == place else where for p in places}
            yield _Batching(said, dims, BATCH if where == FIRST else count)
    for order in ((FIRST, LAST), (LAST, FIRST)) if own_rule and sizes and len(places) > 1 else ():
        dims = {p: order[k % 2] for k, p in enumerate(places)}
        said = " and ".join(
            f"over the {one} dimension of {listed_names([names[p] for p in places if dims[p] == one])}"
            for one in (FIRST, LAST)
        )
        yield _Batching(said, dims, count)


def _elements(base: Verified, batching: _Batching) -> list[Verified] | None:
    """An ordinary call for each element, which share an argument; None where one raises or is not finite."""
    sample, elements = base.sample, []
    for number in range(batching.count):
        drawn: Any = sample.arguments
        if number:
            drawn = arguments_at(sample.subject, sample.case, Point.TYPICAL, sample.draw + number)
        if isinstance(drawn, Raised) or list(map(_shape, drawn)) != list(map(_shape, sample.arguments)):
            return None
        pairs = enumerate(zip(sample.arguments, drawn, strict=True))
        kept = tuple(b if p in batching.dims and p != batching.left_out else a for p, (a, b) in pairs)
        made = base.at(kept)
        if made is None or not made.values.isfinite().all():
            return None
        times = 1 + number  # no two grad_outputs are the same
        elements.append(replace(made, u=times * made.u, gradient=times * made.gradient))
    return elements


def _shape(argument: Argument) -> object:
    value, kind = argument.value, None
    if isinstance(value, Tensor):
        kind = (value.shape, value.dtype, value.layout is torch.strided or argument)
    return argument.name, argument.in_list and argument, argument.differentiable, kind


def _judged(elements: Sequence[Verified], batching: _Batching, *, own_rule: bool) -> Finding | None:
    """An error where a rule is wrong; a note where it refuses, or torch's own is wrong."""
    base = elements[0]
    problem = base.sample.problem
    problem.counter.forward += 1
    problem.counter.backward += 1
    problem.random_states.replay()
    result = guard.call(_forward_and_backward, elements, batching)
    if isinstance(result, Raised):
        if own_rule and is_accident(result.error):
            return Variant(CODE, batching.said, HINT).raised(base, result.error, "vmap")
        return refusal(base, CODE, f"vmap {batching.said}", result.error)
    finding = _compared(elements, batching, *result.value)
    return (
        finding if own_rule or finding is None else replace(finding, severity=Severity.NOTE, hint=GENERATED)
    )


def _forward_and_backward(elements: Sequence[Verified], batching: _Batching) -> tuple[Tensors, Gradients]:
    """Outputs and gradients, both with the batch dimension first; of what all share the sum."""
    sample = elements[0].sample

    def call(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments
        returned = returned_tensors(sample.subject.function(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    leaves, values, in_dims = [], [], []
    with torch.enable_grad():
        for place, alike in enumerate(zip(*(e.sample.arguments for e in elements), strict=True)):
            first, dim = alike[0], batching.dim_of(place, alike[0].value)
            parts = [a.value for a in alike]
            if first.differentiable:
                leaves.append(
                    (parts[0].detach().clone() if dim is None else torch.stack(parts)).requires_grad_()
                )
                given = [leaves[-1]] if dim is None else leaves[-1].unbind()
                parts = [a.moved(one.clone()) for a, one in zip(alike, given, strict=False)]
            is_plain = dim is None and isinstance(parts[0], Tensor)
            values.append(
                torch.stack(parts, dim) if dim is not None else parts[0].clone() if is_plain else parts[0]
            )
            in_dims.append(dim)
        outputs = torch.vmap(call, in_dims=tuple(in_dims))(*values)
    grad_outputs = [torch.stack(parts) for parts in zip(*(e.grad_outputs() for e in elements), strict=True)]
    if [o.shape for o in outputs] != [g.shape for g in grad_outputs]:
        return copies(outputs), ()
    return copies(outputs), differentiate(outputs, leaves, grad_outputs)


def _compared(
    elements: Sequence[Verified], batching: _Batching, outputs: Tensors, gradients: Gradients
) -> Finding | None:
    """What is wrong with a batch, None where it is what the loop gives."""
    base, count = elements[0], len(elements)
    expected = [tuple(g.shape) for g in base.grad_outputs()]
    got = [tuple(o.shape) for o in outputs]
    if got != [(count, *shape) for shape in expected]:
        of = f"for a batch of {count} where one has {expected}"
        said = f"vmap {batching.said} gives results of shape {got}, {of}"
        return base.finding(CODE, said, hint=HINT)
    places = [p for p, a in enumerate(base.sample.arguments) if a.differentiable]
    shared = {k for k, place in enumerate(places) if place == batching.left_out}
    own = frozenset(range(len(places))) - shared
    for number, element in enumerate(elements):
        variant = Variant(CODE, f"for element {number} under vmap {batching.said}", HINT)
        moved = variant.forward(element, [o[number] for o in outputs])
        if moved is not None:
            return moved
        gradient = tuple(g[number] if g is not None and k in own else None for k, g in enumerate(gradients))
        difference = element.difference(gradient, only=own)
        if difference is not None:
            return variant.differs(element, difference)
    total = torch.stack([e.gradient for e in elements]).sum(dim=0)
    sums = tuple(g if k in shared else None for k, g in enumerate(gradients))
    off = base.difference(sums, total, only=frozenset(shared)) if shared else None
    return None if off is None else Variant(CODE, f"under vmap {batching.said}", HINT).differs(base, off)
