"""Whether a mismatch hangs on values that no spec declares, and that a `range` or a `domain` would exclude.

A forward that clamps its input to its domain, against rounding, is constant outside of it, where backward
goes on with the derivative at the edge. A solver gives its fixed point the implicit gradient, whatever rounds
lead there: where forward stops before it converges, its derivative is another one. A root, a rate or a
variance is meant to be positive, and often neither says so nor refuses what is not. Such a backward is right
for every value that is meant; so the mismatch is looked for again at other values of the kinds below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.model import Finding, tensors_of
from gradverify.source import iterates
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import (
    LARGEST_JACOBIAN,
    Neighbours,
    mismatched,
    one_like,
    with_values,
    wrong_inputs,
)
from gradverify.verifier.doubt.plateaus import FLAT, JUMPS, moved_by_any
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.verdict import Judged

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


def iterates_alone(sample: Sample) -> bool:
    """Whether forward repeats a step until it converges, and backward does not."""
    function = sample.subject.function_class
    return function is not None and iterates(function.forward) and not iterates(own_backward(function))


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
