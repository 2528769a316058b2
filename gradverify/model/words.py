"""The closed sets of words that everything else is written in.

What has a backward, and where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

KIBI = 1024
"""From one unit of memory to the next."""

Scalar = bool | int | float | str | None
"""A literal argument: what a YAML scalar can be."""

Nested = Scalar | tuple["Nested", ...]
"""A literal tensor value, as nested tuples of scalars."""


class Part(IntEnum):
    """The last index into a complex tensor that is seen as real numbers, as `view_as_real` counts."""

    REAL = 0
    IMAG = 1


def indexed(name: str, index: Sequence[int]) -> str:
    """A name with its index, `x[0,2]`, `z[0].imag`; a scalar has no brackets."""
    *places, last = index or (None,)
    if isinstance(last, Part):
        return f"{indexed(name, places)}.{last.name.lower()}"
    return f"{name}[{','.join(map(str, index))}]" if index else name


def shown_path(path: Path) -> str:
    """Return a path as messages show it: POSIX, relative to the current folder where it lies below."""
    absolute, here = path.absolute(), Path.cwd()
    return (absolute.relative_to(here) if absolute.is_relative_to(here) else path).as_posix()


class Severity(StrEnum):
    """How bad a finding is. Only an error fails its target."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(StrEnum):
    """The closed set of verdicts on a target. Only `passed`, `skipped` and `xfailed` are green."""

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
    CUSTOM_OP = "custom_op"
    """An operator of torch's dispatcher: a custom or Triton op, or `torch.ops.namespace.name`."""
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
    PLAIN = "plain"
    """Small halves and tenths, which nothing is verified at: a failure is shown at them."""


class Engine(StrEnum):
    """Who gives the numerical verdict."""

    WITNESSES = "witnesses"
    """Forward's values and torch's own derivative of forward, between which one judge decides."""
    TORCH = "torch"
    """`torch.autograd.gradcheck` and `gradgradcheck` in slow mode; ours only locates."""


class Effort(StrEnum):
    """How much is swept."""

    QUICK = "quick"
    """Typical values of the base case alone."""
    NORMAL = "normal"
    THOROUGH = "thorough"
    """Every combination, more draws, degenerate sizes."""


def memory_text(count: float) -> str:
    """A number of bytes with two digits or three: `7.45 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < KIBI:
            return f"{count:.2g} {unit}" if unit != "bytes" and count < 10 else f"{count:.0f} {unit}"
        count /= KIBI
    return f"{count:.3g} GiB"


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file. Lines and columns count from 1; column 0 means the whole line."""

    file: str
    line: int
    column: int = 0


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
    exact: bool = False
    """The annotation is the type in the schema of an operator: nothing else is accepted."""
    parts: tuple[Parameter, ...] = ()
    """Of a `*args` parameter what it holds, where the source has names for that."""


def with_parts(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The parameters with what a `*args` parameter holds in its place, where that is known."""
    return tuple(one for p in parameters for one in (p.parts or (p,)))


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
    compiled: tuple[str, ...] = ()
    """Functions of compiled extensions that its source calls: `_C.gelu_backward`."""
    unreached: bool = False
    """No name of the module leads to it: it is made by a factory, or a decorator gave back another object."""

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
