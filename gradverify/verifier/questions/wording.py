"""Turning matrices into what a person reads: entries, a small map, and sentences.

Findings on inferred inputs as inconclusive ones, each with its reason.

What of a derivative could not be judged and why, in words: each reason has another remedy (GV109).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, JacobianMap, indexed
from gradverify.rules import rule
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.questions.result import Uncovered
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.witnesses.answers import WORST

MAP_LIMIT = 24
"""Rows and columns up to which a Jacobian block is drawn."""


def vector_entries(
    actual: Tensor, expected: Tensor, bound: Tensor, wrong: Tensor, block: Block, *, of_output: bool = False
) -> Entries:
    """The wrong entries of one input, or of one output, worst first. All tensors are flat parts of it."""
    difference = (actual - expected).abs().nan_to_num(torch.inf, torch.inf)
    count = int(wrong.sum())
    order = torch.where(wrong, difference, -1.0).argsort(descending=True, stable=True)[:WORST]
    worst = []
    for k in order[:count].tolist():
        index = block.index(block.start + k)
        output, source = (index, None) if of_output else ((), index)
        worst.append(Entry(output, source, actual[k].item(), expected[k].item(), bound[k].item()))
    return Entries(count, wrong.numel(), tuple(worst), compared_with="reference")


def map_of(
    claimed: Tensor,
    expected: Tensor,
    wrong: Tensor,
    output: Block,
    source: Block,
    names: tuple[str, str],
) -> JacobianMap | None:
    """A picture of one block: how far each wrong entry is off, in steps below the largest."""
    difference = (claimed - expected).abs()
    rows, columns = wrong.shape
    if rows > MAP_LIMIT or columns > MAP_LIMIT or rows * columns < 2 or not wrong.any():
        return None
    finite = torch.where(difference.isfinite(), difference, torch.zeros_like(difference))
    largest = finite[wrong].max().item() or 1.0
    thresholds = tuple(_round(largest * share) for share in (0.01, 0.1, 0.5))
    steps = torch.stack([~(difference < t) for t in thresholds]).sum(dim=0)
    levels = torch.where(wrong, 1 + steps, 0).tolist()
    return JacobianMap(
        row_labels=tuple(indexed(names[0], output.index(output.start + i)) for i in range(rows)),
        column_labels=tuple(indexed(names[1], source.index(source.start + j)) for j in range(columns)),
        levels=tuple(map(tuple, levels)),
        thresholds=(thresholds[0], thresholds[1], thresholds[2]),
        actual=_rounded(claimed),
        expected=_rounded(expected),
    )


def _rounded(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """The values to the digits that a report shows."""
    return tuple(tuple(float(number(value)) for value in row) for row in matrix.tolist())


def output_name(position: int, outputs_returned: int) -> str:
    """How a sentence calls an output: not at all where there is only one."""
    return f"output {position}" if outputs_returned > 1 else "the output"


def gradient_of(sample: Sample, position: int, name: str) -> str:
    """How a sentence calls the gradient of one (output, input)."""
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    return f"the gradient{of_output} with respect to `{name}`"


def apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with four significant digits each, or with as many as tell them apart."""
    said = number(one), number(other)
    for digits in range(6, 18, 2):
        if said[0] != said[1] or one == other:
            break
        said = f"{one:.{digits}g}", f"{other:.{digits}g}"
    return said


def number(value: float) -> str:
    """Four significant digits; no sign before a zero."""
    return f"{value + 0.0:.4g}"


def count_of(wrong: int, checked: int) -> str:
    """`3 of 60 entries`, `all 60 entries`, `its only entry`."""
    if checked == 1:
        return "its only entry"
    return f"all {checked} entries" if wrong == checked else f"{wrong} of {checked} entries"


def _round(value: float) -> float:
    return float(f"{value:.1g}")


def percent(share: float) -> str:
    """A share in percent; 100 is said of a whole alone."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.0):.2g} %"


def listed_names(names: Sequence[str]) -> str:
    """`x`, `x` and `y`, `x`, `y` and `z`: in backticks."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


MOST_NAMED = 3
"""Guesses that one sentence names."""

IF_VALID = "If such inputs are valid, this is a mistake: confirm them in the spec `gradverify init` drafts."


def invented(finding: Finding, invented: Sequence[str], hint: str = IF_VALID) -> Finding:
    """The finding on inputs of which something was guessed."""
    named = list(invented)
    if len(named) > MOST_NAMED:  # `gradverify init` writes them all
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    said = f"inputs inferred: {finding.message}; but gradverify guessed {what}"
    return _inconclusive(finding, said, hint)


def if_guessed(finding: Finding, what: Iterable[str]) -> Finding | None:
    """The finding as one that hangs on what was guessed; None where that is nothing."""
    named = tuple(filter(None, what))
    return invented(finding, named) if named else None


def undeclared(finding: Finding, why: str, declared: str) -> Finding:
    """The finding at values that a spec neither declares nor excludes; `declared` is what excludes them."""
    said = f"{finding.message}; but {why}, so they may not be valid"
    said = f"at values that the spec neither lists nor excludes, {said}"
    return _inconclusive(finding, said, declare(declared))


def declare(what: str) -> str:
    """How a spec tells a domain from a mistake."""
    return (
        f"If such values are not valid, say so in a spec: {what}. If they are, this is a mistake: declare "
        "them, and it fails."
    )


def joined(signs: Sequence[str]) -> str:
    """`that ... (one sign; another)` of several `that ... (a sign)`."""
    first, *others = signs
    more = "".join(f"; {one.partition('(')[2].removesuffix(')')}" for one in others)
    return f"{first.removesuffix(')')}{more})" if others else first


MEANT = (
    "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
    "whose gradient it is. If one input is computed from others, make them together: `arguments:`. "
    "Else this is a mistake."
)


def deliberate(finding: Finding, meant: str) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant."""
    return replace(invented(finding, [meant], MEANT), cause="looks-surrogate")


def refused(finding: Finding) -> Finding:
    """The finding of an exception that backward raises on purpose."""
    said = f"on inferred inputs {finding.message}; forward took them, but they may not be what is meant"
    return _inconclusive(
        finding, said, "Write a spec with valid inputs (shapes, domain, range) and run again."
    )


def doubted(finding: Finding, declared: str) -> Finding:
    """The finding that is not there at inputs of another kind, which a spec declares as `declared`."""
    said = f"on inferred inputs {finding.message}; but not with {declared}, so these may not be valid"
    return _inconclusive(finding, said, declare(declared))


def _inconclusive(finding: Finding, message: str, hint: str) -> Finding:
    open_now = replace(finding, code="GV109", suspected=finding.code, severity=rule("GV109").severity)
    return replace(open_now, message=message, hint=hint)


def not_verified(sample: Sample, position: int, name: str, unknown: Uncovered) -> Finding:
    """That one (output, input) pair could not be judged, and why."""
    said = f"{gradient_of(sample, position, name)} could not be verified: {unknown.reason}"
    return sample.finding("GV109", said, hint=unknown.hint, output=position, input=name)


KEEP_THE_DTYPE = (
    "Something in backward computes in float32 (`.float()`, torch.empty without dtype, a float32 constant): "
    "keep the dtype of grad_output."
)

WITHIN_TOLERANCE = (
    "A truncated constant, a series that ends early or a lower precision inside backward; it is within the "
    "tolerance."
)

NOT_FINITE = (
    "Look for 0/0, log(0), sqrt(0) or an overflow in backward at these inputs; mask with torch.where on the "
    "denominator, not on the result."
)
