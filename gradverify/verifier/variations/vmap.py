"""GV502: a Function's vmap rule against a loop over the batch, values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Point, RaisedError, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.samples import arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate,
    returned_tensors,
)
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.variations.call import is_accident
from gradverify.verifier.variations.verified import (
    NOT_RUN,
    UNSUPPORTED,
    Answer,
    Variant,
    Verified,
    refusal,
    verified,
    wrong,
)

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


class VmapInfo(NamedTuple):
    """What torch gives to a rule as `info`."""

    batch_size: int
    randomness: str


FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class _Batching:
    """Where the batch dimension of each tensor argument lies."""

    said: str
    dims: tuple[tuple[int, str | None], ...]
    """By position among the arguments: before the other dimensions, behind them, or None for a tensor that
    all elements share."""

    @property
    def left_out(self) -> int | None:
        """Position of the tensor argument that all elements share."""
        return next((place for place, where in self.dims if where is None), None)

    def dim_of(self, place: int, element: object) -> int | None:
        """The batch dimension of an argument, None where it has none."""
        where = dict(self.dims).get(place)
        if where is None or not isinstance(element, Tensor):
            return None
        return element.dim() if where == LAST else 0


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
    """Batch after batch; the first that is wrong is reported, and the first that is refused.

    A rule that torch generates fails nothing: what it gives is torch's.
    """
    notes: list[Finding] = []
    answered = False
    known: dict[int | None, list[_Element] | None] = {}
    for batching in _batchings(base.sample, mixed=own_rule and base.sample.subject.is_first_of_options):
        shared = batching.left_out
        if shared not in known:
            known[shared] = _elements(base.sample, draws, shared)
        elements = known[shared]
        if elements is None:
            continue
        finding = _judged(elements, batching, own_rule=own_rule)
        alone = None
        if finding is None and own_rule:
            # Where a batch has one element, a dimension may be squeezed away, or a path of its own be taken.
            of_one = replace(batching, said=f"{batching.said}, in a batch of one,")
            alone = _judged(elements[:1], of_one, own_rule=own_rule)
        error = next((f for f in (finding, alone) if f is not None and f.severity is Severity.ERROR), None)
        if error is not None:
            return wrong(error)
        notes += [] if finding is None else [finding]
        answered = answered or finding is None
    if not answered and not notes:
        return NOT_RUN
    return Answer("yes" if answered else "no", tuple(notes[:1]))


def _judged(elements: Sequence[_Element], batching: _Batching, *, own_rule: bool) -> Finding | None:
    """An error where a rule is wrong; a note where it refuses, or torch's own is wrong."""
    base = elements[0].base
    result = _vmapped(elements, batching)
    if isinstance(result, Raised):
        if own_rule and is_accident(result.error):
            return Variant(CODE, batching.said, HINT).raised(base, result.error, "vmap")
        hidden = _wrong_where_sizes_agree(base.sample, batching, result.error) if own_rule else None
        return hidden or refusal(base, CODE, f"vmap {batching.said}", result.error)
    finding = _compared(elements, batching, *result.value)
    if own_rule:
        return finding or _of_the_rule_itself(elements, batching)
    return finding and replace(finding, severity=Severity.NOTE, hint=GENERATED)


def _wrong_where_sizes_agree(sample: Sample, batching: _Batching, error: RaisedError) -> Finding | None:
    """The finding where a rule that shapes stop gives wrong values once the batch is as long as a dimension.

    A batch dimension taken for another one is an exception at most sizes, and a wrong result at those.
    """
    sizes = dict.fromkeys(n for place, _ in batching.dims for n in sample.arguments[place].value.shape)
    for count in (n for n in sizes if 1 < n <= LARGEST_BATCH and n != BATCH and not error.deliberate):
        draws = _draws(sample, count)
        elements = None if draws is None else _elements(sample, draws, batching.left_out)
        result = None if elements is None else _vmapped(elements, batching)
        if elements is not None and isinstance(result, Returned):
            finding = _compared(elements, batching, *result.value)
            if finding is not None:
                return replace(finding, message=f"{finding.message} (a batch of {count})")
    return None


def _of_the_rule_itself(elements: Sequence[_Element], batching: _Batching) -> Finding | None:
    """The finding where a Function's rule gives other results than an ordinary call of it."""
    base = elements[0].base
    function_class = base.sample.subject.function_class
    if function_class is None:
        return None
    values, in_dims = _stacked(elements, batching, [e.base.sample.problem.primals for e in elements])
    base.sample.problem.counter.forward += 1
    base.sample.problem.random_states.replay()
    info = VmapInfo(len(elements), "error")
    with torch.no_grad():
        result = guard.call(function_class.vmap, info, in_dims, *values)
    if isinstance(result, Raised):
        return None
    taken = guard.call(_with_batch_first, result.value, len(elements), base.sample.problem.output_positions)
    if isinstance(taken, Raised):
        said = f"the vmap rule, called {batching.said}, does not return (outputs, out_dims)"
        return base.finding(CODE, said, hint=HINT, raised=taken.error)
    for number, element in enumerate(elements):
        said = f"for element {number} where the vmap rule is called {batching.said}"
        moved = Variant(CODE, said, HINT).forward(element.base, [o[number] for o in taken.value])
        if moved is not None:
            return moved
    return None


def _with_batch_first(result: Any, count: int, positions: Sequence[int]) -> Tensors:  # noqa: ANN401
    """The outputs of a rule with their batch dimension first; those without one repeated."""
    outputs, dims = result
    several = returned_tensors(outputs)
    out_dims = dims if isinstance(dims, tuple | list) else [dims] * len(several)
    moved = [
        t.expand(count, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(several, out_dims, strict=True)
    ]
    return tuple(moved[p] for p in positions)


def _draws(sample: Sample, count: int = BATCH) -> list[tuple[Argument, ...]] | None:
    """The arguments of each element: as many draws of the same case, alike but for the values of tensors."""
    draws = [sample.arguments]
    for further in range(1, count):
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


def _batchings(sample: Sample, *, mixed: bool) -> Iterator[_Batching]:
    """All over one dimension, each left out; `mixed`: also beside the last one, and over different ones."""
    places = [p for p, a in enumerate(sample.arguments) if isinstance(a.value, Tensor)]
    names = {p: sample.arguments[p].name for p in places}
    has_dims = any(sample.arguments[p].value.dim() for p in places)
    yield _Batching("over the first dimension", tuple((p, FIRST) for p in places))
    if has_dims:
        yield _Batching("over the last dimension", tuple((p, LAST) for p in places))
    if len(places) < 2:
        return
    for where in (FIRST, LAST)[: 1 + (mixed and has_dims)]:
        others = "" if where == FIRST else ", the others over the last dimension"
        for place in places[:MOST_ALONE]:
            said = f"with `{names[place]}` not batched (in_dims None){others}"
            yield _Batching(said, tuple((p, None if p == place else where) for p in places))
    for first in (0, 1) if mixed and has_dims else ():
        dims = tuple((p, FIRST if k % 2 == first else LAST) for k, p in enumerate(places))
        said = " and ".join(
            f"over the {one} dimension of {listed_names([names[p] for p, where in dims if where == one])}"
            for one in (FIRST, LAST)
        )
        yield _Batching(said, dims)


def _elements(
    sample: Sample, draws: Sequence[tuple[Argument, ...]], shared: int | None
) -> list[_Element] | None:
    """An ordinary call for each element, which share an argument; None where one raises or is not finite."""
    elements = []
    for number, drawn in enumerate(draws):
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
        first, dim = parts[0], batching.dim_of(place, parts[0])
        in_dims.append(dim)
        if dim is not None:
            values.append(torch.stack(parts, dim=dim))
        else:
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
        of = f"for a batch of {len(elements)} where one has {expected}"
        said = f"vmap {batching.said} gives results of shape {got}, {of}"
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
