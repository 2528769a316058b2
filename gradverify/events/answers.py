"""Events: what a worker answers. A stream of them ends in a `Done`, or in a `Broken`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradverify.deduced import Attempt, Deduced
from gradverify.model import (
    Beyond,
    Evaluations,
    Finding,
    Outcome,
    PassedOver,
    Point,
    RaisedError,
    Swept,
    Target,
)


@dataclass(frozen=True)
class Ready:
    """The worker has imported torch and waits for requests."""

    torch_version: str
    cuda_devices: int


@dataclass(frozen=True)
class Collected:
    """What a module defines."""

    targets: tuple[Target, ...]
    passed_over: tuple[PassedOver, ...]
    without: tuple[str, ...] = ()
    """Packages that it was imported without, each as `pkg/__init__.py, which raised ...`."""


@dataclass(frozen=True)
class Bound:
    """A target that a spec names, found."""

    target: Target


@dataclass(frozen=True)
class NotBound:
    """A name in a spec that the live module does not answer to."""

    part: str
    """`attribute`, `reference` or `hook`."""
    name: str
    message: str
    candidates: tuple[str, ...] = ()
    """Names that do exist there, for the nearest one."""


@dataclass(frozen=True)
class Inferred:
    """Inputs that forward accepted, as the entry of a spec."""

    deduced: Deduced


@dataclass(frozen=True)
class NotInferred:
    """No guess made forward run."""

    attempts: tuple[Attempt, ...]
    """The first of them."""


@dataclass(frozen=True)
class CaseStarted:
    """Verification of a case begins; the front shows it as progress and blames it for a crash."""

    case_id: str
    point: Point
    draw: int


@dataclass(frozen=True)
class Found:
    """A finding, sent as soon as it is made, so that a later crash does not lose it."""

    finding: Finding
    printed_to: int | None = None
    """Where what user code prints had come to then: the front reads it later, when there may be more."""


@dataclass(frozen=True)
class CaseVerified:
    """A case was verified to its end."""

    case_id: str
    checks: tuple[tuple[str, Outcome], ...]
    evaluations: Evaluations
    points: int
    smallest_visible_error: float | None
    capabilities: tuple[tuple[str, str], ...] = ()
    no_gradient: bool = False
    """Every output is integer or declared non-differentiable: there is nothing to verify."""
    empty: bool = False
    """No Jacobian of its points has an entry: what ran says nothing of the gradient."""
    unjudged: tuple[tuple[int, str], ...] = ()
    """(output, input) pairs without a result at any point."""
    remarks: tuple[str, ...] = ()
    swept: Swept = field(default_factory=Swept)
    witnesses: tuple[str, ...] = ()
    """What its gradient was held against."""
    not_judged: int = 0
    """Entries whose difference the rounding of the target's own operations explains."""
    applied: tuple[tuple[str, str], ...] = ()
    """(file, qualified name) of the Functions that its calls apply, in forward or in the double backward."""


@dataclass(frozen=True)
class BeyondStarted:
    """Every case is verified, and one past a constant of the source begins, which was not requested."""

    beyond: Beyond


@dataclass(frozen=True)
class BeyondDoubted:
    """Probes do not agree with its backward; what is wrong is looked for, which may take long."""


@dataclass(frozen=True)
class BeyondJudged:
    """What became of it, where nothing wrong was found."""

    reason: str = ""
    """Why nothing is known there; empty where it was verified."""


@dataclass(frozen=True)
class AllowanceSpent:
    """A cause, or a change of backward, was not looked for to the end: errors may cost so many calls."""

    calls: int


@dataclass(frozen=True)
class DiagnosisStarted:
    """Every case was verified; what failed is run again, to find out why, and at smaller inputs.

    Findings come once more, with what was found: whatever happens from here on costs no verdict.
    """


@dataclass(frozen=True)
class Suggested:
    """A backward that was written, executed and judged."""

    backward: str
    """Its source, not indented: a method, or a function beside an operator."""
    source: str
    """What it was derived from, in words."""
    saved: tuple[str, ...] = ()
    """What forward must save for it, in order; empty where it saves that already."""
    attributes: tuple[tuple[str, str], ...] = ()
    """(attribute, expression) pairs that forward must put on its ctx beside what it does."""
    judged_at: tuple[str, ...] = ()
    """The cases at which it is the derivative of forward, in words."""
    not_at: tuple[str, ...] = ()
    """Cases with other options, which need another backward."""
    sizes_varied: bool = False
    """Constants were distinguished from sizes by other sizes."""


@dataclass(frozen=True)
class NotSuggested:
    """Why no backward can be suggested."""

    reason: str


@dataclass(frozen=True)
class Called:
    """User code was called so many times for this request: sent at powers of two."""

    times: int


@dataclass(frozen=True)
class Done:
    """The request was answered completely."""

    left: tuple[str, ...] = ()
    """What the calls of user code have left behind: names of state, `a thread`, `a process`."""


@dataclass(frozen=True)
class Failed:
    """User code raised outside of a verification (on import): the request has no answer."""

    message: str
    raised: RaisedError | None = None


@dataclass(frozen=True)
class DeviceLost:
    """Instead of `Done`: an accelerator's context is lost, and this process is of no use any more."""

    error: RaisedError


@dataclass(frozen=True)
class Disturbed:
    """Instead of `Done`: after what user code has done no answer of this process is worth anything."""

    how: str
    """What it did, as the end of a sentence about it."""
    raised: RaisedError | None = None


@dataclass(frozen=True)
class Broken:
    """A bug in gradverify itself, instead of `Done`: exit code 3."""

    traceback: str


Event = (
    Ready
    | Collected
    | Bound
    | NotBound
    | Inferred
    | NotInferred
    | CaseStarted
    | Found
    | CaseVerified
    | BeyondStarted
    | BeyondDoubted
    | BeyondJudged
    | AllowanceSpent
    | DiagnosisStarted
    | Suggested
    | NotSuggested
    | Called
    | Done
    | Failed
    | DeviceLost
    | Disturbed
    | Broken
)
