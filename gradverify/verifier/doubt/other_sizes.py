"""Whether a mismatch hangs on a size or a shape that was invented: it is looked for again at others.

Halves are turned, pairs are taken, channels are split in two: such a Function means an even size, and often
neither says so nor refuses an odd one. A vector given where rows of vectors are meant, or with four entries
where three are meant, runs in forward as well. Where such things were guessed, a backward that is right at
even sizes, for one dimension more or for the shape that it returned may be right for every caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from gradverify.model import Case, TensorInput
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import mismatched
from gradverify.verifier.doubt.returned_shapes import Shapes, returned_shapes

LEADING = (2, 3, 5, 7)
"""Sizes for one dimension more: the first that no input has, so that it merges with none."""

LEAST_BROADCAST = 2
"""Inputs of which one is broadcast to the others."""

QUOTED = frozenset("'\"")
"""What an annotation has that names dimensions: `Float[Tensor, "n d"]`."""

MOST_DIMENSIONS = 3
"""An input with more is not given another one."""

MOST_TRIED, MOST_JUDGED = 30, 4
"""Combinations of shapes that forward is tried with, and how many of those that it takes are judged."""

MOST_FEWER = 8
"""How many combinations with fewer dimensions are judged: two inputs have four, besides both together."""

MOST_ENTRIES = 5_000
"""Entries of the Jacobian up to which another shape is tried: each trial measures one, twice as large."""

MOST_RETURNED_ENTRIES = 50_000
"""The same for shapes that backward returned and those of fewer dimensions: smaller than what was guessed."""


def odd_sizes_alone(sample: Sample, name: str | None) -> tuple[str, ...]:
    """Names of odd sizes of this sample's case where the mismatch for an input is not there at even ones.

    Empty where it is there as well, where no case with even sizes is known, or forward refuses that.
    """
    other = at_even_sizes(sample)
    if other is None or mismatched(other, name) is not False:
        return ()
    return tuple(size for size, n in sample.case.sizes if n % 2)


def at_even_sizes(sample: Sample) -> Sample | None:
    """The sample of the first case that has even sizes instead of its odd ones, and that forward takes."""
    case = sample.case
    if all(n % 2 == 0 for _, n in case.sizes):
        return None
    for spare in sample.subject.spares:
        if spare.options != case.options or any(n % 2 for _, n in spare.sizes):
            continue
        other = prepare(sample.subject, spare, sample.point, sample.draw)
        if isinstance(other, Sample):
            return other
    return None


def right_at(sample: Sample, shapes: Shapes, name: str | None) -> bool:
    """Whether the mismatch for an input, or any, is gone at other shapes, or at what may be meant by them."""
    other = prepare(sample.subject, _reshaped(sample.case, shapes), sample.point, sample.draw)
    if not isinstance(other, Sample):
        return False
    return mismatched(other, name) is False or bool(at_other_shapes(other))


def at_other_shapes(sample: Sample) -> tuple[str, ...]:
    """Names of inputs that forward takes in other shapes, at which backward is right; empty for none."""
    entries = sample.inputs.size * sample.problem.outputs.size
    if entries > MOST_RETURNED_ENTRIES or sample.case.hook:
        return ()
    few = entries <= MOST_ENTRIES
    further = _further_dimensions(sample) if few else ()
    found = _first_right(_taken(sample, [*returned_shapes(sample), *further]), MOST_JUDGED)
    if not found and few:
        found = _first_right(_taken(sample, _broadcast_along_a_last(sample)), MOST_JUDGED)
        found = found or _first_right(_taken(sample, _rows_beside_numbers(sample)), MOST_JUDGED)
    found = found or _first_right(_fewer_dimensions(sample), MOST_FEWER)
    found = found or _first_right(_single_numbers(sample), MOST_JUDGED)
    return found or _first_right(_taken(sample, _all_with_fewer(sample)), MOST_JUDGED)


def at_shapes(sample: Sample, several: Iterable[Shapes]) -> Shapes | None:
    """The first of several shapes that forward takes at which backward is right; None for none."""
    if sample.inputs.size * sample.problem.outputs.size > MOST_RETURNED_ENTRIES or sample.case.hook:
        return None
    taken = islice(_taken(sample, islice(several, MOST_TRIED)), MOST_FEWER)
    return next((shapes for shapes, other in taken if mismatched(other) is False), None)


def _first_right(taken: Iterator[tuple[Shapes, Sample]], most: int) -> tuple[str, ...]:
    """Names of the inputs that the first shapes change at which backward is right; empty for none."""
    right = (tuple(shapes) for shapes, other in islice(taken, most) if mismatched(other) is False)
    return next(right, ())


def _taken(sample: Sample, several: Iterable[Shapes]) -> Iterator[tuple[Shapes, Sample]]:
    """Those of several shapes that forward takes."""
    for shapes in several:
        other = prepare(sample.subject, _reshaped(sample.case, shapes), sample.point, sample.draw)
        if isinstance(other, Sample) and not other.disconnected:
            yield shapes, other


def _fewer_dimensions(sample: Sample) -> Iterator[tuple[Shapes, Sample]]:
    """One dimension fewer, the last or the first, where forward broadcasts that and gives the same shapes.

    Where a number for each step is meant, forward multiplies by a row for each all the same, and backward,
    which sums to one number, is wrong. A constant beside it may have been meant to have none of that
    dimension, either. First all inputs that can do without it, then each alone, then pairs, then all but one.
    """
    given = {
        i.name: i.shape
        for i in sample.case.inputs
        if isinstance(i, TensorInput) and len(i.shape) > 1 and not i.layout and i.value is None
    }
    singles = [{n: fewer} for n, shape in given.items() for fewer in dict.fromkeys((shape[:-1], shape[1:]))]
    alone = [shapes for shapes, _ in islice(_alike(sample, singles), MOST_TRIED)]
    firsts = {n: shape for one in reversed(alone) for n, shape in one.items()}
    together = {n: firsts[n] for n in given if n in firsts}
    pairs = ({**a, **b} for a, b in itertools.combinations(alone, 2) if a.keys() != b.keys())
    but_one = ({n: shape for n, shape in together.items() if n != kept} for kept in together)
    several = [together, *alone, *pairs, *but_one]
    yield from _alike(sample, [s for k, s in enumerate(several) if s and s not in several[:k]])


def _single_numbers(sample: Sample) -> Iterator[tuple[Shapes, Sample]]:
    """One number for an input, where forward broadcasts that and gives the same shapes.

    A temperature, a curvature or a decay is multiplied with as well where it has the shape of what it
    acts on.
    """
    given = [i for i in _differentiated(sample) if i.shape and not i.layout]
    if len(given) > 1:
        yield from _alike(sample, ({i.name: ()} for i in reversed(given)))


def _all_with_fewer(sample: Sample) -> Iterator[Shapes]:
    """One dimension less for every input that has several, where forward gives single numbers.

    A mean of all entries is divided by `len(x)` where vectors are meant; whether they are, such a forward
    does not say, unless an annotation does.
    """
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and len(i.shape) > 1]
    blocks = sample.problem.outputs.blocks
    stated = any(QUOTED & set(p.annotation) for p in sample.subject.target.parameters)
    if not given or stated or any(block.shape for block in blocks) or any(i.layout for i in given):
        return
    yield {i.name: i.shape[:-1] for i in given}
    yield {i.name: i.shape[1:] for i in given}


def _alike(sample: Sample, several: Iterable[Shapes]) -> Iterator[tuple[Shapes, Sample]]:
    """Those of several shapes at which forward gives outputs of the same shapes.

    A sum gives one number for every shape: there an input with as many dimensions as any keeps them, so that
    the others are broadcast to it as before.
    """
    expected = [block.shape for block in sample.problem.outputs.blocks]
    broadcast = several if all(expected) else (s for s in several if _keeps_the_largest(sample, s))
    for shapes, other in _taken(sample, broadcast):
        if [block.shape for block in other.problem.outputs.blocks] == expected:
            yield shapes, other


def _keeps_the_largest(sample: Sample, shapes: Shapes) -> bool:
    """Whether a differentiable input with the most dimensions of all is not among those that change."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    most = max((len(i.shape) for i in given), default=0)
    names = set(sample.problem.input_names) - set(shapes)
    return any(i.name in names and len(i.shape) == most for i in given)


def _broadcast_along_a_last(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, the last, for all inputs but one, which has that alone.

    As a weight for each channel is broadcast to rows of channels: where vectors were guessed for all of them,
    forward multiplies number by number, and a backward that sums over the rows is wrong.
    """
    given = _differentiated(sample)
    last = _size_of_its_own(sample)
    if len(given) < LEAST_BROADCAST or any(len(i.shape) >= MOST_DIMENSIONS for i in given):
        return
    for one in given:
        if len(one.shape) == 1:
            yield {i.name: (last,) if i is one else (*i.shape, last) for i in given}


def _rows_beside_numbers(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, the last, for all vectors but one, which has a number for each of their rows.

    As queries, keys and values beside a gate for each step: where all are vectors, `k.T` is `k`.
    """
    given = [i for i in _differentiated(sample) if len(i.shape) == 1]
    last = _size_of_its_own(sample)
    if len(given) < LEAST_BROADCAST:
        return
    for kept in (*reversed(given), None):
        yield {i.name: (*i.shape, last) for i in given if i is not kept}


def _differentiated(sample: Sample) -> list[TensorInput]:
    names = sample.problem.input_names
    return [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.name in names]


def _size_of_its_own(sample: Sample) -> int:
    """A size that no input has."""
    taken = {n for i in sample.case.inputs if isinstance(i, TensorInput) for n in i.shape}
    return next((n for n in LEADING if n not in taken), LEADING[-1])


def _further_dimensions(sample: Sample) -> Iterator[Shapes]:
    """One dimension more, in front, for some inputs: of a size of its own, or of the first one's."""
    given = _differentiated(sample)
    leading = _size_of_its_own(sample)
    choices = [
        [
            i.shape,
            *([(leading, *i.shape), (i.shape[0], *i.shape)] if 0 < len(i.shape) < MOST_DIMENSIONS else []),
        ]
        for i in given
    ]
    for row in islice(itertools.product(*choices), 1, MOST_TRIED):
        yield {i.name: shape for i, shape in zip(given, row, strict=True) if shape != i.shape}


def _reshaped(case: Case, shapes: Shapes) -> Case:
    inputs = tuple(
        replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
        for i in case.inputs
    )
    return replace(case, inputs=inputs)
