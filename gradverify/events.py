"""What crosses the border between the front process and its worker: dataclasses as JSON lines.

The front sends requests, the worker answers each with a stream of events that ends in a `Done`,
or in a `Broken`. Both sides run the same version of this package, so the encoding is private: every value is
tagged with its class and read back exactly (tuples stay tuples, enums stay enums, NaN stays NaN).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gradverify import deduced, model
from gradverify.deduced import Attempt, Deduced
from gradverify.model import (
    Beyond,
    Evaluations,
    Finding,
    InputSource,
    Mutation,
    Outcome,
    PassedOver,
    Point,
    RaisedError,
    Settings,
    Swept,
    Target,
    TargetPlan,
)

CHANNEL_LOST = 79
"""What a worker exits with when it cannot reach the front any more: user code has closed its descriptors."""

# ---------------------------------------------------------------------------------------------
# Requests: front to worker


@dataclass(frozen=True)
class Collect:
    """Import a module and say which targets it defines."""

    path: str
    """The file to import."""
    shown_path: str
    """How reports print it."""


@dataclass(frozen=True)
class Bind:
    """Resolve names that only live objects can answer for."""

    attribute: str
    """A target's attribute of the collected module, or `package.module:attribute`."""
    name: str
    """The name to report it under."""
    references: tuple[str, ...] = ()
    """The composite reference and the surrogate, as far as there are such."""
    hooks: tuple[str, ...] = ()
    """Functions that build arguments, objects that inputs name."""
    init: bool = False
    """The spec says how to build it: it may be an `nn.Module` class."""


@dataclass(frozen=True)
class Infer:
    """Find inputs for a target that no spec names."""

    target: Target


@dataclass(frozen=True)
class Verify:
    """Verify one target as planned."""

    target: Target
    plan: TargetPlan
    settings: Settings

    @property
    def inferred(self) -> bool:
        """The inputs were guessed: a mismatch must persist on other kinds of values to be a failure."""
        return self.plan.source is InputSource.INFERRED

    @property
    def ignored(self) -> tuple[str, ...]:
        """Code prefixes that the spec asks not to run."""
        return tuple(code for code, _ in self.plan.ignore)


@dataclass(frozen=True)
class Dump:
    """Write files from which findings can be shown without gradverify; answered by one `Dumped` for each."""

    verified: Verify
    """The request that the findings answered."""
    findings: tuple[tuple[str, Finding], ...]
    """(file name without suffix, finding) pairs."""
    folder: str
    """An absolute path."""
    module: str
    """The target's own file, an absolute path."""


@dataclass(frozen=True)
class Retry:
    """See whether a finding shows itself at other inputs; answered by one `Retried`."""

    verified: Verify
    """The request that it answered, with the case of those inputs alone."""
    finding: Finding
    point: Point
    draw: int
    with_cause: bool
    """Its cause must be found there, too."""


@dataclass(frozen=True)
class Suggest:
    """Write the right backward of one target, judged at the cases of its plan."""

    target: Target
    plan: TargetPlan
    settings: Settings


@dataclass(frozen=True)
class Mutate:
    """Plant one known fault in a target, and verify it as planned."""

    target: Target
    plan: TargetPlan
    settings: Settings
    fault: str
    """Its name, as `ListFaults` was answered."""


@dataclass(frozen=True)
class ListFaults:
    """Say which faults can be planted."""


Request = Collect | Bind | Infer | Verify | Retry | Dump | Suggest | Mutate | ListFaults


# ---------------------------------------------------------------------------------------------
# Events: worker to front


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
    remarks: tuple[str, ...] = ()
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True)
class BeyondStarted:
    """Every case is verified, and one past a constant of the source begins, which nobody asked for."""

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
class DiagnosisStarted:
    """Every case was verified; what failed is run again, to find out why.

    Findings come once more, with their cause: whatever happens from here on costs no verdict.
    """


@dataclass(frozen=True)
class Retried:
    """What became of a finding at other inputs."""

    finding: Finding | None
    """The same mistake there, with its cause if that was asked for; None where it is not seen."""


@dataclass(frozen=True)
class Dumped:
    """What was written for one finding."""

    name: str
    """File name within the folder: the script, or the tensors alone where no script can show it."""
    refusal: str = ""
    """Why nothing was written."""


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
    """Constants were told from sizes by other sizes."""


@dataclass(frozen=True)
class NotSuggested:
    """Why no backward can be suggested."""

    reason: str


@dataclass(frozen=True)
class Faults:
    """The faults that can be planted, in the order of the table."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Mutated:
    """What became of one planted fault."""

    mutation: Mutation


@dataclass(frozen=True)
class Done:
    """The request was answered completely."""


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
    | DiagnosisStarted
    | Retried
    | Dumped
    | Suggested
    | NotSuggested
    | Faults
    | Mutated
    | Done
    | Failed
    | DeviceLost
    | Broken
)

_CLASSES: dict[str, type[Any]] = {
    name: value
    for namespace in (vars(model), vars(deduced), globals())
    for name, value in namespace.items()
    if isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, Enum))
}


def encode(message: Request | Event) -> str:
    """Write a request or event as one line of JSON without the newline."""
    return json.dumps(_to_data(message), separators=(",", ":"))


def decode(line: str) -> Any:  # noqa: ANN401 - the union of requests or events; callers match on it
    """Read back what `encode` wrote.

    Raises `ValueError` for anything else.
    """
    return _from_data(json.loads(line))


def _to_data(value: object) -> object:
    if isinstance(value, Enum):
        return {"": type(value).__name__, "value": value.value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_to_data(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} does not cross the process border")


def _from_data(data: object) -> object:
    if isinstance(data, list):
        return tuple(_from_data(item) for item in data)
    if not isinstance(data, dict):
        return data
    cls = _CLASSES.get(data.get("", ""))
    if cls is None:
        raise ValueError(f"not a message of gradverify: {str(data)[:200]}")
    if issubclass(cls, Enum):
        return cls(data["value"])
    return cls(**{key: _from_data(item) for key, item in data.items() if key})
