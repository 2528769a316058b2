"""Other shapes: a vector where rows of vectors are meant, an odd size where pairs are, two sizes that agree.

Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone; it runs on at odd
sizes and at oblong matrices, and gives something else there. What forward refuses is no neighbour. Where
backward multiplies or divides by a size, two sizes that agree say nothing in its favour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations

import torch
from torch import Tensor

from gradverify.model import Case, TensorInput
from gradverify.source import scales_by_sizes
from gradverify.verifier.neighbours.asking import Neighbour, inputs_of, outputs_at
from gradverify.verifier.questions.reading import Irregularity, own_backward
from gradverify.verifier.questions.subject import Sample, prepare

Shape = tuple[int, ...]

Shapes = Mapping[str, Shape]
"""Other shapes, by the name of the input."""

OF_SHAPES = frozenset({"GV101", "GV102", "GV103", "GV107", "GV108"})
"""Codes that a wrong guess of a shape can have made: of wrong numbers, and of a backward that raises."""

MOST_DIMENSIONS = 3
"""An input with more is not given another one."""

SIZE = re.compile(r"\d+")
"""A size in a shape as it is shown."""


def of_another_shape(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Every neighbour with other sizes or ranks: what is guessed most often first."""
    yield from at_returned_shapes(sample)
    yield from even_sizes(sample)
    yield from _at(sample, _one_more(sample))
    yield from _one_fewer(sample)
    yield from _at(sample, _one_row_of_a_constant(sample))
    yield from _single_matrices(sample)
    yield from _at(sample, _last_size_as_read(sample, name))
    yield from _equal_sizes(sample)


def _shapes(sample: Sample, *, differentiated: bool = True) -> dict[str, Shape]:
    """Shapes of tensors that can have another one; unless `differentiated`, of constants as well."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and not i.layout and i.value is None]
    return {i.name: i.shape for i in given if not differentiated or i.name in sample.problem.input_names}


def with_shapes(case: Case, shapes: Shapes) -> Case:
    """The case with other shapes of some tensors."""
    inputs = (
        replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
        for i in case.inputs
    )
    return replace(case, inputs=tuple(inputs))


def _at(sample: Sample, several: Iterable[Shapes], guess: str = "") -> Iterator[Neighbour]:
    """The neighbours of several shapes that forward takes, with outputs that depend on the inputs."""
    for shapes in filter(None, () if sample.case.hook else several):
        other = prepare(sample.subject, with_shapes(sample.case, shapes), sample.point, sample.draw)
        if isinstance(other, Sample) and not other.disconnected:
            yield Neighbour(other, guess or " and ".join(f"the shape of `{name}`" for name in shapes))


def returned_shapes(sample: Sample) -> dict[str, Shape]:
    """Shapes of gradients that autograd sums or refuses, by their inputs."""
    reader = sample.subject.reader
    return {
        sample.arguments[remark.position].name: tuple(int(n) for n in SIZE.findall(remark.got))
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}
        and remark.position < len(sample.arguments)
    }


def at_returned_shapes(sample: Sample) -> Iterator[Neighbour]:
    """The neighbours of the shapes that backward returns."""
    return _at(sample, _as_returned(sample))


def _as_returned(sample: Sample) -> list[Shapes]:
    """Those shapes, all at once, each; no single numbers, which backward gives for None as well."""
    given = _shapes(sample)
    found = {name: shape for name, shape in returned_shapes(sample).items() if shape and name in given}
    return [found, *({name: shape} for name, shape in found.items())]


def _one_more(sample: Sample) -> Iterator[Shapes]:
    """One dimension more: in front, of a size of its own or of the first one's, or at the end.

    Of all inputs, of each alone, of all but one; or one has the last dimension alone, as a weight for each
    channel is broadcast to rows of channels: where vectors were guessed, forward multiplies number by number.
    """
    own = (
        1 + max((n for i in sample.case.inputs if isinstance(i, TensorInput) for n in i.shape), default=1),
    )
    given = {name: shape for name, shape in _shapes(sample).items() if 0 < len(shape) < MOST_DIMENSIONS}
    longer: Shapes = {}
    for before, first, after in ((own, 0, ()), ((), 1, ()), ((), 0, own)):
        longer = {name: (*before, *shape[:first], *shape, *after) for name, shape in given.items()}
        for count in dict.fromkeys((len(longer), 1, len(longer) - 1)) if longer else ():
            yield from ({name: longer[name] for name in names} for names in combinations(longer, count))
    if len(given) > 1:
        yield from ({**longer, name: own} for name, shape in given.items() if len(shape) == 1)


def _one_fewer(sample: Sample) -> Iterator[Neighbour]:
    """One dimension fewer, the last or the first, or a single number, where forward broadcasts that.

    Where a number for each step is meant, forward multiplies by a row for each all the same, and backward,
    which sums to one number, is wrong. First all inputs that can do without it, then each alone, pairs, and
    all but one. The largest input is no number.
    """
    inputs, expected = _shapes(sample), sample.problem.outputs.blocks

    def broadcast(several: Iterable[Shapes]) -> Iterator[Neighbour]:
        return (one for one in _at(sample, several) if one.sample.problem.outputs.blocks == expected)

    given = {name: s for name, s in _shapes(sample, differentiated=False).items() if len(s) > 1}
    singles = [{name: s} for name, shape in given.items() for s in dict.fromkeys((shape[:-1], shape[1:]))]
    taken = [one for one in singles if next(broadcast([one]), None) is not None]
    together = {name: shape for one in reversed(taken) for name, shape in one.items()}
    some = (combinations(together, k) for k in dict.fromkeys((2, len(together) - 1)) if 1 < k < len(together))
    several = ({name: together[name] for name in names} for names in chain.from_iterable(some))
    longest = [n for n, shape in inputs.items() if len(shape) == max(map(len, inputs.values()))]
    numbers = [{name: ()} for name, shape in reversed(inputs.items()) if shape and longest != [name]]
    yield from broadcast([together, *taken, *several, *numbers])


def _one_row_of_a_constant(sample: Sample) -> Iterator[Shapes]:
    """A constant with the size 1 along a dimension, also where an input has one dimension fewer.

    Backward returns no gradient whose shape would tell its own, and may add up what it has of it. An index
    is none: of a single one it says nothing whether backward adds up what several give.
    """
    inputs = _shapes(sample)
    tensors = (a for a in sample.arguments if isinstance(a.value, Tensor))
    numbers = {a.name for a in tensors if a.value.is_floating_point()}
    every = _shapes(sample, differentiated=False).items()
    given = {n: s for n, s in every if n in numbers - inputs.keys() and len(s) > 1}
    rows = [{n: (*s[:k], 1, *s[k + 1 :])} for n, s in given.items() for k in range(len(s)) if s[k] > 1]
    fewer = [{name: shape[:-1]} for name, shape in inputs.items() if len(shape) > 1]
    yield from rows
    yield from ({**row, **one} for row in rows for one in fewer)


def _single_matrices(sample: Sample) -> Iterator[Neighbour]:
    """One square matrix for each stack of them, where forward gives no stack of what it gives for one.

    numpy's trace, and any that adds up a diagonal of the first two dimensions, runs on at a stack of matrices
    and gives something else there.
    """
    given = {n: shape for n, shape in _shapes(sample, differentiated=False).items() if len(shape) > 2}
    if not given or any(shape[-1] != shape[-2] for shape in given.values()):
        return
    stack = next(iter(given.values()))[:-2]
    stacked = [block.shape for block in sample.problem.outputs.blocks]
    for one in _at(sample, [{name: shape[-2:] for name, shape in given.items()}]):
        if stacked != [(*stack, *block.shape) for block in one.sample.problem.outputs.blocks]:
            yield one


def even_sizes(sample: Sample) -> Iterator[Neighbour]:
    """The cases that have even sizes instead of odd ones."""
    case = sample.case
    odd = [f"the odd size of `{size}`" for size, n in case.sizes if n % 2]
    for spare in sample.subject.spares if odd else ():
        if spare.options == case.options and not any(n % 2 for _, n in spare.sizes):
            other = prepare(sample.subject, spare, sample.point, sample.draw)
            if isinstance(other, Sample):
                yield Neighbour(other, " and ".join(odd))


def _equal_sizes(sample: Sample) -> Iterator[Neighbour]:
    """Two sizes that agree, the larger."""
    function = sample.subject.function_class
    if function is None or scales_by_sizes(own_backward(function)):
        return
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None}
    for old, new in combinations(sorted({n for shape in given.values() for n in shape if n > 1}), 2):
        equal = {name: tuple(new if n == old else n for n in shape) for name, shape in given.items()}
        sizes = [next((size for size, n in sample.case.sizes if n == m), m) for m in (old, new)]
        yield from _at(sample, [equal], f"that `{sizes[0]}` and `{sizes[1]}` may differ")


def _last_size_as_read(sample: Sample, name: str) -> Iterator[Shapes]:
    """As many entries along the last dimension as forward reads, where it takes more than that."""
    given, primal = _shapes(sample, differentiated=False), inputs_of(sample).get(name)
    base = None if primal is None or not given.get(name) else outputs_at(sample)
    if primal is None or base is None:
        return
    last = primal.shape[-1]
    for k in reversed(range(last)):
        moved = primal.clone()
        moved[..., k] += 1.0
        after = outputs_at(sample, {name: moved})
        if after is None or not torch.equal(base, after):
            if after is not None and k + 1 < last:
                yield {name: (*given[name][:-1], k + 1)}
                yield {n: (*shape[:-1], k + 1) for n, shape in given.items() if shape[-1:] == (last,)}
            return
