"""What became of targets and of a run. Every output format is a function of a `Report` alone.

What a verdict holds for: what was varied, judged in native dtypes, and called.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from gradverify.model.finding import Finding, RaisedError
from gradverify.model.plan import Companion, Settings
from gradverify.model.words import (
    Effort,
    InputSource,
    Location,
    Outcome,
    PassedOver,
    Severity,
    Target,
    Verdict,
)


class Closeness(StrEnum):
    """From the best certificate to the worst; only `WRONG` is a mistake."""

    CORRECT = "correctly rounded"
    """Every entry is the truth, rounded once, up to float32's noise inside."""
    WITHIN = "within rounding"
    """Rounding every operation to float32 explains all of it."""
    ROUNDED = "rounded"
    """Rounding intermediates to the dtype explains all of it, rounding the result alone does not."""
    COARSE = "coarsely right"
    """Half of the dtype's digits are right; the noise inside could not be measured."""
    UNKNOWN = "not judged"
    WRONG = "wrong"


@dataclass(frozen=True)
class Precision:
    """What became of one value, an output or a gradient, in one dtype."""

    dtype: str
    value: str
    """`output 0`, or the name of an input: its gradient. Empty for all of them."""
    closeness: Closeness
    worst: float = 0.0
    """In units of what the closeness allows: 1 is the limit."""
    hides: float | None = None
    """An error of all entries by this factor, relative, could have hidden."""
    reason: str = ""
    """Why it was not judged, or how it was."""

    def worse(self, other: Precision) -> Precision:
        """The worse of two about the same value."""
        order = list(Closeness)
        return max(self, other, key=lambda p: (order.index(p.closeness), p.worst))


@dataclass(frozen=True)
class Domain:
    """The inputs that a target was judged on."""

    numbers: tuple[str, ...] = ()
    """`real`, `complex`: of the inputs that are differentiated; empty where a hook builds them."""
    real_alone: bool = False
    """Its source speaks of complex numbers, and none was tried."""
    ranges: tuple[str, ...] = ()
    """Restrictions on values, as ``x` in [0, 1]`` and ``p` positive``."""
    constants: tuple[str, ...] = ()
    """Floating inputs that are not differentiated, as a spec or inference has it."""
    sizes: str = ""
    """The only sizes, as `n=3,d=4`; empty where there are others, or none."""

    @property
    def phrases(self) -> tuple[str, ...]:
        """All of it, a phrase each."""
        constants = (f"`{name}` constant" for name in self.constants)
        return (*self.numbers, *self.ranges, *constants, *filter(None, (self.sizes,)))


@dataclass(frozen=True)
class Evaluations:
    """How often user code was called."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: Evaluations) -> Evaluations:
        """Add counts."""
        return Evaluations(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class Swept:
    """What a verified case was varied over, by name: what did not change its gradient, or what did."""

    layouts: tuple[str, ...] = ()
    """`grad_output transposed`, `inputs channels-last`, ..."""
    requires_grad: tuple[str, ...] = ()
    """Sets of inputs that required grad, as `x,weight`."""
    calls: tuple[str, ...] = ()
    """`again`, `interleaved`, `backward twice`, ..."""
    sizes: tuple[str, ...] = ()
    """Sizes beyond those of its cases, as `n=1,d=3`: those that its spec leaves open or does not list."""
    precision: tuple[Precision, ...] = ()
    """What was judged in native dtypes: the worst of each value in each dtype."""
    native: str = ""
    """Why it was judged in native dtypes alone; empty where it has a float64 path."""
    devices: tuple[str, ...] = ()
    """Devices besides its own that its gradient was held against."""
    past: tuple[str, ...] = ()
    """Constants of the source, each with the size that was past it: `BLOCK = 128 (n=257)`."""
    not_past: tuple[str, ...] = ()
    """Constants that nothing is known past: `BLOCK = 128 (n=257): forward raises ValueError`."""
    interpreted: bool = False
    """Its Triton kernels ran in Triton's interpreter, not compiled."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The native dtypes in which every value was judged, in order of precision."""
        known = [p for p in self.precision if p.closeness is not Closeness.UNKNOWN]
        unknown = {p.dtype for p in self.precision if p.value and p.closeness is Closeness.UNKNOWN}
        return tuple(dict.fromkeys(p.dtype for p in known if p.dtype not in unknown))

    def joined(self, other: Swept) -> Swept:
        """What either of them was varied over."""
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        made: dict[str, Any] = {
            name: tuple(dict.fromkeys((*one, *two))) if isinstance(one, tuple) else one or two
            for name, (one, two) in both.items()
        }
        return Swept(**{**made, "precision": _worst_of_each((*self.precision, *other.precision))})


def _worst_of_each(found: tuple[Precision, ...]) -> tuple[Precision, ...]:
    """One for each value in each dtype, in the order in which they came."""
    worst: dict[tuple[str, str], Precision] = {}
    for one in found:
        key = (one.dtype, one.value)
        worst[key] = worst[key].worse(one) if key in worst else one
    return tuple(worst.values())


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
    witnesses: tuple[str, ...] = ()
    """What its gradient was held against: `derived`, `values`; empty where the engine has none."""
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
        """Whether it failed and its first order is right: what is wrong, or open, is of the second (GV2)."""
        errors = [f.code for f in self.findings if f.severity is Severity.ERROR and not f.expected]
        suspected = [f.suspected for f in self.findings if f.code == "GV109" and f.suspected]
        second = bool(errors) and all(code.startswith("GV2") for code in (*errors, *suspected))
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
