"""Requests: what the front asks of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import InputSource, Settings, Target, TargetPlan


@dataclass(frozen=True)
class Collect:
    """Import a module and say which targets it defines."""

    path: str
    """The file to import."""
    shown_path: str
    """How reports print it."""
    folders: tuple[str, ...] = ()
    """Where references and hooks are looked for after everywhere else."""


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
    device: str = "cpu"
    """Where it is verified."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Where inputs are looked for, in order, until some are found.

        An index that is out of bounds is an exception on the CPU, and ends a process that uses a GPU; a
        compiled kernel that is given tensors of the CPU may end it, too.
        """
        return (self.device,) if self.target.compiled else tuple(dict.fromkeys(("cpu", self.device)))


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
class Suggest:
    """Write the right backward of one target, judged at the cases of its plan."""

    verified: Verify
    """The request of its verification."""


Request = Collect | Bind | Infer | Verify | Suggest
