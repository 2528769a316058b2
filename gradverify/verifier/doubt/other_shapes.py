"""Whether a mismatch hangs on a size or a shape that was invented: it is looked for again at others.

Halves are turned, pairs are taken, channels are split in two: such a Function means an even size, and often
neither says so nor refuses an odd one. A vector given where rows of vectors are meant, or with four entries
where three are meant, runs in forward as well. Where such things were guessed, a backward that is right at
even sizes, for one dimension more or for the shape that it returned may be right for every caller.

Two sizes that were guessed to differ may be meant to agree. An inverse by iterations, a logarithm by a
series or a recurrence over powers runs on at an oblong matrix, and there gives something else; places that
are kept within one length are read off what has another. A backward that divides by the wrong one of two
sizes is right where they agree, too: where backward multiplies or divides by a size, such inputs say nothing
in its favour.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from gradverify.model import (
    Case,
    Finding,
    TensorInput,
)
from gradverify.source import scales_by_sizes
from gradverify.verifier.checks.neighbours import (
    OF_A_SLOPE,
    Neighbours,
    compared,
    is_square,
    is_steady,
    mismatched,
    with_values,
)
from gradverify.verifier.checks.reading import Irregularity, own_backward
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    if_guessed,
)
from gradverify.verifier.doubt.domains import OF_AN_EXCEPTION, right_along, right_at_definite
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem

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


def shapes_returned(sample: Sample) -> Iterator[Shapes]:
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
    found = _first_right(_taken(sample, [*shapes_returned(sample), *further]), MOST_JUDGED)
    if not found and few:
        found = _first_right(_taken(sample, _broadcast_along_a_last(sample)), MOST_JUDGED)
        found = found or _first_right(_taken(sample, _rows_beside_numbers(sample)), MOST_JUDGED)
    found = found or _first_right(_fewer_dimensions(sample), MOST_FEWER)
    found = found or _first_right(_single_numbers(sample), MOST_JUDGED)
    found = found or _first_right(_single_matrices(sample), MOST_JUDGED)
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


def read_in_last(sample: Sample, name: str | None) -> int:
    """How many entries of the last dimension of an input forward reads, if backward is wrong beyond alone.

    0 where its derivative is not zero wherever backward is wrong.
    """
    comparison = compared(sample)
    if comparison is None or name not in sample.problem.input_names:
        return 0
    block = sample.inputs.blocks[sample.problem.input_names.index(name)]
    columns = slice(block.start, block.stop)
    wrong = comparison.wrong[:, columns]
    moves = comparison.numerical[:, columns].abs() > comparison.bound[:, columns]
    if block.is_complex or not block.shape or not wrong.any() or bool((wrong & moves).any()):
        return 0
    entries: Tensor = wrong.any(dim=0).reshape(-1, block.shape[-1]).any(dim=0)
    return int(entries.nonzero().min())


def at_last_size(sample: Sample, name: str, size: int) -> bool:
    """Whether backward is right where the last dimension of an input has another size.

    Of what is read entry by entry, as coordinates are, forward takes more than it reads.
    """
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None}
    last = given.get(name, ())[-1:]
    if not last:
        return False
    sharing = {n: (*shape[:-1], size) for n, shape in given.items() if shape[-1:] == last}
    return at_shapes(sample, ({name: sharing[name]}, sharing)) is not None


def at_structured_shapes(sample: Sample) -> str:
    """What was guessed, in words, where backward is right for structured matrices of other shapes alone.

    Of square ones where they need not be square, or beside a single column where rows of them were guessed.
    What is right there without any structure tells nothing of one.
    """
    entries = sample.inputs.size * sample.problem.outputs.size
    if entries > MOST_ENTRIES or sample.case.hook or not _mixes_rows(sample):
        return ""
    for shapes, other in islice(_taken(sample, (*_agreeing(sample), *_columns(sample))), MOST_FEWER):
        if any(map(is_square, other.problem.primals)) and mismatched(other) is not False:
            structure = right_along(other) or right_at_definite(other)
            if structure:
                names = " and ".join(f"`{name}`" for name in shapes)
                return f"the shape of {names}, and that matrices have no structure ({structure})"
    return ""


def _mixes_rows(sample: Sample) -> bool:
    """Whether some output depends on several rows of an input: what is taken row by row is no matrix."""
    comparison = compared(sample)
    if comparison is None:
        return True
    moves = comparison.numerical.abs() > comparison.bound
    for block in sample.inputs.blocks:
        rows = moves[:, block.start : block.stop].reshape(len(moves), -1, *block.shape[-1:])
        if len(block.shape) > 1 and (block.is_complex or bool((rows.any(-1).sum(-1) > 1).any())):
            return True
    return False


def _columns(sample: Sample) -> Iterator[Shapes]:
    """One column for an input of several."""
    for one in _differentiated(sample):
        if len(one.shape) > 1 and one.shape[-1] > 1:
            yield {one.name: (*one.shape[:-1], 1)}


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
    alone = [shapes for shapes, _ in islice(_of_same_outputs(sample, singles), MOST_TRIED)]
    firsts = {n: shape for one in reversed(alone) for n, shape in one.items()}
    together = {n: firsts[n] for n in given if n in firsts}
    pairs = ({**a, **b} for a, b in itertools.combinations(alone, 2) if a.keys() != b.keys())
    but_one = ({n: shape for n, shape in together.items() if n != kept} for kept in together)
    several = [together, *alone, *pairs, *but_one]
    yield from _of_same_outputs(sample, [s for k, s in enumerate(several) if s and s not in several[:k]])


def _single_numbers(sample: Sample) -> Iterator[tuple[Shapes, Sample]]:
    """One number for an input, where forward broadcasts that and gives the same shapes.

    A temperature, a curvature or a decay is multiplied with as well where it has the shape of what it
    acts on.
    """
    given = [i for i in _differentiated(sample) if i.shape and not i.layout]
    if len(given) > 1:
        yield from _of_same_outputs(sample, ({i.name: ()} for i in reversed(given)))


def _single_matrices(sample: Sample) -> Iterator[tuple[Shapes, Sample]]:
    """One square matrix for each stack of them, where forward does not give a stack of what it gives for one.

    numpy's trace, and any that adds up a diagonal of the first two dimensions, runs on at a stack of matrices
    and there gives something else. What gives one result for each matrix is meant for stacks as well.
    """
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and len(i.shape) >= len(_STACK)]
    if not given or any(i.shape[-1] != i.shape[-2] or i.layout or i.value is not None for i in given):
        return
    for shapes, other in _taken(sample, ({i.name: i.shape[-2:] for i in given},)):
        if not _is_matrix_by_matrix(sample.problem, other.problem):
            yield shapes, other


def _is_matrix_by_matrix(of_stacks: CallProblem, of_one: CallProblem) -> bool:
    """Whether forward gives for stacks of matrices, at the first of each, what it gives for those alone."""
    pairs = zip(of_stacks.primals, of_one.primals, strict=True)
    stacked = of_stacks.evaluate(of_stacks.primals)
    alone = of_one.evaluate([_first(p, like.dim()) for p, like in pairs])
    if isinstance(stacked, Raised) or isinstance(alone, Raised):
        return False
    outputs = zip(stacked.value, alone.value, strict=True)
    firsts = [(_first(s, a.dim()) if s.dim() > a.dim() else None, a) for s, a in outputs]
    return all(f is not None and f.shape == a.shape and f.allclose(a) for f, a in firsts)


def _first(value: Tensor, dimensions: int) -> Tensor:
    """The first of what is stacked in front of the last dimensions."""
    return value[(0,) * (value.dim() - dimensions)]


_STACK = ("stack", "rows", "columns")
"""The dimensions that a stack of matrices has at least."""


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


def _of_same_outputs(sample: Sample, several: Iterable[Shapes]) -> Iterator[tuple[Shapes, Sample]]:
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


DRAWS = 3
"""Draws of values at which two sizes agree: iterations do not end at a matrix that is nearly singular."""


def at_equal_sizes(sample: Sample) -> tuple[str, ...]:
    """What was guessed, in words, where backward is right once two sizes agree; empty where it is not."""
    function = sample.subject.function_class
    if function is None or scales_by_sizes(own_backward(function)):
        return ()
    drawn = [replace(sample, case=replace(sample.case, seed=sample.case.seed + k)) for k in range(DRAWS)]
    agreeing = (at_shapes(one, _agreeing(sample)) for one in drawn)
    shapes = next((found for found in agreeing if found is not None), None)
    if shapes is None or any(_wrong_steadily(one, shapes) for one in drawn):
        return ()
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput)}
    oblong = [n for n, s in shapes.items() if len(s) > 1 and s[-1] == s[-2] and given[n][-1] != given[n][-2]]
    if oblong:
        return tuple(f"that `{name}` need not be square" for name in oblong)
    changed = (set(zip(given[n], s, strict=True)) for n, s in shapes.items())
    pair = next((old, new) for several in changed for old, new in several if old != new)
    names = [next((name for name, n in sample.case.sizes if n == size), str(size)) for size in pair]
    return (f"that `{names[0]}` and `{names[1]}` may differ",)


def _wrong_steadily(sample: Sample, shapes: Shapes) -> bool:
    """Whether backward is wrong at other shapes, and beside the values there: one draw may hide a mistake."""
    other = prepare(sample.subject, _reshaped(sample.case, shapes), sample.point, sample.draw)
    return isinstance(other, Sample) and mismatched(other) is True and is_steady(Neighbours(other), None)


def _agreeing(sample: Sample) -> Iterator[Shapes]:
    """The shapes in which two sizes have become one, the larger: first those of a matrix, then any others.

    A mistake in some values shows in many of them rather than in few.
    """
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None]
    square = [i.shape[-2:] for i in given if len(i.shape) > 1]
    sizes = dict.fromkeys(n for i in given for n in i.shape)
    pairs = (tuple(sorted(pair)) for pair in (*square, *itertools.combinations(sizes, 2)))
    for old, new in dict.fromkeys(pairs):
        if 1 < old < new:
            yield {i.name: tuple(new if n == old else n for n in i.shape) for i in given if old in i.shape}


OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""


OF_SHAPES = frozenset({"GV101", "GV103", "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""


def _shapes_of(finding: Finding, names: Iterable[str]) -> Finding | None:
    return if_guessed(finding, (f"the shape of `{name}`" for name in names))


def returned_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    """A gradient has the shape that may be meant."""
    summed = of_returned_ranks(near.sample) if finding.code in OF_SHAPES else {}
    right = summed and (finding.code == OF_A_SHAPE or right_at(near.sample, summed, finding.input))
    return _shapes_of(finding, summed if right else ())


def shape_in_doubt(near: Neighbours, finding: Finding) -> Finding | None:
    """At values that nobody declared: at others the gradient had a shape that its input may be meant to have.

    Not where it had more dimensions alone, which the engine sums, so that its values are known.
    """
    refused = {a.name for kind, a, _ in _irregular(near.sample) if kind is Irregularity.SHAPE_REFUSED}
    return _shapes_of(finding, {finding.input or ""} & refused)


def odd_sizes(near: Neighbours, finding: Finding) -> Finding | None:
    """It is gone where all sizes are even."""
    odd = near.once(odd_sizes_alone, finding.input) if _is_of_shapes(finding) else ()
    return if_guessed(finding, (f"the odd size of `{name}`" for name in odd))


def other_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    """It is gone where an input has more or fewer dimensions."""
    return _shapes_of(finding, near.once(at_other_shapes) if _is_of_shapes(finding) else ())


def unread_entries(near: Neighbours, finding: Finding) -> Finding | None:
    """Where backward is wrong beyond some entries alone, forward may read no others."""
    name = finding.input or ""
    read = near.once(read_in_last, name) if finding.code in OF_A_SLOPE else 0
    return _shapes_of(finding, [name] if read and near.once(at_last_size, name, read) else ())


def unread_inputs(near: Neighbours, finding: Finding) -> Finding | None:
    """A gradient has another shape where backward alone reads an input: nothing shows the shape of that."""
    return _shapes_of(finding, near.once(_read_in_backward_alone) if finding.code == OF_A_SHAPE else ())


def _read_in_backward_alone(sample: Sample) -> tuple[str, ...]:
    """Real tensors of whose values the outputs say nothing."""
    real = {
        a.name: a.value
        for a in sample.problem.arguments
        if isinstance(a.value, Tensor) and a.value.is_floating_point() and a.value.numel()
    }
    problem, unread = sample.problem, []
    before = problem.evaluate(problem.primals)
    for name, value in real.items():
        other = with_values(sample, {name: value.flip(0) + 1 if value.dim() else value + 1}).problem
        after = other.evaluate(other.primals)
        if isinstance(before, Raised) or isinstance(after, Raised):
            continue
        if all(
            a.shape == b.shape and torch.equal(a, b) for a, b in zip(before.value, after.value, strict=True)
        ):
            unread.append(name)
    return tuple(unread)


def other_sizes(near: Neighbours, finding: Finding) -> Finding | None:
    """It is gone where two sizes agree."""
    return if_guessed(finding, near.once(at_equal_sizes) if _is_of_shapes(finding) else ())


def structured_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    """Both were guessed: a shape, and that any matrix of it is valid."""
    return if_guessed(finding, [near.once(at_structured_shapes)] if finding.code in OF_SHAPES else ())


def _is_of_shapes(finding: Finding) -> bool:
    return finding.code in OF_SHAPES | {OF_AN_EXCEPTION}
