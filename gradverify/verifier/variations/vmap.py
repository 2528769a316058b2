"""GV502: a Function's vmap rule against a loop over the batch, values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Point
from gradverify.verifier import guard
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.samples import arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate,
    returned_tensors,
)
from gradverify.verifier.variations.call import is_accident
from gradverify.verifier.variations.variation import NOT_RUN, UNSUPPORTED, Answer, Variant, refusal, wrong
from gradverify.verifier.variations.verified import Verified, verified

CODE = "GV502"

BATCH = 3
"""Elements of the batch: not the size of a dimension that two would often be."""

MOST_ALONE = 4
"""So many tensors are left out of the batch in turn."""

HINT = (
    "vmap(info, in_dims, *args) gets the batched arguments with the place of the batch dimension of each "
    "in in_dims (None: not batched), and returns (outputs, out_dims)."
)


@dataclass(frozen=True)
class _Batching:
    """Where the batch dimension of each argument lies."""

    said: str
    last: bool = False
    """Behind the other dimensions, else before them."""
    left_out: int | None = None
    """Position of a tensor argument that all elements share."""


@dataclass(frozen=True)
class _Element:
    """One element of the batch, by an ordinary call."""

    base: Verified
    u: Tensor
    gradient: Tensor

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        return self.base.sample.arguments


def batched(base: Verified) -> Answer:
    """Hold `torch.vmap` of the Function against one call for each element of a batch."""
    function_class, operator = base.sample.subject.function_class, base.sample.subject.operator
    if function_class is not None:
        own_rule = function_class.vmap is not Function.vmap
        if not own_rule and not function_class.generate_vmap_rule:
            return UNSUPPORTED
    elif operator is not None and operator.vmap_rule is not None:
        own_rule = True
    else:  # without a rule torch calls an operator once for each element, which needs no check
        return NOT_RUN
    draws = _draws(base.sample)
    if draws is None or base.draws:
        return NOT_RUN
    return _held_against_loops(base, draws, own_rule=own_rule)


def _held_against_loops(base: Verified, draws: Sequence[tuple[Argument, ...]], *, own_rule: bool) -> Answer:
    """Batch after batch; the first that is wrong is reported, and the first that is refused."""
    refused: list[Finding] = []
    answered = False
    for batching in _batchings(base.sample):
        elements = _elements(base.sample, draws, batching)
        if elements is None or (not own_rule and _is_miscounted(elements, batching)):
            continue
        result = _vmapped(elements, batching)
        if isinstance(result, Raised):
            if own_rule and is_accident(result.error):
                return wrong(Variant(CODE, batching.said, HINT).raised(base, result.error, "vmap"))
            refused.append(refusal(base, CODE, f"vmap {batching.said}", result.error))
            continue
        finding = _compared(elements, batching, *result.value)
        if finding is not None:
            return wrong(finding)
        answered = True
    if not answered and not refused:
        return NOT_RUN
    return Answer("yes" if answered else "no", tuple(refused[:1]))


def _is_miscounted(elements: Sequence[_Element], batching: _Batching) -> bool:
    """Whether torch's generated rule may be wrong here, and not the Function.

    Of an output that no batched input reaches, that rule adds up the grad_outputs of all elements and then
    counts the sum once for each element (torch 2.13).
    """
    values = torch.stack([e.base.values for e in elements])
    blocks = elements[0].base.sample.problem.outputs.blocks
    parts = (values[:, block.start : block.stop] for block in blocks)
    return batching.left_out is not None and any(bool((part == part[:1]).all()) for part in parts)


def _draws(sample: Sample) -> list[tuple[Argument, ...]] | None:
    """The arguments of each element: as many draws of the same case, alike but for the values of tensors."""
    draws = [sample.arguments]
    for further in range(1, BATCH):
        drawn = arguments_at(sample.subject, sample.case, Point.TYPICAL, sample.draw + further)
        if isinstance(drawn, Raised) or len(drawn) != len(sample.arguments):
            return None
        pairs = list(zip(sample.arguments, drawn, strict=True))
        if not all(_alike(a, b) for a, b in pairs):
            return None
        draws.append(tuple(b if isinstance(b.value, Tensor) else a for a, b in pairs))
    return draws


def _alike(one: Argument, other: Argument) -> bool:
    if one.name != other.name or one.in_list or one.differentiable != other.differentiable:
        return False
    if isinstance(one.value, Tensor) and isinstance(other.value, Tensor):
        strided = one.value.layout is torch.strided is other.value.layout
        return strided and one.value.shape == other.value.shape and one.value.dtype == other.value.dtype
    return not isinstance(one.value, Tensor) and not isinstance(other.value, Tensor)


def _batchings(sample: Sample) -> Iterator[_Batching]:
    places = [p for p, a in enumerate(sample.arguments) if isinstance(a.value, Tensor)]
    yield _Batching("over the first dimension")
    if any(sample.arguments[p].value.dim() for p in places):
        yield _Batching("over the last dimension", last=True)
    if len(places) > 1:
        for place in places[:MOST_ALONE]:
            name = sample.arguments[place].name
            yield _Batching(f"with `{name}` not batched (in_dims None)", left_out=place)


def _elements(
    sample: Sample, draws: Sequence[tuple[Argument, ...]], batching: _Batching
) -> list[_Element] | None:
    """An ordinary call for each element; None where one of them raises or has other shapes."""
    elements = []
    for number, drawn in enumerate(draws):
        shared = batching.left_out
        arguments = tuple(draws[0][p] if p == shared else a for p, a in enumerate(drawn))
        problem = replace(sample.problem, arguments=arguments)
        if isinstance(problem.evaluate(problem.primals), Raised):
            return None
        base = verified(replace(sample, arguments=arguments, problem=problem))
        if base is None or not base.values.isfinite().all():
            return None
        u = random_signs(problem.outputs.size, sample.case.seed + 307 + number)
        gradient = base.gradient_for(u)
        if gradient is None:
            return None
        elements.append(_Element(base, u, gradient))
    return elements


def _vmapped(
    elements: Sequence[_Element], batching: _Batching
) -> Returned[tuple[Tensors, list[Gradients]]] | Raised:
    """Outputs with the batch dimension first, and the gradients of every element's inputs.

    The gradient of an input that all share comes with the first element: it is the sum.
    """
    sample = elements[0].base.sample
    problem = sample.problem
    problem.counter.forward += 1
    problem.counter.backward += 1
    problem.random_states.replay()
    leaves = [list(copies(e.base.sample.problem.primals)) for e in elements]
    shared = _input_of(sample, batching.left_out)
    if shared is not None:
        for own in leaves[1:]:
            own[shared] = leaves[0][shared]
    result = guard.call(_forward_and_backward, elements, batching, leaves)
    if isinstance(result, Raised):
        return result
    outputs, flat = result.value
    count = len(problem.primals)
    gradients = [flat[k * count : (k + 1) * count] for k in range(len(elements))]
    if shared is not None:
        gradients[1:] = [(*g[:shared], None, *g[shared + 1 :]) for g in gradients[1:]]
    return Returned((outputs, gradients))


def _forward_and_backward(
    elements: Sequence[_Element], batching: _Batching, leaves: Sequence[Sequence[Tensor]]
) -> tuple[Tensors, Gradients]:
    sample = elements[0].base.sample

    def call(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments
        returned = returned_tensors(sample.subject.function(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    flat = [leaf.requires_grad_() for own in leaves for leaf in own]
    with torch.enable_grad():
        values, in_dims = _stacked(elements, batching, leaves)
        outputs = torch.vmap(call, in_dims=in_dims)(*values)
    grad_outputs = [
        torch.stack(parts) for parts in zip(*(e.base.grad_outputs(e.u) for e in elements), strict=True)
    ]
    if [o.shape for o in outputs] != [g.shape for g in grad_outputs]:
        return tuple(copies(outputs)), ()
    return copies(outputs), differentiate(outputs, flat, grad_outputs)


def _stacked(
    elements: Sequence[_Element], batching: _Batching, leaves: Sequence[Sequence[Tensor]]
) -> tuple[list[Any], tuple[int | None, ...]]:
    """The batched arguments, and where the batch dimension of each lies."""
    values: list[Any] = []
    in_dims: list[int | None] = []
    rest = [iter(own) for own in leaves]
    for place, alike in enumerate(zip(*(e.arguments for e in elements), strict=True)):
        parts = [
            a.moved(next(own).clone()) if a.differentiable else a.value
            for a, own in zip(alike, rest, strict=True)
        ]
        first = parts[0]
        if isinstance(first, Tensor) and place != batching.left_out:
            in_dims.append(first.dim() if batching.last else 0)
            values.append(torch.stack(parts, dim=in_dims[-1] or 0))
        else:
            in_dims.append(None)
            values.append(first.clone() if isinstance(first, Tensor) else first)
    return values, tuple(in_dims)


def _input_of(sample: Sample, place: int | None) -> int | None:
    """The number of the differentiable input at a place among the arguments, None where there is none."""
    if place is None or not sample.arguments[place].differentiable:
        return None
    return sum(a.differentiable for a in sample.arguments[:place])


def _compared(
    elements: Sequence[_Element], batching: _Batching, outputs: Tensors, gradients: Sequence[Gradients]
) -> Finding | None:
    """What is wrong with a batch, None where it is what the loop gives."""
    base = elements[0].base
    expected = [tuple(g.shape) for g in base.grad_outputs()]
    got = [tuple(o.shape) for o in outputs]
    if got != [(len(elements), *shape) for shape in expected]:
        said = f"vmap {batching.said} gives results of shape {got}, for a batch of 3 where one has {expected}"
        return base.finding(CODE, said, hint=HINT)
    shared = _input_of(base.sample, batching.left_out)
    own = frozenset(range(len(base.names))) - {shared}
    for number, (element, gradient) in enumerate(zip(elements, gradients, strict=True)):
        variant = Variant(CODE, f"for element {number} under vmap {batching.said}", HINT)
        moved = variant.forward(element.base, [o[number] for o in outputs])
        difference = element.base.difference(gradient, element.gradient, u=element.u, only=own)
        if moved is not None:
            return moved
        if difference is not None:
            return variant.differs(element.base, difference)
    if shared is None:
        return None
    total = torch.stack([e.gradient for e in elements]).sum(dim=0)
    off = base.difference(gradients[0], total, u=elements[0].u, only=frozenset({shared}))
    return None if off is None else Variant(CODE, f"under vmap {batching.said}", HINT).differs(base, off)
