"""Shapes in which backward returned gradients, where they are not those of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument

Shapes = Mapping[str, tuple[int, ...]]
"""Other shapes, by the name of the input."""

_OF_SHAPES = frozenset({Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED})


def of_returned_ranks(sample: Sample) -> Shapes:
    """Inputs whose gradient came back in another shape that they might just as well have, with that shape.

    Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone: as a gradient
    with more dimensions, or with fewer, of a shape that gives the same output.
    """
    found = {}
    for kind, argument, shape in _irregular(sample):
        summed = kind is Irregularity.SHAPE_SUMMED
        if summed or _takes(sample, argument.name, shape):
            found[argument.name] = shape
    return found


def names_of_other_shapes(sample: Sample) -> frozenset[str]:
    """Inputs whose gradient came back in another shape, whether or not they might have it."""
    return frozenset(argument.name for _, argument, _ in _irregular(sample))


def _irregular(sample: Sample) -> Iterator[tuple[Irregularity, Argument, tuple[int, ...]]]:
    """What the reader noted of gradients: its kind, the argument, and the shape of the gradient.

    Not of those that backward returns beyond the arguments.
    """
    reader = sample.subject.reader
    for (kind, _), remark in reader.remarks.items() if reader is not None else ():
        if kind in _OF_SHAPES and remark.position < len(sample.arguments):
            shape = tuple(int(n) for n in remark.got.strip("[]").split(",") if n.strip())
            yield kind, sample.arguments[remark.position], shape


def _takes(sample: Sample, name: str, shape: tuple[int, ...]) -> bool:
    """Whether forward gives outputs of the same shapes for an input that has fewer dimensions."""
    problem = sample.problem
    if name not in problem.input_names:
        return False
    place = problem.input_names.index(name)
    value = problem.primals[place]
    if len(shape) >= value.dim() or tuple(value.shape[value.dim() - len(shape) :]) != shape:
        return False
    fewer = value[(0,) * (value.dim() - len(shape))]
    moved = (*problem.primals[:place], fewer, *problem.primals[place + 1 :])
    before, after = problem.evaluate(problem.primals), problem.evaluate(moved)
    if isinstance(before, Raised) or isinstance(after, Raised):
        return False
    return [t.shape for t in before.value] == [t.shape for t in after.value]


def returned_shapes(sample: Sample) -> Iterator[Shapes]:
    """Shapes of gradients that autograd refused, with no more dimensions than the input: all at once, each.

    None becomes a single number: a gradient that sums all of a vector is a mistake well known.
    """
    found = dict(_refused_shapes(sample))
    if len(found) > 1:
        yield found
    yield from ({name: shape} for name, shape in found.items())


def _refused_shapes(sample: Sample) -> Iterator[tuple[str, tuple[int, ...]]]:
    for kind, argument, shape in _irregular(sample):
        refused = kind is Irregularity.SHAPE_REFUSED and argument.differentiable
        if refused and 0 < len(shape) <= argument.value.dim():
            yield argument.name, shape
