"""What became of targets and of a run. Every output format is a function of a `Report` alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradverify.model.coverage import Domain, Evaluations, Swept
from gradverify.model.finding import Finding, RaisedError
from gradverify.model.plan import Companion, Settings
from gradverify.model.target import Location, PassedOver, Target
from gradverify.model.words import Effort, InputSource, Outcome, Severity, Verdict

SEVERAL_RANKS = "several ranks"
"""Begins what is left out where a target that communicates was verified in one process."""


@dataclass(frozen=True)
class CaseReport:
    """What became of one case of a target, for formats that count cases."""

    id: str
    """A case's id; empty for what concerns the target as a whole."""
    status: Verdict
    findings: tuple[tuple[str, str], ...] = ()
    """(code, message) pairs of this case, worst first, notes left out."""
    reason: str = ""
    """Why it is not verified, where no finding says so."""


@dataclass(frozen=True)
class TargetReport:
    """The verdict on one target and everything said about it."""

    target: Target
    status: Verdict
    inputs: InputSource
    cases: int = 0
    """Cases that were planned and are feasible."""
    cases_verified: int = 0
    """Cases in which every check that was asked for ran to its end."""
    infeasible: int = 0
    evaluations: Evaluations = field(default_factory=Evaluations)
    smallest_visible_error: float | None = None
    """The smallest relative error that every covered Jacobian entry would have shown."""
    not_judged: int = 0
    """Jacobian entries whose difference the rounding of the target's own operations explains."""
    sizes_swept: int = 0
    points: int = 0
    """Input draws verified, over all cases."""
    devices: tuple[str, ...] = ()
    checks: tuple[tuple[str, Outcome], ...] = ()
    """(`gradcheck` | `gradgradcheck` | `reference` | `contract` | `precision`, outcome), always all."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """(`double_backward` | `jvp` | `vmap` | `func` | `compile`, `yes` | `no` | `wrong` | `not-run`)."""
    findings: tuple[Finding, ...] = ()
    """Sorted: errors first, then by code, output, input."""
    ignored: tuple[tuple[str, str], ...] = ()
    """(code prefix, reason) pairs that were not run."""
    reason: str = ""
    """Why it is skipped or unchecked, in words."""
    spec_file: str = ""
    duration_s: float | None = None
    """Seconds that verifying it took; None unless they were asked for: no two runs agree on them."""
    effort: Effort = Effort.NORMAL
    """How much of what could be swept was."""
    left_out: tuple[str, ...] = ()
    """What that effort left out, in words."""
    surrogate: Companion | None = None
    """What its gradient was compared with instead of the derivative."""
    swept: Swept = field(default_factory=Swept)
    """What its verified cases were varied over."""
    domain: Domain = field(default_factory=Domain)
    """What it was judged on."""
    case_reports: tuple[CaseReport, ...] = ()
    """One for each planned case, and one with an empty id for what no case stands for."""
    deduced: str = ""
    """Inferred inputs, as a person reads them."""

    @property
    def first_order_only(self) -> bool:
        """Whether it failed and its first order is right: its only errors are of the second (GV2)."""
        errors = [f for f in self.findings if f.severity is Severity.ERROR and not f.expected]
        second = bool(errors) and all(f.code.startswith("GV2") for f in errors)
        return (
            self.status is Verdict.FAILED and second and dict(self.checks).get("gradcheck") is Outcome.PASSED
        )


@dataclass(frozen=True)
class Mistake:
    """An error of the user's in a spec, an import or the configuration: nothing to do with gradients."""

    message: str
    location: Location | None = None
    source_line: str = ""
    """The line of the file, for the caret."""
    length: int = 1
    """How many characters the caret underlines."""
    kind: str = "spec"
    """`spec`, `import` or `config`."""
    raised: RaisedError | None = None
    captured: str = ""

    @classmethod
    def of_syntax(cls, error: SyntaxError, file: str, cannot: str) -> Mistake:
        """What is wrong with a file that is not Python; `cannot` is what cannot be done with it."""
        line, column = error.lineno or 1, error.offset or 0
        same_line = error.end_lineno in {None, line}
        return cls(
            f"cannot be {cannot}: {type(error).__name__}: {error.msg}",
            Location(file, line, column),
            source_line=(error.text or "").rstrip("\n"),
            length=max(1, (error.end_offset or 0) - column) if same_line else 1,
            kind="import",
        )


@dataclass(frozen=True)
class ModuleReport:
    """What was looked at in one module, for the words around the verdicts."""

    file: str
    targets: int
    passed_over: tuple[PassedOver, ...] = ()
    spec: str = ""
    """Its spec file; empty where it has none."""
    unnamed: int = 0
    """How many of `passed_over`, the last ones, have a backward that the spec does not name."""
    without: tuple[str, ...] = ()
    """Packages that it was imported without, each as `pkg/__init__.py, which raised ...`."""

    @property
    def not_named(self) -> tuple[PassedOver, ...]:
        """What has a backward and is not checked, because a spec was the target and does not name it."""
        return self.passed_over[len(self.passed_over) - self.unnamed :]


@dataclass(frozen=True)
class Report:
    """Everything a run found out. Every output format is a function of this value alone."""

    settings: Settings
    targets: tuple[TargetReport, ...]
    errors: tuple[Mistake, ...] = ()
    modules: tuple[ModuleReport, ...] = ()
    gradverify_version: str = ""
    torch_version: str = ""
    exit_code: int = 0
    summary: tuple[tuple[str, int], ...] = field(default=())
    """(`targets` and each verdict, count)."""
    stopped_early: bool = False
    """`stopped_by` left targets unverified."""
    stopped_by: str = "-x"
    """What stopped the run: an option, or an interrupt."""
    slowest: int | None = None
    """How many of the slowest targets to name, 0 for all; None where durations were not asked for."""
    bugs: tuple[str, ...] = ()
    """Tracebacks of gradverify's own failures; each cost one target its verdict."""


@dataclass(frozen=True)
class LintFinding:
    """One thing that a static rule says of one place in a file."""

    code: str
    severity: Severity
    location: Location
    function: str
    """The class it is about."""
    message: str
    """One sentence without a final full stop, beginning in the user's own names."""
    hint: str = ""
    source_line: str = ""
    length: int = 1
    """How many characters of the line the place covers, from its column on."""


@dataclass(frozen=True)
class LintReport:
    """Everything that `lint` found out."""

    findings: tuple[LintFinding, ...] = ()
    """In the order of the files, then by line and column."""
    errors: tuple[Mistake, ...] = ()
    """Files that cannot be read as Python."""
    files: int = 0
    functions: int = 0
    """How many Functions were looked at."""
    waived: int = 0
    """Findings with a `# noqa` on their line."""
    gradverify_version: str = ""
    exit_code: int = 0
