"""A sample at other inputs that its author may have meant, and whether backward is right there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch

from gradverify.model import Case, TensorInput
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample, prepare
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.contradiction import contradiction
from gradverify.verifier.numerics.proof import Certificate
from gradverify.verifier.numerics.verdict import Judged

Shapes = Mapping[str, tuple[int, ...]]
"""Other shapes, by the name of the input."""

LARGEST_JACOBIAN = 200_000
"""Entries of a Jacobian that is built to see whether anything in it is wrong; of a larger one, a random
direction tells. Doubling each of four sizes makes a Jacobian 256 times as large."""

MOST_TRIED = 30
"""Cases of one family that forward is tried with."""


class Neighbour(NamedTuple):
    """A sample at other inputs that forward takes."""

    sample: Sample
    words: tuple[str, ...]
    """What was guessed if these were meant, each as the beginning of `... was guessed`."""


@dataclass(frozen=True)
class Family:
    """Neighbours of one kind, and the findings that they can excuse."""

    codes: frozenset[str]
    of: Callable[[Sample], Iterator[Neighbour]]
    judged: int = 8
    """How many are judged at most."""
    largest: float = math.inf
    """Entries of the sample's own Jacobian up to which they are."""
    whole: bool = False
    """Backward must be right there for all inputs, not only for the one of the finding."""


def right_at(sample: Sample, family: Family, name: str | None, *, second_order: bool) -> tuple[str, ...]:
    """What was guessed, in words, where backward is right at a neighbour; empty where it is at none.

    Right in the gradient by one input, or by any for None; `second_order`: the backward of backward.
    """
    if sample.inputs.size * sample.problem.outputs.size > family.largest:
        return ()
    wanted, second_order = (None, False) if family.whole else (name, second_order)
    near = islice(family.of(sample), family.judged)
    right = (one.words for one in near if mismatched(one.sample, wanted, second_order=second_order) is False)
    return next(right, ())


def mismatched(sample: Sample, name: str | None = None, *, second_order: bool = False) -> bool | None:
    """Whether backward, or its own, differs from the derivative at this sample, for one input or for any.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    names = problem.input_names
    among = names.index(name) if name is not None and name in names else None
    if (name is None or among is not None) and contradiction(problem, among) is not None:
        return True
    wrong = wrong_inputs(sample, second_order=second_order)
    return wrong if wrong is None else bool(wrong if name is None else name in wrong)


def wrong_inputs(sample: Sample, *, second_order: bool = False) -> frozenset[str] | None:
    """Inputs whose gradient, or its own, differs from the derivative at this sample.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if isinstance(judged, Certificate):
        return frozenset()
    if not isinstance(judged, Judged):
        return None
    wrong = judged.comparison.wrong | judged.comparison.nonfinite
    blocks = zip(judged.inputs.blocks, problem.input_names, strict=True)
    found = frozenset(name for block, name in blocks if bool(wrong[:, block.start : block.stop].any()))
    return found if second_order else found | ignoring_grad_output(sample.problem)


def with_values(sample: Sample, values: Mapping[str, Any]) -> Sample:
    """The sample with other values of some arguments."""
    arguments = tuple(
        replace(a, value=values[a.name]) if a.name in values else a for a in sample.problem.arguments
    )
    return replace(sample, arguments=arguments, problem=replace(sample.problem, arguments=arguments))


def same_outputs(sample: Sample) -> bool:
    """Whether forward gives outputs of the same shapes at these values as at those of before."""
    ran = sample.problem.evaluate(sample.problem.primals)
    if isinstance(ran, Raised):
        return False
    given = [torch.view_as_real(o).shape if o.is_complex() else o.shape for o in ran.value]
    return given == [block.shape for block in sample.problem.outputs.blocks]


def tensor_inputs(case: Case) -> dict[str, TensorInput]:
    """The tensors of a case by their names."""
    return {i.name: i for i in case.inputs if isinstance(i, TensorInput)}


def differentiated(sample: Sample) -> list[TensorInput]:
    """The inputs that have a gradient."""
    return [i for name, i in tensor_inputs(sample.case).items() if name in sample.problem.input_names]


def reshaped(case: Case, shapes: Shapes) -> Case:
    """The case with other shapes of some inputs."""
    inputs = tuple(
        replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
        for i in case.inputs
    )
    return replace(case, inputs=inputs)


def accepted(sample: Sample, cases: Iterable[Case]) -> Iterator[tuple[Case, Sample]]:
    """Those of the first cases that forward takes; none where a hook makes the inputs."""
    for case in islice(cases, 0 if sample.case.hook else MOST_TRIED):
        other = prepare(sample.subject, case, sample.point, sample.draw)
        if isinstance(other, Sample) and not other.disconnected:
            yield case, other


def accepted_shapes(sample: Sample, several: Iterable[Shapes]) -> Iterator[Neighbour]:
    """The neighbours in those of several shapes that forward takes."""
    for case, other in accepted(sample, (reshaped(sample.case, shapes) for shapes in several)):
        yield Neighbour(other, tuple(f"the shape of `{name}`" for name in changed(sample.case, case)))


def changed(before: Case, after: Case) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Inputs that have another shape, with the shape before and after."""
    given = tensor_inputs(before)
    return {
        name: (given[name].shape, one.shape)
        for name, one in tensor_inputs(after).items()
        if one.shape != given[name].shape
    }
