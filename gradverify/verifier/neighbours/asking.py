"""A mismatch where something was guessed fails only if it is there at every neighbour that forward accepts.

A neighbour is the same call at another guess: other shapes, other numbers, values of some kind. It is asked
by the proof of forward's values alone, along one direction: that of the input in question, as far as it stays
on the set that the neighbour lies on. Where nothing moves along it, the neighbour says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from torch import Tensor

from gradverify.model import Finding, Point, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout, VjpProblem
from gradverify.verifier.questions.findings import doubted, if_guessed
from gradverify.verifier.questions.subject import Sample, prepared
from gradverify.verifier.questions.witnessing import cotangents_of, witnesses_of
from gradverify.verifier.witnesses.claim import Claim, Map
from gradverify.verifier.witnesses.values import FLOAT32, FLOAT64, Values, differences, probe

Projection = Callable[[Tensor, Tensor], Tensor]
"""(direction, shaped like an input; the input) -> its part along a set that the input lies on."""


def anywhere(direction: Tensor, _: Tensor) -> Tensor:
    """All of a direction."""
    return direction


OF_A_SLOPE = frozenset({"GV101", "GV107"})
"""Codes that rest on a derivative of forward, by more than a proof at a neighbour can see."""

DIRECTIONS = 4
"""Of a proof in few digits: an error of a hundredth is not seen along every sixth, and many are asked."""

ASIDE = 2.0**-9
"""Relative distance of a neighbour's inputs from the numbers of few digits that are drawn."""

OF_SECOND_ORDER = "GV2"


MOST_NEIGHBOURS = 40
"""Neighbours of one row that are asked: shapes of many inputs have no end."""


@dataclass(frozen=True)
class Neighbour:
    """The call at another guess."""

    sample: Sample
    guess: str = ""
    """What was guessed, if it is right here, as the beginning of `... was guessed`."""
    declared: str = ""
    """Of values: how a spec declares such inputs."""
    along: Mapping[str, Projection] = field(default_factory=dict)
    """By input: what of a direction stays on the set that it lies on."""


@dataclass(frozen=True)
class Row:
    """One way to make neighbours of a sample."""

    codes: frozenset[str]
    """Of findings that such a guess can have made."""
    make: Callable[[Sample, str], Iterator[Neighbour]]
    """From a sample and the input whose gradient is wrong; empty for none."""

    def __call__(self, sample: Sample, finding: Finding) -> Finding | None:
        """The finding as excused by the first neighbour at which it is not there; None for none."""
        if finding.code not in self.codes:
            return None
        name, second = finding.input or "", finding.code.startswith(OF_SECOND_ORDER)
        for one in islice(self.make(sample, name), MOST_NEIGHBOURS):
            if is_right(one, name, second=second):
                return if_guessed(finding, [one.guess]) or doubted(finding, one.declared)
        return None


def is_right(neighbour: Neighbour, name: str, *, second: bool = False) -> bool | None:
    """Whether the gradient of an input, or of all for "", is the derivative at a neighbour.

    None where forward or backward refuses it, or nothing moves. `second`: that of the gradient.
    """
    sample = neighbour.sample if neighbour.along else _off_round_numbers(neighbour.sample)
    problem: Map = VjpProblem(sample.problem, cotangents_of(sample)) if second else sample.problem
    is_short = sample.is_native or witnesses_of(sample).of(sample).is_short
    values = Values(problem, steps=FLOAT32 if is_short else FLOAT64)
    keys = range(sample.key, sample.key + (DIRECTIONS if is_short else 1))
    answers = (_closes(neighbour, name, values, key) for key in keys)
    return next((answer for answer in answers if not answer), True)


def _off_round_numbers(sample: Sample) -> Sample:
    """The sample with inputs moved a little: at numbers of few digits a forward that rounds has its kinks."""
    structured = any(t.structure for i in sample.case.inputs for t in tensors_of(i))
    if structured or sample.is_native or sample.point is not Point.TYPICAL:
        return sample
    given = inputs_of(sample).items()
    shares = {name: ASIDE * probe(x.numel(), sample.key + 41).view(x.shape) for name, x in given}
    return with_values(sample, {name: x * (1 + shares[name].to(x.device)) for name, x in given})


def _closes(neighbour: Neighbour, name: str, values: Values, key: int) -> bool | None:
    """The same along one direction."""
    sample, problem = neighbour.sample, values.problem
    v = _direction(values, problem, name, neighbour.along, key)
    claim, gradients = Claim(problem), None
    for made in differences(values, key, v):
        if made.is_flat:
            return None
        if gradients is None:
            found = claim.rows(made.cotangents * made.sizes)
            if isinstance(found, Raised) or not made.taken.any():
                return None
            gradients = found / made.sizes
        limit = max(made.limit, sample.subject.settings.rtol * max(1, problem.outputs.size) ** 0.5)
        if made.closes(gradients, limit):
            return True
    return None if gradients is None else False


def _direction(values: Values, problem: Map, name: str, along: Mapping[str, Projection], key: int) -> Tensor:
    """A random direction (N) of one input, or of all, along the sets that inputs lie on."""
    every = values.inputs.unflatten(values.direction(key))
    moves = (
        None if name in problem.input_names and one != name else along.get(one, anywhere)(direction, primal)
        for one, primal, direction in zip(problem.input_names, problem.primals, every, strict=True)
    )
    return values.inputs.flatten([*moves])


def with_values(sample: Sample, values: Mapping[str, Any]) -> Sample:
    """The sample with other values of some arguments."""
    arguments = tuple(replace(a, value=values.get(a.name, a.value)) for a in sample.problem.arguments)
    return replace(sample, arguments=arguments, problem=replace(sample.problem, arguments=arguments))


def with_arguments(sample: Sample, values: Mapping[str, Any]) -> Sample | None:
    """The same where outputs may have other shapes; None where forward refuses it."""
    arguments = tuple(replace(a, value=values.get(a.name, a.value)) for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return other if isinstance(other, Sample) else None


def outputs_at(sample: Sample, values: Mapping[str, Any] = MappingProxyType({})) -> Tensor | None:
    """The outputs (M) at other values of some arguments; None where forward raises, or gives other shapes."""
    problem = with_values(sample, values).problem
    found = problem.evaluate(problem.primals)
    if isinstance(found, Raised) or Layout.of(found.value) != problem.outputs:
        return None
    return problem.outputs.flatten(found.value)


def gradients_at(
    sample: Sample, values: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Tensor | None]:
    """By input what backward gives for a random grad_output there; empty where it raises."""
    problem = with_values(sample, values).problem
    signs = problem.outputs.unflatten(probe(problem.outputs.size, sample.key))
    found = problem.pull_back(problem.primals, signs)
    return {} if isinstance(found, Raised) else dict(zip(problem.input_names, found.value, strict=True))


def are_near(one: Tensor | None, other: Tensor | None, share: float) -> bool:
    """Whether two tensors of one shape differ by no more than a share of the second's norm."""
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool((one - other).norm() <= share * other.norm())


def inputs_of(sample: Sample) -> dict[str, Tensor]:
    """The differentiable inputs by name."""
    return dict(zip(sample.problem.input_names, sample.problem.primals, strict=True))
