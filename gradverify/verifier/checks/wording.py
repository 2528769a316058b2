"""Turning matrices into what a person reads: entries, a small map, and sentences.

Findings on inferred inputs as inconclusive ones, each with its reason.

What of a derivative could not be judged and why, in words: each reason has another remedy (GV109).

What to say about one (output, input) block of the Jacobian: GV101, GV107, GV108, GV110.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, JacobianMap, Point, Severity, indexed
from gradverify.rules import Family, rule
from gradverify.verifier.checks.result import NO_VALUE, OTHER_VALUES, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.jacobian import KINK_STEPS, LARGEST_NOISE
from gradverify.verifier.numerics.problem import Block, Layout, Problem
from gradverify.verifier.numerics.sampling import Sampler, typical_values
from gradverify.verifier.numerics.verdict import Judged

WORST_ENTRIES = 5
"""Entries kept of a comparison."""

MAP_LIMIT = 24
"""Rows and columns up to which a Jacobian block is drawn."""


def entries_of(
    actual: Tensor, expected: Tensor, bound: Tensor, wrong: Tensor, output: Block, source: Block
) -> Entries:
    """The wrong entries of one (output, input) block, worst first. All tensors have the block's shape."""
    difference = (actual - expected).abs()
    difference = torch.where(difference.isfinite(), difference, torch.inf)
    places = wrong.nonzero()
    by_size = difference[wrong].argsort(descending=True, stable=True)[:WORST_ENTRIES]
    worst = tuple(
        Entry(
            output=output.index(output.start + row),
            input=source.index(source.start + column),
            actual=actual[row, column].item(),
            expected=expected[row, column].item(),
            error_bound=bound[row, column].item(),
        )
        for row, column in places[by_size].tolist()
    )
    return Entries(wrong=len(places), checked=wrong.numel(), worst=worst)


def vector_entries(
    actual: Tensor, expected: Tensor, bound: Tensor, wrong: Tensor, block: Block, *, of_output: bool = False
) -> Entries:
    """The wrong entries of one input, or of one output, worst first. All tensors are flat parts of it."""
    difference = (actual - expected).abs().nan_to_num(torch.inf, torch.inf)
    count = int(wrong.sum())
    order = torch.where(wrong, difference, -1.0).argsort(descending=True, stable=True)[:WORST_ENTRIES]
    worst = []
    for k in order[:count].tolist():
        index = block.index(block.start + k)
        output, source = (index, None) if of_output else ((), index)
        worst.append(Entry(output, source, actual[k].item(), expected[k].item(), bound[k].item()))
    return Entries(count, wrong.numel(), tuple(worst), compared_with="reference")


def map_of(
    pair: tuple[Tensor, Tensor],
    wrong: Tensor,
    judged: Tensor,
    output: Block,
    source: Block,
    names: tuple[str, str],
) -> JacobianMap | None:
    """A picture of one block: how far each wrong entry is off, in steps below the largest.

    `pair` is what backward gave and what it was compared with.
    """
    difference = (pair[0] - pair[1]).abs()
    rows, columns = wrong.shape
    if rows > MAP_LIMIT or columns > MAP_LIMIT or rows * columns < 2 or not wrong.any():
        return None
    finite = torch.where(difference.isfinite(), difference, torch.zeros_like(difference))
    largest = finite[wrong].max().item() or 1.0
    thresholds = tuple(_round(largest * share) for share in (0.01, 0.1, 0.5))
    steps = torch.stack([~(difference < t) for t in thresholds]).sum(dim=0)
    levels = torch.where(judged, torch.where(wrong, 1 + steps, 0), -1).tolist()
    return JacobianMap(
        row_labels=tuple(indexed(names[0], output.index(output.start + i)) for i in range(rows)),
        column_labels=tuple(indexed(names[1], source.index(source.start + j)) for j in range(columns)),
        levels=tuple(map(tuple, levels)),
        thresholds=(thresholds[0], thresholds[1], thresholds[2]),
        actual=_rounded(pair[0]),
        expected=_rounded(pair[1]),
    )


def _rounded(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """The values to the digits that a report shows."""
    return tuple(tuple(float(number(value)) for value in row) for row in matrix.tolist())


def output_name(position: int, outputs_returned: int) -> str:
    """How a sentence calls an output: not at all where there is only one."""
    return f"output {position}" if outputs_returned > 1 else "the output"


def largest_difference(entries: Entries) -> str:
    """`0.628 (the derivative is 0.165)` for the worst entry."""
    if not entries.worst:
        return "nothing"
    worst = entries.worst[0]
    if not math.isfinite(worst.actual):
        return f"{worst.actual} (the derivative is {number(worst.expected)})"
    difference = number(abs(worst.actual - worst.expected))
    actual, expected = apart(worst.actual, worst.expected)
    return f"{difference} (backward {actual}, {expected} expected)"


def apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with four significant digits each, or with as many as tell them apart."""
    said = number(one), number(other)
    for digits in range(6, 18, 2):
        if said[0] != said[1] or one == other:
            break
        said = f"{one:.{digits}g}", f"{other:.{digits}g}"
    return said


def is_finite(entries: Entries) -> bool:
    """Whether the worst entry that backward gave is a number."""
    return not entries.worst or math.isfinite(entries.worst[0].actual)


def by_how_much(entries: Entries) -> str:
    """`by up to 0.628 (...)`; for what is not finite `nan for a derivative of 0`."""
    if not is_finite(entries):
        return f"{entries.worst[0].actual} for a derivative of {number(entries.worst[0].expected)}"
    return f"by up to {largest_difference(entries)}"


def number(value: float) -> str:
    """Four significant digits; no sign before a zero."""
    return f"{value + 0.0:.4g}"


def count_of(wrong: int, checked: int) -> str:
    """`3 of 60 entries`, `all 60 entries`, `its only entry`."""
    if checked == 1:
        return "its only entry"
    return f"all {checked} entries" if wrong == checked else f"{wrong} of {checked} entries"


def part(matrix: Tensor, output: Block, source: Block) -> Tensor:
    """One (output, input) block of an M × N matrix."""
    return matrix[output.start : output.stop, source.start : source.stop]


def blocks(outputs: Layout, inputs: Layout) -> list[tuple[int, Block, int, Block]]:
    """Every (output number, its block, input number, its block)."""
    return [(o, ob, i, ib) for o, ob in enumerate(outputs.blocks) for i, ib in enumerate(inputs.blocks)]


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
    where = "at values that the spec neither lists nor excludes"
    said = f"{where}, {finding.message}; but {why}, so they may not be valid"
    return _inconclusive(finding, said, declare(declared))


def of_other_buffers(finding: Finding, names: Sequence[str]) -> Finding:
    """The finding where buffers of a module hold other values than the equal ones it is built with."""
    buffers = f"the buffer{'s' if len(names) > 1 else ''} {listed_names([f'self.{n}' for n in names])}"
    said = (
        f"with other values in {buffers}, {finding.message}; but as it is built, all entries of a buffer "
        "are equal, so others may not be valid"
    )
    return _inconclusive(
        finding,
        said,
        "If such buffers never hold anything else, numbers can take their place. If they may, this is a "
        "mistake: give an entry of its own to a subclass that is built with such values, and it fails.",
    )


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


def deliberate(finding: Finding, meant: str) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant."""
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is. If one input is computed from others, make them together: `arguments:`. "
        "Else this is a mistake."
    )
    said = f"inputs inferred: {finding.message}; but gradverify guessed {meant}"
    return replace(_inconclusive(finding, said, hint), cause="looks-surrogate")


def refused(finding: Finding) -> Finding:
    """The finding of an exception that backward raises on purpose."""
    said = "forward took them, but they may not be what is meant"
    hint = "Write a spec with valid inputs (shapes, domain, range) and run again."
    return _inconclusive(finding, f"on inferred inputs {finding.message}; {said}", hint)


def doubted(finding: Finding, declared: str) -> Finding:
    """The finding that is not there at inputs of another kind, which a spec declares as `declared`."""
    said = f"but not with {declared}, so these may not be valid"
    return _inconclusive(finding, f"on inferred inputs {finding.message}; {said}", declare(declared))


def _inconclusive(finding: Finding, message: str, hint: str) -> Finding:
    severity = rule("GV109").severity
    suspected = finding.code
    return replace(finding, code="GV109", suspected=suspected, severity=severity, message=message, hint=hint)


STAYS = 0.25
"""Of two steps, one 64 times smaller: where the change of f shrinks to no less than this share it does not
depend on the step. A jump and rounding stay, the root of the step shrinks to an eighth."""

GROWS = 2.0
"""A slope that is so many times larger at the smaller step has no limit there."""

LOW_PRECISION = (
    "Let forward compute in the dtype it is given, or name a composite of plain torch operations as "
    "`reference:`: the target is then judged in its own precision."
)


def why_unknown(problem: Problem, judged: Judged, places: Tensor, what: str = "forward") -> tuple[str, str]:
    """The reason, and what to try, where the error of a derivative is infinite (`places`: bool, M × N).

    `what` is the map that is differentiated. 12 evaluations, in the first of the places' columns.
    """
    measured = judged.measured
    places = places & measured.error.isinf()
    if judged.inputs.size != Layout.of(problem.primals).size or not places.any():
        return f"{what} jumps or is not finite around these inputs", OTHER_VALUES
    column = int(places.any(dim=0).nonzero()[0])
    sampler = Sampler(problem, measured.centre)
    coarse, fine = (sampler.sample([column], step * sampler.scales[[column]]) for step in KINK_STEPS)
    rows = places[:, column]
    if not (coarse.truncation.isfinite() & fine.truncation.isfinite())[0][rows].all():
        return f"{what} raises or is not finite next to these inputs", NO_VALUE
    slopes = [torch.maximum(s.left.abs(), s.right.abs())[0] for s in (coarse, fine)]
    changes = [slope * s.step.abs().max() for slope, s in zip(slopes, (coarse, fine), strict=True)]
    row = int(torch.where(rows, changes[1], -1.0).argmax())
    before, after = changes[0][row].item(), changes[1][row].item()
    size = typical_values(measured.centre, problem.outputs)[row].item()
    if after >= STAYS * before and after > 0:
        share = after / size if size else 1.0
        if share <= LARGEST_NOISE:
            said = (
                f"rounding inside {what} moves its values by {number(share)} of themselves, where float64 "
                "rounds to 2.2e-16: it computes in lower precision, or large numbers cancel"
            )
            return said, LOW_PRECISION
        sides = sorted([abs(fine.left[0, row].item()), abs(fine.right[0, row].item())])
        if not STAYS * sides[1] < sides[0] < (1 - STAYS) * sides[1]:
            said = f"{what} changes by {number(after)} over the smallest step tried"
            return f"{said}: it jumps next to these inputs, or oscillates", OTHER_VALUES
    if after * KINK_STEPS[0] > GROWS * before * KINK_STEPS[1]:
        larger, smaller = (number(slope[row].item()) for slope in slopes)
        said = f"the slope of {what} is {larger} over a small step and {smaller} over one 64 times smaller"
        return f"{said}: it may have no limit here", OTHER_VALUES
    return f"{what} changes too fast here for a numerical derivative (it may oscillate)", OTHER_VALUES


def family_of(name: str) -> Family:
    """The family whose outcome an uncovered pair decides, by how the pair is called."""
    if name.startswith("second order"):
        return Family.GRADGRADCHECK
    return Family.REFERENCE if name == "reference" else Family.GRADCHECK


def nothing_verified(sample: Sample, unknown: Uncovered) -> Finding:
    """That no pair could be judged, for a reason that they share."""
    return sample.finding("GV109", f"no gradient could be verified: {unknown.reason}", hint=unknown.hint)


def not_verified(sample: Sample, position: int, name: str, unknown: Uncovered) -> Finding:
    """What of one (output, input) pair could not be judged, and why."""
    count, total, reason = int(unknown.mask.sum()), unknown.mask.numel(), unknown.reason
    if name == "reference":
        return sample.finding("GV109", f"not compared with the reference: {reason}", output=position)
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    if name.startswith("second order"):
        what, source = "the second derivative", name.removeprefix("second order").removeprefix(", ")
    else:
        what, source = f"the gradient{of_output}", name
    by = f" with respect to `{source}`" if source else ""
    share = f" at {count} of {total} entries" if count < total else ""
    return sample.finding(
        "GV109",
        f"{what}{by} could not be verified{share}: {reason}",
        hint=unknown.hint,
        output=position,
        input=source or None,
    )


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

FEWEST_FINITE = 3
"""Entries on the other side that a condition on the values must tell apart."""

TINY = torch.finfo(torch.float64).tiny
"""The least by which anything is divided."""

NEARLY = 1e-4
"""Relative error of a value that is right but for a lower precision inside."""


def describe_block(
    sample: Sample, comparison: Comparison, position: int, output: Block, name: str, source: Block
) -> Finding | None:
    """The one finding that says best what is wrong with a block; None where nothing is."""
    masks = (comparison.nonfinite, comparison.wrong, comparison.imprecise)
    nonfinite, wrong, imprecise = (part(m, output, source) for m in masks)
    marked = next((mask for mask in (nonfinite, wrong, imprecise) if mask.any()), None)
    if marked is None:
        return None
    several = sample.outputs_returned > 1
    label = f"y{position}" if several else "y"
    gradient = f"the gradient{f' of output {position}' if several else ''} with respect to `{name}`"
    finding, entries = _located(sample, comparison, (position, name), output, source, marked)
    worst, how_many = entries.worst[0], count_of(entries.wrong, entries.checked)
    place = f"d {indexed(label, worst.output)} / d {indexed(name, worst.input or ())}"
    derivative = f"{place} is {number(worst.expected)}"
    if nonfinite.any():
        at_kink = part(comparison.kinks, output, source)[nonfinite].any()
        has = "has finite slopes on either side" if at_kink else f"has a finite derivative: {derivative}"
        if part(comparison.bound, output, source)[nonfinite].isinf().any():
            has = f"ends and has a finite slope up to there: {place} is about {number(worst.expected)}"
        where = where_nonfinite(sample, name, nonfinite)
        said = f"{gradient} is NaN or infinite at {how_many}, where forward {has}"
        hint, cause = f"{where} {NOT_FINITE}".strip(), "branch" if where else ""
        return replace(finding, code="GV108", message=said, hint=hint, cause=cause)
    analytical, numerical = (part(m, output, source) for m in (comparison.analytical, comparison.numerical))
    whole = output.chosen is None and sample.point in {Point.TYPICAL, Point.PLAIN}
    if wrong.any() and not analytical.any() and whole:
        return _missing(sample, finding, f" through output {position}" if several else "", derivative)
    is_short = is_float32(analytical, numerical, part(comparison.bound, output, source))
    if (is_short and _near(analytical, numerical)[marked].all()) or not wrong.any():
        return _imprecise(finding, gradient, (analytical, numerical), marked, is_short=bool(is_short))
    those = "of the Jacobian" if output.chosen is None else "that probes of its large Jacobian led to"
    said = f"{gradient} is wrong at {how_many} {those}, by up to {largest_difference(entries)}"
    return replace(finding, message=said)


def _located(
    sample: Sample,
    comparison: Comparison,
    names: tuple[int, str],
    output: Block,
    source: Block,
    marked: Tensor,
) -> tuple[Finding, Entries]:
    """A finding on the marked entries of a block, without a message; `names` are those of its sides."""
    position, name = names
    compared = (comparison.analytical, comparison.numerical, comparison.bound, comparison.kinks)
    analytical, numerical, bound, kinks = (part(m, output, source) for m in compared)
    entries = entries_of(analytical, numerical, bound, marked, output, source)
    largest = (analytical - numerical).abs()[marked].max() / bound[marked].max().clamp_min(TINY)
    judged = (bound.isfinite() | marked) & ~kinks
    labels = (f"y{position}" if sample.outputs_returned > 1 else "y", name)
    finding = sample.finding(
        "GV101",
        "",
        output=position,
        input=name,
        entries=entries,
        map=map_of((analytical, numerical), marked, judged, output, source, labels),
        badness=largest.nan_to_num(torch.finfo(torch.float64).max).item(),
    )
    return finding, entries


def _imprecise(
    finding: Finding, gradient: str, pair: tuple[Tensor, Tensor], marked: Tensor, *, is_short: bool
) -> Finding:
    """GV110: an error where the gradient has float32's digits, else a warning."""
    entries = finding.entries
    assert entries is not None  # noqa: S101 - `_located` gave it some
    if is_short and _near(*pair)[marked].all():
        worst = entries.worst[0]
        off = number(abs(worst.actual - worst.expected) / max(abs(worst.expected), TINY))
        said = f"{gradient} has float32 precision only: off by {off} of its value"
        made = replace(finding, code="GV110", message=said, hint=KEEP_THE_DTYPE)
        return replace(made, severity=Severity.ERROR, cause="float32-inside")
    off = number(((pair[0] - pair[1]).abs() / pair[1].abs().clamp_min(TINY))[marked].max().item())
    places = count_of(entries.wrong, entries.checked)
    said = f"{gradient} is slightly off at {places}: by up to {off} of its value, more than rounding explains"
    made = replace(finding, code="GV110", message=said, hint=WITHIN_TOLERANCE)
    return replace(made, severity=Severity.WARNING)


def is_float32(values: Tensor, expected: Tensor, bound: Tensor | None = None) -> bool:
    """Whether values carry float32 precision only.

    Each survives a cast to it and is near what was expected, which does not survive one. `bound` is how far
    what was expected may be off: a measured 1 may be anything near 1.
    """
    same = values.to(torch.float32).to(torch.float64) == values
    lost = (expected.to(torch.float32).to(torch.float64) - expected).abs()
    informative = (values != 0) & (lost > (torch.zeros_like(lost) if bound is None else bound))
    return int(informative.sum()) >= 4 and bool((same & _near(values, expected))[informative].all())


def _near(values: Tensor, expected: Tensor) -> Tensor:
    return (values - expected).abs() <= NEARLY * expected.abs()


def _missing(sample: Sample, finding: Finding, through_output: str, derivative: str) -> Finding:
    reader, name = sample.subject.reader, finding.input or ""
    is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
    what = "backward returns None for" if is_none else "backward gives zeros for"
    return replace(
        finding,
        code="GV107",
        message=f"{what} `{name}`{through_output}, but the function depends on it: {derivative}",
        hint=f"Return the gradient of `{name}`. If none is intended, say so in the spec: "
        f"`{name}: {{..., requires_grad: false}}`.",
    )


def where_nonfinite(sample: Sample, name: str, nonfinite: Tensor) -> str:
    """Which values of the input the columns that are not finite have, and no other: one value, or all large.

    `nonfinite` is the block's mask, m × n. Empty where no such condition tells them apart.
    """
    place = sample.problem.input_names.index(name)
    block = sample.inputs.blocks[place]
    columns = nonfinite.any(dim=0)
    values = sample.problem.primals[place].detach().reshape(-1)
    if block.is_complex or block.chosen is not None or values.numel() != columns.numel():
        return ""
    bad, good = values[columns].to("cpu", torch.float64), values[~columns].to("cpu", torch.float64)
    if good.numel() < FEWEST_FINITE:
        return ""
    if bool((bad == bad[0]).all()) and not bool((good == bad[0]).any()):
        return f"It is NaN or infinite exactly where `{name}` is {number(bad[0].item())}."
    low, high = good.abs().max().item(), bad.abs().min().item()
    if bad.numel() >= FEWEST_FINITE and high > low:
        large, small = number(high), number(low)
        return f"It is NaN or infinite where |{name}| is at least {large}, and finite up to {small}."
    return ""
