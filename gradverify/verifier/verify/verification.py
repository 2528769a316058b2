"""One target while it is verified: how its samples are built, what was asked of it, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from gradverify.events import CaseStarted, CaseVerified, Event, Found, Verify
from gradverify.model import Case, Engine, Finding, Point, Settings, Severity, TargetKind
from gradverify.rules import RULES, Family, rule
from gradverify.verifier.guard import Raised, default_dtype
from gradverify.verifier.guard.devices import exact_arithmetic
from gradverify.verifier.neighbours.guesses import Excuses
from gradverify.verifier.numerics.problem import Counter, VjpProblem
from gradverify.verifier.questions.dtypes.deciding import deciding_cases, precision_at
from gradverify.verifier.questions.reading import Reader, reading_backward, reading_operator
from gradverify.verifier.questions.subject import Float64, Native, NoSample, Sample, Subject, prepare
from gradverify.verifier.targets.discover import applied_functions, is_old_style
from gradverify.verifier.targets.operators import operator_of
from gradverify.verifier.verify.building import Live, build_subject
from gradverify.verifier.verify.case_state import CaseState
from gradverify.verifier.verify.disagreements import disagreements
from gradverify.verifier.verify.kept import Place


def wanted_families(settings: Settings, ignored: Sequence[str]) -> frozenset[Family]:
    """Families with at least one code that is selected and not ignored."""
    return frozenset(r.family for r in RULES if is_wanted(r.code, settings, ignored))


def is_wanted(code: str, settings: Settings, ignored: Sequence[str]) -> bool:
    """Whether findings with this code are asked for.

    What speaks of the run itself (no inputs, a forward that raises, what could not be judged) always is,
    unless it is ignored by name: else `--select` could turn "not verified" into green.
    """
    prefixes = (*settings.ignore, *ignored)
    if any(code.startswith(p) for p in prefixes):
        return False
    always = rule(code).family is Family.RUN or code in {"GV002", "GV102", "GV109"}
    return always or not settings.select or any(code.startswith(p) for p in settings.select)


Judge = Callable[[Sample | NoSample, CaseState], Iterable[Finding]]
"""Judges a sample, adds to the state of its case, and says what is wrong."""


@dataclass
class Verification:
    """A request, its live objects, and what is known of the target so far."""

    request: Verify
    live: Live
    reader: Reader | None
    visited: list[Place] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    has_gradient: bool = False
    """Some case has one."""
    lacks_gradient: bool = False
    """Some case has none, and was not verified."""
    traced: set[tuple[tuple[str, object], ...]] = field(default_factory=set)
    """Combinations of options of which it is known which Functions they apply."""
    excuses: Excuses = field(default_factory=Excuses)
    """What was guessed that explains a mistake."""
    is_old_style: bool = False
    """A method of the Function lacked `@staticmethod` before any of them was called."""

    @property
    def wanted(self) -> frozenset[Family]:
        """Families of the codes that are asked for."""
        wanted = wanted_families(self.request.settings, self.request.ignored)
        ranks = self.request.plan.ranks
        return wanted if ranks is None or ranks.second_order else wanted - {Family.GRADGRADCHECK}

    @property
    def has_no_error(self) -> bool:
        """Whether some case has a gradient and nothing is wrong so far."""
        return self.has_gradient and all(f.severity is not Severity.ERROR for f in self.findings)

    @property
    def is_verified(self) -> bool:
        """Whether every case was verified, and nothing is wrong or open."""
        return self.has_no_error and not self.lacks_gradient and all(f.code != "GV109" for f in self.findings)

    def wants(self, code: str) -> bool:
        """Whether findings with a code are asked for."""
        return is_wanted(code, self.request.settings, self.request.ignored)

    def build(self, case: Case) -> tuple[Subject, Case] | Finding:
        """The target ready to be called on a case; a finding where it cannot be built."""
        built = self._in_float64(case)
        if isinstance(built, Finding) or self.live.native:
            return built
        for _ in self.deciding(case):
            pass
        subject = replace(built[0], precision=self.live.kept.precision[case.options])
        return subject, built[1]

    def deciding(self, case: Case) -> Iterator[Event]:
        """Decide in which precision a combination of options is judged, where that is not known.

        It tells at which case: a call there may end the process.
        """
        plan, precision = self.request.plan, self.live.kept.precision
        if case.options in precision or self.live.native:
            return
        declared = plan.declared or plan.cases
        own = declared if any(c.options == case.options for c in declared) else (case,)
        found: Float64 | Native = Float64()
        for one in deciding_cases(case.options, own):
            yield CaseStarted(one.id, Point.TYPICAL, 0)
            found = precision_at(one, self._in_float64)
            if isinstance(found, Native):
                break
        precision[case.options] = found

    def _in_float64(self, case: Case) -> tuple[Subject, Case] | Finding:
        return build_subject(self.request, self.live, case, self.reader)

    def sample(self, case: Case) -> Sample | None:
        """The first typical draw of a case, None where forward refuses it."""
        sample = self.live.kept.sample(Place(case, Point.TYPICAL, 0), self.build)
        if not isinstance(sample, Sample):
            return None
        # Its calls so far are counted with its case.
        return replace(sample, problem=replace(sample.problem, counter=Counter()))

    def applied(self, sample: Sample) -> set[tuple[str, str]]:
        """Which Functions a target applies: (file, qualified name), at one sample for all options alike.

        A Function applies others only in its double backward, which nobody else may reach either.
        """
        subject, options = sample.subject, sample.case.options
        alone = subject.function_class is not None and not self.live.has_unreached
        if alone or subject.across is not None or options in self.traced:
            return set()
        self.traced.add(options)
        outputs = sample.problem.outputs
        cotangents = outputs.unflatten(torch.ones(outputs.size, dtype=torch.float64))
        graph = VjpProblem(sample.problem, cotangents).graph((*sample.problem.primals, *cotangents))
        if isinstance(graph, Raised):
            graph = sample.problem.graph(sample.problem.primals)
        if isinstance(graph, Raised):
            return set()
        return applied_functions((*graph.value.outputs, *graph.value.behind))

    def reported(self, findings: Iterable[Finding]) -> Iterator[Event]:
        """Those findings that are asked for, as events."""
        return (Found(f) for f in findings if self.wants(f.code))

    def noted(self, events: Iterable[Event], case: Case) -> Iterator[Event]:
        """The events of a case as they come; what they say is remembered."""
        for event in events:
            match event:
                case CaseStarted():
                    self.visited.append(Place(case, event.point, event.draw))
                case Found():
                    self.findings.append(event.finding)
                case CaseVerified():
                    self.has_gradient |= not event.no_gradient
                    self.lacks_gradient |= event.no_gradient
                case _:
                    pass
            yield event

    def ask(self, case: Case, judge: Judge, *, named: str = "") -> Iterator[Event]:
        """Judge one sample of a case beside the listed ones; `named` is how the report calls it.

        Nothing is asked of a gradient that is not meant to be the derivative, or is torch's to judge.
        """
        built = self.build(case)
        if isinstance(built, Finding):
            return
        subject, full_case = built
        if subject.surrogate is not None or subject.settings.engine is Engine.TORCH:
            return
        yield CaseStarted(case.id, Point.TYPICAL, 0)
        sample, state = prepare(subject, full_case, Point.TYPICAL, 0), CaseState()
        yield from self.reported(judge(sample, state))
        if isinstance(sample, Sample):
            yield from self.reported(disagreements(sample))
            state.count_calls(sample)
        if isinstance(sample, Sample) or len(state.capabilities) > 1:
            yield state.verified(replace(case, id=named or case.id))


@contextmanager
def verifying(request: Verify, live: Live) -> Iterator[Verification]:
    """Read what backward returns while the context lasts, in the dtype and arithmetic of the request."""
    with ExitStack() as stack:
        stack.enter_context(default_dtype(request.plan.default_dtype))
        stack.enter_context(exact_arithmetic())
        reader = None
        kind = request.target.kind if request.plan.ranks is None else TargetKind.CALLABLE
        operator = operator_of(live.value) if kind is TargetKind.CUSTOM_OP else None
        if kind is TargetKind.FUNCTION:
            reader = stack.enter_context(reading_backward(live.value, live.kept.reader))
        elif operator is not None and operator.backward is not None:
            reader = stack.enter_context(reading_operator(operator, live.kept.reader))
        old = kind is TargetKind.FUNCTION and is_old_style(live.value)
        yield Verification(request, live, reader, is_old_style=old)
