"""A sample at other values, and whether a mismatch is there as well: each question is answered once.

Where forward is flat: outputs that stay as they are for small moves of an input, and for large ones.

Whether a mismatch is there a little aside too: a mistake of backward is, chaos in forward is not. An
iteration that does not converge, a root where none exists and a quotient at its pole have no derivative that
a difference quotient could tell, though one may seem to settle. A little aside they give something else
altogether, and so does what is called a mismatch. A wrong backward is as wrong there as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradverify.model import (
    Finding,
)
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.kept import judged_jacobians
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.directional_derivative import is_far_off
from gradverify.verifier.numerics.large import Certificate
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.verdict import Judged
from gradverify.verifier.witnesses.answers import Asked, Budget, Trust
from gradverify.verifier.witnesses.claim import Claim
from gradverify.verifier.witnesses.proof import proved
from gradverify.verifier.witnesses.values import Values, probe

_Answer = TypeVar("_Answer")


Projection = Callable[[Tensor, Tensor], Tensor]
"""(direction, or differences of one row, shaped like an input; the input) -> their part along a manifold."""


LARGEST_JACOBIAN = 200_000
"""Entries of a Jacobian that is built to see whether anything in it is wrong; of a larger one, some rows
are. Doubling each of four sizes makes a Jacobian 256 times as large."""


UNDAMPED = 4096
"""Entries of a Jacobian up to which every row counts by its own size alone: where that does not close,
so many are quickly measured."""


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

OF_A_SLOPE = frozenset({"GV101", "GV107", "GV110"})
"""Codes that rest on a derivative of forward as it was measured."""

OF_SECOND_ORDER = "GV2"

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

    def of_first_order(self, near: Neighbours, finding: Finding) -> Finding | None:
        """A finding of second order by what excused the gradient itself in this case: it rests on that."""
        if not finding.code.startswith(OF_SECOND_ORDER):
            return None
        for (code, _, _), (reason, answers) in self.by_mistake.items():
            if code in OF_A_SLOPE:
                excused = reason(Neighbours(near.sample, answers), replace(finding, code=code))
                if excused is not None:
                    return excused
        return None

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


def is_proved(problem: CallProblem, key: int) -> bool:
    """Whether forward's values prove backward along a random direction.

    Of few rows each counts by its own size alone, be it 1e-30 of the others'.
    """
    claim, values = Claim(problem), Values(problem)
    asked = Asked(
        problem=problem,
        claim=claim,
        values=values,
        derived=None,
        hides=True,
        trust=Trust(),
        rtol=0.0,
        atol=0.0,
        declared=True,
        budget=Budget(),
        counter=problem.counter,
        key=key % 4096,
    )
    proof = proved(asked)
    if isinstance(proof, Raised) or not proof.closed or proof.difference is None:
        return False
    slope, taken, limit = proof.difference.slope, proof.difference.taken, proof.difference.limit
    if problem.outputs.size * len(values.x) > UNDAMPED:
        return True
    moves = slope.abs() > 0
    u = torch.where(moves, probe(len(slope), asked.key + 1) / slope.abs(), 0.0)
    gradient = claim.row(torch.where(u.isfinite(), u, 0.0))
    if isinstance(gradient, Raised):
        return False
    return bool(((u * slope)[moves & u.isfinite()].sum() - gradient @ taken).abs() <= limit)


def wrong_inputs(sample: Sample, *, second_order: bool = False) -> frozenset[str] | None:
    """Inputs whose gradient, or its own, differs from the derivative at this sample.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    quick = isinstance(problem, CallProblem) and not sample.judged and not sample.is_native
    if quick and is_proved(sample.problem, sample.key):
        return ignoring_grad_output(sample.problem)
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


def compared(sample: Sample) -> Comparison | None:
    """Both Jacobians of a sample; None where nothing could be measured."""
    judged = judged_jacobians(sample, sample.problem)
    whole = isinstance(judged, Judged) and judged.inputs.size == sample.inputs.size
    return judged.comparison if isinstance(judged, Judged) and whole else None


STEPS = (0.37, 7.3, -7.3)
"""How far entries are moved to see whether forward reads them: far enough to cross a threshold, too."""


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
