"""What inference answers: a spec entry with what of it was guessed; the front plans it, `init` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.cases.inputs import InputSpec
from gradverify.cases.sweep import FunctionSpec
from gradverify.model import Doubt

TO_FILL_IN = "..."
"""What stands for the sizes of a tensor, and for a number, that are not known."""


@dataclass(frozen=True)
class Deduced:
    """A spec entry that forward accepted at every size listed."""

    spec: FunctionSpec
    """Its inputs are in call order."""
    doubts: tuple[Doubt, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    """(input, sentence) pairs: what the user should know of a guess."""
    never: tuple[tuple[str, str, str], ...] = ()
    """(input, sentence, what to try) of what these inputs leave open: options of others alone, None."""
    tries: int = 0
    """Calls of forward that the search took."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Those of the entry."""
        return self.spec.sweep.inputs


@dataclass(frozen=True)
class Attempt:
    """One call that forward answered with an exception."""

    arguments: str
    answer: str
    """`RuntimeError: mat1 and mat2 shapes cannot be multiplied`."""
    missing: str = ""
    """What this machine lacks for it, as sentences; empty where the exception is about the arguments."""
    inputs: tuple[InputSpec, ...] = ()
    """What its arguments were, with shapes left to be filled in."""
