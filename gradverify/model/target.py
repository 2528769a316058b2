"""What has a backward, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model.words import TargetKind


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
    """No name of the module leads to it: it is defined while a function runs, as by a factory."""

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
