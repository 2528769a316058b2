"""Forward's own gradient, as torch derives it, with one local derivative or one number altered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import differentiate_again
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge, OnePass
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Factor, Instrumented
from gradverify.verifier.numerics.diagnosis.paths.sites import ArgumentPath, Site
from gradverify.verifier.numerics.diagnosis.paths.switches import Switches
from gradverify.verifier.numerics.diagnosis.paths.values import Values
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, Graph

MOST_BACKWARDS = 4000
"""Backwards of forward's own graph that are run for one gradient; the next row of a block is one more."""

MOST_WITH_ALTERNATIVES = 200
"""Operations of a forward up to which other derivatives are built beside the right ones."""

SAME_VALUES = 1e-9
"""Relative difference of outputs that is rounding where operations are made of others."""


@dataclass(frozen=True)
class Altered:
    """What is altered of forward's derivative."""

    dropped: frozenset[Edge | OnePass] = frozenset()
    instead: Change | None = None


@dataclass
class _Run:
    """One instrumented forward with its graph."""

    mode: Instrumented
    graph: Graph


@dataclass
class OwnForward:
    """Forward at one point as a composite, asked for only where a diagnosis comes to it."""

    make: Callable[[], CallProblem | None]
    most: int = MOST_BACKWARDS
    """Backwards that may be run for one gradient."""
    asked: int = 0
    """Backwards that were run."""
    cut: frozenset[Edge] = frozenset()
    """Uses of values that are constants in everything that is asked: nothing comes through them in sum."""
    held: list[Any] = field(default_factory=list)
    """Changes that gave backward's numbers for one of the gradients."""
    _kept: dict[tuple[int, Altered, frozenset[Edge]], Tensor] = field(default_factory=dict)

    @cached_property
    def problem(self) -> CallProblem | None:
        """Forward's map; None where torch cannot differentiate it."""
        return self.make()

    @cached_property
    def _run(self) -> _Run | None:
        # Twice as long for each point where alternatives stand beside the operations: first see how many.
        plain = self._ran(Instrumented())
        if plain is None or plain.mode.calls > MOST_WITH_ALTERNATIVES or self.problem is None:
            return plain
        inputs = [(a.name, a.value) for a in self.problem.arguments if isinstance(a.value, Tensor)]
        return (
            self._ran(Instrumented(Values(inputs, {**plain.mode.results, **plain.mode.aside}, {}))) or plain
        )

    def _ran(self, mode: Instrumented) -> _Run | None:
        problem = self.problem
        if problem is None:
            return None

        def run() -> Graph | None:
            with mode:
                graph = problem.graph(problem.primals)
            return None if isinstance(graph, Raised) else graph.value

        result = guard.call(run)
        if isinstance(result, Raised) or result.value is None:
            return None
        return _Run(mode, result.value)

    @property
    def edges(self) -> dict[Edge, list[Change]]:
        """Every use of a value in forward, with what its derivative may be replaced by."""
        return {} if self._run is None else self._run.mode.edges

    def path(self, edge: Edge) -> ArgumentPath:
        """Where an argument stands in its call; empty where that is not known."""
        paths = () if self._run is None else self._run.mode.paths.get(edge.site, ())
        return paths[edge.place] if 0 <= edge.place < len(paths) else ()

    @property
    def constants(self) -> dict[Edge, float]:
        """Numbers that stand in forward, or that sizes come to there."""
        return {} if self._run is None else self._run.mode.constants

    def pulled_back(self, output: int, u: Tensor, altered: Altered) -> Tensor | None:
        """The gradient (N) for a flat grad_output of one output; None where there is none."""
        return None if self._run is None else self._back(self._run, output, u, altered)

    def jacobian(self, output: int, altered: Altered) -> Tensor | None:
        """One output's rows (m × N)."""
        key = output, altered, self.cut
        if key not in self._kept:
            if self._run is None:
                return None
            rows = self._rows(self._run, output, altered)
            if rows is None:
                return None
            self._kept[key] = rows
        return self._kept[key]

    def with_values(self, others: Mapping[str, Any]) -> OwnForward:
        """Forward with other values of some arguments, by their names."""
        problem = self.problem
        if problem is None:
            return OwnForward(lambda: None, self.most)
        arguments = tuple(
            replace(a, value=others[a.name]) if a.name in others else a for a in problem.arguments
        )
        changed = replace(problem, arguments=arguments)
        return OwnForward(lambda: changed, self.most)

    @property
    def arguments(self) -> dict[str, Any]:
        """What forward is called with, by name."""
        return {} if self.problem is None else {a.name: a.value for a in self.problem.arguments}

    def derivative(self, output: int, u: Tensor | None) -> Tensor | None:
        """The gradient for a grad_output of one output, or all its rows, without any switches."""
        return self.at_others(Instrumented(is_plain=True), output, u)

    @property
    def calls(self) -> int:
        """Operations that forward runs, at least one: what a run or a backward costs."""
        return 1 if self._run is None else max(1, self._run.mode.calls)

    @property
    def input_names(self) -> list[str]:
        """Tensors that forward is called with."""
        return (
            []
            if self.problem is None
            else [a.name for a in self.problem.arguments if isinstance(a.value, Tensor)]
        )

    @property
    def input_values(self) -> list[Tensor]:
        """Their values."""
        return (
            []
            if self.problem is None
            else [a.value for a in self.problem.arguments if isinstance(a.value, Tensor)]
        )

    @property
    def results(self) -> dict[Site, list[Tensor]]:
        """What each operation of forward gave; empty where these are too many to be exchanged."""
        run = self._run
        return {} if run is None or run.mode.values is None else run.mode.results

    def passes(self, edge: Edge) -> int:
        """How often forward comes by a use of a value."""
        return 0 if self._run is None else self._run.mode.switches.passes.get(edge, 0)

    @property
    def sites(self) -> list[Site]:
        """The calls that user code makes, but for parts of operations."""
        return [site for site in self.results if not site.part]

    @property
    def given(self) -> dict[Edge, list[Tensor]]:
        """What each use of a value was given; empty where these are too many to be exchanged."""
        run = self._run
        return {} if run is None or run.mode.values is None else run.mode.given

    @property
    def factors(self) -> list[Factor]:
        """Square constants in derivatives that are written out."""
        return [] if self._run is None else self._run.mode.factors

    def at_others(self, run_with: Instrumented, output: int, u: Tensor | None) -> Tensor | None:
        """The gradient for a grad_output, or all rows, of forward with other numbers or values in it."""
        run = self._ran(run_with)
        if run is None:
            return None
        return self._rows(run, output, Altered()) if u is None else self._back(run, output, u, Altered())

    def _rows(self, run: _Run, output: int, altered: Altered) -> Tensor | None:
        block = self._outputs.blocks[output]
        rows = []
        for k in range(block.stop - block.start):
            u = torch.zeros(block.stop - block.start, dtype=torch.float64)
            u[k] = 1.0
            row = self._back(run, output, u, altered)
            if row is None:
                return None
            rows.append(row)
        return torch.stack(rows) if rows else None

    @property
    def _outputs(self) -> Layout:
        assert self.problem is not None  # noqa: S101
        return self.problem.outputs

    def _back(self, run: _Run, output: int, u: Tensor, altered: Altered) -> Tensor | None:
        self.asked += 1
        whole = torch.zeros(self._outputs.size, dtype=torch.float64)
        block = self._outputs.blocks[output]
        whole[block.start : block.stop] = u
        given: Sequence[Tensor | None] = [
            t if k == output else None for k, t in enumerate(self._outputs.unflatten(whole))
        ]
        switches: Switches = run.mode.switches
        switches.dropped, switches.instead = altered.dropped | self.cut, altered.instead
        result = guard.call(differentiate_again, run.graph.outputs, run.graph.leaves, given)
        switches.dropped, switches.instead = frozenset(), None
        if isinstance(result, Raised):
            return None
        return Layout.of(run.graph.leaves).flatten(result.value)
