"""Both Jacobians at one sample, for whoever asks why they differ: backward's, and that of a witness.

The witness is derived, where values have confirmed it and nothing hides in it; else forward's slopes, column
by column. Where the gradient is another one beside the point, as at a kink, nothing is known.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.samples import graph_of
from gradverify.verifier.questions.second_order import second_problem
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import first_order, second_order
from gradverify.verifier.witnesses.answers import Asked
from gradverify.verifier.witnesses.claim import rows_at, units
from gradverify.verifier.witnesses.kinks import BESIDE, ROOM
from gradverify.verifier.witnesses.proof import proved
from gradverify.verifier.witnesses.rounding import FACTOR
from gradverify.verifier.witnesses.values import probe

MOST_ROWS = 1024
"""Rows of a Jacobian that is built: a backward for each of them, and a grad_output of as many entries."""


@dataclass(frozen=True)
class Jacobians:
    """Matrices are M × N: outputs by inputs."""

    claimed: Tensor
    """What backward gives; zeros where it raises."""
    true: Tensor
    """What forward has."""
    error: Tensor
    """How far `true` may be off; infinite where nothing is known."""
    centre: Tensor
    """What forward returns (M)."""
    raises: bool = False


def first_asked(sample: Sample) -> Asked | None:
    """A sample's claim with its witnesses; None where forward raises."""
    made = graph_of(sample)
    return None if isinstance(made, Raised) else first_order(sample, made.value, declared=True)


def second_asked(sample: Sample) -> Asked | None:
    """The same of second order; None where backward raises, or cannot be differentiated."""
    first = first_asked(sample)
    second = second_problem(sample)
    made = second.graph(second.primals)
    if first is None or isinstance(made, Raised):
        return None
    return second_order(sample, first, made.value, second)


def jacobians_of(asked: Asked | None) -> Jacobians | None:
    """Of a target, or of its backward; None where it raises, gives no numbers, or too many."""
    if asked is None or asked.problem.outputs.size > MOST_ROWS:
        return None
    values, count = asked.values, asked.problem.outputs.size
    if not bool(values.centre.isfinite().any()):
        return None
    rows = units(count)
    found = asked.claim.afresh().rows(rows)
    claimed = torch.zeros(len(rows), len(values.x)).double() if isinstance(found, Raised) else found
    if asked.derived is not None and not asked.trust.confirmed:
        proved(asked)
    derived = _derived(asked, rows)
    true, error = slopes(asked) if derived is None else derived
    return Jacobians(claimed, true, error, values.centre, raises=isinstance(found, Raised))


def _derived(asked: Asked, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Derived's Jacobian with its error; None where it is not to be trusted."""
    witness = asked.witness
    if witness is None or asked.hides or not asked.trust.confirmed:
        return None
    true = witness.rows(rows)
    if isinstance(true, Raised):
        return None
    error = rounding_of(asked, true)
    for sign in (1.0, -1.0):
        x = asked.values.x + sign * BESIDE * asked.values.scale * probe(len(asked.values.x), asked.key + 31)
        near = rows_at(witness.problem, x, rows)
        moved = torch.zeros_like(true) if near is None else (near - true).abs()
        error[~(moved <= ROOM * true.abs().nan_to_num(0.0, 0.0, 0.0).max())] = torch.inf
    error[~true.isfinite()] = torch.inf
    return true, error


def rounding_of(asked: Asked, true: Tensor) -> Tensor:
    """How far derived's Jacobian may be off by rounding."""
    largest = true.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True) if true.numel() else true
    return (FACTOR * asked.values.steps.epsilon * largest).expand_as(true).clone()


def slopes(asked: Asked, until: int = sys.maxsize) -> tuple[Tensor, Tensor]:
    """Forward's slopes along every coordinate, with their errors.

    None is begun once user code was called more often than `until`: they are infinite then.
    """
    values = asked.values
    true = torch.zeros(values.outputs.size, len(values.x), dtype=torch.float64)
    error = torch.zeros_like(true)
    for column in (values.scale > 0).nonzero()[:, 0].tolist():
        if guard.CALLS.made > until:
            error[:, column] = torch.inf
            continue
        v = values.unit(column)
        slope, size = values.slope(v), float(v[column])
        true[:, column] = slope.value / size
        error[:, column] = torch.where(slope.kink, torch.inf, slope.error / abs(size))
    return true, error
