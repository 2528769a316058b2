"""The guard on inferred inputs: a mismatch counts only if it persists where inputs lie on a manifold.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, Severity
from gradverify.rules import Family, rule
from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.verdict import Judged, judge

STEPS = (0.37, 7.3, -7.3)
"""How far an entry is moved to see whether forward reads it: far enough to cross a threshold, too."""

MOST_ENTRIES = 400
"""Entries of an input that are moved one by one."""

FLAT = (1e-3, -1e-3)
"""How far all entries are moved to see whether forward is flat: short beside the distance to a step."""

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""

Projection = Callable[[Tensor, Tensor], Tensor]
"""(differences of one row shaped like the input, the input) -> their part along the manifold."""

CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_SHAPES = frozenset({"GV101", "GV103", "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""


def persists(sample: Sample) -> bool:
    """Whether the mismatch at this sample is there on both kinds of manifold, as far as they apply."""
    kinds: list[tuple[Callable[[Tensor], Tensor], Projection]] = [(_row_normalised, _along_sphere)]
    if all(_is_square(p) for p in sample.problem.primals):
        kinds.append((_symmetrised, _along_symmetric))
    return all(_mismatch_along(sample, move, project) for move, project in kinds)


def unread_slice(sample: Sample) -> str:
    """A dimension of an input of which forward leaves whole slices unread, in words; empty for none.

    A pair of real and imaginary parts has a last dimension of two: of three, the third is never read, and
    what backward says of it means nothing.
    """
    for name, primal in zip(sample.problem.input_names, sample.problem.primals, strict=True):
        read = _read_entries(sample, name, primal)
        if read is None:
            continue
        for dimension in range(primal.dim()):
            others = [k for k in range(primal.dim()) if k != dimension]
            slices = read.any(dim=others) if others else read
            if slices.any() and not slices.all():
                return f"the size of dimension {dimension} of `{name}`, part of which is never read,"
    return ""


def _read_entries(sample: Sample, name: str, primal: Tensor) -> Tensor | None:
    """bool, the input's shape: entries that move the output at all. None where forward refuses."""
    problem = sample.problem
    place = problem.input_names.index(name)
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or primal.is_complex() or primal.numel() > MOST_ENTRIES:
        return None
    read = torch.zeros(primal.numel(), dtype=torch.bool)
    for entry in range(primal.numel()):
        for step in STEPS:
            moved = [p.clone() for p in problem.primals]
            moved[place].view(-1)[entry] += step
            result = problem.evaluate(moved)
            if isinstance(result, Raised):
                return None
            if any(not torch.equal(a, b) for a, b in zip(result.value, base.value, strict=True)):
                read[entry] = True
                break
    return read.reshape(primal.shape)


def _mismatch_along(sample: Sample, move: Callable[[Tensor], Tensor], project: Projection) -> bool:
    arguments = tuple(replace(a, value=move(a.value)) if a.differentiable else a for a in sample.arguments)
    problem = replace(sample.problem, arguments=arguments)
    judged = judge(problem, rtol=sample.subject.settings.rtol)
    if not isinstance(judged, Judged):
        return True  # forward or backward refuses such inputs: it is not meant for them
    comparison = judged.comparison
    nonfinite = comparison.nonfinite.any()
    difference = torch.where(comparison.wrong, comparison.analytical - comparison.numerical, 0.0)
    for block, primal in zip(sample.inputs.blocks, problem.primals, strict=True):
        columns = slice(block.start, block.stop)
        point = torch.view_as_real(primal) if primal.is_complex() else primal
        allowed = (
            comparison.bound[:, columns].nan_to_num(0.0, 0.0, 0.0).amax() if block.stop > block.start else 0.0
        )
        for row in difference[:, columns]:
            along = project(row.reshape(block.shape), point.cpu())
            if along.numel() and (along.abs() > allowed + 1e-9 * row.abs().max()).any():
                return True
    return bool(nonfinite)


def _row_normalised(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1) if x.dim() else x


def _along_sphere(difference: Tensor, x: Tensor) -> Tensor:
    """Without the part along x: moving along x leaves the unit sphere."""
    if not x.dim():
        return difference
    return difference - (difference * x).sum(dim=-1, keepdim=True) * x


def _symmetrised(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _along_symmetric(difference: Tensor, x: Tensor) -> Tensor:
    del x
    return (difference + difference.mT) / 2


def _is_square(x: Tensor) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2]


def guarded(sample: Sample, results: dict[Family, CheckResult]) -> dict[Family, CheckResult]:
    """On inferred inputs, turn errors that the guess may have made into inconclusive findings."""
    if not sample.subject.inferred:
        return results
    verdict: bool | None = None
    invented = _inventions(sample)
    kept_results = {}
    for family, result in results.items():
        findings = []
        for finding in result.findings:
            kept = finding
            if finding.severity is Severity.ERROR and not finding.code.startswith(CERTAIN):
                # Where the first derivative is right in every direction, the inputs lie on no manifold.
                settled = finding.code.startswith(("GV102", "GV104", "GV2", "GV501"))
                if verdict is None and not settled and not invented:
                    verdict = persists(sample)
                kept = _judged(sample, finding, invented, persistent=settled or bool(verdict))
            findings.append(kept)
        failed = any(f.severity is Severity.ERROR for f in findings)
        outcome = result.outcome
        if outcome is Outcome.FAILED and not failed:
            outcome = Outcome.INCONCLUSIVE
        kept_results[family] = replace(result, findings=tuple(findings), outcome=outcome)
    return kept_results


def with_given_options(sample: Sample, result: CheckResult) -> CheckResult:
    """What is told at values nobody declared, inconclusive where an option has an invented value.

    Where backward is right at moderate values, extreme ones need no guard of their own. But an exponent of
    the author's may be one at which the limit exists, and an invented one not.
    """
    options = dict(sample.case.options)
    doubts = [d for d in sample.subject.doubts if d.certain and d.name in options]
    invented = [d.what for d in doubts if options[d.name] not in d.certain]
    if not invented or result.outcome is not Outcome.FAILED:
        return result
    findings = tuple(_invented(f, invented) if f.severity is Severity.ERROR else f for f in result.findings)
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE)


def _judged(sample: Sample, finding: Finding, invented: Sequence[str], *, persistent: bool) -> Finding:
    """The finding if the inputs cannot have made it, else an inconclusive one that says why not."""
    if finding.code in OF_THE_DERIVATIVE:
        meant = next((d.what for d in sample.subject.doubts if d.intent), "") or looks_deliberate(
            sample, finding
        )
        if meant:
            return _deliberate(finding, meant)
    if invented:
        return _invented(finding, invented)
    other_shapes = _other_shapes(sample)
    if other_shapes and finding.code in OF_SHAPES:
        return _invented(finding, tuple(f"the shape of `{name}`" for name in other_shapes))
    if finding.code == "GV102" and not _is_accident(finding):
        return _refused(finding)
    if not persistent:
        return _doubted(finding)
    unread = unread_slice(sample)
    return _invented(finding, (unread,)) if unread else finding


def _other_shapes(sample: Sample) -> tuple[str, ...]:
    """Inputs whose gradient came back in another shape that they might just as well have.

    Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone: as a gradient
    with more dimensions, or with fewer, of a shape that gives the same output.
    """
    reader = sample.subject.reader
    if reader is None:
        return ()
    names = []
    for (kind, _), remark in reader.remarks.items():
        if kind not in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}:
            continue
        name = sample.arguments[remark.position].name
        shape = tuple(int(n) for n in remark.got.strip("[]").split(",") if n.strip())
        if kind is Irregularity.SHAPE_SUMMED or _takes(sample, name, shape):
            names.append(name)
    return tuple(names)


def _takes(sample: Sample, name: str, shape: tuple[int, ...]) -> bool:
    """Whether forward gives outputs of the same shapes for an input that has fewer dimensions."""
    problem = sample.problem
    if name not in problem.input_names:
        return False
    place = problem.input_names.index(name)
    value = problem.primals[place]
    if len(shape) >= value.dim() or tuple(value.shape[value.dim() - len(shape) :]) != shape:
        return False
    fewer = value[(0,) * (value.dim() - len(shape))]
    moved = (*problem.primals[:place], fewer, *problem.primals[place + 1 :])
    before, after = problem.evaluate(problem.primals), problem.evaluate(moved)
    if isinstance(before, Raised) or isinstance(after, Raised):
        return False
    return [t.shape for t in before.value] == [t.shape for t in after.value]


def _inventions(sample: Sample) -> tuple[str, ...]:
    """What of the inputs of this case was invented, in words."""
    options = dict(sample.case.options)
    return tuple(
        d.what
        for d in sample.subject.doubts
        if not d.intent
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
    )


def _invented(finding: Finding, invented: Sequence[str]) -> Finding:
    what = " and ".join(filter(None, (", ".join(invented[:-1]), invented[-1])))
    were = "were" if len(invented) > 1 else "was"
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"inputs inferred: {finding.message}; but {what} {were} guessed",
        hint="If such inputs are valid, this is a mistake: confirm them in a spec, which "
        "`gradverify init` drafts.",
    )


def looks_deliberate(sample: Sample, finding: Finding) -> str:
    """How forward shows that its gradient is a choice, as the beginning of `... was guessed`; empty for not.

    What forward returns as it got it needs no backward, and a step has no derivative to give: with such a
    forward somebody wrote a gradient that is meant to be another one.
    """
    problem, name = sample.problem, finding.input
    if name not in problem.input_names or finding.output not in problem.output_positions:
        return ""
    output = problem.output_positions.index(finding.output)
    place = problem.input_names.index(name)
    primal = problem.primals[place]
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or primal.is_complex() or not primal.numel():
        return ""
    value = base.value[output]
    if torch.equal(value, primal):
        return f"that backward should be the derivative (forward returns `{name}` as it is)"
    if not _moves(sample, place, output, value, FLAT) and _moves(sample, place, output, value, STEPS):
        return f"that backward should be the derivative (forward is a step in `{name}`, flat between)"
    return ""


def _moves(sample: Sample, place: int, output: int, value: Tensor, steps: Sequence[float]) -> bool:
    """Whether an output changes when all entries of an input are moved, each by another distance."""
    for step in steps:
        moved = [p.clone() for p in sample.problem.primals]
        distance = step * torch.linspace(1.0, 1.5, moved[place].numel(), dtype=torch.float64)
        moved[place] += distance.to(moved[place]).reshape(moved[place].shape)
        result = sample.problem.evaluate(moved)
        if not isinstance(result, Raised) and not torch.equal(result.value[output], value):
            return True
    return False


def _deliberate(finding: Finding, meant: str) -> Finding:
    said = f"inputs inferred: {finding.message}; but {meant} was guessed"
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is; else this is a mistake."
    )
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=said,
        hint=hint,
        cause="looks-surrogate",
    )


def _is_accident(finding: Finding) -> bool:
    return finding.raised is not None and finding.raised.type in ACCIDENTS and not finding.raised.deliberate


def _refused(finding: Finding) -> Finding:
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; forward took them, but they may not be what is meant",
        hint="Write a spec with valid inputs (shapes, domain, range) and run again.",
    )


def _doubted(finding: Finding) -> Finding:
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; at inputs of another kind it is not, "
        "so these inputs may not be valid",
        hint="Write a spec with valid inputs (domain, range) and run again.",
    )
