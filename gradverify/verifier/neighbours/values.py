"""What was made up, at other values: factors, counts, labels, indices, masks and flags.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. A mismatch that is there at all other
values that forward takes hangs on none of them. A count on which neither outputs nor gradients depend is the
order of work, and no excuse. A count that a loop may go by, and on which they depend, is the rounds of an
iteration, which is right once it has converged: that leaves the mismatch open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Doubt, Finding, Point, TensorInput, tensors_of
from gradverify.model.case import is_floating
from gradverify.source import may_loop_over
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.neighbours.asking import (
    OF_SECOND_ORDER,
    Near,
    Neighbour,
    are_near,
    gradients_at,
    is_right,
    outputs_at,
    with_arguments,
)
from gradverify.verifier.neighbours.shapes import returned_shapes
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.samples import prepared
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import if_guessed

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

REORDERED = 1e-12
"""Relative change of outputs and gradients, in float64, that another order of the same additions makes."""


def doubts_of(sample: Sample) -> tuple[Doubt, ...]:
    """What of the inputs of this case was made up."""
    options, sizes = dict(sample.case.options), dict(sample.case.sizes)
    return tuple(
        d
        for d in sample.subject.doubts
        if not d.intent
        and not d.extreme
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
        and not (d.differ and len({sizes.get(n) for n in d.differ}) == 1)
    )


def doubts_in(near: Near) -> list[Doubt]:
    """The same without counts that are the order of work."""
    return [d for d in doubts_of(near.sample) if not near.once(_is_order_of_work, d.name)]


def _is_order_of_work(sample: Sample, name: str) -> bool:
    """Whether neither outputs nor gradients depend on a count, at two others or more that forward takes."""
    if not any(a.name == name and type(a.value) is int for a in sample.arguments):
        return False
    others = islice(at_other_values(sample, [name], rounds=True), MOST_ASKED)
    first, *rest = map(_measured, (sample, *others))
    return len(rest) >= LEAST_ASKED and all(are_near(first, other, REORDERED) for other in rest)


def _measured(sample: Sample) -> Tensor | None:
    """Outputs and gradients as one vector."""
    outputs, gradients = outputs_at(sample), gradients_at(sample)
    if outputs is None or not gradients:
        return None
    return torch.cat([outputs, sample.inputs.flatten([*gradients.values()])])


def made_up(near: Near, finding: Finding) -> Finding | None:
    """What was made up leaves it open, unless it is there at all other values too.

    No shape makes a backward that is not linear. Other values settle nothing where the shape of the gradient
    shows that another shape may be meant. What is None where the mismatch is there as well made none of it.
    """
    linear = finding.code != OF_GRAD_OUTPUT
    doubts = [d for d in doubts_in(near) if linear or d.differ or (d.name and not d.of_shape)]
    if finding.code == OF_THE_DTYPE:
        doubts = [d for d in doubts if not d.of_values]
    optional = tuple(d.name for d in doubts if d.optional)
    bare = near.once(_without, optional) if optional and finding.input not in optional else None
    left = doubts if bare is None else [d for d in doubts if not d.optional]
    testable = bool(doubts) and all(d.of_values for d in left)
    fits = testable and finding.input not in near.once(returned_shapes)
    settled = fits and is_there_whatever(near if bare is None else Near(bare), finding, left)
    return None if settled else if_guessed(finding, (d.what for d in doubts))


def is_there_whatever(near: Near, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was made up."""
    second = finding.code.startswith(OF_SECOND_ORDER)
    names = tuple(d.name for d in doubts)
    return finding.code in MEASURED and near.once(_stays, names, finding.input or "", second)


def _stays(sample: Sample, names: tuple[str, ...], wrong: str, second: bool) -> bool:  # noqa: FBT001
    if not names:
        return is_right(Neighbour(sample), wrong, second=second) is False
    several = islice(at_other_values(sample, names), MOST_ASKED)
    answers = [is_right(Neighbour(other), wrong, second=second) for other in several]
    told = [answer for answer in answers if answer is not None]
    return len(told) >= LEAST_ASKED and not any(told)


def _without(sample: Sample, names: Collection[str]) -> Sample | None:
    """The sample with None for some arguments; None where forward does not take that."""
    arguments = tuple(Argument(a.name, None) if a.name in names else a for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return other if isinstance(other, Sample) else None


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
    integers that are numbers beyond, and refuses those that are places. A GPU may die of a place too far.
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
            return [integers_like(value, b, kind) for b in bounds for kind in INTEGERS if value.numel()]
        case _:
            return []


Integers = Callable[[Tensor, int], Tensor]
"""Places (N), counted from 0, and a bound -> integers below it."""

INTEGERS: tuple[Integers, ...] = (
    lambda places, bound: places % bound,
    lambda places, _: 0 * places,
    lambda places, bound: places.flip(0) % bound,
    lambda places, bound: places * (bound - 1) // max(1, places.numel() - 1),
)
"""Labels, indices and permutations: in order, all alike, backwards, from end to end below their bound."""


def integers_like(given: Tensor, bound: int, kind: Integers) -> Tensor:
    """A tensor of integers of one kind."""
    places = torch.arange(given.numel(), device=given.device)
    return kind(places, bound).to(given.dtype).reshape(given.shape)


def declares_values(sample: Sample) -> bool:
    """Whether a spec says how large the values of some input are, which a structure does not."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return bool(sample.case.hook) or any(t.range is not None or t.value is not None or t.make for t in given)


def declared_by(point: Point, name: str, drawn: TensorInput | None) -> str:
    """What limits the values of an input; a parameter of a module is an input of its Function."""
    if name.startswith("self."):
        return f"in an entry for the Function that gets `{name}`, with a `range:` of it"
    if drawn is not None and not is_floating(drawn):
        return f"a `make:` function for `{name}`"
    return f"`avoid: [0]` of `{name}`" if point is Point.SPECIAL else f"a `range:` of `{name}`"
