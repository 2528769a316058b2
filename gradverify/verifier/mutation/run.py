"""One fault in one target, at every input it fits: the ordinary checks, up to the first finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from gradverify.events import CaseVerified, Found, Mutated, Verify
from gradverify.model import Finding, Mutation, MutationOutcome, Severity
from gradverify.model.points import points_of
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.mutation.faults import FAULTS, Fault, Scope, fault_named
from gradverify.verifier.mutation.planting import Planted
from gradverify.verifier.run import verify

NAMES = tuple(fault.name for fault in FAULTS)
"""What can be asked for."""


def mutate(request: Verify, name: str, live: Live) -> Iterator[Mutated]:
    """Plant the fault of this name and say, for each place it fits, whether the checks notice it."""
    fault = fault_named(name)
    gradients, names = _gradients(request, live)
    for positions in _places(fault, gradients):
        yield Mutated(_planted(request, live, Planted(fault, positions), tuple(names[i] for i in positions)))


def _gradients(request: Verify, live: Live) -> tuple[dict[int, set[tuple[int, ...]]], dict[int, str]]:
    """By argument position: the shapes of the gradients over the plan's cases, and its name."""
    found: dict[int, set[tuple[int, ...]]] = {}
    names: dict[int, str] = {}
    for case in request.plan.cases:
        watching = Planted(None)
        built = build_subject(request, replace(live, around=watching.around), case, None)
        if isinstance(built, Finding):
            continue
        sample = prepare(*built, *points_of(case)[0])
        if isinstance(sample, Sample):
            result = sample.problem.evaluate(sample.problem.primals)
            ones = [] if isinstance(result, Raised) else [p.new_ones(p.shape) for p in result.value]
            sample.problem.pull_back(sample.problem.primals, ones)
            names |= dict(enumerate(dict.fromkeys(a.in_list or a.name for a in sample.arguments)))
        for position, shape in watching.shapes.items():
            found.setdefault(position, set()).add(shape)
    return found, {position: names.get(position, f"argument {position}") for position in found}


def _places(fault: Fault, gradients: dict[int, set[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    fitting = {i: {s for s in shapes if fault.fits(s)} for i, shapes in sorted(gradients.items())}
    single = [i for i, shapes in fitting.items() if shapes]
    match fault.scope:
        case Scope.GRADIENT:
            return [(i,) for i in single]
        case Scope.PAIR:
            return [(i, j) for i, j in combinations(single, 2) if fitting[i] & fitting[j]]
        case Scope.GRAD_OUTPUT | Scope.CALL:
            return [()]


def _planted(request: Verify, live: Live, planted: Planted, names: tuple[str, ...]) -> Mutation:
    """The verdict on one planted fault, at the inputs of these names."""
    assert planted.fault is not None  # noqa: S101 - only `_gradients` watches
    found, refused = None, False
    events = verify(request, replace(live, around=planted.around))
    for event in events:
        if isinstance(event, Found) and _tells(event.finding):
            found = event.finding
            break
        if isinstance(event, CaseVerified):
            answer = dict(event.capabilities).get("double_backward", "not-run")
            refused = refused if answer == "not-run" else answer == "no"
    events.close()
    if found is None:
        # A second derivative that raises as it did before has not been changed.
        effective = planted.changed and not (refused and planted.fault.of_second_order)
        outcome = MutationOutcome.ESCAPED if effective else MutationOutcome.NO_EFFECT
        return Mutation(planted.fault.name, names, outcome)
    return Mutation(
        planted.fault.name, names, MutationOutcome.CAUGHT, found.code, _is_located(found, names, planted)
    )


def _tells(finding: Finding) -> bool:
    """Whether a target with this finding would not be green."""
    return finding.severity is Severity.ERROR or finding.code == "GV109"


def _is_located(finding: Finding, names: tuple[str, ...], planted: Planted) -> bool:
    """Whether the finding names an input that was changed, and only entries that were."""
    fault = planted.fault
    if fault is None or not names:
        return fault is not None
    if finding.input is None or finding.input.partition("[")[0] not in names:
        return False
    if fault.place is None or finding.entries is None:
        return True
    place = fault.place(planted.shapes[planted.positions[0]])
    return all(entry.input is None or entry.input[: len(place)] == place for entry in finding.entries.worst)
