"""The blocks of a second-order Jacobian: the gradient of one input by another input or grad_output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradverify.model import Entries, indexed
from gradverify.verifier.checks.wording import blocks, entries_of, part
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.verdict import Judged


@dataclass(frozen=True)
class SecondPair:
    """One block of the second-order Jacobian: the gradient of one input by another input or grad_output."""

    gradient_of: str
    by: str
    output: Block
    source: Block
    position: int


def second_pairs(second: VjpProblem, judged: Judged) -> list[SecondPair]:
    """Every block."""
    names = second.input_names
    return [
        SecondPair(names[o], names[i], output, source, o)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
    ]


def wrong_in(judged: Judged, pair: SecondPair) -> Tensor:
    """Where a block is wrong, or not finite."""
    return part(judged.comparison.wrong | judged.comparison.nonfinite, pair.output, pair.source)


def worst_place(judged: Judged, pair: SecondPair) -> tuple[str, float]:
    """The largest derivative of a block, named, with its value."""
    values = part(judged.comparison.numerical, pair.output, pair.source)
    row, column = divmod(int(values.abs().argmax()), values.shape[1])
    index_out, index_in = (
        pair.output.index(pair.output.start + row),
        pair.source.index(pair.source.start + column),
    )
    place = f"d grad of {indexed(pair.gradient_of, index_out)} / d {indexed(pair.by, index_in)}"
    return place, values[row, column].item()


def entries_in(judged: Judged, pair: SecondPair) -> Entries:
    """The wrong entries of a block."""
    comparison = judged.comparison
    return entries_of(
        part(comparison.analytical, pair.output, pair.source),
        part(comparison.numerical, pair.output, pair.source),
        part(comparison.bound, pair.output, pair.source),
        wrong_in(judged, pair),
        pair.output,
        pair.source,
    )
