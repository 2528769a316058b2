"""Whether a mismatch is there at neighbours of a sample: at other values of what was guessed.

A mistake of backward is there at neighbouring inputs too. What chaos in forward, padding, values outside
of a domain or an iteration that does not converge makes is not: there forward has no derivative that a
difference quotient could tell. Such a backward is right for every value that is meant, so the mismatch is
looked for again at other values of these kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradverify.model import Finding, tensors_of
from gradverify.source import iterates
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.kept import judged_jacobians
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.samples import prepared
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.directional_derivative import is_far_off
from gradverify.verifier.numerics.probes import random_signs, tangent_of
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.proof import Certificate, certify, damping_of
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

_Answer = TypeVar("_Answer")

Projection = Callable[[Tensor, Tensor], Tensor]
"""(direction, or differences of one row, shaped like an input; the input) -> their part along a manifold."""

LARGEST_JACOBIAN = 200_000
"""Entries of a Jacobian that is built to see whether anything in it is wrong; of a larger one, some rows
are. Doubling each of four sizes makes a Jacobian 256 times as large."""


@dataclass(frozen=True)
class Neighbours:
    """A sample, and what was measured beside it: each question is answered once, whoever asks."""

    sample: Sample
    answers: dict[object, Any] = field(default_factory=dict)

    def once(self, measure: Callable[..., _Answer], *arguments: Hashable, **named: Hashable) -> _Answer:
        """What `measure` gives of the sample."""
        key = measure, arguments, tuple(named.items())
        if key not in self.answers:
            self.answers[key] = measure(self.sample, *arguments, **named)
        answer: _Answer = self.answers[key]
        return answer


Reason = Callable[[Neighbours, Finding], Finding | None]
"""Gives an error as an inconclusive finding that says what was guessed; None where that did not make it."""

Mistake = tuple[str, str | None, int | None]
"""Code, input and output: what is wrong, wherever it is."""


@dataclass
class Excuses:
    """What excused a mistake at some values of a case excuses it at the others, and is not measured again.

    A guess of sizes, shapes or options is the same at all of them, and to look at another one takes longer
    than to judge the sample.
    """

    by_mistake: dict[Mistake, tuple[Reason, dict[object, object]]] = field(default_factory=dict)
    """The reason, and the answers that it was given."""

    def of(self, mistake: Mistake, near: Neighbours, finding: Finding) -> Finding | None:
        """The finding as an inconclusive one by what excused the mistake before; None for nothing."""
        if mistake not in self.by_mistake:
            return None
        reason, answers = self.by_mistake[mistake]
        return reason(Neighbours(near.sample, answers), finding)

    def first(
        self, mistake: Mistake, near: Neighbours, finding: Finding, reasons: Sequence[Reason]
    ) -> Finding | None:
        """The finding by the first of several reasons that there is; None for none."""
        for reason in reasons:
            if excused := reason(near, finding):
                self.by_mistake[mistake] = reason, near.answers
                return excused
        return None


def with_values(sample: Sample, values: Mapping[str, Any]) -> Sample:
    """The sample with other values of some arguments."""
    arguments = tuple(
        replace(a, value=values[a.name]) if a.name in values else a for a in sample.problem.arguments
    )
    return replace(sample, arguments=arguments, problem=replace(sample.problem, arguments=arguments))


def without(sample: Sample, names: Collection[str]) -> Neighbours | None:
    """The sample with None for some arguments, and nothing where forward does not take that."""
    arguments = tuple(Argument(a.name, None) if a.name in names else a for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return Neighbours(other) if isinstance(other, Sample) else None


def mismatched(sample: Sample, name: str | None = None, *, second_order: bool = False) -> bool | None:
    """Whether backward, or its own, differs from the derivative at this sample, for one input or for any.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    if is_far_off_along(sample, problem, [name] if name in problem.input_names else problem.input_names):
        return True
    wrong = wrong_inputs(sample, second_order=second_order)
    return wrong if wrong is None else bool(wrong if name is None else name in wrong)


def is_far_off_along(
    sample: Sample,
    problem: CallProblem | VjpProblem,
    names: Collection[str],
    projections: Mapping[str, Projection] = MappingProxyType({}),
) -> bool:
    """Whether backward is far off where some inputs move, at random or along a manifold, and no others."""
    if sample.is_native:
        return False
    inputs = Layout.of(problem.primals)
    tangent = inputs.unflatten(tangent_of(inputs.flatten(problem.primals), inputs, sample.key))
    moves: list[Tensor | None] = []
    for name, primal, direction in zip(problem.input_names, problem.primals, tangent, strict=True):
        moved = projections[name](direction, primal) if name in projections else direction
        moves.append(moved if name in names else None)
    return is_far_off(problem, inputs.flatten(moves), sample.key)


def wrong_inputs(sample: Sample, *, second_order: bool = False) -> frozenset[str] | None:
    """Inputs whose gradient, or its own, differs from the derivative at this sample.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    if isinstance(problem, CallProblem) and not sample.judged and not sample.is_native:
        rtol, damping = sample.subject.settings.rtol, damping_of(problem)
        if certify(problem, rtol=rtol, key=sample.key, damping=damping) is not None:
            return ignoring_grad_output(problem)
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if isinstance(judged, Certificate):
        return frozenset()
    if not isinstance(judged, Judged):
        return None
    wrong = judged.comparison.wrong | judged.comparison.nonfinite
    blocks = zip(judged.inputs.blocks, problem.input_names, strict=True)
    found = frozenset(name for block, name in blocks if bool(wrong[:, block.start : block.stop].any()))
    return found if second_order else found | ignoring_grad_output(sample.problem)


def one_like(x: Tensor) -> Tensor:
    """The identity for square matrices, ones for what is none."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if is_square(x) else torch.ones_like(x)


def is_square(x: Tensor) -> bool:
    """Whether the last two dimensions are those of a square matrix."""
    return x.dim() > 1 and x.shape[-1] == x.shape[-2]


STEPS = (0.37, 7.3, -7.3)
"""How far entries are moved to see whether forward reads them: far enough to cross a threshold, too."""


def padded_inputs(sample: Sample, wanted: str | None = None) -> tuple[str, ...]:
    """Inputs with a part that backward gives no gradient, as forward gives zeros there, if that is padding.

    The mismatch must be gone in the rest where the inputs are zero there. Empty for none.
    """
    padding = dict(_padding(sample))
    if not padding or (wanted is not None and wanted not in padding):
        return ()
    kept = {name: ~padded for name, padded in padding.items()}
    return () if _mismatch_in(sample, kept, wanted) else tuple(kept)


def _padding(sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """Inputs with what of them is padding: bool, in the shape of the input."""
    problem = sample.problem
    moved = [p + STEPS[0] for p in problem.primals]
    values = [problem.evaluate(at) for at in (problem.primals, moved)]
    pulled = [problem.pull_back(at, _cotangents(sample)) for at in (problem.primals, moved)]
    runs = [r.value for r in values if not isinstance(r, Raised)]
    gradients = [g.value for g in pulled if not isinstance(g, Raised)]
    if len(runs) < len(values) or len(gradients) < len(pulled):
        return
    zeros = [sum(o != 0 for o in outputs) == 0 for outputs in zip(*runs, strict=True)]
    for place, (name, primal) in enumerate(zip(problem.input_names, problem.primals, strict=True)):
        given = [g[place] for g in gradients]
        if any(g is None for g in given) or not primal.dim():
            continue
        unset = sum((g != 0) for g in given if g is not None) == 0
        if isinstance(unset, Tensor) and any(_are_the_same_rows(unset, z) for z in zeros):
            yield name, unset


def _cotangents(sample: Sample) -> Sequence[Tensor]:
    outputs = sample.problem.outputs
    return outputs.unflatten(random_signs(outputs.size, sample.key))


def _are_the_same_rows(one: Tensor, other: Tensor) -> bool:
    """Whether two masks are set at the same leading indices, and at some of these alone.

    Of two sequences of vectors as long as each other, the vectors may have other lengths.
    """
    for count in range(min(one.dim(), other.dim()), 0, -1):
        if one.shape[:count] != other.shape[:count]:
            continue
        rows = [m.reshape(*m.shape[:count], -1).all(dim=-1) for m in (one, other)]
        if rows[0].any() and not rows[0].all() and torch.equal(*rows):
            return torch.equal(
                one, rows[0].reshape(*rows[0].shape, *[1] * (one.dim() - count)).expand_as(one)
            )
    return False


def _mismatch_in(sample: Sample, parts: Mapping[str, Tensor], wanted: str | None) -> bool:
    """Whether it is there in parts of some inputs (bool, in their shapes) where all else of these is zero."""
    given = dict(zip(sample.problem.input_names, sample.problem.primals, strict=True))
    moved = with_values(
        sample, {n: torch.where(p.to(given[n].device), given[n], 0.0) for n, p in parts.items()}
    )
    problem = moved.problem
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    if not isinstance(judged, Judged):
        return False
    wrong = judged.comparison.wrong.clone()
    blocks = dict(zip(problem.input_names, judged.inputs.blocks, strict=True))
    for name, part in parts.items():
        block = blocks[name]
        elsewhere = ~part.cpu().reshape(*part.shape, *[1] * (len(block.shape) - part.dim()))
        wrong[:, block.start : block.stop][:, elsewhere.expand(block.shape).reshape(-1)] = False
    asked = blocks.get(wanted or "")
    return bool(wrong.any() if asked is None else wrong[:, asked.start : asked.stop].any())


FLAT = (1e-5, -1e-5)
"""How far all entries are moved to see whether forward is flat: short beside the distance to a step."""

JUMPS = (*STEPS, 1.1, -1.1, 2.3, -2.3, 61.0, -61.0)
"""How far they are moved to see whether forward is a step: between two bounds there may be one step alone."""


def changed(sample: Sample, place: int, output: int, value: Tensor, step: float) -> Tensor | None:
    """Entries of an output that change when all of an input move, each by another distance.

    None where forward raises.
    """
    moved = [p.clone() for p in sample.problem.primals]
    distance = step * torch.linspace(1.0, 1.5, moved[place].numel(), dtype=torch.float64)
    moved[place] += distance.to(moved[place]).reshape(moved[place].shape)
    result = sample.problem.evaluate(moved)
    return None if isinstance(result, Raised) else result.value[output] != value


def moved_by_any(sample: Sample, place: int, output: int, value: Tensor, steps: Iterable[float]) -> Tensor:
    """Entries of an output that change for any of several moves of an input."""
    moved = torch.zeros_like(value, dtype=torch.bool)
    for step in steps:
        if moved.all():
            break
        here = changed(sample, place, output, value, step)
        moved = moved if here is None else moved | here
    return moved


def is_flat(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output stays as it is when an input moves a little: most of its entries on both sides.

    A few may lie at a step itself, and change on one side of it.
    """
    sides = [changed(sample, place, output, value, step) for step in FLAT]
    ahead, behind = (torch.zeros_like(value, dtype=torch.bool) if s is None else s for s in sides)
    at_a_step = int((ahead | behind).count_nonzero())
    return not bool((ahead & behind).any()) and 2 * at_a_step <= value.numel()


ASIDE = (1e-3, -1e-3, 3e-3, -3e-3)
"""How far the neighbours are, relative to an entry; from zero, absolute."""

AS_WRONG = 0.5
"""Relative change of a difference up to which it is the same one, as any smooth function's is."""

MOST = 0.5
"""Share of the neighbours, and of the entries, that has to agree."""

AS_STEEP = 0.1
"""Relative change of the derivative up to which forward is smooth there: then it has one for certain."""


@dataclass(frozen=True)
class _Measured:
    """Both Jacobians, entry by entry."""

    derivative: Tensor
    difference: Tensor
    """Backward less the derivative."""
    wrong: Tensor


def is_steady(near: Neighbours, name: str | None) -> bool:
    """Whether most of the entries that are wrong are as wrong at most neighbours, or forward as steep at all.

    Those of the gradient of one input, by its name: chaos in another one excuses nothing. True where nothing
    could be measured there: then nothing speaks against the mismatch.
    """
    base = _of_input(near, near.once(compared), name)
    if base is None or not base.wrong.any():
        return True
    found: list[_Measured] = []
    as_wrong = torch.zeros(int(base.wrong.sum()))
    aside = (near.once(_compared_aside, number) for number in range(len(ASIDE)))
    for after in filter(None, (_of_input(near, comparison, name) for comparison in aside)):
        found.append(after)
        as_wrong += _is_as_wrong(base, after)
        if _are_most(as_wrong >= MOST * len(ASIDE)):
            return True  # whatever the other neighbours give
    if not found:
        return True
    as_steep = torch.stack([_is_as_steep(base, after) for after in found]).all(0)
    return _are_most((as_wrong >= MOST * len(found)) | as_steep)


def _are_most(entries: Tensor) -> bool:
    return bool(entries.double().mean() >= MOST)


def _is_as_wrong(base: _Measured, after: _Measured) -> Tensor:
    before, now = base.difference[base.wrong], after.difference[base.wrong]
    return (now - before).abs() <= AS_WRONG * before.abs()


def _is_as_steep(base: _Measured, after: _Measured) -> Tensor:
    steep = base.derivative.abs()
    usual = steep[steep > 0].median() if (steep > 0).any() else torch.zeros((), dtype=steep.dtype)
    scale = torch.maximum(steep[base.wrong], usual)
    return (after.derivative[base.wrong] - base.derivative[base.wrong]).abs() <= AS_STEEP * scale


def compared(sample: Sample) -> Comparison | None:
    """Both Jacobians of a sample; None where nothing could be measured."""
    judged = judged_jacobians(sample, sample.problem)
    whole = isinstance(judged, Judged) and judged.inputs.size == sample.inputs.size
    return judged.comparison if isinstance(judged, Judged) and whole else None


def _compared_aside(sample: Sample, number: int) -> Comparison | None:
    """The same at one of the neighbours."""
    return compared(next(islice(_neighbours(sample), number, None)))


def _of_input(near: Neighbours, comparison: Comparison | None, name: str | None) -> _Measured | None:
    """The columns of one input, all where it is none."""
    if comparison is None:
        return None
    sample = near.sample
    names = sample.problem.input_names
    block = sample.inputs.blocks[names.index(name)] if name in names else None
    columns = slice(None) if block is None else slice(block.start, block.stop)
    derivative = comparison.numerical[:, columns].nan_to_num(0.0)
    difference = (comparison.analytical[:, columns] - derivative).nan_to_num(0.0)
    return _Measured(derivative, difference, comparison.wrong[:, columns])


def _neighbours(sample: Sample) -> Iterator[Sample]:
    generator = torch.Generator().manual_seed(11)
    for step in ASIDE:
        moved = {}
        for argument in sample.problem.arguments:
            if argument.differentiable and isinstance(argument.value, Tensor):
                value = argument.value
                sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
                size = torch.where(value == 0, 1.0, value.abs())
                moved[argument.name] = value + step * sign.to(value) * size.to(value)
        yield with_values(sample, moved)


SMALL = 0.1
"""Factor on inputs at which most iterations converge, alone or added to one: slopes are below one there."""

SPREAD = 0.05
"""Relative half-width of the values that are tried around a single one at which backward is right."""


@dataclass(frozen=True)
class _Values:
    """Other values of an input, made of its own, and how a spec declares that only such are valid."""

    declared: str
    of: Callable[[Tensor], Tensor]


_POSITIVE = _Values("`domain: positive`", torch.abs)
_FRACTIONS = _Values("`domain: unit`", lambda x: x.abs().frac())
_ABOVE_ONE = _Values("`range: [1, 4]`", lambda x: 1 + x.abs())

CONVERGING = (
    _Values("`range: [-0.3, 0.3]`", lambda x: SMALL * x),
    _Values("`range: [0.7, 1.3]`", lambda x: 1 + SMALL * x),
    _Values("a `make:` function of matrices near the identity", lambda x: one_like(x) + SMALL * x),
)
"""Values at which most iterations converge."""

OF_A_DOMAIN = (_POSITIVE, _FRACTIONS, _ABOVE_ONE, CONVERGING[0])
"""Values of which most domains hold one kind."""


@dataclass(frozen=True)
class _Block:
    """One (output, input) block of the Jacobian, rows of the output by entries of the input."""

    numerical: Tensor
    wrong: Tensor
    telling: Tensor
    """Known, and not zero."""
    rows_of_all: Tensor
    """The same rows of the whole numerical Jacobian: by every input."""


def forward_iterates(sample: Sample) -> bool:
    """Whether forward repeats a step until it converges."""
    function = sample.subject.function_class
    return function is not None and iterates(function.forward)


def iterates_alone(sample: Sample) -> bool:
    """Whether forward repeats a step until it converges, and backward does not."""
    function = sample.subject.function_class
    return function is not None and forward_iterates(sample) and not iterates(own_backward(function))


def declares_values(sample: Sample) -> bool:
    """Whether a spec says which values some input has."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return any(t.range is not None or t.value is not None or t.structure or t.make for t in given) or bool(
        sample.case.hook
    )


def right_where_converged(sample: Sample) -> str:
    """How a spec declares small values, or those near one or the identity, if backward is right there."""
    given = {a.name: a.value for a in sample.arguments if a.differentiable}
    for values in CONVERGING:
        moved = with_values(sample, {name: values.of(value) for name, value in given.items()})
        if mismatched(moved) is False:
            return values.declared
    return ""


def needless_minus_signs(near: Neighbours, wrong: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """What was guessed, in words, of the first input without whose minus signs backward is right; else empty.

    Right in the gradient of `wrong`, or of any for None; `names` are the inputs that are tried. An index that
    is read off a negative number counts from the end in forward, and not in backward.
    """
    for name in names:
        primal = near.sample.problem.primals[near.sample.problem.input_names.index(name)]
        if primal.is_complex() or not bool((primal < 0).any()):
            continue
        still = near.once(_wrong_without_signs, name)
        if still is not None and not (still if wrong is None else wrong in still):
            return (f"that negative values of `{name}` are valid",)
    return ()


def _wrong_without_signs(sample: Sample, name: str) -> frozenset[str] | None:
    """Inputs whose gradient is wrong where an input has lost its minus signs, as `wrong_inputs`.

    And what is before the point, where that is refused: a place between rows of a table must not be large.
    """
    primal = sample.problem.primals[sample.problem.input_names.index(name)]
    found = (wrong_inputs(with_values(sample, {name: v.of(primal)})) for v in (_POSITIVE, _FRACTIONS))
    return next((wrong for wrong in found if wrong is not None), None)


def is_locally_constant(sample: Sample, finding: Finding) -> bool:
    """Whether forward is constant beside the sample in every entry in which backward is wrong."""
    block = _block(sample, finding)
    return block is not None and _is_constant(sample, finding, block)


def right_inside(near: Neighbours, finding: Finding) -> str:
    """How a spec declares the domain in which backward is right, where it is wrong outside alone.

    Outside forward is constant. Where whole outputs are, the inputs are outside of whatever domain there is;
    where others depend on the same inputs, as in a sum over entries, backward must be right for all values
    inside. Empty where forward is not constant, or constant everywhere: no domain explains that.
    """
    sample = near.sample
    block = _block(sample, finding)
    if block is None or not _is_constant(sample, finding, block):
        return ""
    inside = next(_right_inside(sample, finding, block), "")
    if inside:
        return inside
    rows = block.wrong.any(dim=1)
    whole = not block.rows_of_all[rows].any() and bool(_reacting(sample, finding)[rows].all())
    return f"a `range:` of `{finding.input}` inside its domain" if whole else ""


def _is_constant(sample: Sample, finding: Finding, block: _Block) -> bool:
    """Whether forward is constant where backward is wrong: that output for the whole input, or all outputs.

    That is, of every wrong entry of the Jacobian, either its output stays as it is when all of the input
    moves, or every output does when its entry of the input moves. One output that another entry has no part
    in is no plateau. A derivative of zero is not enough: where a distance vanishes, its cube has one, too.
    """
    if not block.wrong.any() or block.numerical[block.wrong].any():
        return False
    problem = sample.problem
    place, output = problem.input_names.index(str(finding.input)), _output(sample, finding)
    primal, base = problem.primals[place], problem.evaluate(problem.primals)
    if isinstance(base, Raised):
        return False
    moving = moved_by_any(sample, place, output, base.value[output], FLAT).reshape(-1).cpu()
    columns = block.wrong[moving].any(dim=0).reshape(primal.shape).to(primal)
    for step in FLAT:
        value = primal + step * columns * primal.abs().clamp_min(1.0)
        moved = problem.evaluate((*problem.primals[:place], value, *problem.primals[place + 1 :]))
        if isinstance(moved, Raised) or not all(map(torch.equal, moved.value, base.value)):
            return False
    return True


def _output(sample: Sample, finding: Finding) -> int:
    """The number of the output of a finding among those that are differentiated."""
    return next(k for k, at in enumerate(sample.problem.output_positions) if at == finding.output)


def _reacting(sample: Sample, finding: Finding) -> Tensor:
    """Entries of the output of a finding (bool, flat) that change for large moves of its input."""
    problem = sample.problem
    output, place = _output(sample, finding), problem.input_names.index(str(finding.input))
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised):
        return torch.zeros(problem.outputs.blocks[output].stop - problem.outputs.blocks[output].start).bool()
    moved = moved_by_any(sample, place, output, base.value[output], JUMPS)
    return moved.reshape(-1).cpu()


def _right_inside(sample: Sample, finding: Finding, block: _Block) -> Iterator[str]:
    """How a spec declares other values, for each kind of them at which backward is right and not all zero."""
    names, primals = sample.problem.input_names, sample.problem.primals
    name, primal = str(finding.input), primals[names.index(str(finding.input))]
    right = block.telling.any(dim=0) & ~block.wrong.any(dim=0)
    if right.any():
        inside = primal.flatten()[right.to(primal.device)]
        least, most = inside.min().item(), inside.max().item()
        if _is_right(sample, {name: _between(primal, least, most)}, name):
            yield f"`range: [{least:.3g}, {most:.3g}]` of `{name}`"
    for values in OF_A_DOMAIN:
        if _is_right(sample, {name: values.of(primal)}, name):
            yield f"{values.declared} of `{name}`"


def _between(primal: Tensor, least: float, most: float) -> Tensor:
    """Different values in the order of an input's own, from one to another."""
    middle, half = (least + most) / 2, (most - least) / 2
    half = max(half, SPREAD * abs(middle))
    ranks = primal.flatten().argsort().argsort().to(primal)
    return (middle - half + 2 * half * (ranks + 1) / (len(ranks) + 1)).reshape(primal.shape)


def _is_right(sample: Sample, values: dict[str, Tensor], name: str) -> bool:
    """Whether backward is right at these values, at which every entry of the input has an effect."""
    moved = with_values(sample, values)
    if mismatched(moved, name) is not False:
        return False
    problem = moved.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    found = problem.pull_back(problem.primals, u)
    gradient = None if isinstance(found, Raised) else found.value[problem.input_names.index(name)]
    return gradient is not None and bool((gradient != 0).all())


def _block(sample: Sample, finding: Finding) -> _Block | None:
    """The block of a finding; None where it was not measured."""
    problem = sample.problem
    if finding.input not in problem.input_names or finding.output not in problem.output_positions:
        return None
    output = problem.outputs.blocks[problem.output_positions.index(finding.output)]
    if problem.primals[problem.input_names.index(finding.input)].is_complex() or output.dtype.is_complex:
        return None
    if 1 not in sample.judged and sample.inputs.size * problem.outputs.size > LARGEST_JACOBIAN:
        return None
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if not isinstance(judged, Judged) or judged.in_groups or judged.inputs.size != sample.inputs.size:
        return None
    columns = judged.inputs.blocks[problem.input_names.index(finding.input)]
    rows = judged.outputs.blocks[problem.output_positions.index(finding.output)]
    compared, c, r = judged.comparison, slice(columns.start, columns.stop), slice(rows.start, rows.stop)
    wrong = compared.wrong | compared.nonfinite
    return _Block(compared.numerical[r, c], wrong[r, c], compared.telling[r, c], compared.numerical[r])
