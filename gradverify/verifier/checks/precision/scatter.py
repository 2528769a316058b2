"""What rounding may do to each value, measured on a float64 computation: only where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradverify.verifier import guard
from gradverify.verifier.checks.precision.native import values_at
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.precision.formats import SINGLE_UNIT, Format
from gradverify.verifier.numerics.precision.random_rounding import RandomRounding, erring
from gradverify.verifier.numerics.problem import CallProblem

INSIDE_DRAWS = 8
"""Runs of each kind for the noise of float32 inside."""

ROUNDING_DRAWS = 16
"""Runs of each kind for the noise of rounded intermediates."""


MOST_ELEMENTS = 1_000_000
"""Elements of the inputs up to which runs are kept: each draw holds a copy of every gradient."""

Runs = tuple[list[tuple[Tensor, ...]], list[tuple[Tensor, ...]]]
"""Runs in which operations err, and runs at moved inputs: all values of each."""


@dataclass(frozen=True)
class Source:
    """A computation of the truth in float64, on which noise can be measured."""

    name: str
    """In words: `the reference`, `forward itself`, `its own float64 path`."""
    problem: CallProblem
    cotangents: Sequence[Tensor]
    seed: int
    plain: bool = False
    """It is made of torch's operations alone: where none of them errs, what it gives is exact."""


@dataclass
class Scatter:
    """Runs of one source that err at random; each unit is measured once."""

    source: Source
    guessed: bool = False
    """Some of the noise is a guess: kernels ran whose steps are not seen."""
    draws: bool = False
    """It draws random numbers, with a generator of its own: native values are others."""
    _runs: dict[tuple[float, int], Runs | None] = field(default_factory=dict)
    _moves: dict[tuple[float, int], list[tuple[Tensor, ...]]] = field(default_factory=dict)

    def inside(self) -> Runs | None:
        """Runs with the noise of float32 inside; None where it cannot be measured."""
        return self._measured(SINGLE_UNIT, INSIDE_DRAWS)

    def rounding(self, form: Format) -> Runs | None:
        """Runs with intermediates rounded to a format; None where that cannot be measured."""
        return self._measured(form.unit, ROUNDING_DRAWS)

    def moved(self, unit: float, draws: int = INSIDE_DRAWS) -> list[tuple[Tensor, ...]]:
        """All values at inputs moved by up to a unit; empty where a run raises."""
        key = (unit, draws)
        if key not in self._moves:
            self._moves[key] = self._moved(unit, draws)
        return self._moves[key]

    def _moved(self, unit: float, draws: int) -> list[tuple[Tensor, ...]]:
        source = self.source
        generator = torch.Generator().manual_seed(source.seed % 2**63)
        runs = []
        for _ in range(draws):
            primals = [erring(p, unit, generator) for p in source.problem.primals]
            cotangents = [erring(u, unit, generator) for u in source.cotangents]
            values = values_at(source.problem, primals, cotangents)
            if isinstance(values, Raised):
                return []
            runs.append(values)
        return runs

    def _measured(self, unit: float, draws: int) -> Runs | None:
        key = (unit, draws)
        if key not in self._runs and sum(p.numel() for p in self.source.problem.primals) > MOST_ELEMENTS:
            self._runs[key] = None
        if key not in self._runs:
            erred = self._erred(unit, draws)
            moved = self.moved(unit, draws) if erred else []
            self._runs[key] = (erred, moved) if erred and moved else None
        return self._runs[key]

    def _erred(self, unit: float, draws: int) -> list[tuple[Tensor, ...]]:
        source = self.source
        generator = torch.Generator().manual_seed((source.seed + 1) % 2**63)
        runs = []
        for _ in range(draws):
            result = guard.call(_erring_run, source, unit, generator)
            if isinstance(result, Raised):
                return []
            values, mode = result.value
            self.draws |= mode.draws
            self.guessed |= mode.guessed
            if isinstance(values, Raised) or mode.foreign or mode.missed:
                return []
            runs.append(values)
        return runs


def _erring_run(
    source: Source, unit: float, generator: torch.Generator
) -> tuple[tuple[Tensor, ...] | Raised, RandomRounding]:
    """One run in which every operation errs, and what was seen; fused attention is written out."""
    with sdpa_kernel(SDPBackend.MATH), RandomRounding(unit, generator) as mode:
        values = values_at(source.problem, source.problem.primals, source.cotangents)
    return values, mode
