"""From the events of one target to its `TargetReport`.

Command lines to go on with from a finding: one that shows it again, and one that drafts a backward.

Static findings beside dynamic ones: each cause once, and what was verified outranks what was read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from pathlib import Path

from gradverify.events import (
    AllowanceSpent,
    BeyondDoubted,
    BeyondJudged,
    BeyondStarted,
    CaseStarted,
    CaseVerified,
    DiagnosisStarted,
    Event,
    Found,
)
from gradverify.lint import NOTES, RULES, lint_file
from gradverify.model import (
    ACROSS_CASES,
    LIMITING,
    OTHER_VALUES,
    Beyond,
    Case,
    CaseReport,
    Evaluations,
    Finding,
    InputSource,
    LintFinding,
    Outcome,
    Settings,
    Severity,
    Swept,
    Target,
    TargetKind,
    TargetPlan,
    TargetReport,
    Verdict,
)
from gradverify.rules import CHECK_FAMILIES, Family, rule
from gradverify.session.completeness import (
    case_reports,
    domain_of,
    mark_expected,
    outcome_of,
    reason_unchecked,
    without_result,
)
from gradverify.session.modules import Module
from gradverify.session.outcome import NOT_VERIFIED, merge_findings, status_of
from gradverify.session.worker_ended import where_raised, with_shown_paths
from gradverify.spec.left_out import COMPILED


@dataclass(frozen=True)
class Asked:
    """What the command that made a finding was asked, as far as another must repeat it."""

    target: str
    """Its id, as a command takes it."""
    plan: TargetPlan
    seed: int
    options: tuple[str, ...]
    """Options to repeat, each a word."""


def with_commands(finding: Finding, asked: Asked) -> Finding:
    """Add them to a finding."""
    if rule(finding.code).family is Family.LINT:
        return replace(finding, reproduce=shlex.join(["gradverify", "lint", asked.target]))
    has_fix = any(change.patch is not None for change in finding.changes)
    offered = finding.derivable and not has_fix
    hint = f"{finding.hint} {_offer(asked)}".strip() if offered else finding.hint
    return replace(finding, hint=hint, reproduce=_reproduce(finding, asked))


def _reproduce(finding: Finding, asked: Asked) -> str:
    case_id = finding.case.id if finding.case is not None else ""
    bound = case_id != "base" and any(case.id == case_id for case in asked.plan.cases)
    bound &= finding.part not in {ACROSS_CASES, OTHER_VALUES}
    target = f"{asked.target}[{case_id}]" if bound else asked.target
    words = [
        "gradverify",
        "check",
        target,
        *asked.options,
        "--select",
        finding.code,
        "--seed",
        str(asked.seed),
    ]
    return shlex.join(words)


def _offer(asked: Asked) -> str:
    pairs = zip(asked.options, asked.options[1:], strict=False)
    specs = [path for option, path in pairs if option == "--spec"]
    words = ["gradverify", "suggest", asked.target, *(word for path in specs for word in ("--spec", path))]
    return f"`{shlex.join(words)}` drafts a backward."


TWINS: Mapping[str, frozenset[str]] = {
    "GV803": frozenset({"GV105", "GV406"}),
    "GV809": frozenset({"GV102", "GV404"}),
    "GV811": frozenset({"GV402"}),
    "GV812": frozenset({"GV102"}),
    "GV813": frozenset({"GV102"}),
    "GV814": frozenset({"GV102"}),
    "GV816": frozenset({"GV408", "GV411"}),
    "GV817": frozenset({"GV817"}),
}
"""The codes of `check` that a static rule foresees."""

_NAME = re.compile("`[^`]+`")


def static_findings(module: Module, target: Target) -> tuple[LintFinding, ...]:
    """What the source of a module says of one of its targets. Each module is read once."""
    if target.kind is not TargetKind.FUNCTION or target.file != module.shown_path:
        return ()
    if module.static is None:
        module.static = lint_file(module.path, module.shown_path, {**RULES, **NOTES}).findings
    return tuple(found for found in module.static if found.function == target.attribute)


def reported_beside(
    read: Sequence[LintFinding],
    found: Sequence[Finding],
    *,
    settings: Settings,
    ignored: Sequence[str],
    contract: Outcome,
) -> list[Finding]:
    """The static findings that the dynamic ones leave to say, as warnings: alone they fail nothing.

    `contract` is what was verified: a backward that takes every layout refutes GV809.
    """
    codes = {finding.code for finding in found}
    return [
        _as_finding(one)
        for one in read
        if not TWINS[one.code] & codes
        and not (one.code == "GV809" and contract is Outcome.PASSED)
        and not _is_said(one, found)
        and _is_wanted(one.code, settings, ignored)
    ]


def _is_wanted(code: str, settings: Settings, ignored: Sequence[str]) -> bool:
    """Whether a code is asked for; who waives what it foresees, with a reason, waives it too."""
    waived = (*settings.ignore, *ignored)
    foreseen = all(twin.startswith(waived) for twin in TWINS[code])
    return settings.selects(code) and not code.startswith(waived) and not foreseen


def _is_said(one: LintFinding, found: Sequence[Finding]) -> bool:
    """Whether what was seen under the same code names all that was read."""
    seen = " ".join(f.message for f in found if f.code == one.code)
    return bool(seen) and all(name in seen for name in _NAME.findall(one.message))


def _as_finding(one: LintFinding) -> Finding:
    severity = Severity.WARNING if one.severity is Severity.ERROR else one.severity
    limits = one.code in LIMITING
    severity = Severity.NOTE if limits else severity
    part = one.message if limits else ""
    return Finding(one.code, severity, one.message, hint=one.hint, location=one.location, part=part)


CAPABILITIES = ("double_backward", "jvp", "vmap", "compile")
"""Lines of the capability table, in order."""

OF_OPERATORS = ("opcheck",)
"""Further lines of an operator's table."""

WHERE_JUDGED = ("autocast", "evaluation_mode")
"""Lines that are left out where nothing is known of them."""

PARTIAL = "partial"
"""Of `contract`: what a compiled backward returns cannot be read before the engine sums and casts it."""


NOT_LOOKED_FOR = "a cause or a change of backward beyond {} calls (--effort thorough: more)"
"""What is said where errors would have cost more calls than they may."""


@dataclass
class TargetState:
    """What is known about one target so far."""

    target: Target
    plan: TargetPlan
    settings: Settings
    module: Path
    """The file it is defined in."""
    extra_arguments: tuple[str, ...] = ()
    """Options of this run that a reproducing command must repeat."""
    findings: list[Finding] = field(default_factory=list)
    verified: list[CaseVerified] = field(default_factory=list)
    running: CaseStarted | None = None
    """The case and point being verified when the last event came."""
    filtered: bool = False
    """Only some of its cases were selected."""
    today: date = field(default_factory=date.today)
    diagnosing: bool = False
    """Every case was verified, and causes are looked for."""
    beyond: Beyond | None = None
    """The case past a constant that is running."""
    doubted: bool = False
    """Probes do not agree with its backward."""
    past: Swept = field(default_factory=Swept)
    """What is known past constants of the source."""
    static: tuple[LintFinding, ...] = ()
    """What the static rules say of it."""
    of_complex_use: bool = False
    """Its source speaks of complex numbers."""
    beside_another: bool = False
    """An earlier target has left something in its worker: it is asked again where it does not pass."""
    unchecked_because: str = ""
    """Why it could not be verified to its end; empty if it could."""

    def add(self, event: Event, printed: Callable[[int | None], str]) -> None:
        """Take in one event; `printed` says what user code wrote up to a place."""
        match event:
            case CaseStarted():
                self.running = event
            case Found(finding=found):
                before = (f.captured for f in self.findings if self.diagnosing and f.code == found.code)
                self.findings.append(replace(found, captured=next(before, printed(event.printed_to))))
            case CaseVerified():
                self.verified.append(event)
                self.running = None
            case BeyondStarted(beyond=beyond):
                self.beyond = beyond
            case BeyondDoubted():
                self.doubted = True
            case BeyondJudged(reason=reason):
                self.end_beyond(reason)
            case AllowanceSpent(calls=calls):
                self.leave_out(NOT_LOOKED_FOR.format(calls))
            case DiagnosisStarted():
                self.diagnosing = True
            case _:
                raise ValueError(f"unexpected event {type(event).__name__}")

    @property
    def every_case(self) -> tuple[Case, ...]:
        """What a finding may be made on."""
        past = (one.case for one in self.plan.beyond)
        return (*self.plan.cases, *self.plan.open_sized, *self.plan.degenerate, *past)

    @property
    def cases_verified(self) -> list[CaseVerified]:
        """Those of its cases that were verified; the sizes that its spec leaves open are no cases."""
        known = {case.id for case in self.plan.cases}
        return [c for c in self.verified if c.case_id in known]

    @property
    def applied(self) -> frozenset[tuple[str, str]]:
        """(file, qualified name) of the Functions that its calls have applied."""
        return frozenset(one for c in self.verified for one in c.applied)

    def leave_out(self, what: str) -> None:
        """Note what was planned and did not run, in words: never silently."""
        self.plan = replace(self.plan, left_out=(*self.plan.left_out, what))

    def end_beyond(self, reason: str = "") -> None:
        """Note what the case past a constant that is running has shown; `reason` is why nothing."""
        if self.beyond is not None:
            size = f"{self.beyond.size}={dict(self.beyond.case.sizes)[self.beyond.size]}"
            constant = self.beyond.constant
            untried = (f"{constant} ({size}): {reason}",) if self.beyond.is_reported else ()
            known = Swept(not_past=untried) if reason else Swept(past=(f"{constant} ({size})",))
            self.past = self.past.joined(known)
        self.beyond, self.doubted = None, False

    def report(self) -> TargetReport:
        """The verdict, after the last event."""
        missing = without_result(self.plan, self.verified)
        without_gradient = self.verified and all(c.no_gradient for c in self.verified)
        reported = any(f.severity is not Severity.NOTE for f in self.findings)
        if without_gradient and not reported and not missing:
            return self.skipped("declares no gradient: every output is integer or marked so")
        marked = self._marked()
        findings = tuple(self._placed(f) for f in merge_findings(marked))
        ignored = [code for code, _ in self._ignored()]
        reason = self.unchecked_because or reason_unchecked(self.plan, self.settings, self.verified, ignored)
        status = status_of(findings, unchecked=bool(reason), strict=self.settings.strict)
        if missing and status not in NOT_VERIFIED:
            case_id, why = next(iter(missing.items()))
            status, reason = Verdict.UNCHECKED, f"of case {case_id}: {why}"
        if status is Verdict.XFAILED:
            reason = "; ".join(dict.fromkeys(e.reason for e in self.plan.expected_failures))
        shown = reason if status in {Verdict.UNCHECKED, Verdict.XFAILED} else ""
        strict = self.settings.strict
        cases = case_reports(self.plan.cases, missing, marked, status=status, reason=reason, strict=strict)
        return replace(self._base(status, reason=shown), findings=findings, case_reports=cases)

    def skipped(self, reason: str) -> TargetReport:
        """The report on a target that is not verified, for a reason that somebody wrote down."""
        whole = CaseReport("", Verdict.SKIPPED, reason=reason)
        return replace(self._base(Verdict.SKIPPED, reason=reason), case_reports=(whole,))

    def _marked(self) -> list[Finding]:
        ran = {c.case_id for c in self.verified}
        return mark_expected(
            [*self.findings, *self._beside()],
            self.plan.expected_failures,
            settings=self.settings,
            spec_file=self.plan.spec_file,
            whole=not self.filtered and {c.id for c in self.plan.cases} <= ran,
            not_judged=[Family.GRADGRADCHECK] if any(c.remarks for c in self.verified) else [],
            today=self.today,
        )

    def _beside(self) -> list[Finding]:
        return reported_beside(
            self.static,
            self.findings,
            settings=self.settings,
            ignored=[code for code, _ in self.plan.ignore],
            contract=outcome_of(self.verified, Family.CONTRACT),
        )

    def _base(self, status: Verdict, *, reason: str) -> TargetReport:
        visible = [c.smallest_visible_error for c in self.verified if c.smallest_visible_error is not None]
        sizes = {c.sizes for c in self.plan.cases}
        untried = Swept(not_past=self.plan.not_beyond if self.verified else ())
        swept = reduce(Swept.joined, (c.swept for c in self.verified), self.past.joined(untried))
        # Beside inferred sizes, one of 1 or past a constant is no other ordinary size.
        beside = 0 if self.plan.source is InputSource.INFERRED else len(swept.sizes) + len(swept.past)
        return TargetReport(
            target=self.target,
            status=status,
            inputs=self.plan.source,
            cases=len(self.plan.cases),
            cases_verified=len(self.cases_verified),
            infeasible=self.plan.infeasible,
            evaluations=sum((c.evaluations for c in self.verified), Evaluations()),
            smallest_visible_error=max(visible) if visible else None,
            witnesses=tuple(sorted({w for c in self.verified for w in c.witnesses})),
            not_judged=sum(c.not_judged for c in self.verified),
            sizes_swept=len(sizes) + len(swept.sizes),
            points=sum(c.points for c in self.verified),
            devices=self._devices(),
            checks=tuple((f.value, outcome_of(self.verified, f)) for f in CHECK_FAMILIES),
            capabilities=tuple((name, self._capability(name)) for name in self._capabilities()),
            ignored=self._ignored(),
            reason=reason,
            spec_file=self.plan.spec_file,
            surrogate=self.plan.surrogate,
            swept=swept,
            domain=domain_of(self.plan, len(sizes) + beside, of_complex_use=self.of_complex_use),
            effort=self.settings.effort,
            left_out=tuple(one for one in self.plan.left_out if not self._has_run(one)),
            deduced=self.plan.shown,
        )

    def _has_run(self, left_out: str) -> bool:
        """Whether the worker has done what planning had left out: it reads the module's source."""
        return left_out == COMPILED and self._capability("compile") not in {"", "not-run"}

    def _devices(self) -> tuple[str, ...]:
        others = {d for c in self.verified for d in c.swept.devices}
        return (self.settings.device, *sorted(others)) if self.verified else ()

    def _capabilities(self) -> tuple[str, ...]:
        operator = OF_OPERATORS if self.target.kind is TargetKind.CUSTOM_OP else ()
        known = [name for name in WHERE_JUDGED if self._capability(name) != "not-run"]
        contract = ["contract"] if self._capability("contract") == PARTIAL else []
        return (*CAPABILITIES, *operator, *known, *contract)

    def _capability(self, name: str) -> str:
        said = {dict(c.capabilities).get(name) for c in self.verified}
        return next((v for v in ("wrong", "no", PARTIAL, "yes") if v in said), "not-run")

    def _ignored(self) -> tuple[tuple[str, str], ...]:
        asked = tuple((code, "--ignore") for code in self.settings.ignore)
        return tuple(sorted({*self.plan.ignore, *asked}))

    def _placed(self, finding: Finding) -> Finding:
        """With the line it is about, and with commands to go on from it."""
        raised = with_shown_paths(finding.raised, self.module)
        location = finding.location or where_raised(raised, self.target.file)
        asked = Asked(self.target.id, self.plan, self.settings.seed, self.extra_arguments)
        return with_commands(replace(finding, raised=raised, location=location), asked)
