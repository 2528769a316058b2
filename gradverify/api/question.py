"""One call of a drop-in, and the three answers our own check can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradverify.api.options import Options
from gradverify.api.original import Original
from gradverify.api.own_graph import OwnGraph
from gradverify.api.part_asked import Entries
from gradverify.model import Finding
from gradverify.verifier import guard
from gradverify.verifier.numerics.problem import CallProblem, Problem, VjpProblem
from gradverify.verifier.numerics.verdict import Judged


class Question(NamedTuple):
    """A function at its inputs, first or second order alike."""

    user_function: Callable[..., Any]
    """What the caller wants to know about."""
    function: Callable[..., Any]
    """Called with `inputs`; for second order, the function that gives the gradients."""
    inputs: tuple[Any, ...]
    options: Options
    first_call: Callable[[], Original]
    """The first call of `function` on `inputs`. Raises whatever that raises."""
    graph_of: Callable[[Original], OwnGraph]
    """That call's graph, beside what the function gives elsewhere."""
    ask_torch: Callable[[bool], bool]
    """The same question to torch's own implementation, in its fast mode or not."""
    problem_of: Callable[[Original, guard.RandomStates], CallProblem | VjpProblem]
    """The function as a pure problem, once it is known what it returns."""
    findings_of: Callable[[Problem, Judged, Original], tuple[Finding, ...]]
    """What to say about a judged problem that is wrong."""


@dataclass(frozen=True)
class Right:
    """Verified. `finer` are findings below the tolerance."""

    finer: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """Some entry is off by more than the tolerance, or backward breaks a rule."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Unsure:
    """Ours cannot tell: torch's own check decides."""

    reason: str = ""
    """What was not verified by us and why, in words; empty where there was nothing of ours to verify."""
    finer: tuple[Finding, ...] = ()
    """What was found below the tolerance in the rest."""
    entries: Entries | None = None
    """The entries that this is about, where all others are verified."""


Answer = Right | Wrong | Unsure
