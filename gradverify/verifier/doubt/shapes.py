"""Neighbours at other sizes and shapes.

A size or a shape was guessed, and forward broadcasts whatever it gets. Halves are turned, pairs are taken:
such a Function means an even size, and often neither says so nor refuses an odd one. A vector given where
rows of vectors are meant, or with four entries where three are meant, runs in forward as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from gradverify.model import Case, TensorInput
from gradverify.verifier.checks.reading import Irregularity, own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import (
    Neighbour,
    Shapes,
    accepted,
    accepted_shapes,
    changed,
    differentiated,
    reshaped,
    tensor_inputs,
)
from gradverify.verifier.doubt.size_factors import scales_by_sizes

LEADING = (2, 3, 5, 7)
"""Sizes for one dimension more: the first that no input has, so that it merges with none."""

QUOTED = frozenset("'\"")
"""What an annotation has that names dimensions: `Float[Tensor, "n d"]`."""

MOST_DIMENSIONS = 3
"""An input with more is not given another one."""

DRAWS = 3
"""Draws of values at which two sizes agree: iterations do not end at a matrix that is nearly singular."""

LARGEST_ENLARGED = 5_000
"""Entries of the Jacobian up to which one dimension more is tried."""

MOST_OF_A_KIND = 4
"""Neighbours of one kind of shapes that are judged."""

COMPLEX = "complex128"


def even_sizes(sample: Sample) -> Iterator[Neighbour]:
    """The first case that has even sizes instead of its odd ones, and that forward takes."""
    odd = tuple(size for size, n in sample.case.sizes if n % 2)
    spares = (
        spare
        for spare in sample.subject.spares
        if odd and spare.options == sample.case.options and all(n % 2 == 0 for _, n in spare.sizes)
    )
    for _, other in islice(accepted(sample, spares), 1):
        yield Neighbour(other, tuple(f"the odd size of `{n}`" for n in odd))


def equal_sizes(sample: Sample) -> Iterator[Neighbour]:
    """Two sizes become one: first those of a matrix, then any others.

    An inverse by iterations, a logarithm by a series or a recurrence over powers runs on at an oblong matrix,
    and there gives something else. A backward that divides by the wrong one of two sizes is right where they
    agree, too: where backward multiplies or divides by a size, such inputs say nothing in its favour.
    """
    function = sample.subject.function_class
    if function is None or scales_by_sizes(own_backward(function)):
        return
    given = [i for i in tensor_inputs(sample.case).values() if i.value is None]
    square = [i.shape[-2:] for i in given if len(i.shape) > 1]
    sizes = dict.fromkeys(n for i in given for n in i.shape)
    pairs = dict.fromkeys(tuple(sorted(p)) for p in (*square, *itertools.combinations(sizes, 2)))
    several = [
        {i.name: tuple(new if n == old else n for n in i.shape) for i in given if old in i.shape}
        for new, old in pairs
        if 1 < new < old
    ]
    for draw in range(DRAWS):
        drawn = replace(sample.case, seed=sample.case.seed + draw)
        for case, other in accepted(sample, (reshaped(drawn, shapes) for shapes in several)):
            yield Neighbour(other, _in_words_of_sizes(drawn, case))


def _in_words_of_sizes(before: Case, after: Case) -> tuple[str, ...]:
    """That a matrix need not be square, or that two sizes may differ."""
    shapes = changed(before, after)
    oblong = [n for n, (a, b) in shapes.items() if len(b) > 1 and b[-1] == b[-2] and a[-1] != a[-2]]
    if oblong:
        return tuple(f"that `{name}` need not be square" for name in oblong)
    pair = next((a, b) for old, new in shapes.values() for a, b in zip(old, new, strict=True) if a != b)
    names = [next((name for name, n in before.sizes if n == size), str(size)) for size in pair]
    return (f"that `{names[0]}` and `{names[1]}` may differ",)


def as_returned(sample: Sample) -> Iterator[Neighbour]:
    """The shapes in which gradients came back, at once and each; then with one dimension more or fewer.

    Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone: as a gradient
    with more dimensions, or with fewer, of a shape that gives the same output.
    """
    reader = sample.subject.reader
    found = {
        sample.arguments[remark.position].name: tuple(int(n) for n in remark.got.strip("[]").split(",") if n)
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}
    }
    several = [found, *({name: shape} for name, shape in found.items() if len(found) > 1)]
    near = list(accepted_shapes(sample, filter(None, several)))
    yield from near
    for one in near[:1]:
        for family in (more_dimensions, fewer_dimensions):
            yield from (Neighbour(other, one.words) for other, _ in family(one.sample))


def more_dimensions(sample: Sample) -> Iterator[Neighbour]:
    """One dimension more, in front or last, where the Jacobian is small: it becomes twice as large."""
    if sample.inputs.size * sample.problem.outputs.size <= LARGEST_ENLARGED:
        for shapes in (_in_front(sample), _last(sample), _rows_beside_numbers(sample)):
            yield from islice(accepted_shapes(sample, shapes), MOST_OF_A_KIND)


def _in_front(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, in front, for some inputs: of a size of its own, or of the first one's."""
    given, leading = differentiated(sample), _size_of_its_own(sample)
    choices = [
        (i.shape, (leading, *i.shape), (i.shape[0], *i.shape))
        if 0 < len(i.shape) < MOST_DIMENSIONS
        else (i.shape,)
        for i in given
    ]
    for row in islice(itertools.product(*choices), 1, None):
        yield {i.name: shape for i, shape in zip(given, row, strict=True) if shape != i.shape}


def _last(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, the last, for all inputs but one vector, which has that dimension alone.

    As a weight for each channel is broadcast to rows of channels: where vectors were guessed for all of them,
    forward multiplies number by number, and a backward that sums over the rows is wrong.
    """
    given, last = differentiated(sample), _size_of_its_own(sample)
    if len(given) > 1 and all(len(i.shape) < MOST_DIMENSIONS for i in given):
        for one in (i for i in given if len(i.shape) == 1):
            yield {i.name: (last,) if i is one else (*i.shape, last) for i in given}


def _rows_beside_numbers(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, the last, for all vectors but one, which has a number for each of their rows.

    As queries, keys and values beside a gate for each step: where all are vectors, `k.T` is `k`.
    """
    given, last = [i for i in differentiated(sample) if len(i.shape) == 1], _size_of_its_own(sample)
    for kept in (*reversed(given), None) if len(given) > 1 else ():
        yield {i.name: (*i.shape, last) for i in given if i is not kept}


def _size_of_its_own(sample: Sample) -> int:
    """A size that no input has."""
    taken = {n for i in tensor_inputs(sample.case).values() for n in i.shape}
    return next((n for n in LEADING if n not in taken), LEADING[-1])


def _without_one(shapes: Shapes) -> list[Shapes]:
    """Each input alone without its last dimension, or without its first."""
    several = {n: dict.fromkeys((s[:-1], s[1:])) for n, s in shapes.items() if len(s) > 1}
    return [{n: fewer} for n, options in several.items() for fewer in options]


def fewer_dimensions(sample: Sample) -> Iterator[Neighbour]:
    """One dimension fewer, the last or the first, or one number, where forward gives the same shapes.

    Where a number for each step is meant, forward multiplies by a row for each all the same, and backward,
    which sums to one number, is wrong. A constant beside it may have been meant to have none of that
    dimension, either. First all inputs that can do without it, then each alone, then pairs, then all but one.
    A temperature or a decay is multiplied with as well where it has the shape of what it acts on.
    """
    yield from islice(_broadcast_alike(sample, _combined(sample)), 2 * MOST_OF_A_KIND)
    given = [i for i in differentiated(sample) if i.shape and not i.layout]
    numbers = ({i.name: ()} for i in reversed(given) if len(given) > 1)
    yield from islice(_broadcast_alike(sample, numbers), MOST_OF_A_KIND)
    yield from accepted_shapes(sample, _all_with_fewer(sample))


def _combined(sample: Sample) -> Iterator[Shapes]:
    given = {n: i.shape for n, i in tensor_inputs(sample.case).items() if not i.layout and i.value is None}
    taken = [one.sample.case for one in _broadcast_alike(sample, _without_one(given))]
    alone = [{n: new for n, (_, new) in changed(sample.case, case).items()} for case in taken]
    firsts = {n: shape for one in reversed(alone) for n, shape in one.items()}
    together = {n: firsts[n] for n in given if n in firsts}
    pairs = ({**a, **b} for a, b in itertools.combinations(alone, 2) if a.keys() != b.keys())
    but_one = ({n: shape for n, shape in together.items() if n != kept} for kept in together)
    several = [together, *alone, *pairs, *but_one]
    yield from (s for k, s in enumerate(several) if s and s not in several[:k])


def _all_with_fewer(sample: Sample) -> Iterator[Shapes]:
    """One dimension less for every input that has several, where forward gives single numbers.

    A mean of all entries is divided by `len(x)` where vectors are meant; whether they are, such a forward
    does not say, unless an annotation does.
    """
    given = [i for i in tensor_inputs(sample.case).values() if len(i.shape) > 1]
    stated = any(QUOTED & set(p.annotation) for p in sample.subject.target.parameters)
    numbers = not any(block.shape for block in sample.problem.outputs.blocks)
    if given and numbers and not stated and not any(i.layout for i in given):
        yield {i.name: i.shape[:-1] for i in given}
        yield {i.name: i.shape[1:] for i in given}


def _broadcast_alike(sample: Sample, several: Iterable[Shapes]) -> Iterator[Neighbour]:
    """Those of several shapes at which forward gives outputs of the same shapes.

    A sum gives one number for every shape: there an input with as many dimensions as any keeps them, so that
    the others are broadcast to it as before.
    """
    expected = [block.shape for block in sample.problem.outputs.blocks]
    broadcast = several if all(expected) else (s for s in several if _keeps_the_largest(sample, s))
    for one in accepted_shapes(sample, broadcast):
        if [block.shape for block in one.sample.problem.outputs.blocks] == expected:
            yield one


def _keeps_the_largest(sample: Sample, shapes: Shapes) -> bool:
    """Whether a differentiable input with the most dimensions of all is not among those that change."""
    most = max((len(i.shape) for i in tensor_inputs(sample.case).values()), default=0)
    return any(i.name not in shapes and len(i.shape) == most for i in differentiated(sample))


def complex_inputs(sample: Sample) -> Iterator[Neighbour]:
    """Complex inputs where backward returned complex gradients.

    A Fourier transform takes real inputs as well, and its backward gives complex gradients: right for complex
    inputs, and for real ones it lacks a `.real`. Which are meant the source does not say.
    """
    reader = sample.subject.reader
    names = {
        sample.arguments[remark.position].name
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind is Irregularity.DTYPE and "complex" in remark.got and "complex" not in remark.expected
    }
    inputs = tuple(
        replace(i, dtype=COMPLEX) if isinstance(i, TensorInput) and i.name in names else i
        for i in sample.case.inputs
    )
    for _, other in accepted(sample, [replace(sample.case, inputs=inputs)] if names else []):
        yield Neighbour(other, tuple(f"that `{name}` is real" for name in sorted(names)))
