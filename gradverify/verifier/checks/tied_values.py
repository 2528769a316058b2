"""GV101 where declared ties meet: what the gradients of equal entries add up to.

At a tie no entry has a derivative of its own, and a maximum may give its gradient to one of them, or a share
to each. All of them moved together have a derivative: where every one gets the whole, the sum is too large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Point, tensors_of
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import number, output_name
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge


def wrong_where_tied(sample: Sample) -> Finding | None:
    """Judge the declared draw with ties by the equal entries of each input, which move as one."""
    names = {t.name for i in sample.case.inputs for t in tensors_of(i) if t.ties}
    if sample.point is not Point.SPECIAL or sample.draw != 0 or not names:
        return None
    arguments = tuple(_merged(a) if a.name in names else a for a in sample.arguments)
    problem = replace(sample.problem, arguments=arguments)
    judged = judge(problem, Tolerance(sample.subject.settings.rtol, sample.subject.settings.atol))
    if not isinstance(judged, Judged):
        return None
    comparison = judged.comparison
    for name, block in zip(problem.input_names, judged.inputs.blocks, strict=True):
        columns = slice(block.start, block.stop)
        wrong = comparison.wrong[:, columns]
        if name in names and bool(wrong.any()):
            off = torch.where(wrong, (comparison.analytical - comparison.numerical)[:, columns].abs(), 0.0)
            row, column = divmod(int(off.argmax()), wrong.shape[1])
            place = (row, block.start + column)
            sums = comparison.analytical[place].item(), comparison.numerical[place].item()
            return _finding(sample, name, row, sums)
    return None


def _merged(argument: Argument) -> Argument:
    """The argument as a function of its distinct values."""
    value = argument.value
    if (
        not argument.differentiable
        or argument.step is not None
        or argument.held is not None
        or value.is_complex()
    ):
        return argument
    distinct, index = value.unique(return_inverse=True)
    return replace(argument, value=distinct, step=_spread(index))


def _spread(index: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda distinct: distinct[index]


def _finding(sample: Sample, name: str, row: int, sums: tuple[float, float]) -> Finding:
    """`sums`: what backward's gradients add up to, and the derivative along all of the entries."""
    output = sample.problem.output_positions[sample.problem.outputs.block_of(row)]
    what = output_name(output, sample.outputs_returned)
    claimed, real = map(number, sums)
    return sample.finding(
        "GV101",
        f"the gradients of {what} with respect to equal entries of `{name}` add up to {claimed}, but all of "
        f"them moved together give {real}",
        hint="Among equal entries a maximum has one gradient to give: to one of them, or a share to each. If "
        "equal values are not valid, leave out `ties: true`.",
        input=name,
        output=output,
    )
