"""GV101 where equal entries meet: what the gradients of them add up to.

At a tie no entry has a derivative of its own, and a maximum may give its gradient to one of them, or a share
to each. All of them moved together have a derivative: where every one gets the whole, the sum is too large,
and where none gets any, too small.

The smooth pieces that meet where entries are equal agree there, and so do their slopes along what stays
there. Which of them backward takes, and how it mixes them, does not matter to that sum. This holds where no
other piece begins, as at the middle one of x, y and 0 where all are 0: a sum is wrong if it is at other equal
values nearby, too. A forward that jumps has no derivative on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, indexed
from gradverify.verifier.checks.float32_inside import single_precision_outputs
from gradverify.verifier.checks.neighbours import is_proved
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import apart, output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import substitute
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.native_rounding import as_real
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.numerics.sampling import typical_values
from gradverify.verifier.numerics.tolerance import EPSILON, Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

AWAY = 2.0**-10
"""By what share of itself each value is moved, towards zero: the same entries are equal there."""

APART = (2.0**-20, 2.0**-30)
"""How far equal entries are moved apart, in units of their size, to see whether forward jumps there."""

SHRINKS = 2.0**-4
"""By at least this the change of a continuous forward shrinks over the nearer one: by 2^-5 as a root does."""

ROUNDINGS = 64
"""Of the outputs' typical value, which are no jump."""

HINT_OF_ONE = (
    "The gradients of equal entries must add up to the slope along all of them: all of it for one, or a "
    "share for each. If equal values are not valid, leave out `ties: true`."
)
HINT_OF_SEVERAL = (
    "The gradients of equal inputs must add up to the slope along both: all of it for one, or a share for "
    "each. If they are never equal, give them ranges that do not overlap."
)

BETWEEN_INPUTS = "equal entries of several inputs"
"""The `part` of a finding that hangs on whether two inputs may be equal."""

Columns = tuple[int, ...]
"""Entries of all differentiable inputs, by their places in one vector."""

Confirmed = Callable[[Sample, Judged], Comparison]
"""What of a comparison has no other explanation than a wrong backward."""


@dataclass(frozen=True)
class Together:
    """A sample in which equal entries move as one."""

    of: Sample
    """The sample as it was."""
    sample: Sample
    """The same as a function of one vector, of a value for each group, and of what is in none."""
    x: Tensor
    """Where that is, as a vector of all differentiable inputs (N entries)."""
    equal: tuple[Columns, ...]
    """The groups: what the first columns of its Jacobian move."""


def between_inputs(sample: Sample) -> Together | None:
    """The sample with entries of several inputs that are equal, each to none of its own input, as one.

    None where there are none. Values that are equal within one input do not count: unless `ties: true` is
    declared, backward may rely on their being different.
    """
    met: dict[float, list[Columns]] = {}
    for _, found in _by_value(sample):
        for value, columns in found.items():
            met.setdefault(value, []).append(tuple(columns))
    groups = (group for group in met.values() if len(group) > 1 and max(map(len, group)) == 1)
    equal = tuple(tuple(column for (column,) in group) for group in groups)
    return _together(sample, equal) if equal else None


def adds_up(moved: Together) -> bool:
    """Whether a proof closes along what moves as one."""
    return is_proved(moved.sample.problem, moved.of.key)


def wrong_sum(moved: Together, rtol: float, confirmed: Confirmed) -> Finding | None:
    """What the gradients of equal entries add up to, where that is not the slope along them."""
    here = _confirmed(moved, rtol, confirmed)
    if here is None or not here.wrong.any():
        return None
    nearby = _confirmed(_together(moved.of, moved.equal, AWAY), rtol, confirmed)
    return None if nearby is None else _finding(moved, here, here.wrong & nearby.wrong)


def _confirmed(moved: Together, rtol: float, confirmed: Confirmed) -> Comparison | None:
    """The comparison with what is wrong for sure in the columns of equal entries; None without numbers."""
    sample = moved.sample
    outputs = sample.problem.outputs
    asked = sample.problem.pull_back(
        sample.problem.primals, outputs.unflatten(torch.ones(outputs.size, dtype=torch.float64))
    )
    if isinstance(asked, Raised) or not sample.inputs.flatten(asked.value).isfinite().all():
        return None
    judged = judge(sample.problem, Tolerance(rtol, sample.subject.settings.atol))
    if not isinstance(judged, Judged) or single_precision_outputs(moved.of, judged.measured.centre):
        return None
    comparison = confirmed(sample, judged)
    smooth = (judged.measured.kink == 0) & _continuous(moved, judged.measured.centre)[:, None]
    return replace(comparison, wrong=comparison.wrong & smooth)


def _by_value(sample: Sample) -> Iterator[tuple[str, dict[float, list[int]]]]:
    """For each input whose entries move freely, its name, and where each of its values is."""
    blocks = iter(sample.inputs.blocks)
    for argument in sample.problem.arguments:
        if not argument.differentiable:
            continue
        start, found = next(blocks).start, dict[float, list[int]]()
        if _moves_freely(argument):
            for place, value in enumerate(as_real(argument.value).reshape(-1).tolist()):
                found.setdefault(value, []).append(start + place)
        yield argument.name, found


def _moves_freely(argument: Argument) -> bool:
    plain = argument.step is None and argument.held is None
    return argument.differentiable and plain and argument.value.dtype in {torch.float64, torch.complex128}


def _together(sample: Sample, equal: Sequence[Columns], away: float = 0.0) -> Together:
    """The sample with each group as one number; all values `away` from where they are, in units of theirs."""
    problem, inputs = sample.problem, sample.inputs
    differentiable = [a for a in problem.arguments if a.differentiable]
    pairs = list(zip(differentiable, inputs.blocks, strict=True))
    free = [c for a, b in pairs if _moves_freely(a) for c in range(b.start, b.stop)]
    grouped = {column for group in equal for column in group}
    groups = (*equal, *((column,) for column in free if column not in grouped))
    place_of = torch.zeros(inputs.size, dtype=torch.long)
    for place, group in enumerate(groups):
        place_of[list(group)] = place
    values = inputs.flatten(problem.primals)[[group[0] for group in groups]]
    if away:
        moved = random_signs(len(values), sample.case.seed).abs() * away
        values = torch.where(values == 0, moved, values * (1 - moved))
    x = inputs.flatten(problem.primals).clone()
    x[free] = values[place_of[free]]
    device = differentiable[0].value.device

    def function(vector: Tensor, *others: Tensor) -> Any:  # noqa: ANN401 - what user code returns
        rest = iter(others)
        primals = [
            _shaped(vector[place_of[b.start : b.stop].to(device)], b) if _moves_freely(a) else next(rest)
            for a, b in pairs
        ]
        return problem.function(*substitute(problem.arguments, primals))

    others = (
        Argument(a.name, a.value, differentiable=True, held=a.held) for a, _ in pairs if not _moves_freely(a)
    )
    arguments = (Argument("", values.to(device), differentiable=True), *others)
    problem_together = replace(problem, function=function, arguments=arguments)
    return Together(sample, replace(sample, problem=problem_together, arguments=arguments), x, tuple(equal))


def _shaped(entries: Tensor, block: Block) -> Tensor:
    shaped = entries.reshape(block.shape)
    return torch.view_as_complex(shaped) if block.is_complex else shaped


def _continuous(moved: Together, centre: Tensor) -> Tensor:
    """Rows of f (bool, M) that do not jump where the equal entries move apart."""
    problem, inputs = moved.of.problem, moved.of.inputs
    apart = torch.zeros_like(moved.x)
    apart[[column for group in moved.equal for column in group]] = 1.0
    apart *= random_signs(len(apart), moved.of.case.seed + 1) * torch.where(moved.x == 0, 1.0, moved.x.abs())
    rounding = ROUNDINGS * EPSILON * typical_values(centre, problem.outputs)
    result = torch.ones_like(centre, dtype=torch.bool)
    for sign in (1, -1):
        changes = []
        for step in APART:
            found = problem.evaluate(inputs.unflatten(moved.x + sign * step * apart))
            if isinstance(found, Raised):
                return torch.zeros_like(result)
            changes.append((problem.outputs.flatten(found.value) - centre).abs())
        result &= changes[1] <= SHRINKS * changes[0] + rounding
    return result


def _finding(moved: Together, comparison: Comparison, wrong: Tensor) -> Finding | None:
    """What is off most of the sums that are wrong (bool, M × columns, those of groups first)."""
    count, sample = len(moved.equal), moved.of
    wrong = wrong[:, :count]
    if not wrong.any():
        return None
    off = torch.where(wrong, (comparison.analytical - comparison.numerical)[:, :count].abs(), 0.0)
    row, column = divmod(int(off.argmax()), count)
    output = sample.problem.output_positions[sample.problem.outputs.block_of(row)]
    what = output_name(output, sample.outputs_returned)
    claimed, real = apart(*(t[row, column].item() for t in (comparison.analytical, comparison.numerical)))
    blocks = [sample.inputs.block_of(c) for c in moved.equal[column]]
    names = [sample.problem.input_names[b] for b in blocks]
    hint, said, part = HINT_OF_ONE, f"equal entries of `{names[0]}`", ""
    if len(set(names)) > 1:
        each = [
            f"`{indexed(name, sample.inputs.blocks[b].index(c))}`"
            for name, b, c in zip(names, blocks, moved.equal[column], strict=True)
        ]
        said = f"{', '.join(each[:-1])} and {each[-1]}, which are equal,"
        hint, part = HINT_OF_SEVERAL, BETWEEN_INPUTS
    return sample.finding(
        "GV101",
        f"the gradients of {what} with respect to {said} add up to {claimed}, but all of them moved together "
        f"give {real}",
        hint=hint,
        input=names[0],
        output=output,
        part=part,
    )
