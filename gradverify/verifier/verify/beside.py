"""Samples that no case lists: other sizes and ranks, a module in evaluation mode, sizes past constants.

No spec says that such inputs are valid. What forward refuses there is a note at most, and what is wrong is
said together with what it hangs on: it fails where symbolic sizes say that any is valid.

Past a constant of the source (a block, a chunk, a limit that sizes are compared with) the report names a size
that was not verified. A gradient that is wrong there is a finding; where the spec lists the values of that
size it makes the target inconclusive, no more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, permutations

import torch

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted, CaseStarted, Event, Found
from gradverify.model import (
    ALIGNED,
    Beyond,
    Case,
    Effort,
    Engine,
    Finding,
    ListInput,
    Outcome,
    Point,
    Severity,
    Swept,
    TargetKind,
    TensorInput,
)
from gradverify.rules import Family, rule
from gradverify.verifier.guard import Raised
from gradverify.verifier.interpreter.launches import programs
from gradverify.verifier.neighbours.guesses import Excuses, guarded
from gradverify.verifier.neighbours.shapes import with_shapes
from gradverify.verifier.questions.again import MOST_CASES, overlapping, overlapping_cases, read_unwritten
from gradverify.verifier.questions.changes import changes
from gradverify.verifier.questions.contract import RETURNED, contract
from gradverify.verifier.questions.dtypes.asked import wrong_natively
from gradverify.verifier.questions.findings import CheckResult, FirstOrder, invented, outcome_of
from gradverify.verifier.questions.orders import backward_raised, refused_empty
from gradverify.verifier.questions.results import at_two_draws, at_undeclared, judged_alone
from gradverify.verifier.questions.results import beyond as judged_beyond
from gradverify.verifier.questions.subject import NoSample, Sample, first_line, prepare, values_of
from gradverify.verifier.questions.verified import verified
from gradverify.verifier.targets.discover import source_of
from gradverify.verifier.targets.module_target import ModuleState
from gradverify.verifier.verify.case_state import CaseState
from gradverify.verifier.verify.verification import Verification, disagreements

MOST_MULTIPLES = 6
"""So many pairs of dimensions are tried; forward refuses nearly all of them."""

RANK = 3
"""Dimensions of a sequence of vectors, a batch of matrices: the next ones after those of a matrix."""

IN_EVALUATION = ("GV101", "GV404", "GV405", "GV406", "GV407")
"""Codes of what is asked of a module in evaluation mode."""

IN_EVALUATION_MODE = "In training mode it is right: look at what `self.training` decides."

IF_LISTED = "If such sizes are valid, list them under `sizes:`; if not, forbid them by `where:`."

MOST_PROGRAMS = 512
"""Programs of interpreted kernels in a forward from which on a size is not tried: some 2 ms each."""


@dataclass(frozen=True)
class Beside:
    """A sample that no case lists."""

    case: Case
    tell: Callable[[Finding], Finding | None]
    """What is said of a finding; None for nothing."""
    named: str = ""
    """How the report calls it, if not by its case."""
    state: ModuleState = ModuleState.NEW
    is_guessed: bool = True
    """Forward was never meant to take it: what it refuses, or has no number for, is not said."""
    natively: bool = False
    """Symbolic sizes say that it is valid: native dtypes are asked as well."""


def beside_the_listed(asked: Verification) -> Iterator[Event]:
    """Ask what can add something once the listed cases are verified."""
    yield from _each(asked, _open_sizes(asked))
    yield from _overlapping_cases(asked)
    yield from _each(asked, _other_shapes(asked))
    if asked.is_verified and asked.wants("GV101"):
        yield from asked.noted(past_constants(asked), asked.request.plan.cases[0])
    if asked.is_verified and any(map(asked.wants, IN_EVALUATION)):
        yield from _each(asked, _evaluation_mode(asked))
    yield from _each(asked, _unlisted_sizes(asked))


def _each(asked: Verification, samples: Iterator[Beside]) -> Iterator[Event]:
    for one in samples:
        there = replace(asked, live=replace(asked.live, state=one.state))
        yield from asked.noted(_asked(there, one), one.case)


def _asked(asked: Verification, one: Beside) -> Iterator[Event]:
    """Judge a sample.

    Nothing is asked of a gradient that is not meant to be the derivative, or is torch's to judge.
    """
    built = asked.build(one.case)
    if isinstance(built, Finding):
        return
    subject, case = built
    if subject.surrogate is not None or subject.settings.engine is Engine.TORCH:
        return
    yield CaseStarted(one.case.id, Point.TYPICAL, 0)
    sample, state = prepare(subject, case, Point.TYPICAL, 0), CaseState()
    yield from asked.reported(_judged(one, sample, state))
    if isinstance(sample, Sample):
        yield from asked.reported(disagreements(sample))
        state.count_calls(sample)
    if isinstance(sample, Sample) or len(state.capabilities) > 1:
        yield state.verified(replace(one.case, id=one.named or one.case.id))


def _open_sizes(asked: Verification) -> Iterator[Beside]:
    """Sizes that symbolic shapes leave open, and combinations that no case has."""
    plan = asked.request.plan
    natively = plan.asked is not None and bool(plan.asked.sweep.automatic)
    for case in plan.open_sized:
        if asked.has_no_error:
            tell = partial(_told_of_sizes, case=case, is_open=True)
            yield Beside(case, tell, is_guessed=False, natively=natively)


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


def _other_shapes(asked: Verification) -> Iterator[Beside]:
    """Inferred inputs at three dimensions, for each combination of options, and lists with a longer tensor.

    What forward gives at three dimensions must be what it gives at the inputs found, entry by entry: then it
    takes any rank, and so must backward. What cuts a list goes by the length of each of its tensors.
    """
    plan = asked.request.plan
    if not (asked.is_verified and asked.request.inferred):
        return
    for case in {c.options: c for c in reversed(plan.cases)}.values():
        for at_end, alone in ((False, False), (True, False), (False, True)):
            yield from _with_three_dimensions(asked, case, at_end=at_end, alone=alone)
    for given in plan.cases[0].inputs:
        if isinstance(given, ListInput) and asked.is_verified:
            yield from _with_longer_items(plan.cases[0], given)
    for one in _with_twice_as_many(plan.cases[0]):
        if asked.is_verified:
            yield one


def _with_three_dimensions(asked: Verification, case: Case, *, at_end: bool, alone: bool) -> Iterator[Beside]:
    """Where forward gives the same numbers for a further size of 1, that of 2, if it takes that.

    Of a size of 1 no sum shows. `alone`: of the first input, as of rows that a matrix is applied to.
    """
    deeper, wider = (with_three_dimensions(case, at_end=at_end, alone=alone, size=size) for size in (1, 2))
    usual, sample = (asked.sample(c) if deeper and c else None for c in (case, deeper))
    if not (deeper and usual and sample and _is_the_same(usual, sample)):
        return
    pairs = zip(sample.arguments, usual.arguments, strict=True)
    changed = [a for a, b in pairs if a.differentiable and a.value.shape != b.value.shape]
    where = "with one more dimension at the end" if at_end else "at three dimensions"
    where += f" of {changed[0].name}" if alone and changed else ""
    for size, there in enumerate((deeper, wider if wider and asked.sample(wider) else None), start=1):
        if there is not None and asked.is_verified:
            given = {i.name: list(i.shape) for i in there.inputs if isinstance(i, TensorInput)}
            shapes = [f"that `{a.name}` may have the shape {given[a.name]}" for a in changed]
            tell = partial(_told_of_guesses, shapes, raises=False)
            yield Beside(there, tell, f"{case.id} {where}{', one of size 1' * (size == 1)}")


def _with_longer_items(case: Case, given: ListInput) -> Iterator[Beside]:
    """A list of tensors of one shape with the last one longer: what is cut equally is longer at the start."""
    *others, last = given.items
    if others and _is_free(last) and len({item.shape for item in given.items}) == 1:
        for dim, n in enumerate(last.shape):
            longer = replace(last, shape=(*last.shape[:dim], n + 1, *last.shape[dim + 1 :]))
            items = replace(given, items=(*others, longer))
            inputs = tuple(items if i is given else i for i in case.inputs)
            one = replace(case, id=f"{case.id} with a longer {last.name}", inputs=inputs)
            guessed = [f"that the tensors of `{given.name}` may differ in dimension {dim}"]
            yield Beside(one, partial(_told_of_guesses, guessed))


def _with_twice_as_many(case: Case) -> Iterator[Beside]:
    """One tensor twice as long as another in a dimension, which heads that share keys in groups are."""
    tensors = [i for i in case.inputs if isinstance(i, TensorInput) and _is_free(i)]
    found = (
        (one, other, dim)
        for one, other in permutations(tensors, 2)
        for dim, (n, m) in enumerate(zip(one.shape, other.shape, strict=False))
        if n == m
    )
    for one, other, dim in islice(found, MOST_MULTIPLES):
        longer = (*one.shape[:dim], 2 * one.shape[dim], *one.shape[dim + 1 :])
        there = replace(with_shapes(case, {one.name: longer}), id=f"{case.id} with a longer {one.name}")
        guessed = [f"that `{one.name}` and `{other.name}` agree in dimension {dim}"]
        yield Beside(there, partial(_told_of_multiples, guessed))


def _evaluation_mode(asked: Verification) -> Iterator[Beside]:
    """A module as training leaves it, in evaluation mode, where it may compute another function."""
    if asked.is_verified and asked.request.target.kind is TargetKind.MODULE:
        case, state = asked.request.plan.cases[0], ModuleState.TRAINED
        yield Beside(case, _told_of_evaluation, f"{case.id} {state.value}", state)


def _unlisted_sizes(asked: Verification) -> Iterator[Beside]:
    """Inferred sizes as 1, or others than a spec lists: last, since what is open leaves nothing to ask."""
    inferred, thorough = asked.request.inferred, asked.request.settings.effort is Effort.THOROUGH
    for case in asked.request.plan.degenerate:
        if asked.is_verified:
            ones = [f"that `{n}` may be 1" for n, size in case.sizes if size == 1]
            told = partial(_told_of_guesses, ones)
            tell = told if inferred else partial(_told_of_sizes, case=case, is_open=False)
            yield Beside(case, tell, is_guessed=inferred or not thorough)


def _judged(one: Beside, sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """The first order, and native dtypes where symbolic shapes leave the sizes open."""
    if one.state is ModuleState.TRAINED:
        state.capabilities["evaluation_mode"] = "no"
    if isinstance(sample, NoSample):
        refused = (f for f in sample.findings if f.code in {"GV002", "GV412"} and not one.is_guessed)
        yield from map(_refusal, refused)
        return
    if not _has_values(sample, every=one.is_guessed):
        said = f"forward gives no finite value at {sample.case.id}, which no spec lists"
        if not one.is_guessed:
            yield sample.finding("GV412", said, severity=Severity.NOTE)
        return
    found = at_two_draws(sample, at_unlisted)
    # What a loop or a kernel leaves over at this size is zero where memory is.
    asks = found.judged and not any(map(_is_error, found.result.findings)) and _may_leave_unwritten(sample)
    unwritten = read_unwritten(sample) if asks else ()
    told = CheckResult.of(*map(one.tell, unwritten or found.result.findings))
    result = guarded(sample, told, Excuses())
    yield from result.findings
    native = wrong_natively(sample) if one.natively and found.judged and not told.findings else ()
    yield from native
    if found.judged or told.findings or not one.is_guessed:
        is_new = one.state is ModuleState.NEW and found.judged
        state.swept = Swept(sizes=(sample.case.id,) if is_new else ())
        state.last, state.points = sample, int(found.judged)
        state.add(sample.family, result)
    state.add(Family.PRECISION, CheckResult(native, outcome_of(native) if native else Outcome.NOT_RUN))
    if one.state is ModuleState.TRAINED and found.judged:
        varied = _in_other_calls(one, sample) if result.outcome is not Outcome.FAILED else CheckResult()
        yield from varied.findings
        state.add(Family.CONTRACT, varied)
        failed = Outcome.FAILED in {result.outcome, varied.outcome}
        state.capabilities["evaluation_mode"] = "wrong" if failed else "yes"


def _in_other_calls(one: Beside, sample: Sample) -> CheckResult:
    """What is wrong with frozen inputs or in another layout, as of a layer that is fine-tuned around."""
    base = verified(sample)
    return CheckResult.of(*map(one.tell, () if base is None else changes(base).findings))


def _refusal(finding: Finding) -> Finding:
    raised = finding.raised
    where = finding.case.id if finding.case is not None else ""
    said = f"{raised.type}: {first_line(raised.message)}" if raised is not None else finding.message
    message = f"forward refuses {where}, which no spec lists: {said}"
    return replace(finding, code="GV412", severity=Severity.NOTE, message=message, hint="")


def _told_of_sizes(finding: Finding, case: Case, *, is_open: bool) -> Finding:
    """The finding, with what it has to do with sizes: a warning where they are against a list."""
    if _is_error(finding) and is_open:
        hint = (
            f"In the cases before it is right, at {case.id} it is not. If that is not valid, list the valid "
            "sizes under `sizes:`, or the valid combinations of options under `cases:`."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    severity = Severity.NOTE if finding.severity is Severity.NOTE else Severity.WARNING
    message = f"at {case.id}, which no spec lists, {finding.message}"
    return replace(finding, code="GV412", severity=severity, message=message, hint=IF_LISTED)


def _told_of_guesses(guessed: Sequence[str], finding: Finding, *, raises: bool = True) -> Finding | None:
    """An error, with what was guessed."""
    is_said = _is_error(finding) and (raises or not finding.raised)
    return invented(finding, guessed) if is_said else None


def _told_of_multiples(guessed: Sequence[str], finding: Finding) -> Finding | None:
    """The same, but of what torch refuses: forward may read the first entries alone."""
    is_refused = finding.code in RETURNED
    return None if is_refused else _told_of_guesses(guessed, finding, raises=False)


def _told_of_evaluation(finding: Finding) -> Finding | None:
    """An error, or what backward raised."""
    if not (_is_error(finding) or finding.raised):
        return None
    message, hint = f"in evaluation mode {finding.message}", f"{IN_EVALUATION_MODE} {finding.hint}"
    return replace(finding, message=message, hint=hint.strip())


def at_unlisted(sample: Sample) -> FirstOrder:
    """The first order and what backward returned; an exception as a finding, a note if it is deliberate."""
    found = refused_empty(sample) or at_undeclared(sample)
    returned = contract(sample, FirstOrder(found.result)).findings
    irregular = [f for f in returned if f.code in RETURNED and _is_error(f)]
    replaced = {f.input for f in irregular} - {None}
    findings = [*irregular, *(f for f in found.result.findings if f.input not in replaced)]
    if found.raised is not None and not irregular:
        severity = Severity.NOTE if found.raised.deliberate else Severity.ERROR
        findings.append(replace(backward_raised(sample, found.raised), severity=severity))
    return FirstOrder(CheckResult.of(*findings), judged=found.judged or bool(findings))


def _may_leave_unwritten(sample: Sample) -> bool:
    """Whether the module of a Function allocates by `torch.empty` or the like, or cannot be read."""
    function = sample.subject.function_class
    source = "" if function is None else source_of(sys.modules.get(function.__module__))
    return not source or "empty" in source


def _has_values(sample: Sample, *, every: bool) -> bool:
    """Whether forward returns a finite number, or `every` one is."""
    values = values_of(sample)
    if isinstance(values, Raised):
        return not every
    finite = sample.problem.outputs.flatten(values.value).isfinite()
    return bool(finite.all() if every else finite.any() or not finite.numel())


def with_three_dimensions(
    case: Case, *, at_end: bool = False, alone: bool = False, size: int = 1
) -> Case | None:
    """The case whose deepest tensors, or the first of several `alone`, have three dimensions.

    Sizes of 1, and one of that `size`, come before the last one, or `at_end`. None where they have three
    already, or none has a dimension.
    """
    tensors = [i for i in case.inputs if isinstance(i, TensorInput)]
    deepest = max((len(t.shape) for t in tensors if _is_free(t)), default=0)
    changed = [t for t in tensors if len(t.shape) == deepest]
    if case.hook or not 0 < deepest < RANK or any(t.value is not None for t in changed):
        return None
    if alone and changed[1:] == []:  # it is the same
        return None
    before, ones = deepest - (not at_end), (*(1,) * (RANK - deepest - 1), size)
    chosen = changed[:1] if alone else changed
    return with_shapes(case, {t.name: (*t.shape[:before], *ones, *t.shape[before:]) for t in chosen})


def _is_free(tensor: TensorInput) -> bool:
    """Whether it is a differentiable tensor of any shape."""
    plain = not tensor.structure and not tensor.layout and tensor.value is None
    return plain and tensor.dtype.startswith(("float", "complex"))


def _is_the_same(usual: Sample, sample: Sample) -> bool:
    """Whether forward gives the same numbers for the same numbers, in whatever shape."""
    if usual.inputs.size != sample.inputs.size:
        return False
    one, other = (s.problem.evaluate(s.problem.primals) for s in (usual, sample))
    if isinstance(one, Raised) or isinstance(other, Raised):
        return False
    values = usual.problem.outputs.flatten(one.value), sample.problem.outputs.flatten(other.value)
    return torch.equal(*values)


def past_constants(asked: Verification) -> Iterator[Event]:
    """Judge cases past constants until backward is wrong at one, the plainest: another adds nothing.

    After one that no spec says to be valid come those alone that no spec speaks against: they are mistakes.
    """
    found: list[Finding] = []
    for beyond in asked.request.plan.beyond:
        if any(map(_is_error, found)):
            return
        if not (found and beyond.declared):
            for event in _judged_past(asked, beyond):
                found += [event.finding] if isinstance(event, Found) else []
                yield event


def _judged_past(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    """Judge a case past a constant."""
    yield BeyondStarted(beyond)
    sample = _sample_past(asked, beyond)
    if isinstance(sample, str):
        yield BeyondJudged(sample)
        return
    first = judged_alone(sample) if sample.is_native else judged_beyond(sample)
    if any(f.code in RETURNED and _is_error(f) for f in contract(sample, first).findings):
        yield BeyondJudged("torch refuses the gradients that backward returns there")
        return
    if first.result.outcome is Outcome.FAILED:
        yield BeyondDoubted()
    errors = _errors_past(sample, first, beyond)
    if not errors and first.result.outcome is not Outcome.PASSED:
        yield BeyondJudged("its gradient could not be measured there")
        return
    base = None if errors else verified(sample)
    # A buffer may be kept from some size on.
    errors = errors if base is None else [*filter(_is_error, overlapping(base).findings)]
    # What was guessed of sizes that are to agree is said already.
    is_told = beyond.constant == ALIGNED and not any(map(_is_error, errors))
    told = (f if is_told else _told_past(f, beyond, asked.request.plan.cases) for f in errors)
    yield from asked.reported(told)
    yield BeyondJudged()


def _sample_past(asked: Verification, beyond: Beyond) -> Sample | str:
    """The sample there, or why none is judged."""
    if asked.request.settings.engine is Engine.TORCH:
        return "--engine torch would build its whole Jacobian"
    built = asked.build(beyond.case)
    if isinstance(built, Finding):
        return "the module cannot be built"
    before = programs()
    sample = prepare(*built, Point.TYPICAL, 0)
    if isinstance(sample, NoSample):
        raised = sample.raised
        return f"forward raises {raised.type}" if raised is not None else "it has no gradient"
    if programs() - before > MOST_PROGRAMS:
        return "a call of it takes too long there"
    if sample.disconnected or sample.subject.surrogate is not None:
        return "its gradient is not meant to be the derivative of all it returns"
    return sample


def _errors_past(sample: Sample, first: FirstOrder, beyond: Beyond) -> list[Finding]:
    """What is wrong there; inconclusive where that may come from what was guessed of inferred inputs."""
    found = replace(first.result, findings=tuple(filter(_is_error, first.result.findings)))
    # Whatever else was guessed: what no spec says to be valid is inconclusive in any case, see `_told_past`.
    if not beyond.declared or beyond.constant == ALIGNED:
        # Smaller sizes, even ones or not, say nothing of what is wrong past a constant.
        found = guarded(replace(sample, subject=replace(sample.subject, spares=())), found, Excuses())
    return [*found.findings, *read_unwritten(sample)]


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _told_past(finding: Finding, beyond: Beyond, listed: Sequence[Case]) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = (
            f"At other sizes it is right; this is {where}: look at a branch, a last block that is not full."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    sizes, known = dict(beyond.case.sizes), [dict(case.sizes) for case in listed]
    unlisted = [n for n, size in sizes.items() if all(one.get(n) != size for one in known)] or [beyond.size]
    conditions = " or ".join(f"`{name} != {sizes[name]}`" for name in unlisted)
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but no spec says that {where} is valid",
        hint=f"If it is, list such a value of {' and '.join(f'`{name}`' for name in unlisted)} in the spec's "
        f"sizes, and this is a mistake; if not, forbid it with `where:`, as in {conditions}.",
    )
