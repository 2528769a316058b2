"""How the tensors of a target lie on its ranks, where no spec says it: backward is judged under each reading.

Under one of them it may be right, which proves nothing: an identity is the derivative of a sum over ranks
that counts once, and not of one that counts on every rank. Under none of them it is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradverify.events import CaseStarted, Event, Found, Verify
from gradverify.model import (
    Case,
    CasePoint,
    Finding,
    Input,
    ListInput,
    Outcome,
    PlacementReading,
    Point,
    Severity,
    Swept,
    TensorInput,
    tensors_of,
)
from gradverify.rules import Family, rule
from gradverify.verifier.building import build_subject
from gradverify.verifier.case_state import CaseState
from gradverify.verifier.checks.across_ranks import out_of_step
from gradverify.verifier.checks.first_order import first_order
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import NoSample, Sample
from gradverify.verifier.numerics.contradiction import contradiction
from gradverify.verifier.numerics.proof import certify
from gradverify.verifier.ranks.placement import MisplacedError
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.verification import Verification

OF_INPUTS = (("local", ""), ("replicate", ""), ("replicate", "partial"))
OF_CONSTANTS = OF_INPUTS[:2]
OF_OUTPUTS = ("local", "replicate", "partial", "on(0)")
"""What is tried, in the words of a spec. A shard is a tensor of each rank, as `local` is."""

MOST_WAYS = 27
"""In which inputs may lie, those of three tensors: of more tensors all are read alike."""

MOST_REPORTED = 3
"""Readings that one sentence names."""

HINT = (
    "Which reading is meant only its author knows, and under the others it is wrong. `gradverify init` "
    "writes the first into a spec, to confirm; see docs/distributed.md."
)

WITHOUT_READING = "Say in a spec how its tensors lie on two ranks (`world_size: 2`): see docs/distributed.md."


@dataclass(frozen=True)
class Judged:
    """A reading that forward accepts, and whether backward is right under it."""

    reading: PlacementReading
    request: Verify
    """What verifies the target under it."""
    outcome: Outcome
    size: float
    """How far it is off, relative to its size."""


def read_placements(asked: Verification) -> Iterator[Event] | Judged:
    """Judge the base case under every reading: its findings, or the closest reading where none is right."""
    for case in asked.request.plan.cases:
        judged, refused = _judged_readings(asked, case)
        if judged:
            return _reported(asked, case, judged)
    return iter(asked.reported([refused]))


def _judged_readings(asked: Verification, case: Case) -> tuple[list[Judged], Finding]:
    """What comes of every reading that forward accepts at a case; else why it accepts none."""
    where = CasePoint(case.id, case.sizes, case.options, Point.TYPICAL, 0)
    refused = Finding("GV001", rule("GV001").severity, "forward returned nothing on two ranks", case=where)
    judged: list[Judged] = []
    for reading in _readings(case):
        if any(j.outcome is Outcome.PASSED and _implies(j.reading, reading) for j in judged):
            continue
        request = _under(asked.request, case, reading)
        try:
            found = _judge(asked, request, reading)
        except OutOfStepError as error:
            reported = out_of_step(error, where)
            return [], reported if _is_certain(asked, error) else _as_unchecked(reported)
        except MisplacedError:
            continue
        if isinstance(found, Judged):
            judged.append(found)
        elif found is not None:
            refused = found
    return judged, refused


def _is_certain(asked: Verification, error: OutOfStepError) -> bool:
    """Whether ranks out of step are a mistake: in forward, or by what was made up, inputs may be to blame."""
    return error.in_backward and not asked.request.plan.doubts


def _as_unchecked(reported: Finding) -> Finding:
    return replace(reported, code="GV001", severity=rule("GV001").severity)


def _implies(right: PlacementReading, other: PlacementReading) -> bool:
    """Whether backward is right under another reading if it is under one: what is local is the most general.

    A tensor that is the same on every rank, each returning its part, is copied to local ones; a sum over
    ranks, and the output of one rank, are taken of local ones.
    """
    pairs = zip(right.inputs, other.inputs, strict=True)
    inputs = all(a == b or (a[1] == "local" and b[2] == "partial") for a, b in pairs)
    ((of_right,), (of_other,)) = right.outputs, other.outputs
    return inputs and (of_right == of_other or (of_right == "local" and of_other != "replicate"))


def _readings(case: Case) -> Iterator[PlacementReading]:
    tensors = [t for i in case.inputs for t in tensors_of(i)]
    each = [OF_CONSTANTS if _is_constant(t) else OF_INPUTS for t in tensors]
    several = list(itertools.product(*each))
    if len(several) > MOST_WAYS:
        several = [tuple(way if way in of else of[1] for of in each) for way in OF_INPUTS]
    for ways, output in itertools.product(several, OF_OUTPUTS):
        inputs = tuple((t.name, *way) for t, way in zip(tensors, ways, strict=True))
        yield PlacementReading(inputs, (output,))


def _is_constant(tensor: TensorInput) -> bool:
    return tensor.requires_grad is False or not tensor.dtype.startswith(("float", "complex"))


def _under(request: Verify, case: Case, reading: PlacementReading) -> Verify:
    """The request with the case alone, and its tensors as a reading has them."""
    ways = iter(reading.inputs)
    inputs = tuple(_read(one, ways) for one in case.inputs)
    ranks = request.plan.ranks
    assert ranks is not None  # noqa: S101 - it runs on several
    plan = replace(
        request.plan,
        cases=(replace(case, inputs=inputs),), open_sized=(), degenerate=(), beyond=(), spares=(),
        ranks=replace(ranks, outputs=reading.outputs),
    )  # fmt: skip
    return replace(request, plan=plan)


def _read(one: Input, ways: Iterator[tuple[str, str, str]]) -> Input:
    match one:
        case TensorInput():
            _, placement, gradient = next(ways)
            if placement == "local":
                return one
            value = one.value[0] if isinstance(one.value, tuple) else one.value
            return replace(one, shape=one.shape[1:], placement=placement, gradient=gradient, value=value)
        case ListInput(items=items):
            read = tuple(_read(item, ways) for item in items)
            return replace(one, items=tuple(i for i in read if isinstance(i, TensorInput)))
        case _:
            return one


def _judge(asked: Verification, request: Verify, reading: PlacementReading) -> Judged | Finding | None:
    """What comes of one reading; why forward refuses it, or None where its outputs do not agree."""
    (case,) = request.plan.cases
    built = build_subject(request, asked.live, case, None)
    if isinstance(built, Finding):
        return built
    subject, full_case = built
    sample = prepare(subject, full_case, Point.TYPICAL, 0)
    across = subject.across
    if isinstance(sample, NoSample) or across is None:
        return next(iter(sample.findings), None) if isinstance(sample, NoSample) else None
    outcome, size = _outcome(sample)
    met, across.differences = across.differences, {}
    if any(what == "output" for what, _ in met):
        return None
    return Judged(reading, request, Outcome.FAILED if met else outcome, size)


def _outcome(sample: Sample) -> tuple[Outcome, float]:
    """Whether backward is right, and how far it is off relative to its size: by probes, where they tell."""
    problem = sample.problem
    if certify(problem, rtol=sample.subject.settings.rtol, key=sample.key) is not None:
        return Outcome.PASSED, 0.0
    size = contradiction(problem)
    return (first_order(sample).result.outcome, 1.0) if size is None else (Outcome.FAILED, size)


def _reported(asked: Verification, case: Case, judged: Sequence[Judged]) -> Iterator[Event] | Judged:
    right = [j.reading for j in judged if j.outcome is Outcome.PASSED]
    tensors = len(judged[0].reading.inputs)
    if (
        not right
        and len(OF_INPUTS) ** tensors <= MOST_WAYS
        and all(j.outcome is Outcome.FAILED for j in judged)
    ):
        return min(judged, key=lambda one: one.size)
    return _inconclusive(asked, case, right, len(judged))


def _inconclusive(
    asked: Verification, case: Case, right: Sequence[PlacementReading], tried: int
) -> Iterator[Event]:
    yield CaseStarted(case.id, Point.TYPICAL, 0)
    message = (
        f"placements inferred: backward is right if {'; or if '.join(map(in_words, right[:MOST_REPORTED]))}"
        if right
        else "placements inferred: under none that was tried is backward known to be right"
    )
    more = len(right) - MOST_REPORTED
    if more > 0:
        message += f"; and under {more} more of the {tried} readings"
    where = CasePoint(case.id, case.sizes, case.options, Point.TYPICAL, 0)
    yield from asked.reported([
        Finding("GV109", rule("GV109").severity, message, hint=HINT if right else WITHOUT_READING, case=where)
    ])  # fmt: skip
    state = CaseState(points=1)
    swept = Swept(readings=tuple(right))
    state.add(Family.GRADCHECK, CheckResult(outcome=Outcome.INCONCLUSIVE, swept=swept))
    yield state.verified(case)


def under(reading: PlacementReading, found: Found) -> Found:
    """An error, with the reading under which it was found."""
    finding = found.finding
    if finding.severity is not Severity.ERROR:
        return found
    closest = (
        f"No reading of its placements makes it right; this is of the closest, where {in_words(reading)}."
    )
    return replace(found, finding=replace(finding, hint=f"{finding.hint} {closest}".strip()))


def nothing_shown(where: CasePoint | None) -> Finding:
    """Where what was wrong under every reading is not found again under the closest one."""
    message = "backward seems wrong under every reading of its placements, and no check says where"
    return Finding("GV109", rule("GV109").severity, message, hint=WITHOUT_READING, case=where)


def in_words(reading: PlacementReading) -> str:
    """A reading as the rest of a sentence."""
    ways: dict[tuple[str, str], list[str]] = {}
    for name, *way in reading.inputs:
        ways.setdefault((way[0], way[1]), []).append(f"`{name}`")
    said = [_of_inputs(" and ".join(names), *way) for way, names in ways.items()]
    return ", ".join([*said, _of_output(reading.outputs[0])])


def _of_inputs(names: str, placement: str, gradient: str) -> str:
    if placement == "local":
        return f"each rank has its own {names}"
    said = f"every rank has the same {names}"
    return f"{said} and returns its part of the gradient" if gradient else said


def _of_output(word: str) -> str:
    return {
        "local": "the output of every rank counts",
        "replicate": "the output counts once",
        "partial": "the sum of the outputs counts",
    }.get(word, "the output of rank 0 alone counts")
