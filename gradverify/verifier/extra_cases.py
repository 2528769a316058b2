"""What is asked beside the listed cases: unlisted sizes, overlapping calls, past constants, evaluation mode.

No spec says that such inputs are valid, so what forward refuses there is a note at most.

A case past a constant of the source: the first order and the reference, and what memory was read.

No spec says that such a size is valid. What forward refuses, and what cannot be measured there, is no
finding: the report names the size as not verified. A gradient that is wrong is a finding, and where the
spec lists the values of that size it makes the target inconclusive, no more.

Inferred inputs with three dimensions, one of size 1: what a `squeeze` or a branch on ranks does.

What forward gives there must be what it gives at the inputs found, entry by entry: then it takes any rank,
and so must backward. A forward that means something else there was not meant for it, as far as anybody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from operator import lt

import torch

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted, CaseStarted, Event, Found
from gradverify.model import (
    ALIGNED,
    OTHER_VALUES,
    Beyond,
    Case,
    CasePoint,
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
from gradverify.verifier.building import equal_buffers
from gradverify.verifier.case_state import CaseState
from gradverify.verifier.checks.dtypes.asked import wrong_natively
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.samples import arguments_at, prepare, prepared
from gradverify.verifier.checks.subject import NoSample, Sample, Subject
from gradverify.verifier.checks.undeclared import at_unlisted
from gradverify.verifier.checks.wording import invented, of_other_buffers
from gradverify.verifier.collect.module_target import ModuleState
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.interpreter.launches import programs
from gradverify.verifier.neighbours.guesses import guarded, guarded_at_unlisted
from gradverify.verifier.questions.again import read_unwritten
from gradverify.verifier.questions.overlap import MOST_CASES, overlapping
from gradverify.verifier.questions.overlap import overlapping_cases as overlapped
from gradverify.verifier.questions.verified import verified
from gradverify.verifier.verification import Verification
from gradverify.verifier.verify.natively import judged_alone
from gradverify.verifier.verify.results import at_undeclared, first_order, reference
from gradverify.verifier.verify.results import beyond as judged_beyond

MOST_PROGRAMS = 512
"""Programs of interpreted kernels in a forward from which on a size is not tried: some 2 ms each."""

TOO_SLOW = "a call of it takes too long there"

LEAST = 1e-4
"""Relative difference from which on a gradient is wrong at a size that nobody listed."""

SLIGHT = "its gradient differs there by less than a path of its own would make"


def judge_beyond(
    subject: Subject, case: Case, beyond: Beyond, wanted: frozenset[Family], listed: Sequence[Case]
) -> Iterator[Event]:
    """Verify one such case; what is wrong is tried first at one of those asked for, which are `listed`."""
    yield BeyondStarted(beyond)
    if subject.settings.engine is Engine.TORCH:
        yield BeyondJudged("--engine torch would build its whole Jacobian")
        return
    before = programs()
    sample = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(sample, Sample) and programs() - before > MOST_PROGRAMS:
        yield BeyondJudged(TOO_SLOW)
        return
    if isinstance(sample, NoSample):
        raised = sample.raised
        yield BeyondJudged(f"forward raises {raised.type}" if raised is not None else "it has no gradient")
        return
    if sample.disconnected or subject.surrogate is not None:
        yield BeyondJudged("its gradient is not meant to be the derivative of all it returns")
        return
    if sample.is_native:
        first = judged_alone(sample)
    else:
        first = judged_beyond(sample)
        if first.result.outcome is Outcome.FAILED:
            yield BeyondDoubted()
    # Whatever else was guessed: what no spec says to be valid is inconclusive in any case, see `_past`.
    told = beyond.declared and beyond.constant != ALIGNED
    errors = _errors(sample, first, wanted, guarding=not told)
    if errors and beyond.constant == ALIGNED and all(f.severity is not Severity.ERROR for f in errors):
        yield from map(Found, errors)  # each says what was guessed
        yield BeyondJudged()
        return
    if not errors and first.result.outcome is not Outcome.PASSED:
        slight = any(f.severity is Severity.ERROR for f in first.result.findings)
        yield BeyondJudged(SLIGHT if slight else "its gradient could not be measured there")
        return
    errors = errors or _of_overlapping_calls(sample)
    usual = next(c for c in listed if c.options == case.options)
    at_usual = _at_its_values(sample, errors, usual, wanted) if errors else []
    for finding in at_usual or (_past(one, beyond, listed) for one in errors):
        yield Found(finding)
    yield BeyondJudged()


def _of_overlapping_calls(sample: Sample) -> list[Finding]:
    """What a second call of that size changes: a buffer may be kept from some size on."""
    base = verified(sample)
    found = () if base is None else overlapping(base).findings
    return [finding for finding in found if finding.severity is Severity.ERROR]


def _at_its_values(
    sample: Sample, errors: Sequence[Finding], usual: Case, wanted: frozenset[Family]
) -> list[Finding]:
    """What is wrong at a size asked for, at values that the case past the constant has where it is wrong."""
    drawn = arguments_at(sample.subject, usual, Point.TYPICAL, 0)
    if isinstance(drawn, Raised) or [a.name for a in drawn] != [a.name for a in sample.arguments]:
        return []
    cut = _cut(sample.arguments, drawn, errors[0])
    where = CasePoint(usual.id, usual.sizes, usual.options, Point.TYPICAL, 0)
    there = None if cut is None else prepared(sample.subject, usual, where, cut)
    if not isinstance(there, Sample):
        return []
    hint = f"The values are some of those at {sample.case.id}."
    return [
        replace(one, part=OTHER_VALUES, hint=f"{one.hint} {hint}".strip())
        for one in _errors(there, first_order(there), wanted)
    ]


def _cut(
    large: Sequence[Argument], small: Sequence[Argument], finding: Finding
) -> tuple[Argument, ...] | None:
    """The small arguments with values of the large ones, the worst entry's among them.

    None where they have no such values: in some dimension the small one is longer.
    """
    shape = next((a.value.shape for a in large if a.name == finding.input), ())
    worst = finding.entries.worst[:1] if finding.entries is not None else ()
    # So far from the start of every dimension of that length.
    starts = {n: k for entry in worst for n, k in zip(shape, entry.input or (), strict=False)}
    made = []
    for a, b in zip(large, small, strict=True):
        sizes = tuple(b.value.shape) if b.differentiable else ()
        if b.differentiable and (a.value.dim() != len(sizes) or any(map(lt, a.value.shape, sizes))):
            return None
        value = a.value if b.differentiable else b.value
        for dim, n in enumerate(sizes):
            length = value.shape[dim]
            value = value.narrow(dim, min(starts.get(length, 0), length - n), n)
        made.append(replace(b, value=value.clone() if b.differentiable else value))
    return tuple(made)


def _errors(
    sample: Sample, first: FirstOrder, wanted: frozenset[Family], *, guarding: bool = True
) -> list[Finding]:
    """What is wrong there; inconclusive where that may come from what was guessed of inferred inputs."""
    results = {Family.GRADCHECK: first.result}
    if Family.REFERENCE in wanted and not sample.is_native:
        results[Family.REFERENCE] = reference(sample, first)
    # Smaller sizes, even ones or not, say nothing of what is wrong past a constant.
    here = replace(sample, subject=replace(sample.subject, spares=()))
    judged = guarded(here, results) if guarding else results
    found = [
        one
        for family, result in judged.items()
        for f, one in zip(results[family].findings, result.findings, strict=False)
        if f.severity is Severity.ERROR and _is_gross(f)
    ]
    return [*found, *read_unwritten(sample)]


def _is_gross(finding: Finding) -> bool:
    """Whether a gradient is off by what a path of its own makes, not an iteration that ends early."""
    worst = finding.entries.worst if finding.entries is not None and finding.code == "GV101" else ()
    sizes = ((abs(e.actual - e.expected), max(abs(e.actual), abs(e.expected))) for e in worst)
    return not worst or any(not off <= LEAST * size for off, size in sizes)


def _past(finding: Finding, beyond: Beyond, listed: Sequence[Case]) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = (
            f"At other sizes it is right; this is {where}: look at a branch, a last block that is not full."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but no spec says that {where} is valid",
        hint=_to_settle(beyond, [dict(case.sizes) for case in listed]),
    )


def _to_settle(beyond: Beyond, listed: Sequence[Mapping[str, int]]) -> str:
    """What the author is to say of the sizes there that no listed case has."""
    sizes = dict(beyond.case.sizes)
    unlisted = [n for n, size in sizes.items() if all(one.get(n) != size for one in listed)] or [beyond.size]
    names = " and ".join(f"`{name}`" for name in unlisted)
    such = f"such a value of {names}" if len(unlisted) == 1 else f"such values of {names}"
    of_each = {name: [one[name] for one in listed if name in one] for name in unlisted}
    conditions = " or ".join(
        f"`{_condition(name, sizes[name], of_each[name], beyond.number)}`" for name in unlisted
    )
    return (
        f"If it is, list {such} in the spec's sizes, and this is a mistake; if not, forbid it with `where:`, "
        f"as in {conditions}."
    )


def _condition(name: str, value: int, listed: Sequence[int], constant: int) -> str:
    """What every listed value of a size meets and this one does not, by the constant if that parts them.

    A bound just below the value would leave others of its kind, as of two blocks where one is meant.
    """
    if constant and value % constant and not any(size % constant for size in listed):
        return f"{name} % {constant} == 0"
    if constant and not value % constant and all(size % constant for size in listed):
        return f"{name} % {constant} != 0"
    if constant and all(size <= constant < value for size in listed):
        return f"{name} <= {constant}"
    if all(size < value for size in listed):
        return f"{name} <= {value - 1}"
    return f"{name} >= {value + 1}" if all(size > value for size in listed) else f"{name} != {value}"


RANK = 3
"""Dimensions of a sequence of vectors, a batch of matrices: the next ones after those of a matrix."""


def with_three_dimensions(case: Case) -> Iterator[Case]:
    """The case whose deepest tensors have three dimensions, one of size 1, and as many entries.

    One for each place of it, the middle first: an option that names an axis means the same one at some of
    them. None where they have three already, or none has a dimension.
    """
    tensors = [i for i in case.inputs if isinstance(i, TensorInput)]
    deepest = max((len(t.shape) for t in tensors if _is_free(t)), default=0)
    if case.hook or not 0 < deepest < RANK:
        return
    changed = {t.name: _shapes(t.shape) for t in tensors if len(t.shape) == deepest}
    if not all(_is_free(t) or t.value is None for t in tensors if t.name in changed):
        return
    for place in range(min(map(len, changed.values()))):
        there = {name: shapes[place] for name, shapes in changed.items()}
        inputs = (
            replace(i, shape=there[i.name]) if isinstance(i, TensorInput) and i.name in there else i
            for i in case.inputs
        )
        yield replace(case, inputs=tuple(inputs))


def _is_free(tensor: TensorInput) -> bool:
    """Whether it is a differentiable tensor of any shape."""
    plain = not tensor.structure and not tensor.layout and tensor.value is None
    return plain and tensor.dtype.startswith(("float", "complex"))


def _shapes(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    if len(shape) == 1:
        (n,) = shape
        return (1, 1, n), (n, 1, 1)
    n, m = shape
    return (n, 1, m), (n, m, 1), (1, n, m)


def judged_at_three_dimensions(
    usual: Sample, sample: Sample | NoSample, state: CaseState
) -> Iterator[Finding]:
    """What is wrong there, which leaves the target open; `usual` is the sample of the inputs found."""
    if isinstance(sample, NoSample):
        return
    found = at_undeclared(sample)
    shapes = [
        f"that `{a.name}` may have the shape {list(a.value.shape)}"
        for a, b in zip(sample.arguments, usual.arguments, strict=True)
        if a.differentiable and a.value.shape != b.value.shape
    ]
    findings = tuple(invented(f, shapes) for f in found.result.findings if f.severity is Severity.ERROR)
    if found.judged or findings:
        state.add(sample.family, CheckResult(findings, outcome_of(findings)))
        state.swept = Swept(sizes=(sample.case.id,))
    yield from findings


def _is_the_same(usual: Sample, sample: Sample) -> bool:
    """Whether forward gives the same numbers for the same numbers, in whatever shape."""
    pair = []
    for one in (usual, sample):
        values = one.problem.evaluate(one.problem.primals)
        if isinstance(values, Raised):
            return False
        pair.append([v.reshape(-1) for v in values.value])
    a, b = pair
    entries = [prod(p.shape) for p in usual.problem.primals] == [
        prod(p.shape) for p in sample.problem.primals
    ]
    return (
        entries
        and len(a) == len(b)
        and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
    )


IN_EVALUATION_MODE = "In training mode it is right: look at what `self.training` decides."


OUT_OF_ORDER = "sizes that are larger than others in every listed case are not, there"
"""Why nothing is known at a case."""


def extra_cases(asked: Verification) -> Iterator[Event]:
    """Ask what can add something once the listed cases are verified."""
    plan = asked.request.plan
    for case in (*plan.open_sized, *(() if asked.request.inferred else plan.degenerate)):
        if asked.has_no_error:
            open_sized = case in plan.open_sized
            inferred = asked.request.inferred
            judge = partial(_unlisted_sizes, open_sized=open_sized, inferred=inferred)
            yield from asked.noted(asked.ask(case, judge), case)
    if asked.is_verified and asked.wants("GV408"):
        yield from asked.noted(_overlapping_cases(asked), plan.cases[0])
    yield from _another_rank(asked)
    yield from _unequal_items(asked)
    if asked.is_verified and asked.wants("GV101"):
        yield from _past_constants(asked)
        if asked.request.target.kind is TargetKind.MODULE:
            yield from _other_states(asked, plan.cases[0])
    # Last, since what is open at a size of 1 leaves nothing more to be asked.
    for case in plan.degenerate if asked.request.inferred else ():
        if asked.is_verified:
            yield from asked.noted(asked.ask(case, _size_of_one), case)


def _past_constants(asked: Verification) -> Iterator[Event]:
    """Judge cases past constants until backward is wrong at one, the plainest: another adds nothing.

    After one that no spec says to be valid come those alone that no spec speaks against: they are mistakes.
    """
    doubted = False
    for beyond in asked.request.plan.beyond:
        if doubted and beyond.declared:
            continue
        failed = False
        for event in _beyond(asked, beyond):
            doubted |= isinstance(event, Found)
            failed |= isinstance(event, Found) and event.finding.severity is Severity.ERROR
            yield event
        if failed:
            return


def _beyond(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    """Judge a case past a constant; what is wrong where sizes lose their order, again where they keep it."""
    events = list(_beyond_alone(asked, beyond))
    if beyond.in_order is None or not any(isinstance(event, Found) for event in events):
        yield from events
        return
    for case in beyond.in_order:
        kept = list(_beyond_alone(asked, replace(beyond, case=case, in_order=None)))
        if any(isinstance(event, Found) for event in kept):
            yield from kept
            return
    yield BeyondStarted(beyond)
    yield BeyondJudged(OUT_OF_ORDER)


def _beyond_alone(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    built = asked.build(beyond.case)
    if isinstance(built, Finding):
        yield BeyondStarted(beyond)
        yield BeyondJudged("the module cannot be built")
        return
    for event in judge_beyond(*built, beyond, asked.wanted, asked.request.plan.cases):
        if not isinstance(event, Found) or asked.wants(event.finding.code):
            yield event


def _unlisted_sizes(
    sample: Sample | NoSample, state: CaseState, *, open_sized: bool, inferred: bool
) -> Iterator[Finding]:
    """The first order at unlisted sizes, and native dtypes where symbolic shapes leave them open.

    What forward refuses of inferred inputs is nothing that anybody asked for.
    """
    found = at_unlisted(sample, at_undeclared, open_sized=open_sized)
    if isinstance(sample, NoSample):
        yield from () if inferred else found.result.findings
        return
    result = guarded_at_unlisted(sample, found.result)
    yield from result.findings
    state.last = sample
    state.add(sample.family, result)
    state.points = int(found.judged)
    state.swept = Swept(sizes=(sample.case.id,) if found.judged else ())
    native = wrong_natively(sample) if open_sized and found.is_right else ()
    yield from native
    if native:
        state.add(Family.PRECISION, CheckResult(native, outcome_of(native)))


def _size_of_one(sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """What is wrong at a size of 1 that was inferred, where forward gives finite numbers: no mistake yet."""
    ones = [] if isinstance(sample, NoSample) else [n for n, size in sample.case.sizes if size == 1]
    yield from _at_another_guess([f"that `{name}` may be 1" for name in ones], sample, state)


def _at_another_guess(
    guessed: Sequence[str], sample: Sample | NoSample, state: CaseState
) -> Iterator[Finding]:
    """What is wrong at sizes that were inferred, where forward gives finite numbers: no mistake yet."""
    if isinstance(sample, NoSample) or not _is_finite(sample):
        return
    found = at_unlisted(sample, at_undeclared, open_sized=True)
    findings = tuple(invented(f, guessed) for f in found.result.findings if f.severity is Severity.ERROR)
    if found.judged or findings:
        state.add(sample.family, CheckResult(findings, outcome_of(findings)))
        state.swept = Swept(sizes=(sample.case.id,))
    yield from findings


def _is_finite(sample: Sample) -> bool:
    values = sample.problem.evaluate(sample.problem.primals)
    return not isinstance(values, Raised) and all(bool(v.isfinite().all()) for v in values.value)


def _unequal_items(asked: Verification) -> Iterator[Event]:
    """Inferred lists whose tensors have one shape, with one of them longer: what cuts goes by each length."""
    inferred = asked.is_verified and asked.request.inferred
    for case, name, dim in with_a_longer_item(asked.request.plan.cases[0]) if inferred else ():
        guessed = f"that the tensors of `{name}` may differ in dimension {dim}"
        judge = partial(_at_another_guess, [guessed])
        yield from asked.noted(asked.ask(case, judge, named=case.id), case)


def with_a_longer_item(case: Case) -> Iterator[tuple[Case, str, int]]:
    """The case with one more entry in a dimension of a list's last tensor; the list's name, and which one.

    Of the last: parts that are as equal as can be (`chunk`) are longer at the start.
    """
    for place, given in enumerate(case.inputs):
        if not isinstance(given, ListInput) or len({item.shape for item in given.items}) != 1:
            continue
        *others, last = given.items
        for dim, n in enumerate(last.shape if others and _is_free(last) else ()):
            longer = replace(last, shape=(*last.shape[:dim], n + 1, *last.shape[dim + 1 :]))
            inputs = list(case.inputs)
            inputs[place] = replace(given, items=(*others, longer))
            told = f"{case.id} with a longer {last.name}"
            yield replace(case, id=told, inputs=tuple(inputs)), given.name, dim


def _another_rank(asked: Verification) -> Iterator[Event]:
    """Inferred inputs at three dimensions, for each combination of options: the first that change nothing."""
    inferred = asked.is_verified and asked.request.inferred
    first_of_each = {c.options: c for c in reversed(asked.request.plan.cases)} if inferred else {}
    for case in first_of_each.values():
        deeper = list(with_three_dimensions(case))
        usual = asked.sample(case) if deeper else None
        for one in deeper if usual is not None else ():
            sample = asked.sample(one)
            if usual is not None and sample is not None and _is_the_same(usual, sample):
                judge = partial(judged_at_three_dimensions, usual)
                yield from asked.noted(asked.ask(one, judge, named=f"{case.id} at three dimensions"), one)
                break


def _overlapping_cases(asked: Verification) -> Iterator[Event]:
    """Let calls of different cases overlap: what one of them keeps must not reach another."""
    plan = asked.request.plan
    samples = [*filter(None, map(asked.sample, (*plan.cases, *plan.open_sized)[:MOST_CASES]))]
    # At sizes that are not listed a kernel may leave its tensors.
    spares = plan.spares[:1] if asked.request.settings.device == "cpu" else ()
    unlisted = [*filter(None, map(asked.sample, spares))]
    every = [*samples, *unlisted]
    if len(every) < 2 or not samples:
        return
    yield CaseStarted(samples[0].case.id, Point.TYPICAL, 0)
    varied = overlapped(samples, unlisted)
    yield from asked.reported(varied.findings)
    state = CaseState(swept=varied.swept)
    for sample in every:
        state.count_calls(sample)
    yield state.verified(replace(samples[0].case, id=" with ".join(s.case.id for s in every)))


def _other_states(asked: Verification, case: Case) -> Iterator[Event]:
    """A module as training leaves it, in evaluation mode, where it may compute another function.

    And with other values in buffers that are equal everywhere as it is built: a mask of ones hides what
    backward does with it. Nobody says that a module ever holds them, so what is wrong there is inconclusive.
    """
    equal = equal_buffers(asked.request, asked.live, case)
    states = [(ModuleState.TRAINED, _evaluation_mode)]
    if equal:
        states.append((ModuleState.OTHER_BUFFERS, partial(_other_buffers, equal)))
    for state, judge in states:
        there = replace(asked, live=replace(asked.live, state=state))
        yield from there.ask(case, judge, named=f"{case.id} {state.value}")


def _other_buffers(names: Sequence[str], sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """The first order of a module with other values in its buffers; what forward refuses is not judged."""
    if isinstance(sample, NoSample) or not _is_finite(sample):
        return
    found = at_undeclared(sample)
    findings = tuple(
        of_other_buffers(f, names) for f in found.result.findings if f.severity is Severity.ERROR
    )
    if found.judged or findings:
        state.add(sample.family, CheckResult(findings, outcome_of(findings)))
    yield from findings


def _evaluation_mode(sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """The first order of a module in evaluation mode; what forward refuses there is not judged."""
    state.capabilities["evaluation_mode"] = "no"
    if isinstance(sample, NoSample):
        return
    found = at_undeclared(sample)
    findings = [f for f in found.result.findings if f.severity is Severity.ERROR]
    if found.raised is not None:
        raised = backward_raised(sample, found.raised)
        findings.append(replace(raised, severity=Severity.NOTE) if found.raised.deliberate else raised)
    wrong = any(f.severity is Severity.ERROR for f in findings)
    if found.judged or findings:
        state.add(sample.family, CheckResult((), outcome_of(findings)))
    state.capabilities["evaluation_mode"] = "wrong" if wrong else "yes" if found.judged else "no"
    for finding in findings:
        message, hint = f"in evaluation mode {finding.message}", f"{IN_EVALUATION_MODE} {finding.hint}"
        yield replace(finding, message=message, hint=hint.strip())
