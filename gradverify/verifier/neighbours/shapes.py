"""Other shapes: a vector where rows of vectors are meant, an odd size where pairs are, two sizes that agree.

Halves are turned, pairs are taken, channels are split in two: such a Function means an even size, and often
neither says so nor refuses an odd one. Forward broadcasts what it is given, so a wrong guess of a shape shows
in backward alone. An inverse by iterations or a recurrence over powers runs on at an oblong matrix, and gives
something else there; a backward that divides by the wrong one of two sizes is right where they agree, too:
where backward multiplies or divides by a size, such inputs say nothing in its favour.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from gradverify.model import Case, Finding, TensorInput
from gradverify.source import scales_by_sizes
from gradverify.verifier.checks.reading import Irregularity, own_backward
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import if_guessed
from gradverify.verifier.guard import Raised
from gradverify.verifier.neighbours.asking import (
    Near,
    Neighbour,
    Row,
    is_right,
    with_values,
)
from gradverify.verifier.numerics.problem import CallProblem

Shapes = Mapping[str, tuple[int, ...]]
"""Other shapes, by the name of the input."""

OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""

OF_SHAPES = frozenset({"GV101", OF_A_SHAPE, "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""

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

QUOTED = frozenset("'\"")
"""What an annotation has that names dimensions: `Float[Tensor, "n d"]`."""


def _tensors(sample: Sample) -> list[TensorInput]:
    """Inputs whose shape can be another one."""
    inputs = sample.case.inputs
    return [i for i in inputs if isinstance(i, TensorInput) and not i.layout and i.value is None]


def _differentiated(sample: Sample) -> list[TensorInput]:
    return [i for i in _tensors(sample) if i.name in sample.problem.input_names]


def _at(sample: Sample, several: Iterable[Shapes], *, same_outputs: bool = False) -> Iterator[Neighbour]:
    """The neighbours of several shapes that forward takes; `same_outputs`: and gives the same shapes for."""
    if sample.case.hook or sample.inputs.size * sample.problem.outputs.size > MOST_ENTRIES:
        return
    expected = [block.shape for block in sample.problem.outputs.blocks]
    for shapes in islice(several, MOST_TRIED):
        if not shapes or (same_outputs and not all(expected) and not _keeps_the_largest(sample, shapes)):
            continue
        other = prepare(sample.subject, _reshaped(sample.case, shapes), sample.point, sample.draw)
        if not isinstance(other, Sample) or other.disconnected:
            continue
        if not same_outputs or [b.shape for b in other.problem.outputs.blocks] == expected:
            yield Neighbour(other, " and ".join(f"the shape of `{name}`" for name in shapes))


def _reshaped(case: Case, shapes: Shapes) -> Case:
    inputs = tuple(
        replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
        for i in case.inputs
    )
    return replace(case, inputs=inputs)


def _keeps_the_largest(sample: Sample, shapes: Shapes) -> bool:
    """Whether a differentiable input with the most dimensions of all is not among those that change.

    A sum gives one number for every shape: there the others must be broadcast to it as before.
    """
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    most = max((len(i.shape) for i in given), default=0)
    return any(len(i.shape) == most for i in _differentiated(sample) if i.name not in shapes)


def _irregular(sample: Sample) -> Iterator[tuple[Irregularity, str, tuple[int, ...]]]:
    """Gradients that came in another shape: how, the argument, and that shape."""
    reader = sample.subject.reader
    for (kind, _), remark in reader.remarks.items() if reader is not None else ():
        shaped = kind in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}
        if shaped and remark.position < len(sample.arguments):
            shape = tuple(int(n) for n in remark.got.strip("[]").split(",") if n.strip())
            yield kind, sample.arguments[remark.position].name, shape


def names_of_other_shapes(sample: Sample) -> frozenset[str]:
    """Inputs whose gradient came back in another shape."""
    return frozenset(name for _, name, _ in _irregular(sample))


def returned_shapes(near: Near, finding: Finding) -> Finding | None:
    """A gradient has a shape that its input may just as well have: forward gives the same for it."""
    if finding.code not in OF_SHAPES:
        return None
    found = near.once(_returned)
    right = found and (
        finding.code == OF_A_SHAPE or near.excused(Row(OF_SHAPES, _shaped_as_returned), finding) is not None
    )
    return if_guessed(finding, (f"the shape of `{name}`" for name in (found if right else ())))


def _returned(sample: Sample) -> dict[str, tuple[int, ...]]:
    return {
        name: shape
        for kind, name, shape in _irregular(sample)
        if kind is Irregularity.SHAPE_SUMMED or _broadcasts(sample, name, shape)
    }


def _broadcasts(sample: Sample, name: str, shape: tuple[int, ...]) -> bool:
    """Whether forward gives outputs of the same shapes for an input that has fewer dimensions."""
    given = {i.name: i.shape for i in _differentiated(sample)}
    fewer = len(shape) < len(given.get(name, ())) and given[name][len(given[name]) - len(shape) :] == shape
    return fewer and next(_at(sample, [{name: shape}], same_outputs=True), None) is not None


def of_refused_shapes(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Shapes of gradients that autograd refused: all at once, each. None becomes a single number."""
    given = {i.name: len(i.shape) for i in _differentiated(sample)}
    found = {n: s for kind, n, s in _irregular(sample) if kind is Irregularity.SHAPE_REFUSED}
    found = {n: s for n, s in found.items() if 0 < len(s) <= given.get(n, 0)}
    yield from _at(sample, [found, *({n: s} for n, s in found.items())])


def shape_in_doubt(near: Near, finding: Finding) -> Finding | None:
    """At values that nobody declared: a gradient came in a shape that its input may be meant to have."""
    refused = {n for kind, n, _ in _irregular(near.sample) if kind is Irregularity.SHAPE_REFUSED}
    return if_guessed(finding, (f"the shape of `{name}`" for name in {finding.input or ""} & refused))


def _size_of_its_own(sample: Sample) -> int:
    taken = {n for i in sample.case.inputs if isinstance(i, TensorInput) for n in i.shape}
    return next((n for n in LEADING if n not in taken), LEADING[-1])


def one_more_in_front(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension more, in front, for some inputs: of a size of its own, or of the first one's."""
    given, leading = _differentiated(sample), _size_of_its_own(sample)
    few = [0 < len(i.shape) < MOST_DIMENSIONS for i in given]
    choices = [
        [i.shape, *([(leading, *i.shape), (i.shape[0], *i.shape)] if more else [])]
        for i, more in zip(given, few, strict=True)
    ]
    every = islice(itertools.product(*choices), 1, None)
    rows = ({i.name: s for i, s in zip(given, row, strict=True) if s != i.shape} for row in every)
    yield from _at(sample, rows)


def one_more_at_the_end(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension more, the last, for all but one: that has it alone, or a number for each of their rows.

    As a weight for each channel is broadcast to rows of channels, and a gate for each step stands beside
    queries and keys: where vectors were guessed for all of them, forward multiplies number by number.
    """
    given, last = _differentiated(sample), _size_of_its_own(sample)
    if len(given) < 2 or any(len(i.shape) >= MOST_DIMENSIONS for i in given):
        return
    vectors = [i for i in given if len(i.shape) == 1]
    alone = [{i.name: (last,) if i is one else (*i.shape, last) for i in given} for one in vectors]
    kept = (*reversed(vectors), None)
    beside = [{i.name: (*i.shape, last) for i in vectors if i is not one} for one in kept]
    yield from _at(sample, [*alone, *beside])


def one_fewer(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension fewer, the last or the first, or a single number, where forward broadcasts that.

    Where a number for each step is meant, forward multiplies by a row for each all the same, and backward,
    which sums to one number, is wrong. First all inputs that can do without it, then each alone, then pairs,
    then all but one.
    """
    given = {i.name: i.shape for i in _tensors(sample) if len(i.shape) > 1}
    singles = [{n: s} for n, shape in given.items() for s in dict.fromkeys((shape[:-1], shape[1:]))]
    taken = [one for one in singles if next(_at(sample, [one], same_outputs=True), None) is not None]
    firsts = {n: shape for one in reversed(taken) for n, shape in one.items()}
    together = {n: firsts[n] for n in given if n in firsts}
    pairs = [{**a, **b} for a, b in itertools.combinations(taken, 2) if a.keys() != b.keys()]
    but_one = [{n: s for n, s in together.items() if n != kept} for kept in together]
    numbers: list[Shapes] = [{i.name: ()} for i in reversed(_differentiated(sample)) if i.shape]
    numbers = numbers if len(_differentiated(sample)) > 1 else []
    every: list[Shapes] = [together, *taken, *pairs, *but_one, *numbers]
    yield from _at(sample, [s for k, s in enumerate(every) if s not in every[:k]], same_outputs=True)


def single_matrices(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One square matrix for each stack of them, where forward gives no stack of what it gives for one.

    numpy's trace, and any that adds up a diagonal of the first two dimensions, runs on at a stack of matrices
    and gives something else there.
    """
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and len(i.shape) > 2]
    if given and all(i.shape[-1] == i.shape[-2] for i in given):
        for one in _at(sample, [{i.name: i.shape[-2:] for i in given}]):
            if not _is_matrix_by_matrix(sample.problem, one.sample.problem):
                yield one


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
    return value[(0,) * (value.dim() - dimensions)]


def all_with_fewer(sample: Sample, _: str) -> Iterator[Neighbour]:
    """One dimension less for every input that has several, where forward gives single numbers.

    A mean of all entries is divided by `len(x)` where vectors are meant; whether they are, such a forward
    does not say, unless an annotation does.
    """
    given = [i for i in _tensors(sample) if len(i.shape) > 1]
    stated = any(QUOTED & set(p.annotation) for p in sample.subject.target.parameters)
    if given and not stated and not any(block.shape for block in sample.problem.outputs.blocks):
        yield from _at(sample, [{i.name: i.shape[cut] for i in given} for cut in (slice(-1), slice(1, None))])


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


def _agreeing(sample: Sample) -> Iterator[Shapes]:
    """The shapes in which two sizes have become one, the larger: first those of a matrix, then any others."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None]
    square = [i.shape[-2:] for i in given if len(i.shape) > 1]
    sizes = dict.fromkeys(n for i in given for n in i.shape)
    pairs = (tuple(sorted(pair)) for pair in (*square, *itertools.combinations(sizes, 2)))
    for old, new in dict.fromkeys(pairs):
        if 1 < old < new:
            yield {i.name: tuple(new if n == old else n for n in i.shape) for i in given if old in i.shape}


def equal_sizes(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Two sizes that agree, at which backward is wrong at no draw."""
    function = sample.subject.function_class
    if function is None or scales_by_sizes(own_backward(function)):
        return
    drawn = [replace(sample, case=replace(sample.case, seed=sample.case.seed + k)) for k in range(DRAWS)]
    for shapes in _agreeing(sample):
        others = [next(_at(one, [shapes]), None) for one in drawn]
        found = [(other, is_right(other, name)) for other in others if other is not None]
        right = [other for other, answer in found if answer]
        if right and not any(answer is False for _, answer in found):
            yield replace(right[0], guess=_disagreement(sample, shapes))


def _disagreement(sample: Sample, shapes: Shapes) -> str:
    """What was guessed where two sizes are to agree."""
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput)}
    oblong = [n for n, s in shapes.items() if len(s) > 1 and s[-1] == s[-2] and given[n][-1] != given[n][-2]]
    if oblong:
        return " and ".join(f"that `{name}` need not be square" for name in oblong)
    changed = (set(zip(given[n], s, strict=True)) for n, s in shapes.items())
    pair = next((old, new) for several in changed for old, new in several if old != new)
    names = [next((name for name, n in sample.case.sizes if n == size), str(size)) for size in pair]
    return f"that `{names[0]}` and `{names[1]}` may differ"


def last_size_as_read(sample: Sample, name: str) -> Iterator[Neighbour]:
    """As many entries along the last dimension as forward reads, where it takes more than that."""
    given = {i.name: i.shape for i in _tensors(sample)}
    last = given.get(name, ())[-1:]
    read = _read_in_last(sample, name) if last else 0
    if last and 0 < read < last[0]:
        sharing = {n: (*shape[:-1], read) for n, shape in given.items() if shape[-1:] == last}
        for one in _at(sample, [{name: sharing[name]}, sharing]):
            yield replace(one, guess=f"the shape of `{name}`")


def _read_in_last(sample: Sample, name: str) -> int:
    """How many leading entries of the last dimension of an input the outputs depend on."""
    problem = sample.problem
    if name not in problem.input_names:
        return 0
    place, base = problem.input_names.index(name), problem.evaluate(problem.primals)
    primal = problem.primals[place]
    for k in reversed(range(primal.shape[-1] if primal.dim() else 0)):
        moved = primal.clone()
        moved[..., k] += 1.0
        after = problem.evaluate((*problem.primals[:place], moved, *problem.primals[place + 1 :]))
        if isinstance(base, Raised) or isinstance(after, Raised):
            return 0
        if not all(map(torch.equal, base.value, after.value)):
            return k + 1
    return 0


def unread_inputs(near: Near, finding: Finding) -> Finding | None:
    """A gradient has another shape where backward alone reads an input: nothing shows the shape of that."""
    names: Sequence[str] = near.once(_read_in_backward_alone) if finding.code == OF_A_SHAPE else ()
    return if_guessed(finding, (f"the shape of `{name}`" for name in names))


def _read_in_backward_alone(sample: Sample) -> tuple[str, ...]:
    """Real tensors of whose values the outputs say nothing."""
    problem = sample.problem
    before = problem.evaluate(problem.primals)
    unread = []
    for a in problem.arguments:
        if isinstance(a.value, Tensor) and a.value.is_floating_point() and a.value.numel():
            other = a.value.flip(0) + 1 if a.value.dim() else a.value + 1
            moved = with_values(sample, {a.name: other}).problem
            after = moved.evaluate(moved.primals)
            if isinstance(before, Raised) or isinstance(after, Raised):
                continue
            pairs = zip(before.value, after.value, strict=True)
            if all(x.shape == y.shape and torch.equal(x, y) for x, y in pairs):
                unread.append(a.name)
    return tuple(unread)


def _shaped_as_returned(sample: Sample, _: str) -> Iterator[Neighbour]:
    yield from _at(sample, [_returned(sample)])
