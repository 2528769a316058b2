"""What was made up, at other values: factors, counts, labels, indices, masks and flags.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. A mismatch that is there at all other
values that forward takes hangs on none of them. A count that a loop may go by is the rounds of an iteration,
which is right once it has converged: that leaves the mismatch open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Doubt, Finding, TensorInput, tensors_of
from gradverify.source import may_loop_over
from gradverify.verifier.neighbours.asking import OF_SECOND_ORDER, Neighbour, is_right, with_arguments
from gradverify.verifier.neighbours.shapes import returned_shapes
from gradverify.verifier.questions.findings import if_guessed
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output."""

OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs, and no value makes one."""

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""

MEASURED = OF_THE_DERIVATIVE - {"GV108"}
"""Codes of findings that can be asked again at other values."""

FACTORS = (2.5, 0.3, 0.01)
"""Other real numbers: large and small, none at which a wrong factor cannot be seen."""

APART = 1.5
"""The ratio of two other real numbers that are tried together."""

COUNTS = (2, 1, 4, 3, 16)
"""Other counts of groups, of the largest entries, of parts."""

MOST_SIZES = 4
"""Sizes of the inputs that are tried as counts."""

MOST_ASKED = 12
"""Neighbours that are asked of one doubt."""

LEAST_ASKED = 2
"""Of these must have told something: one alone tells little."""


def doubts_of(sample: Sample) -> list[Doubt]:
    """What of the inputs of this case was made up."""
    options, sizes = dict(sample.case.options), dict(sample.case.sizes)
    return [
        d
        for d in sample.subject.doubts
        if not (d.intent or d.extreme)
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
        and not (d.differ and len({sizes.get(n) for n in d.differ}) == 1)
    ]


def made_up(sample: Sample, finding: Finding) -> Finding | None:
    """What was made up leaves it open, unless it is there at all other values too.

    No shape makes a backward that is not linear. Other values settle nothing where the shape of the gradient
    shows that another shape may be meant.
    """
    linear, of_values = finding.code != OF_GRAD_OUTPUT, finding.code != OF_THE_DTYPE
    doubts = [
        d
        for d in doubts_of(sample)
        if (linear or d.differ or (d.name and not d.of_shape)) and (of_values or not d.of_values)
    ]
    fits = all(d.of_values for d in doubts) and finding.input not in returned_shapes(sample)
    settled = fits and is_there_whatever(sample, finding, doubts)
    return None if settled else if_guessed(finding, (d.what for d in doubts))


def is_there_whatever(sample: Sample, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was made up."""
    if finding.code not in MEASURED:
        return False
    second = finding.code.startswith(OF_SECOND_ORDER)
    told = told_at(at_other_values(sample, [d.name for d in doubts]), finding.input or "", second=second)
    return len(told) >= LEAST_ASKED and not any(told)


def told_at(several: Iterable[Sample], name: str, *, second: bool = False) -> list[bool]:
    """Whether the gradient of an input is right at each of the first samples that tell."""
    answers = (is_right(Neighbour(other), name, second=second) for other in islice(several, MOST_ASKED))
    return [answer for answer in answers if answer is not None]


def at_other_values(sample: Sample, names: Collection[str], *, rounds: bool = False) -> Iterator[Sample]:
    """The sample with other values of the arguments with these names, where all of them can have some.

    Unless `rounds`, none of a count that a loop may go by: with too few of them a backward that is the
    derivative of what they go to looks wrong, whatever their number.
    """
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    counts = [n for n, v in given.items() if type(v) is int]
    if len(given) < len(set(names)) or (not rounds and any(_may_be_rounds(sample, n) for n in counts)):
        return
    several = {n: _others(sample, n, v, APART**k) for k, (n, v) in enumerate(given.items())}
    for k in range(max(map(len, several.values()), default=0) if all(several.values()) else 0):
        other = with_arguments(sample, {n: values[k % len(values)] for n, values in several.items()})
        if other is not None:
            yield other


def _may_be_rounds(sample: Sample, name: str) -> bool:
    """Whether forward or backward may go round a loop as often as an argument says."""
    function = sample.subject.function_class
    return function is None or may_loop_over(function.forward, own_backward(function), name)


def _others(sample: Sample, name: str, value: Any, apart: float) -> list[Any]:  # noqa: ANN401 - an argument
    """Other values of an argument, each kind in an order of its own; none of what is of another kind.

    Real numbers are `apart`: then a difference of two shows nothing, nor a swap. Where an integer tensor has
    more entries than places, backward may be right for integers that are all different alone: forward takes
    integers that are numbers beyond, and refuses those that are places, of which it gets as many as there
    are. A GPU may die of a place too far.
    """
    inputs = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    match value:
        case bool():
            return [True, False]
        case int():
            sizes = [n for i in inputs for n in (*i.shape, math.prod(i.shape))][:MOST_SIZES]
            return [n for n in dict.fromkeys([*sizes, *COUNTS]) if n != value]
        case float():
            return [math.copysign(factor * apart, value) for factor in FACTORS]
        case Tensor(dtype=torch.bool):
            return [torch.full_like(value, on) for on in (True, False)]
        case Tensor() if not (value.is_floating_point() or value.is_complex()) and value.device.type == "cpu":
            bound = next((int(i.range[1]) for i in inputs if i.name == name and i.range), value.numel())
            bounds = sorted({bound, max(bound, value.numel())}, reverse=True)
            several = [integers_like(value, b, kind) for b in bounds for kind in INTEGERS if value.numel()]
            fewer = value.reshape(-1)[:bound]
            return several + [integers_like(fewer, bound, INTEGERS[0])] * (bound < value.numel())
        case _:
            return []


Integers = Callable[[Tensor, int], Tensor]
"""Places (N), counted from 0, and a bound -> integers below it."""

INTEGERS: tuple[Integers, ...] = (
    lambda places, bound: places % bound,
    lambda places, _: 0 * places,
    lambda places, bound: places.flip(0) % bound,
    lambda places, bound: (1 + places % max(1, bound - 1)) % bound,
    lambda places, bound: places * (bound - 1) // max(1, places.numel() - 1),
)
"""Labels, indices and permutations: in order, all alike, backwards, without 0 as it stands for a blank or for
padding, from end to end below their bound."""


def integers_like(given: Tensor, bound: int, kind: Integers) -> Tensor:
    """A tensor of integers of one kind."""
    places = torch.arange(given.numel(), device=given.device)
    return kind(places, bound).to(given.dtype).reshape(given.shape)


def declares_values(sample: Sample) -> bool:
    """Whether a spec says how large the values of some input are, which a structure does not."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return bool(sample.case.hook) or any(t.range is not None or t.value is not None or t.make for t in given)
