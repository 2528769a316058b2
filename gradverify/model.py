"""What flows through gradverify: plain frozen values, numbers and never tensors.

Standard library only. Everything here can cross the border between the front process and the
worker (see `gradverify.events`), be sorted, and be written to any report format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

Scalar = bool | int | float | str | None
"""A literal argument: what a YAML scalar can be."""

Nested = Scalar | tuple["Nested", ...]
"""A literal tensor value, as nested tuples of scalars."""


class Severity(StrEnum):
    """How bad a finding is. Only an error fails its target."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(StrEnum):
    """The closed set of what a target can be told. Only `passed`, `skipped` and `xfailed` are green."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNCHECKED = "unchecked"
    SKIPPED = "skipped"
    XFAILED = "xfailed"


class Outcome(StrEnum):
    """The result of one family of checks on one target."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not-run"


class TargetKind(StrEnum):
    """What a target is, which decides how it is called."""

    FUNCTION = "function"
    """A `torch.autograd.Function` subclass, called through `.apply`."""
    CALLABLE = "callable"
    """Any callable that a spec names."""
    MODULE = "module"
    """An `nn.Module` class that a spec names; its parameters are inputs."""


class InputSource(StrEnum):
    """Where the inputs of a target come from."""

    SPEC = "spec"
    INFERRED = "inferred"
    NONE = "none"


class Point(StrEnum):
    """The regime a draw of input values belongs to (see `gradverify.verifier.inputs`)."""

    TYPICAL = "typical"
    WIDE = "wide"
    SPECIAL = "special"


class Engine(StrEnum):
    """Who gives the numerical verdict."""

    PROBE = "probe"
    """A certificate from a few random probes; where it does not close, the full Jacobian."""
    JACOBIAN = "jacobian"
    """Always the full Jacobian by a six-point stencil, with a measured error for every entry."""
    TORCH = "torch"
    """`torch.autograd.gradcheck` and `gradgradcheck` in slow mode; ours only locates."""


class Effort(StrEnum):
    """How much is swept."""

    QUICK = "quick"
    """Typical values of the base case alone."""
    NORMAL = "normal"
    THOROUGH = "thorough"
    """Every combination, more draws, degenerate sizes."""


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file. Lines and columns count from 1; column 0 means the whole line."""

    file: str
    line: int
    column: int = 0


# ---------------------------------------------------------------------------------------------
# What is to be verified


@dataclass(frozen=True)
class Parameter:
    """One parameter of a target, `ctx` left out."""

    name: str
    has_default: bool = False
    annotation: str = ""
    """The source text of the annotation, empty without one."""
    variadic: bool = False
    """A `*args` parameter."""
    keyword_only: bool = False


@dataclass(frozen=True)
class Target:
    """Something with a backward."""

    name: str
    """The class's name, or the spec's key (`Linear@nobias`)."""
    attribute: str
    """Where it is found: an attribute of the module, or `package.module:attribute`."""
    kind: TargetKind
    file: str
    """POSIX path as reports print it, relative to the current folder where possible."""
    line: int
    """Line of the `class` or `def` statement, 1 where it cannot be known."""
    parameters: tuple[Parameter, ...] = ()

    @property
    def id(self) -> str:
        """What a user types to select this target."""
        return f"{self.file}::{self.name}"


@dataclass(frozen=True)
class PassedOver:
    """A definition that discovery looked at and did not take, with the reason in words."""

    name: str
    line: int
    reason: str


@dataclass(frozen=True)
class TensorInput:
    """A tensor argument with every size bound to a number."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"
    domain: str = "real"
    """`real`, `positive`, `negative`, `nonzero` or `unit`."""
    range: tuple[float, float] | None = None
    """Closed for floating dtypes, half-open for integer ones."""
    special: tuple[float, ...] = ()
    """Valid values worth planting at the `special` point."""
    avoid: tuple[float, ...] = ()
    """Declared kinks: drawn values keep away from them."""
    requires_grad: bool | None = None
    """None: differentiate it if its dtype is floating or complex."""
    value: Nested = None
    """Literal values instead of drawn ones; None draws them."""
    structure: str = ""
    """The manifold it lies on or the form it has: `spd`, `unit-norm`, `offsets`, ...; empty for none."""
    layout: str = ""
    """`sparse_coo` or `sparse_csr`; empty for strided."""
    ties: bool = False
    """Equal values are valid, and planted at the `special` point."""
    distinct: bool = False
    """No two entries may be equal, nor near enough for a step to reorder them."""
    constant_at: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(dimension, indices) pairs: slices that are never perturbed and whose gradient must be zero."""
    mutated: bool = False
    """Forward writes into it (a running buffer); it is not differentiated."""
    make: str = ""
    """`module:attribute` of a function (generator, device, dtype, shape) -> tensor that builds it."""


@dataclass(frozen=True)
class LiteralInput:
    """An argument passed as it is: a number, a string, a bool, a tuple, or None for an absent optional."""

    name: str
    value: Nested


@dataclass(frozen=True)
class ListInput:
    """Several tensors: one list argument, or what a `*args` parameter receives."""

    name: str
    items: tuple[TensorInput, ...]
    """Named as reports call them: `xs[0]`, `xs[1]`."""
    splatted: bool = False
    """Passed as so many positional arguments, not as one list."""


@dataclass(frozen=True)
class ConcatInput:
    """One tensor made of parts of different kinds, joined along the last dimension."""

    name: str
    parts: tuple[TensorInput, ...]


@dataclass(frozen=True)
class ObjectInput:
    """A live object passed as it is: a callable, a module, a type."""

    name: str
    path: str
    """Dotted path or `module:attribute`."""
    init: tuple[Scalar, ...] | None = None
    """Arguments to call it with first, None to pass the object itself."""


Input = TensorInput | LiteralInput | ListInput | ConcatInput | ObjectInput


def tensors_of(an_input: Input) -> tuple[TensorInput, ...]:
    """The tensors that an input draws: itself, the items of a list, the parts of a concatenation."""
    match an_input:
        case TensorInput():
            return (an_input,)
        case ListInput():
            return an_input.items
        case ConcatInput():
            return an_input.parts
        case LiteralInput() | ObjectInput():
            return ()


@dataclass(frozen=True)
class Annotation:
    """What a spec says of a tensor that a hook builds."""

    name: str
    requires_grad: bool | None = None
    avoid: tuple[float, ...] = ()
    constant_at: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """As of a `TensorInput`, but dimensions and indices may be negative: its shape is not known yet."""


@dataclass(frozen=True)
class Case:
    """One set of bound sizes and options of a target, with the seed its values are drawn from."""

    id: str
    """`b=3,n=4,mode=sum,bias=None`; `base` when nothing is bound."""
    seed: int
    sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, Scalar], ...] = ()
    inputs: tuple[Input, ...] = ()
    """In call order. Empty when `hook` builds the arguments."""
    hook: str = ""
    """`module:attribute` of a function (generator, device, dtype, **sizes) -> arguments."""
    annotations: tuple[Annotation, ...] = ()
    """What is known of the tensors that `hook` builds."""
    init: tuple[tuple[str, Nested], ...] | None = None
    """`TargetPlan.init` at the sizes of this case: a module may be swept over its own dimensions."""


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
class Doubt:
    """An argument that was invented: a mismatch that may hang on it is no failure."""

    name: str
    what: str
    """What was guessed, as the beginning of `... was guessed`."""
    optional: bool = False
    """It was guessed only where it is given: a case that leaves it out is certain."""
    certain: tuple[Nested, ...] = ()
    """The choice of a swept literal that stands in the source: there the argument is not invented."""


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
    init: tuple[tuple[str, Nested], ...] | None = None
    """Arguments that an `nn.Module` class is built with (name or position as text, value); None for none."""
    notes: str = ""
    spares: tuple[Case, ...] = ()
    """Cases at other sizes, run only to find out why a failing one is wrong."""
    doubts: tuple[Doubt, ...] = ()
    """What of inferred inputs was invented."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(input, sentence) pairs on inferred inputs: notes of the report."""
    shown: str = ""
    """Inferred inputs as a report shows them: `x [n, d], index int64 [k]`."""


@dataclass(frozen=True)
class Settings:
    """What a run was asked for, as far as the worker and the reports must know it."""

    seed: int = 0
    rtol: float = 1e-7
    atol: float = 0.0
    engine: Engine = Engine.PROBE
    device: str = "cpu"
    select: tuple[str, ...] = ()
    """Code prefixes to report; empty means all."""
    ignore: tuple[str, ...] = ()
    effort: Effort = Effort.NORMAL
    strict: bool = False
    """Warnings fail a target as errors do."""


# ---------------------------------------------------------------------------------------------
# What was found


@dataclass(frozen=True)
class Entry:
    """One entry of a Jacobian (or of a forward value) that was compared."""

    output: tuple[int, ...]
    """Index into the output tensor; complex tensors are indexed as `view_as_real`."""
    input: tuple[int, ...] | None
    """Index into the input tensor; None where whole values, not derivatives, were compared."""
    actual: float
    """What the target's own backward (or forward) gave."""
    expected: float
    """What it was compared with: the numerical derivative, or the reference's value."""
    error_bound: float
    """How far `expected` itself may be off, absolute."""


@dataclass(frozen=True)
class Entries:
    """How many entries of one comparison are wrong, with the worst ones."""

    wrong: int
    checked: int
    worst: tuple[Entry, ...] = ()
    """Worst first, by absolute difference."""
    compared_with: str = "numerical"
    """What `Entry.expected` is: `numerical` or `reference`."""


@dataclass(frozen=True)
class JacobianMap:
    """A small picture of where a Jacobian is wrong: one level for each (row, column)."""

    row_labels: tuple[str, ...]
    """One for each output entry, as the user would index it: `y[0,1]`."""
    column_labels: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    """0: right. 1 to 4: wrong, `thresholds[level - 1]` is its upper bound. -1: not judged."""
    thresholds: tuple[float, float, float]
    """Upper bounds of |difference| for levels 1, 2 and 3; level 4 is larger."""
    actual: tuple[tuple[float, ...], ...] = ()
    """What backward gave, by (row, column); empty where only the levels are known."""
    expected: tuple[tuple[float, ...], ...] = ()
    """What it was compared with."""


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback inside the user's code."""

    file: str
    line: int
    function: str
    source: str = ""
    """The source line without indentation."""
    caret: tuple[int, int] = (0, 0)
    """Start and end column of the failing expression within `source`; (0, 0) if unknown."""


@dataclass(frozen=True)
class RaisedError:
    """An exception that user code raised, with our own frames trimmed away."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    """Outermost first; the last one is where it was raised."""
    deliberate: bool = False
    """The author raised it on purpose: `raise`, `assert`, a TORCH_CHECK."""
    traceback: str = ""
    """As Python prints it, with every frame; shortened at its beginning."""


@dataclass(frozen=True)
class CasePoint:
    """Which inputs a finding was made on."""

    id: str
    sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, Scalar], ...] = ()
    point: Point = Point.TYPICAL
    draw: int = 0


@dataclass(frozen=True)
class ShownInput:
    """An argument's values, printed short because they are few."""

    name: str
    text: str
    """`[[-1.25, 0.5], [0.75, -0.25]]`, or `float64[128, 64]` where there are too many."""


@dataclass(frozen=True)
class Finding:
    """One thing to tell the user about one target. A value: nothing is raised to report it."""

    code: str
    severity: Severity
    message: str
    """What is wrong, where, by how much: one sentence without a final full stop."""
    hint: str = ""
    """What to try, one or two sentences."""
    output: int | None = None
    """Position of the output concerned, as forward returned it."""
    input: str | None = None
    """Name of the input concerned, as forward calls it."""
    case: CasePoint | None = None
    cases_affected: int = 1
    entries: Entries | None = None
    map: JacobianMap | None = None
    raised: RaisedError | None = None
    shown_inputs: tuple[ShownInput, ...] = ()
    captured: str = ""
    """What user code printed while this was found, shortened."""
    location: Location | None = None
    """A better place than the target's own line: the line that raised."""
    cause: str = ""
    factor: float | None = None
    expected: bool = False
    """An `xfail` of the spec covers it."""
    badness: float = 0.0
    """How wrong, to keep the worst of several equal findings: largest difference / tolerance."""
    reproduce: str = ""
    """A command line that shows this finding again."""
    dump: str = ""
    """The file that shows it without gradverify: a script, or the inputs alone; empty without `--dump`."""


@dataclass(frozen=True)
class Evaluations:
    """How often user code was called."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: Evaluations) -> Evaluations:
        """Add counts."""
        return Evaluations(self.forward + other.forward, self.backward + other.backward)


class MutationOutcome(StrEnum):
    """What became of a planted fault."""

    CAUGHT = "caught"
    ESCAPED = "escaped"
    """It changed the gradient, and every check passed."""
    NO_EFFECT = "no-effect"
    """It changed nothing at these sizes and values: they would not notice it."""


@dataclass(frozen=True)
class Mutation:
    """A known fault, planted in a target that passed."""

    fault: str
    inputs: tuple[str, ...]
    """Names of the inputs whose gradient was changed; none where all were."""
    outcome: MutationOutcome
    code: str = ""
    """Of the first finding that told it."""
    located: bool = False
    """That finding names the input, and the entries where they were known."""


@dataclass(frozen=True)
class Swept:
    """What a verified case was varied over, by name: what did not change its gradient, or what did."""

    layouts: tuple[str, ...] = ()
    """`grad_output transposed`, `inputs channels-last`, ..."""
    requires_grad: tuple[str, ...] = ()
    """Sets of inputs that required grad, as `x,weight`."""
    calls: tuple[str, ...] = ()
    """`again`, `interleaved`, `backward twice`, ..."""

    def joined(self, other: Swept) -> Swept:
        """What either of them was varied over."""
        return Swept(
            tuple(dict.fromkeys((*self.layouts, *other.layouts))),
            tuple(dict.fromkeys((*self.requires_grad, *other.requires_grad))),
            tuple(dict.fromkeys((*self.calls, *other.calls))),
        )


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
    evaluations: Evaluations = Evaluations()
    smallest_visible_error: float | None = None
    """The smallest relative error that every covered Jacobian entry would have shown."""
    sizes_swept: int = 0
    points: int = 0
    """Input draws verified, over all cases."""
    devices: tuple[str, ...] = ()
    checks: tuple[tuple[str, Outcome], ...] = ()
    """(`gradcheck` | `gradgradcheck` | `reference` | `contract`, outcome), always all four."""
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
    surrogate: Companion | None = None
    """What its gradient was compared with instead of the derivative."""
    swept: Swept = field(default_factory=Swept)
    """What its verified cases were varied over."""
    case_reports: tuple[CaseReport, ...] = ()
    """One for each planned case, and one with an empty id for what no case stands for."""
    mutations: tuple[Mutation, ...] | None = None
    """The faults planted in it; None where none were asked for, or it did not pass without them."""
    deduced: str = ""
    """Inferred inputs, as a person reads them."""


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


@dataclass(frozen=True)
class ModuleReport:
    """What was looked at in one module, for the words around the verdicts."""

    file: str
    targets: int
    passed_over: tuple[PassedOver, ...] = ()


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
    """The option that stopped the run."""
    slowest: int | None = None
    """How many of the slowest targets to name, 0 for all; None where durations were not asked for."""
    bugs: tuple[str, ...] = ()
    """Tracebacks of gradverify's own failures; each cost one target its verdict."""


# ---------------------------------------------------------------------------------------------
# What the source alone says


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
