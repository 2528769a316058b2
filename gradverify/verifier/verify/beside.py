"""Samples that no case lists: other sizes and ranks, a module in evaluation mode, sizes past constants.

No spec says that such inputs are valid. What forward refuses there is a note at most, and what is wrong is
said together with what it hangs on: it fails where symbolic sizes say that any is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch

from gradverify.events import CaseStarted, Event
from gradverify.model import (
    Case,
    Finding,
    ListInput,
    Outcome,
    Point,
    Severity,
    Swept,
    TargetKind,
    TensorInput,
)
from gradverify.rules import Family
from gradverify.verifier.guard import Raised
from gradverify.verifier.neighbours.guesses import guarded_at_unlisted
from gradverify.verifier.questions.again import MOST_CASES, overlapping_cases
from gradverify.verifier.questions.contract import contract
from gradverify.verifier.questions.dtypes.asked import wrong_natively
from gradverify.verifier.questions.first_order import backward_raised, refused_empty
from gradverify.verifier.questions.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.questions.results import at_undeclared
from gradverify.verifier.questions.subject import NoSample, Sample, first_line
from gradverify.verifier.questions.wording import invented
from gradverify.verifier.targets.module_target import ModuleState
from gradverify.verifier.verify.case_state import CaseState
from gradverify.verifier.verify.past import past_constants
from gradverify.verifier.verify.verification import Judge, Verification

RETURNED = frozenset({"GV103", "GV105"})
"""Codes on what backward returned that hang on no value."""

RANK = 3
"""Dimensions of a sequence of vectors, a batch of matrices: the next ones after those of a matrix."""

IN_EVALUATION_MODE = "In training mode it is right: look at what `self.training` decides."

IF_LISTED = "If such sizes are valid, list them under `sizes:`; then this is an error."


@dataclass(frozen=True)
class Beside:
    """A sample that no case lists."""

    case: Case
    judge: Judge
    """What is asked of it, and what is said of what is wrong."""
    named: str = ""
    """How the report calls it, if not by its case."""
    state: ModuleState = ModuleState.NEW


def beside_the_listed(asked: Verification) -> Iterator[Event]:
    """Ask what can add something once the listed cases are verified; sizes of 1 leave nothing to add."""
    yield from _each(asked, _unlisted_sizes(asked))
    yield from _overlapping_cases(asked)
    for kind in (_another_rank, _longer_items):
        yield from _each(asked, kind(asked))
    if asked.is_verified and asked.wants("GV101"):
        yield from past_constants(asked)
    for kind in (_evaluation_mode, _sizes_of_one):
        yield from _each(asked, kind(asked))


def _each(asked: Verification, samples: Iterator[Beside]) -> Iterator[Event]:
    for one in samples:
        there = replace(asked, live=replace(asked.live, state=one.state))
        yield from asked.noted(there.ask(one.case, one.judge, named=one.named), one.case)


def _unlisted_sizes(asked: Verification) -> Iterator[Beside]:
    """Those that symbolic shapes leave open, and invented 0 and 1."""
    plan, inferred = asked.request.plan, asked.request.inferred
    for case in (*plan.open_sized, *(() if inferred else plan.degenerate)):
        if asked.has_no_error:
            is_open = case in plan.open_sized
            yield Beside(case, partial(_at_unlisted_sizes, is_open=is_open, inferred=inferred))


def _overlapping_cases(asked: Verification) -> Iterator[Event]:
    """Let calls of different cases overlap: what one of them keeps must not reach another."""
    plan = asked.request.plan
    if not (asked.is_verified and asked.wants("GV408")):
        return
    samples = [*filter(None, map(asked.sample, (*plan.cases, *plan.open_sized)[:MOST_CASES]))]
    # At sizes that are not listed a kernel may leave its tensors.
    spares = plan.spares[:1] if asked.request.settings.device == "cpu" else ()
    unlisted = [*filter(None, map(asked.sample, spares))]
    if not samples or len(samples) + len(unlisted) < 2:
        return
    varied = overlapping_cases(samples, unlisted)
    yield from asked.noted([CaseStarted(samples[0].case.id, Point.TYPICAL, 0)], plan.cases[0])
    yield from asked.noted(asked.reported(varied.findings), plan.cases[0])
    state = CaseState(swept=varied.swept)
    for sample in (*samples, *unlisted):
        state.count_calls(sample)
    yield state.verified(replace(samples[0].case, id=" with ".join(s.case.id for s in (*samples, *unlisted))))


def _another_rank(asked: Verification) -> Iterator[Beside]:
    """Inferred inputs at three dimensions, for each combination of options: the first that change nothing.

    What forward gives there must be what it gives at the inputs found, entry by entry: then it takes any
    rank, and so must backward. A forward that means something else there was not meant for it.
    """
    inferred = asked.is_verified and asked.request.inferred
    first_of_each = {c.options: c for c in reversed(asked.request.plan.cases)} if inferred else {}
    for case in first_of_each.values():
        deeper = list(with_three_dimensions(case))
        usual = asked.sample(case) if deeper else None
        for one in deeper if usual is not None else ():
            sample = asked.sample(one)
            if usual is not None and sample is not None and _is_the_same(usual, sample):
                pairs = zip(sample.arguments, usual.arguments, strict=True)
                shapes = [
                    f"that `{a.name}` may have the shape {list(a.value.shape)}"
                    for a, b in pairs
                    if a.differentiable and a.value.shape != b.value.shape
                ]
                yield Beside(
                    one, partial(_wrong_there, shapes, raises=False), f"{case.id} at three dimensions"
                )
                break


def _longer_items(asked: Verification) -> Iterator[Beside]:
    """Inferred lists whose tensors have one shape, with the last one longer: what cuts goes by each length.

    Parts that are as equal as can be (`chunk`) are longer at the start.
    """
    case = asked.request.plan.cases[0]
    for place, given in enumerate(case.inputs if asked.is_verified and asked.request.inferred else ()):
        if not isinstance(given, ListInput) or len({item.shape for item in given.items}) != 1:
            continue
        *others, last = given.items
        for dim, n in enumerate(last.shape if others and _is_free(last) else ()):
            longer = replace(last, shape=(*last.shape[:dim], n + 1, *last.shape[dim + 1 :]))
            inputs = list(case.inputs)
            inputs[place] = replace(given, items=(*others, longer))
            one = replace(case, id=f"{case.id} with a longer {last.name}", inputs=tuple(inputs))
            guessed = [f"that the tensors of `{given.name}` may differ in dimension {dim}"]
            yield Beside(one, partial(_wrong_there, guessed))


def _evaluation_mode(asked: Verification) -> Iterator[Beside]:
    """A module as training leaves it, in evaluation mode, where it may compute another function."""
    is_module = asked.request.target.kind is TargetKind.MODULE
    if asked.is_verified and asked.wants("GV101") and is_module:
        case, state = asked.request.plan.cases[0], ModuleState.TRAINED
        yield Beside(case, _in_evaluation_mode, f"{case.id} {state.value}", state)


def _sizes_of_one(asked: Verification) -> Iterator[Beside]:
    """Inferred sizes as 1: last, since what is open there leaves nothing more to be asked."""
    for case in asked.request.plan.degenerate if asked.request.inferred else ():
        if asked.is_verified:
            ones = [f"that `{n}` may be 1" for n, size in case.sizes if size == 1]
            yield Beside(case, partial(_wrong_there, ones))


def _at_unlisted_sizes(
    sample: Sample | NoSample, state: CaseState, *, is_open: bool, inferred: bool
) -> Iterator[Finding]:
    """The first order, and native dtypes where symbolic shapes leave the sizes open.

    What forward refuses of inferred inputs is nothing that anybody asked for.
    """
    if isinstance(sample, NoSample):
        refused = (f for f in sample.findings if f.code in {"GV002", "GV412"})
        yield from () if inferred else map(_refusal, refused)
        return
    if not _has_values(sample):
        said = f"forward gives no finite value at {sample.case.id}, which no spec lists"
        yield sample.finding("GV412", said, severity=Severity.NOTE)
        return
    found = at_unlisted(sample)
    told = tuple(_told_of_sizes(f, sample.case, is_open=is_open) for f in found.result.findings)
    result = guarded_at_unlisted(sample, CheckResult(told, outcome_of(told)))
    yield from result.findings
    native = wrong_natively(sample) if is_open and found.judged and not told else ()
    yield from native
    state.last, state.points = sample, int(found.judged)
    state.swept = Swept(sizes=(sample.case.id,) if found.judged else ())
    state.add(sample.family, result)
    state.add(Family.PRECISION, CheckResult(native, outcome_of(native) if native else Outcome.NOT_RUN))


def _refusal(finding: Finding) -> Finding:
    raised = finding.raised
    where = finding.case.id if finding.case is not None else ""
    said = f"{raised.type}: {first_line(raised.message)}" if raised is not None else finding.message
    message = f"forward refuses {where}, which no spec lists: {said}"
    return replace(finding, code="GV412", severity=Severity.NOTE, message=message, hint="")


def _told_of_sizes(finding: Finding, case: Case, *, is_open: bool) -> Finding:
    """The finding, with what it has to do with sizes: a warning where they are against a list."""
    if finding.severity is Severity.ERROR and is_open:
        hint = (
            f"In the cases before it is right, at {case.id} it is not. If that is not valid, list the valid "
            "sizes under `sizes:`, or the valid combinations of options under `cases:`."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    severity = Severity.NOTE if finding.severity is Severity.NOTE else Severity.WARNING
    message = f"at {case.id}, which no spec lists, {finding.message}"
    return replace(finding, code="GV412", severity=severity, message=message, hint=IF_LISTED)


def at_unlisted(sample: Sample) -> FirstOrder:
    """The first order and what backward returned; an exception as a finding, a note if it is deliberate."""
    empty = refused_empty(sample)
    found = empty if empty is not None else at_undeclared(sample)
    returned = contract(sample, FirstOrder(found.result)).findings
    irregular = [f for f in returned if f.code in RETURNED and f.severity is Severity.ERROR]
    replaced = {f.input for f in irregular} - {None}
    findings = [*irregular, *(f for f in found.result.findings if f.input not in replaced)]
    if found.raised is not None and not irregular:
        severity = Severity.NOTE if found.raised.deliberate else Severity.ERROR
        findings.append(replace(backward_raised(sample, found.raised), severity=severity))
    result = CheckResult(tuple(findings), outcome_of(findings))
    return FirstOrder(result, judged=found.judged or bool(findings))


def _has_values(sample: Sample, *, every: bool = False) -> bool:
    """Whether forward returns a finite number, or `every` one is."""
    values = sample.problem.evaluate(sample.problem.primals)
    if isinstance(values, Raised):
        return not every
    finite = sample.problem.outputs.flatten(values.value).isfinite()
    return bool(finite.all() if every else finite.any() or not finite.numel())


def _wrong_there(
    guessed: Sequence[str], sample: Sample | NoSample, state: CaseState, *, raises: bool = True
) -> Iterator[Finding]:
    """What is wrong where forward gives finite numbers, with what was guessed."""
    if isinstance(sample, NoSample) or not _has_values(sample, every=True):
        return
    found = at_unlisted(sample)
    wrong = (f for f in found.result.findings if f.severity is Severity.ERROR and (raises or not f.raised))
    findings = tuple(invented(f, guessed) for f in wrong)
    if found.judged or findings:
        state.add(sample.family, CheckResult(findings, outcome_of(findings)))
        state.swept = Swept(sizes=(sample.case.id,))
    yield from findings


def _in_evaluation_mode(sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """The first order of a module in evaluation mode; what forward refuses there is not judged."""
    state.capabilities["evaluation_mode"] = "no"
    if isinstance(sample, NoSample):
        return
    found = at_unlisted(sample)
    told = [f for f in found.result.findings if f.severity is Severity.ERROR or f.raised]
    wrong = any(f.severity is Severity.ERROR for f in told)
    if found.judged or told:
        state.add(sample.family, CheckResult((), outcome_of(told)))
    state.capabilities["evaluation_mode"] = "wrong" if wrong else "yes" if found.judged else "no"
    for finding in told:
        message, hint = f"in evaluation mode {finding.message}", f"{IN_EVALUATION_MODE} {finding.hint}"
        yield replace(finding, message=message, hint=hint.strip())


def with_three_dimensions(case: Case) -> Iterator[Case]:
    """The case whose deepest tensors have three dimensions, one of size 1, and as many entries.

    One for each place of it, the middle first: an option that names an axis means the same one at some of
    them. None where they have three already, or none has a dimension.
    """
    tensors = [i for i in case.inputs if isinstance(i, TensorInput)]
    deepest = max((len(t.shape) for t in tensors if _is_free(t)), default=0)
    if case.hook or not 0 < deepest < RANK:
        return
    changed = [t for t in tensors if len(t.shape) == deepest]
    if not all(_is_free(t) or t.value is None for t in changed):
        return
    ones = (1,) * (RANK - deepest)
    for place in (0, 1) if deepest == 1 else (1, 2, 0):
        shapes = {t.name: (*t.shape[:place], *ones, *t.shape[place:]) for t in changed}
        inputs = (
            replace(i, shape=shapes[i.name]) if isinstance(i, TensorInput) and i.name in shapes else i
            for i in case.inputs
        )
        yield replace(case, inputs=tuple(inputs))


def _is_free(tensor: TensorInput) -> bool:
    """Whether it is a differentiable tensor of any shape."""
    plain = not tensor.structure and not tensor.layout and tensor.value is None
    return plain and tensor.dtype.startswith(("float", "complex"))


def _is_the_same(usual: Sample, sample: Sample) -> bool:
    """Whether forward gives the same numbers for the same numbers, in whatever shape."""
    entries = [[prod(p.shape) for p in one.problem.primals] for one in (usual, sample)]
    made = [one.problem.evaluate(one.problem.primals) for one in (usual, sample)]
    values = [[v.reshape(-1) for v in one.value] for one in made if not isinstance(one, Raised)]
    if len(values) < len(made) or entries[0] != entries[1] or len(values[0]) != len(values[1]):
        return False
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(*values, strict=True))
