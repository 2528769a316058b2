"""What the front decided about a run and each of its targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradverify.model.case import Case
from gradverify.model.words import Effort, Engine, InputSource, Nested

if TYPE_CHECKING:
    from gradverify.cases.further import Asked

POWER_OF_TWO = "a power of 2"
"""The name of the constant 2 where sizes are rounded up to one: an odd size is past it."""

ALIGNED = "multiples of 16"
"""The name of the constant 16 as no source needs to have it: a multiple of 8, too, and a power of two."""


@dataclass(frozen=True)
class SizeConstant:
    """An integer in the source that a size may be held against."""

    value: int
    name: str = ""
    """What the source calls it; empty for a bare number."""
    line: int = 0
    file: str = ""
    """The name of the file, where it is not the target's own."""
    is_argument: bool = False
    """A number that the call is given, which may be no size at all."""

    def __str__(self) -> str:
        """`BLOCK = 128`, `128 (line 12)`, `128 (kernels.py, line 12)`, or `a power of 2`."""
        if self.name in {POWER_OF_TWO, ALIGNED}:
            return self.name
        where = f"{self.file}, line {self.line}" if self.file else f"line {self.line}"
        return f"{self.name} = {self.value}" if self.name else f"{self.value} ({where})"


@dataclass(frozen=True)
class Beyond:
    """A case at or past a constant, which was not requested."""

    case: Case
    constant: str
    """`BLOCK = 128`."""
    size: str
    """The name of the size that is past it; of several, the first."""
    declared: bool = False
    """The spec lists the values of this size: that another one is valid is not said."""
    is_reported: bool = True
    """Whether the report says so where nothing becomes known past it: not of `range(3)`, mostly an axis."""
    number: int = 0
    """The constant itself; 0 of one that the source does not have."""


@dataclass(frozen=True)
class Companion:
    """A composite reference, or a surrogate, and how it is called."""

    path: str = ""
    """Dotted path or `module:attribute`; empty for a surrogate that only gives its reason."""
    arguments: tuple[str, ...] = ()
    """Names of the inputs it is called with, in order; empty: what forward got, positionally."""
    inputs: tuple[str, ...] = ()
    """A surrogate's: the inputs whose gradient it replaces; empty for all."""
    reason: str = ""
    """A surrogate's without a composite."""


@dataclass(frozen=True)
class ExpectedFailure:
    """One `xfail` of a spec: each code must occur at least once."""

    codes: tuple[str, ...]
    reason: str
    until: str = ""
    """ISO date from which on it no longer holds; empty for no end."""
    input: str = ""
    cases: tuple[str, ...] = ()
    """Case ids, or parts of them, to which it is limited; empty for all."""
    line: int = 0
    """Its line in the spec file."""


@dataclass(frozen=True)
class Ranks:
    """That a target runs on several ranks, and how its outputs lie on them."""

    outputs: tuple[str, ...] = ("local",)
    """For each output, or one for all: `local`, `replicate`, `replicate(partial)`, `shard(0)`, `partial`,
    `on(0)`."""
    second_order: bool = False
    """Its second derivative is meant to be right: that of most collectives is not."""


@dataclass(frozen=True)
class Doubt:
    """An argument that was invented: a mismatch that may hang on it is no failure."""

    name: str
    what: str
    """What was guessed, as the beginning of `... was guessed`."""
    optional: bool = False
    """It was guessed only where it is given: a case that leaves it out is certain."""
    certain: tuple[Nested, ...] = ()
    """The choice of a swept literal that is in the source: there the argument is not invented."""
    intent: bool = False
    """Not an argument but the gradient itself: its author may not mean the derivative."""
    of_values: bool = False
    """Its values are in doubt and nothing else: others can be tried."""
    of_shape: bool = False
    """A size or a shape is in doubt and nothing else."""
    extreme: bool = False
    """It is in doubt at undeclared values alone."""
    of_count: bool = False
    """How many gradients backward has to return is in doubt, too: an invented module lacks parameters."""
    of_gradient: str = ""
    """It is in doubt for the gradient of this input alone: another one may be computed of it."""
    differ: tuple[str, ...] = ()
    """Two sizes, where it was guessed that they may differ: a case in which they are equal is certain."""


@dataclass(frozen=True)
class TargetPlan:
    """Everything the front decided about one target before a worker sees it."""

    name: str
    """The spec's key, or the class's name where no spec names it."""
    attribute: str
    source: InputSource
    cases: tuple[Case, ...] = ()
    infeasible: int = 0
    """Cases dropped because no valid inputs exist for them."""
    reference: str = ""
    """Dotted path or `module:attribute` of the composite reference, empty without one."""
    ignore: tuple[tuple[str, str], ...] = ()
    """(code prefix, reason) pairs that the spec asks not to run."""
    skip: str = ""
    """The reason not to verify it at all, empty to verify."""
    spec_file: str = ""
    """The spec this plan was read from."""
    spec_line: int = 0
    rtol: float = 1e-7
    atol: float = 0.0
    reference_arguments: tuple[str, ...] = ()
    """Names of the inputs that the reference is called with; empty: what forward got, positionally."""
    surrogate: Companion | None = None
    expected_failures: tuple[ExpectedFailure, ...] = ()
    outputs: tuple[int, ...] | None = None
    """Positions of the outputs to differentiate; None for all that are differentiable."""
    default_dtype: str = ""
    """torch's default dtype while the target runs; empty to leave it."""
    devices: tuple[str, ...] = ()
    """Devices the target is limited to; empty for any."""
    dtypes: tuple[str, ...] = ()
    """Dtypes it is judged in; empty for float32 where that runs."""
    internals: str = ""
    """`float32`: nothing inside is rounded to a shorter dtype, so each result is correctly rounded."""
    ranks: Ranks | None = None
    """How it lies on several ranks; None for one process."""
    init: tuple[tuple[str, Nested], ...] | None = None
    """Arguments that an `nn.Module` class is built with (name or position as text, value); None for none."""
    notes: str = ""
    spares: tuple[Case, ...] = ()
    """Cases at other sizes, run only to find out why a failing one is wrong."""
    open_sized: tuple[Case, ...] = ()
    """Cases at sizes that symbolic shapes leave open: verified shortly once the others are right. A wrong
    gradient there is an error, a forward that refuses them is none."""
    degenerate: tuple[Case, ...] = ()
    """Cases with a size of 0 or 1 that is not listed: what is wrong there is a warning."""
    left_out: tuple[str, ...] = ()
    """What the effort leaves out of all that could be swept, in words."""
    beyond: tuple[Beyond, ...] = ()
    """Cases past constants of the source, run once the others are verified."""
    not_beyond: tuple[str, ...] = ()
    """Constants that no case is past, with the reason: `BLOCK = 8192: too large to be tried`."""
    doubts: tuple[Doubt, ...] = ()
    """What of inferred inputs was invented."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(input, sentence) pairs on inferred inputs: notes of the report."""
    never: tuple[tuple[str, str, str], ...] = ()
    """(input, sentence, what to try) of what inferred inputs leave open: the target is inconclusive."""
    shown: str = ""
    """Inferred inputs as a report shows them: `x [n, d], index int64 [k]`."""
    declared: tuple[Case, ...] = ()
    """All cases, where some of them were selected; empty where these are all."""
    asked: Asked | None = None
    """What the cases follow from, which alone crosses the border; None where they were given."""


@dataclass(frozen=True)
class Settings:
    """What a run was asked for, as far as the worker and the reports must know it."""

    seed: int = 0
    rtol: float = 1e-7
    atol: float = 0.0
    engine: Engine = Engine.WITNESSES
    device: str = "cpu"
    every_device: bool = False
    """The same cases on every other device too, held against this one: `--device all`."""
    select: tuple[str, ...] = ()
    """Code prefixes to report; empty means all."""
    ignore: tuple[str, ...] = ()
    effort: Effort = Effort.NORMAL
    strict: bool = False
    """Warnings fail a target as errors do."""
    dtypes: tuple[str, ...] = ()
    """Dtypes that the command line asks for; empty for what specs say."""
    autocast: bool = False
    """Every target under `torch.autocast` too."""

    def selects(self, code: str) -> bool:
        """Whether findings of a code are reported, as far as `select` says."""
        return not self.select or code.startswith(self.select)
