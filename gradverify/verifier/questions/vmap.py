"""GV502: a Function's vmap rule against a loop over the batch, values and gradients.

The loop is a call like any other: of all the elements at once, and of one tensor where they share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.numerics.calling import Tensors
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.questions.answers import NOT_RUN, UNSUPPORTED, Answer, outputs_of
from gradverify.verifier.questions.call import called
from gradverify.verifier.questions.verified import (
    Variant,
    Verified,
    cotangents,
    drawn_again,
    verified,
)

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
    sides = ["first", "last"][: 1 + bool(sizes)]

    def dims(of: Mapping[int, str]) -> Dims:
        return tuple(SIDES[of[p]] if p in of else None for p in range(len(sample.arguments)))

    for side in sides:
        yield f"over the {side} dimension", dims(dict.fromkeys(names, side)), count
    if own_rule:
        yield "over the first dimension, in a batch of one", dims(dict.fromkeys(names, "first")), 1
    side = sides[-1] if own_rule else "first"
    for place, name in islice(names.items() if len(names) > 1 else (), MOST_ALONE):
        said = f"with `{name}` not batched (in_dims None), the others over the {side} dimension"
        yield said, dims({p: side for p in names if p != place}), count
    if own_rule and len(sides) > 1 < len(names):
        mixed = dict(zip(names, cycle(sides), strict=False))
        said = " and ".join(
            f"over the {side} dimension of {listed_names([names[p] for p in names if mixed[p] == side])}"
            for side in sides
        )
        yield said, dims(mixed), count


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
        rows = [outputs_of(sample, problem.function(*element)) for element in elements]
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    positions = tuple(range(len(outputs)))
    batch = replace(problem, function=one_by_one, arguments=arguments, outputs=Layout.of(outputs))
    return verified(replace(sample, arguments=arguments, problem=replace(batch, output_positions=positions)))


def _by_rule(sample: Sample, dims: Dims, *given: Any) -> Any:  # noqa: ANN401 - user code's arguments
    """The same by the rule: a call of the Function itself, whose backward nobody reads."""

    def call(*one: Any) -> Tensors:  # noqa: ANN401
        return outputs_of(sample, sample.subject.function(*one))

    return torch.vmap(call, in_dims=dims)(*given)
