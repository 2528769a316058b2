"""What to say about one (output, input) block of the Jacobian: GV101, GV107, GV108, GV110."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Entry, Finding, Severity, indexed
from gradverify.model.points import is_declared
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    count_of,
    entries_of,
    largest_difference,
    map_of,
    number,
    part,
)
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Block

KEEP_THE_DTYPE = (
    "Something in backward computes in float32 (`.float()`, torch.empty without dtype, a float32 constant): "
    "keep the dtype of grad_output."
)

FEWEST_FINITE = 3
"""Entries on the other side that a condition on the values must tell apart."""

NEARLY = 1e-4
"""Relative error of a value that is right but for a lower precision inside."""


@dataclass(frozen=True)
class _Named:
    """A block in words."""

    input: str
    of_output: str
    """` of output 1`, or nothing where there is only one."""
    through_output: str
    worst: Entry
    place: str
    """`d y[0,2] / d x[1]`, the worst entry."""


def describe_block(
    sample: Sample, comparison: Comparison, position: int, output: Block, name: str, source: Block
) -> Finding | None:
    """The one finding that says best what is wrong with a block; None where nothing is."""
    analytical, numerical = (part(m, output, source) for m in (comparison.analytical, comparison.numerical))
    wrong, nonfinite = part(comparison.wrong, output, source), part(comparison.nonfinite, output, source)
    imprecise = part(comparison.imprecise, output, source)
    marked = next((mask for mask in (nonfinite, wrong, imprecise) if mask.any()), None)
    if marked is None:
        return None
    finding = _located(sample, comparison, position, output, name, source, marked)
    named = _named(sample, finding, position, name)
    if nonfinite.any():
        where = where_nonfinite(sample, name, nonfinite)
        at_kink = part(comparison.kinks, output, source)[nonfinite].any()
        made = _nonfinite(finding, named, "has finite slopes on either side" if at_kink else _FINITE)
        return replace(made, cause="branch", hint=f"{where} {made.hint}") if where else made
    whole = output.chosen is None and is_declared(sample.point, sample.draw)
    if wrong.any() and not analytical.any() and whole:
        return _missing(sample, finding, named)
    bound = part(comparison.bound, output, source)
    if is_float32(analytical, numerical, bound) and _near(analytical, numerical)[marked].all():
        return _float32_inside(finding, named)
    if not wrong.any():
        return _imprecise(finding, named, analytical, numerical, marked)
    return _wrong(finding, named) if output.chosen is None else _among_chosen(_wrong(finding, named))


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


def _located(
    sample: Sample,
    comparison: Comparison,
    position: int,
    output: Block,
    name: str,
    source: Block,
    marked: Tensor,
) -> Finding:
    analytical, numerical, bound = (
        part(m, output, source) for m in (comparison.analytical, comparison.numerical, comparison.bound)
    )
    difference = (analytical - numerical).abs()
    judged = bound.isfinite() & ~part(comparison.kinks, output, source)
    names = (_output_label(sample, position), name)
    largest = difference[marked].max() / bound[marked].max().clamp_min(torch.finfo(torch.float64).tiny)
    return sample.finding(
        "GV101",
        "",
        output=position,
        input=name,
        entries=entries_of(analytical, numerical, bound, marked, output, source),
        map=map_of((analytical, numerical), marked, judged, output, source, names),
        badness=largest.nan_to_num(torch.finfo(torch.float64).max).item(),
    )


def _named(sample: Sample, finding: Finding, position: int, name: str) -> _Named:
    several = sample.outputs_returned > 1
    assert finding.entries is not None  # noqa: S101 - `_located` gave it some
    worst = finding.entries.worst[0]
    place = (
        f"d {indexed(_output_label(sample, position), worst.output)} / d {indexed(name, worst.input or ())}"
    )
    return _Named(
        name,
        f" of output {position}" if several else "",
        f" through output {position}" if several else "",
        worst,
        place,
    )


def _output_label(sample: Sample, position: int) -> str:
    return f"y{position}" if sample.outputs_returned > 1 else "y"


def _how_many(finding: Finding) -> str:
    assert finding.entries is not None  # noqa: S101
    return count_of(finding.entries.wrong, finding.entries.checked)


def _wrong(finding: Finding, named: _Named) -> Finding:
    assert finding.entries is not None  # noqa: S101
    return replace(
        finding,
        message=f"the gradient{named.of_output} with respect to `{named.input}` is wrong at "
        f"{_how_many(finding)} of the Jacobian, by up to {largest_difference(finding.entries)}",
    )


def _among_chosen(finding: Finding) -> Finding:
    """The Jacobian was too large to build: what was looked at is a part of it."""
    return replace(
        finding, message=finding.message + "; its Jacobian is large, these are the entries that probes led to"
    )


_FINITE = "has a finite derivative"


def _nonfinite(finding: Finding, named: _Named, has: str) -> Finding:
    expected = f": {named.place} is {number(named.worst.expected)}" if has == _FINITE else ""
    return replace(
        finding,
        code="GV108",
        message=f"the gradient{named.of_output} with respect to `{named.input}` is NaN or infinite at "
        f"{_how_many(finding)}, where forward {has}{expected}",
        hint="Look for 0/0, log(0) or sqrt(0) in backward at these inputs; mask with torch.where on the "
        "denominator, not on the result.",
    )


def _missing(sample: Sample, finding: Finding, named: _Named) -> Finding:
    reader, name = sample.subject.reader, named.input
    is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
    depends = f"{named.place} is {number(named.worst.expected)}"
    what = "backward returns None for" if is_none else "the gradient is zero everywhere for"
    return replace(
        finding,
        code="GV107",
        message=f"{what} `{name}`{named.through_output}, but the function depends on it: {depends}",
        hint=f"Return the gradient of `{name}`. If none is intended, say so in the spec: "
        f"`{name}: {{..., requires_grad: false}}`.",
    )


def rounded(sample: Sample, name: str) -> Finding:
    """GV110 for a gradient that is rounded to float32 though the Jacobian's entries do not show it."""
    return sample.finding(
        "GV110",
        f"the gradient with respect to `{name}` has float32 precision only: it is rounded for every "
        "grad_output that needs more digits",
        severity=Severity.ERROR,
        cause="float32-inside",
        hint=KEEP_THE_DTYPE,
        input=name,
    )


def _float32_inside(finding: Finding, named: _Named) -> Finding:
    worst = named.worst
    tiny = torch.finfo(torch.float64).tiny
    relative = abs(worst.actual - worst.expected) / max(abs(worst.expected), tiny)
    return replace(
        finding,
        code="GV110",
        severity=Severity.ERROR,
        cause="float32-inside",
        message=f"the gradient{named.of_output} with respect to `{named.input}` has float32 precision only: "
        f"off by {number(relative)} of its value",
        hint=KEEP_THE_DTYPE,
    )


def _imprecise(
    finding: Finding, named: _Named, analytical: Tensor, numerical: Tensor, marked: Tensor
) -> Finding:
    tiny = torch.finfo(torch.float64).tiny
    relative = ((analytical - numerical).abs() / numerical.abs().clamp_min(tiny))[marked].max().item()
    return replace(
        finding,
        code="GV110",
        severity=Severity.WARNING,
        message=f"the gradient{named.of_output} with respect to `{named.input}` is slightly off at "
        f"{_how_many(finding)}: by up to {number(relative)} of its value, more than rounding explains",
        hint="A truncated constant or a lower precision inside backward; within the tolerance, so no "
        "failure.",
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
