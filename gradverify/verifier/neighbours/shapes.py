"""Other shapes: a vector where rows of vectors are meant, an odd size where pairs are, two sizes that agree.

Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone; it runs on at odd
sizes and at oblong matrices, and gives something else there. Each row makes other shapes of some inputs; what
forward refuses is no neighbour. Where backward multiplies or divides by a size, two sizes that agree say
nothing in its favour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, islice, product

import torch

from gradverify.model import TensorInput
from gradverify.source import scales_by_sizes
from gradverify.verifier.neighbours.asking import (
    Neighbour,
    inputs_of,
    is_right,
    outputs_at,
)
from gradverify.verifier.questions.reading import Irregularity, own_backward
from gradverify.verifier.questions.samples import prepare
from gradverify.verifier.questions.subject import Sample

Shape = tuple[int, ...]

Shapes = Mapping[str, Shape]
"""Other shapes, by the name of the input."""

OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""

OF_SHAPES = frozenset({"GV101", "GV102", OF_A_SHAPE, "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made: of wrong numbers, and of a backward that raises."""

LEADING = (2, 3, 5, 7)
"""Sizes for one dimension more: the first that no input has, so that it merges with none."""

MOST_DIMENSIONS = 3
"""An input with more is not given another one."""

MOST_TRIED = 30
"""Combinations of shapes that forward is tried with."""

MOST_ENTRIES = 50_000
"""Entries of the Jacobian, inputs times outputs, up to which other shapes are tried."""

DRAWS = 3
"""Draws of values at which two sizes agree: iterations do not end at a matrix that is nearly singular."""

SIZE = re.compile(r"\d+")
"""A size in a shape as it is shown."""

QUOTED = frozenset("'\"")
"""What an annotation has that names dimensions: `Float[Tensor, "n d"]`."""


def _shapes(sample: Sample, *, differentiated: bool = False) -> dict[str, Shape]:
    """Shapes of tensors that can have another one; `differentiated`: of those alone."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and not i.layout and i.value is None]
    return {i.name: i.shape for i in given if not differentiated or i.name in sample.problem.input_names}


def _at(sample: Sample, several: Iterable[Shapes]) -> Iterator[Neighbour]:
    """The neighbours of several shapes that forward takes, with outputs that depend on the inputs."""
    if sample.case.hook or sample.inputs.size * sample.problem.outputs.size > MOST_ENTRIES:
        return
    for shapes in islice(filter(None, several), MOST_TRIED):
        inputs = tuple(
            replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
            for i in sample.case.inputs
        )
        other = prepare(sample.subject, replace(sample.case, inputs=inputs), sample.point, sample.draw)
        if isinstance(other, Sample) and not other.disconnected:
            yield Neighbour(other, " and ".join(f"the shape of `{name}`" for name in shapes))


def returned_shapes(sample: Sample) -> dict[str, Shape]:
    """Shapes of gradients that autograd sums or refuses, by their inputs."""
    reader = sample.subject.reader
    return {
        sample.arguments[remark.position].name: tuple(int(n) for n in SIZE.findall(remark.got))
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}
        and remark.position < len(sample.arguments)
    }


def as_returned(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Those shapes, all at once, each; no single numbers, which backward gives for None as well."""
    given = _shapes(sample, differentiated=True)
    found = {name: shape for name, shape in returned_shapes(sample).items() if shape and name in given}
    yield from _at(sample, [found, *({name: shape} for name, shape in found.items())])


def _size_of_its_own(sample: Sample) -> int:
    taken = {n for i in sample.case.inputs if isinstance(i, TensorInput) for n in i.shape}
    return next((n for n in LEADING if n not in taken), LEADING[-1])


def one_more_in_front(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension more, in front, for some inputs: of a size of its own, or of the first one's."""
    choices: list[list[Shapes]] = [
        [{}, *({name: (n, *shape)} for n in (_size_of_its_own(sample), shape[0]))]
        if 0 < len(shape) < MOST_DIMENSIONS
        else [{}]
        for name, shape in _shapes(sample, differentiated=True).items()
    ]
    every = (chain.from_iterable(one.items() for one in row) for row in product(*choices))
    yield from _at(sample, map(dict, every))


def one_more_at_the_end(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension more, the last, for all but one: that has it alone, or a number for each of their rows.

    As a weight for each channel is broadcast to rows of channels, and a gate for each step stands beside
    queries and keys: where vectors were guessed for all of them, forward multiplies number by number.
    """
    given, last = _shapes(sample, differentiated=True), (_size_of_its_own(sample),)
    if len(given) < 2 or any(len(shape) >= MOST_DIMENSIONS for shape in given.values()):
        return
    longer = {name: shape + last for name, shape in given.items()}
    vectors = [name for name, shape in given.items() if len(shape) == 1]
    alone = [{**longer, name: last} for name in vectors]
    kept = (*reversed(vectors), None)
    beside = [{name: longer[name] for name in vectors if name != one} for one in kept]
    yield from _at(sample, [*alone, *beside])


def _broadcast(sample: Sample, several: Iterable[Shapes]) -> Iterator[Neighbour]:
    """The neighbours of several shapes that forward gives outputs of the same shapes for."""
    expected = sample.problem.outputs.blocks
    return (one for one in _at(sample, several) if one.sample.problem.outputs.blocks == expected)


def one_fewer(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension fewer, the last or the first, or a single number, where forward broadcasts that.

    Where a number for each step is meant, forward multiplies by a row for each all the same, and backward,
    which sums to one number, is wrong. First all inputs that can do without it, then each alone, then pairs,
    then all but one. A loss gives one number for every shape, such as a mean that is divided by `len(x)`:
    whether vectors are meant it does not say, unless an annotation does. The largest input is no number.
    """
    is_loss = not any(block.shape for block in sample.problem.outputs.blocks)
    stated = is_loss and any(QUOTED & set(p.annotation) for p in sample.subject.target.parameters)
    inputs = _shapes(sample, differentiated=True)
    given = {name: shape for name, shape in _shapes(sample).items() if len(shape) > 1 and not stated}
    singles = [{name: s} for name, shape in given.items() for s in dict.fromkeys((shape[:-1], shape[1:]))]
    taken = [one for one in singles if next(_broadcast(sample, [one]), None) is not None]
    chosen = {name: shape for one in reversed(taken) for name, shape in one.items()}
    first = {name: chosen[name] for name in given if name in chosen}
    some = [combinations(first, k) for k in dict.fromkeys((2, len(first) - 1)) if 1 < k < len(first)]
    several = [{name: first[name] for name in names} for names in chain.from_iterable(some)]
    longest = [n for n, shape in inputs.items() if len(shape) == max(map(len, inputs.values()))]
    numbers = [{name: ()} for name, shape in reversed(inputs.items()) if shape and longest != [name]]
    yield from _broadcast(sample, [first, *taken, *several, *numbers])


def single_matrices(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One square matrix for each stack of them, where forward gives no stack of what it gives for one.

    numpy's trace, and any that adds up a diagonal of the first two dimensions, runs on at a stack of matrices
    and gives something else there.
    """
    given = {name: shape for name, shape in _shapes(sample).items() if len(shape) > 2}
    if not given or any(shape[-1] != shape[-2] for shape in given.values()):
        return
    stack = next(iter(given.values()))[:-2]
    stacked = [block.shape for block in sample.problem.outputs.blocks]
    for one in _at(sample, [{name: shape[-2:] for name, shape in given.items()}]):
        if stacked != [(*stack, *block.shape) for block in one.sample.problem.outputs.blocks]:
            yield one


def even_sizes(sample: Sample, _: str) -> Iterator[Neighbour]:
    """The first case that has even sizes instead of its odd ones, and that forward takes."""
    other = at_even_sizes(sample)
    odd = [f"the odd size of `{size}`" for size, n in sample.case.sizes if n % 2]
    if other is not None:
        yield Neighbour(other, " and ".join(odd))


def at_even_sizes(sample: Sample) -> Sample | None:
    """The sample of that case; None where no size is odd."""
    case = sample.case
    spares = sample.subject.spares if any(n % 2 for _, n in case.sizes) else ()
    for spare in spares:
        if spare.options == case.options and not any(n % 2 for _, n in spare.sizes):
            other = prepare(sample.subject, spare, sample.point, sample.draw)
            if isinstance(other, Sample):
                return other
    return None


def equal_sizes(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Two sizes that agree, the larger, at which backward is wrong at no draw."""
    function = sample.subject.function_class
    if function is None or scales_by_sizes(own_backward(function)):
        return
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None}
    drawn = [replace(sample, case=replace(sample.case, seed=sample.case.seed + k)) for k in range(DRAWS)]
    for old, new in combinations(sorted({n for shape in given.values() for n in shape if n > 1}), 2):
        equal = {name: tuple(new if n == old else n for n in shape) for name, shape in given.items()}
        changed = {name: shape for name, shape in equal.items() if shape != given[name]}
        others = [other for one in drawn for other in _at(one, [changed])]
        answers = [is_right(other, name) for other in others]
        if True in answers and False not in answers:
            sizes = [next((size for size, n in sample.case.sizes if n == m), m) for m in (old, new)]
            guess = f"that `{sizes[0]}` and `{sizes[1]}` may differ"
            yield replace(others[answers.index(True)], guess=guess)


def last_size_as_read(sample: Sample, name: str) -> Iterator[Neighbour]:
    """As many entries along the last dimension as forward reads, where it takes more than that."""
    given = _shapes(sample)
    last = given.get(name, ())[-1:]
    read = _read_in_last(sample, name) if last else 0
    if last and 0 < read < last[0]:
        sharing = {n: (*shape[:-1], read) for n, shape in given.items() if shape[-1:] == last}
        for one in _at(sample, [{name: sharing[name]}, sharing]):
            yield replace(one, guess=f"the shape of `{name}`")


def _read_in_last(sample: Sample, name: str) -> int:
    """How many leading entries of the last dimension of an input the outputs depend on."""
    primal, base = inputs_of(sample).get(name), outputs_at(sample)
    if primal is None or base is None or not primal.dim():
        return 0
    for k in reversed(range(primal.shape[-1])):
        moved = primal.clone()
        moved[..., k] += 1.0
        after = outputs_at(sample, {name: moved})
        if after is None:
            return 0
        if not torch.equal(base, after):
            return k + 1
    return 0
