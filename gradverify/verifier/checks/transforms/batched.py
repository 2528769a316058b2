"""GV502: a Function's vmap rule against a loop over the batch, values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Point, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample, arguments_at, first_line
from gradverify.verifier.checks.transforms.answer import NOT_RUN, UNSUPPORTED, Answer, refusal, wrong
from gradverify.verifier.checks.variations.running import is_accident
from gradverify.verifier.checks.variations.verified import Verified, verified
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate,
    returned_tensors,
)
from gradverify.verifier.numerics.flat import Block

CODE = "GV502"

BATCH = 3
"""Elements of the batch: not the size of a dimension that two would often be."""

MOST_ALONE = 4
"""So many tensors are left out of the batch in turn."""

MISCOUNTED = (
    "That is a mistake of torch's. Where it matters, write vmap(info, in_dims, *args), or return such an "
    "output from a Function of its own."
)

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
    if draws is None or base.forward_draws or base.backward_draws:
        return NOT_RUN
    return _held_against_loops(base, draws, own_rule=own_rule)


def _held_against_loops(base: Verified, draws: Sequence[tuple[Argument, ...]], *, own_rule: bool) -> Answer:
    """Batch after batch; the first that is wrong is told, and the first that is refused."""
    findings, answered = [], False
    for batching in _batchings(base.sample):
        elements = _elements(base.sample, draws, batching)
        if elements is None:
            continue
        result = _vmapped(elements, batching)
        if isinstance(result, Raised):
            if own_rule and is_accident(result.error):
                said = f"vmap raises {result.error.type} {batching.said}: {first_line(result.error.message)}"
                return wrong(base.finding(CODE, said, hint=HINT, raised=result.error))
            findings.append(refusal(base, CODE, f"vmap {batching.said}", result.error))
            continue
        answer = _compared(elements, batching, *result.value)
        if answer is not None and not own_rule:
            miscounted = _miscounted(elements, batching)
            if miscounted is not None:
                findings.insert(0, miscounted)
                answer = None
        if answer is not None:
            return answer
        answered = True
    if answered:
        return Answer("yes", tuple(findings[:1]))
    return Answer("no", tuple(findings[:1])) if findings else NOT_RUN


def _miscounted(elements: Sequence[_Element], batching: _Batching) -> Finding | None:
    """A warning where torch's generated rule, and not the Function, is what is wrong.

    Of an output that no batched input reaches, that rule adds up the grad_outputs of all elements and then
    counts the sum once for each element (torch 2.13). Without the grad_outputs of such outputs, the
    gradients of a right Function are those of a loop.
    """
    problem = elements[0].base.sample.problem
    alone = [
        block
        for block in problem.outputs.blocks
        if all(
            torch.equal(
                e.base.values[block.start : block.stop], elements[0].base.values[block.start : block.stop]
            )
            for e in elements
        )
    ]
    if batching.left_out is None or not alone:
        return None
    without = [_without(element, alone) for element in elements]
    known = [e for e in without if e is not None]
    result = _vmapped(known, batching) if len(known) == len(elements) else None
    if result is None or isinstance(result, Raised) or _compared(known, batching, *result.value) is not None:
        return None
    numbers = [k for k, block in enumerate(problem.outputs.blocks) if block in alone]
    said = (
        f"under vmap {batching.said} the rule that torch generates counts the gradient of output "
        f"{numbers[0]}, which no batched input reaches, once for each element; the Function is right"
    )
    return elements[0].base.finding(CODE, said, hint=MISCOUNTED, severity=Severity.WARNING)


def _without(element: _Element, blocks: Sequence[Block]) -> _Element | None:
    """The element with zeros for the grad_outputs of some outputs."""
    u = element.u.clone()
    for block in blocks:
        u[block.start : block.stop] = 0.0
    gradient = element.base.gradient_for(u)
    return None if gradient is None else _Element(element.base, u, gradient)


def _draws(sample: Sample) -> list[tuple[Argument, ...]] | None:
    """The arguments of each element: as many draws of the same case, alike but for the values of tensors."""
    draws = [sample.arguments]
    for further in range(1, BATCH):
        drawn = arguments_at(sample.subject, sample.case, Point.TYPICAL, sample.draw + further)
        if isinstance(drawn, Raised) or len(drawn) != len(sample.arguments):
            return None
        if not all(map(_alike, sample.arguments, drawn)):
            return None
        draws.append(
            tuple(
                b if isinstance(b.value, Tensor) else a for a, b in zip(sample.arguments, drawn, strict=True)
            )
        )
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
    gradients: list[list[Tensor | None]] = [
        list(flat[k * count : (k + 1) * count]) for k in range(len(elements))
    ]
    if shared is not None:
        for found in gradients[1:]:
            found[shared] = None
    return Returned((outputs, [tuple(found) for found in gradients]))


def _forward_and_backward(
    elements: Sequence[_Element], batching: _Batching, leaves: Sequence[Sequence[Tensor]]
) -> tuple[Tensors, Gradients]:
    sample = elements[0].base.sample
    for own in leaves:
        for leaf in own:
            leaf.requires_grad_()

    def call(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments
        returned = returned_tensors(sample.subject.function(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    with torch.enable_grad():
        values, in_dims = _stacked(elements, batching, leaves)
        outputs = torch.vmap(call, in_dims=in_dims)(*values)
    grad_outputs = [
        torch.stack(parts) for parts in zip(*(e.base.grad_outputs(e.u) for e in elements), strict=True)
    ]
    if [o.shape for o in outputs] != [g.shape for g in grad_outputs]:
        return tuple(copies(outputs)), ()
    kept = copies(outputs)
    return kept, differentiate(outputs, [leaf for own in leaves for leaf in own], grad_outputs)


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
        is_batched = isinstance(parts[0], Tensor) and place != batching.left_out
        dimension = parts[0].dim() if is_batched and batching.last else 0
        values.append(torch.stack(parts, dim=dimension) if is_batched else _fresh(parts[0]))
        in_dims.append(dimension if is_batched else None)
    return values, tuple(in_dims)


def _fresh(value: Any) -> Any:  # noqa: ANN401 - any argument
    return value.clone() if isinstance(value, Tensor) else value


def _input_of(sample: Sample, place: int | None) -> int | None:
    """The number of the differentiable input at a place among the arguments, None where there is none."""
    if place is None or not sample.arguments[place].differentiable:
        return None
    return sum(a.differentiable for a in sample.arguments[:place])


def _compared(
    elements: Sequence[_Element], batching: _Batching, outputs: Tensors, gradients: Sequence[Gradients]
) -> Answer | None:
    """What is wrong with a batch, None where it is what the loop gives."""
    base = elements[0].base
    expected = [tuple(g.shape) for g in base.grad_outputs()]
    got = [tuple(o.shape) for o in outputs]
    if got != [(len(elements), *shape) for shape in expected]:
        said = f"vmap {batching.said} gives results of shape {got}, for a batch of 3 where one has {expected}"
        return wrong(base.finding(CODE, said, hint=HINT))
    for number, element in enumerate(elements):
        moved = element.base.forward_difference([o[number] for o in outputs])
        if moved is not None:
            said = (
                f"vmap {batching.said} gives another result than a loop: {moved.place} of element {number} is"
            )
            return wrong(base.finding(CODE, f"{said} {moved.values}", hint=HINT))
    return _gradients_compared(elements, batching, gradients)


def _gradients_compared(
    elements: Sequence[_Element], batching: _Batching, gradients: Sequence[Gradients]
) -> Answer | None:
    base = elements[0].base
    shared = _input_of(base.sample, batching.left_out)
    own = frozenset(range(len(base.names))) - ({shared} if shared is not None else set())
    held = [
        (e.base.difference(g, e.gradient, u=e.u, only=own), f" of element {k}")
        for k, (e, g) in enumerate(zip(elements, gradients, strict=True))
    ]
    if shared is not None:
        total = torch.stack([e.gradient for e in elements]).sum(dim=0)
        held.append((base.difference(gradients[0], total, u=elements[0].u, only=frozenset({shared})), ""))
    for difference, which in held:
        if difference is not None:
            said = (
                f"the gradient of `{difference.name}` is wrong under vmap {batching.said}: "
                f"{difference.place}{which} is {difference.values}"
            )
            return wrong(base.finding(CODE, said, hint=HINT, input=difference.name))
    return None
