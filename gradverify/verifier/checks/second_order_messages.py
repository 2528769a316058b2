"""What is wrong with one block of a second-order Jacobian, in words (GV201, GV202)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Severity, indexed
from gradverify.verifier.checks.graph_cuts import Cuts
from gradverify.verifier.checks.once_differentiable import marked_first_order
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    blocks,
    by_how_much,
    count_of,
    entries_of,
    is_finite,
    map_of,
    number,
    part,
)
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.verdict import Judged

FIRST_ORDER_ONLY = (
    "If no second derivative is meant, say so: @torch.autograd.function.once_differentiable above backward."
)

DETACHED = (
    "Mark backward with @torch.autograd.function.once_differentiable, so that a double backward raises "
    "instead of losing a term; or build it from differentiable operations. To accept it: "
    'ignore: {GV2: "first order only"}.'
)

PARTLY_DETACHED = (
    "Something that backward uses is detached (an intermediate kept on ctx instead of saved as an input or "
    "output, .detach(), .data, no_grad), or a Function that backward calls returns None or zeros for it. "
    "Recompute it in backward from saved inputs."
)

FIRST_ROWS = 16
"""So many entries of the outputs are asked for one on which the gradient depends: of a ReLU many are zero."""

NOT_FINITE = (
    " Is a root, a power or a quotient taken of 0 and hidden by torch.where or a product with 0? Its "
    "derivative is infinite, and inf * 0 is NaN: mask the argument, not the result."
)
"""The usual origin of a NaN in a second derivative whose first is finite."""


@dataclass(frozen=True)
class SecondPair:
    """One block of the second-order Jacobian: the gradient of one input by another input or grad_output."""

    judged: Judged
    gradient_of: str
    by: str
    output: Block
    source: Block
    position: int

    def part(self, matrix: Tensor) -> Tensor:
        """The block of an M × N matrix."""
        return part(matrix, self.output, self.source)

    @property
    def wrong(self) -> Tensor:
        """Where it is wrong, or not finite."""
        return self.part(self.judged.comparison.wrong | self.judged.comparison.nonfinite)

    @property
    def is_cut(self) -> bool:
        """Double backward gives zeros alone."""
        return not self.part(self.judged.comparison.analytical).any()

    @property
    def largest(self) -> float:
        """The largest derivative of the block."""
        return self.part(self.judged.comparison.numerical).abs().max().item()

    def place(self) -> str:
        """That derivative by name, with its value."""
        values = self.part(self.judged.comparison.numerical)
        row, column = divmod(int(values.abs().argmax()), values.shape[1])
        gradient = indexed(self.gradient_of, self.output.index(self.output.start + row))
        by = indexed(self.by, self.source.index(self.source.start + column))
        return f"d grad of {gradient} / d {by} is {number(values[row, column].item())}"

    def entries(self) -> Entries:
        """Its wrong entries."""
        comparison = self.judged.comparison
        compared = (comparison.analytical, comparison.numerical, comparison.bound)
        actual, expected, bound = map(self.part, compared)
        return entries_of(actual, expected, bound, self.wrong, self.output, self.source)


def second_pairs(second: VjpProblem, judged: Judged) -> list[SecondPair]:
    """Every block."""
    names = second.input_names
    return [
        SecondPair(judged, names[o], names[i], output, source, o)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
    ]


def detached(sample: Sample, wrong: Sequence[SecondPair]) -> Finding:
    """All of a second derivative is zero where it should not be."""
    worst = max(wrong, key=lambda pair: pair.largest)
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut: for autograd the gradient of `{worst.gradient_of}` depends "
        f"on nothing, but {worst.place()}",
        hint=DETACHED,
        input=worst.by,
        output=worst.position,
        severity=Severity.WARNING if sample.subject.inferred else Severity.ERROR,
        cause="detached",
    )


def cut_by_kernel(sample: Sample) -> Finding | None:
    """No gradient has a graph, as a kernel leaves it; None where the gradients are zero, so nothing is lost.

    Backward is linear in grad_output, so its derivative by that is known without a measurement. A warning: of
    kernels hardly any second derivative is meant, and whoever asks for one must learn that it is lost.
    """
    problem = sample.problem
    for chosen in range(min(FIRST_ROWS, problem.outputs.size)):
        one = torch.zeros(problem.outputs.size, dtype=torch.float64)
        one[chosen] = 1.0
        row = problem.pull_back(problem.primals, problem.outputs.unflatten(one))
        flat = torch.zeros(1) if isinstance(row, Raised) else sample.inputs.flatten(row.value).nan_to_num(0.0)
        if flat.any():
            break
    else:
        return None
    worst = int(flat.abs().argmax())
    block = sample.inputs.blocks[sample.inputs.block_of(worst)]
    name = problem.input_names[sample.inputs.block_of(worst)]
    output = problem.outputs.blocks[problem.outputs.block_of(chosen)]
    entry = indexed("grad_output", output.index(chosen))
    place = f"d grad of {indexed(name, block.index(worst))} / d {entry} is {number(flat[worst].item())}"
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut by a kernel: for autograd the gradient of `{name}` depends "
        f"on nothing, but {place}",
        hint=FIRST_ORDER_ONLY,
        input=name,
        severity=Severity.WARNING,
        cause="detached",
    )


def wrong_block(sample: Sample, pair: SecondPair) -> Finding:
    """One block of it is zero, or another one."""
    entries, comparison = pair.entries(), pair.judged.comparison
    if pair.is_cut:
        return sample.finding(
            "GV202",
            f"part of the second derivative is silently cut: the gradient of `{pair.gradient_of}` does not "
            f"depend on `{pair.by}` for autograd, but {pair.place()}",
            hint=f"{PARTLY_DETACHED} {FIRST_ORDER_ONLY}",
            input=pair.by,
            output=pair.position,
            entries=entries,
            cause="detached",
        )
    compared = (pair.part(comparison.analytical), pair.part(comparison.numerical))
    bound, wrong = pair.part(comparison.bound), pair.wrong
    off = (compared[0] - compared[1]).abs()[wrong].max() / bound[wrong].max().clamp_min(1e-300)
    return sample.finding(
        "GV201",
        f"the second derivative (gradient of `{pair.gradient_of}` by `{pair.by}`) is wrong at "
        f"{count_of(entries.wrong, entries.checked)}, {by_how_much(entries)}",
        hint="The first derivative is right. What backward computes must itself be differentiable in its "
        f"inputs and in grad_output. {FIRST_ORDER_ONLY}" + ("" if is_finite(entries) else NOT_FINITE),
        input=pair.by,
        output=pair.position,
        entries=entries,
        map=map_of(
            compared, wrong, bound.isfinite(), pair.output, pair.source, (f"g_{pair.gradient_of}", pair.by)
        ),
        badness=off.nan_to_num(1e300).item(),
    )


def offered(sample: Sample, finding: Finding) -> Finding:
    """The finding with the change that refuses a second derivative, where it is cut off."""
    function = sample.subject.function_class
    if finding.cause != "detached" or function is None or finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, changes=marked_first_order(function))


def because_of(finding: Finding, cuts: Cuts) -> Finding:
    """The finding with what leaves no graph, as reading and one run of forward show it."""
    if cuts.kept:
        return replace(finding, hint=f"{_of_kept(cuts.kept)} {FIRST_ORDER_ONLY}", cause="detached")
    if cuts.calls:
        cut, what = ("cut", "they give") if len(cuts.calls) > 1 else ("cuts", "it gives")
        hint = (
            f"{' and '.join(cuts.calls)} {cut} the graph: what {what} is a constant for a second derivative."
        )
        return replace(finding, hint=f"{hint} {FIRST_ORDER_ONLY}", cause="detached")
    return finding


def _of_kept(kept: Sequence[str]) -> str:
    names = " and ".join(f"`{name}`" for name in kept)
    are, them, depend = (
        ("are neither inputs nor outputs", "them", "they depend")
        if len(kept) > 1
        else ("is neither an input nor an output", "it", "it depends")
    )
    return (
        f"{names}, which forward keeps, {are}: in backward, {depend} on nothing for autograd. "
        f"Compute {them} in backward from saved inputs and outputs."
    )
