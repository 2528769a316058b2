"""Claim and witnesses for a few grad_outputs: the dot-product test, and whether claim and derived agree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.witnesses.answers import Asked, Entry, Numbers, Wrong
from gradverify.verifier.witnesses.claim import Map
from gradverify.verifier.witnesses.rounding import FACTOR, finite_part, survives_float32
from gradverify.verifier.witnesses.values import (
    EPSILON,
    FLOAT32,
    Difference,
    alone,
    differences,
    probe,
)

CLEARLY = 2.0
"""Limits beyond which derived is apart from a claim that closes: nearer, the limit lies between them."""

OF_MEDIAN_ZERO = 1e-3
"""Share of the largest entry that scales the tolerance where most entries of a row are zero."""


def pairs_of(problem: Map) -> list[Numbers]:
    """Every (output, input)."""
    outputs, inputs = len(problem.outputs.blocks), len(problem.primals)
    return [(o, i) for o in range(outputs) for i in range(inputs)]


def compared(asked: Asked) -> dict[Numbers, Wrong] | Raised | None:
    """Pairs in which claim and derived differ, for a dense grad_output of each output; None without one."""
    outputs = asked.problem.outputs
    u = probe(outputs.size, asked.key + 5)
    cotangents = torch.stack([alone(u, rows) for rows in outputs.slices])
    cotangents = cotangents if len(cotangents) < 2 else torch.cat([cotangents, u[None]])
    if isinstance(asked.problem, VjpProblem) and len(cotangents) > 1:
        together = _both(asked, u[None])
        if not isinstance(together, tuple):
            return together
        if not differing(asked, *together, u[None]).any():
            return {}
    both = _both(asked, cotangents)
    if not isinstance(both, tuple):
        return both
    mine, theirs = both
    first = isinstance(asked.problem, CallProblem)
    if first and asked.declared and (theirs.isnan() & mine.isfinite()).any():
        return None  # derived is no number where the claim is one: values are asked
    off = differing(asked, mine, theirs, cotangents)
    found: dict[Numbers, Wrong] = {}
    for k, output in enumerate(outputs.filled):
        for i, own in enumerate(asked.values.inputs.blocks):
            here = off[k, own.span].nonzero()[:, 0].tolist()
            if here:
                j = own.start + here[0]
                entry = Entry(None, j, float(mine[k, j]), float(theirs[k, j]), torch.inf)
                found[output, i] = Wrong((entry,), len(here), own.size, 0.0, both=False, again=True)
    return found if found or not off.any() else None  # of all outputs together alone: nobody's yet


def _both(asked: Asked, cotangents: Tensor) -> tuple[Tensor, Tensor] | Raised | None:
    """Claim's gradients and derived's; None where derived raises."""
    mine, theirs = asked.claim.rows(cotangents), asked.derived_rows(cotangents)
    return mine if isinstance(mine, Raised) else None if theirs is None else (mine, theirs)


OF_FLOAT32 = FACTOR * FLOAT32.epsilon
"""Relative tolerance of gradients that have the digits of float32: what a few dozen roundings make."""


def typical_of(rows: Tensor, inputs: Layout) -> Tensor:
    """The size of an ordinary entry of each row's part in an input (K × N): it scales the tolerance."""
    typical = torch.zeros_like(rows)
    for own in inputs.slices:
        part = finite_part(rows[:, own].abs())
        middle, most = part.median(dim=1, keepdim=True).values, part.amax(dim=1, keepdim=True)
        typical[:, own] = torch.where(middle > 0, middle, OF_MEDIAN_ZERO * most)
    return typical


def _bars(asked: Asked, rows: Tensor, cotangents: Tensor, rtol: Tensor) -> Tensor:
    """What gradients for the same grad_outputs may differ by (K × N): the tolerance, scaled by the row."""
    size = finite_part(rows.abs())
    floor = typical_of(rows, asked.values.inputs)
    moves = (size * asked.values.scale).amax(dim=1, keepdim=True)  # numbers of that size may have cancelled
    scale = asked.values.scale
    rounding = torch.where(scale > 0, FACTOR * EPSILON * moves / scale.clamp_min(1e-300), 0.0)  # held: exact
    return (
        asked.values.steps.smallest
        + rtol * (size + floor)
        + rounding
        + asked.atol * cotangents.abs().sum(dim=1, keepdim=True)
    )


def _rtol_of(asked: Asked, rows: Tensor) -> Tensor:
    """The tolerance of each row (K × 1): a gradient with the digits of float32 alone is held to those.

    Where forward has no more of them: what only backward computes shorter is lost digits.
    """
    rtol = torch.full((len(rows), 1), asked.rtol, dtype=torch.float64)
    if not asked.values.steps.is_short:
        return rtol
    survive = survives_float32(rows) | ~rows.isfinite()
    return torch.where(survive.all(dim=1, keepdim=True), max(asked.rtol, OF_FLOAT32), rtol)


def differing(asked: Asked, mine: Tensor, theirs: Tensor, cotangents: Tensor) -> Tensor:
    """Entries in which they differ beyond tolerance; NaN of the witness is no claim (bool, K × N)."""
    bars = _bars(asked, theirs, cotangents, _rtol_of(asked, mine))
    apart = ~((mine - theirs).abs() <= bars) & (mine != theirs)
    return apart & ~(theirs.isnan() & mine.isfinite())


def _loses_digits(mine: Tensor, theirs: Tensor) -> bool:
    """Whether they differ by more than what is worth asking for rounding."""
    off = (mine - theirs).abs().nan_to_num(0.0)
    return bool((off > DIGITS_LOST * (theirs.abs() + theirs.abs().mean(dim=1, keepdim=True))).any())


DIGITS_LOST = 1e-11
"""A relative deviation from derived that is worth asking for rounding."""


@dataclass(frozen=True)
class Proof:
    """What the dot-product test said."""

    closed: bool
    confirms: bool
    """It closes for derived, too."""
    visible: float
    """The smallest relative error that would have been seen, where it closed."""
    differs: bool
    """They differ in some entry although both close: in a row far below the mean, or in lost digits."""
    difference: Difference | None
    """The last attempt."""
    gradients: Tensor
    """Aᵀu for its grad_outputs (K × N)."""


def proved(asked: Asked) -> Proof | Raised:
    """Prove the claim along one random direction; the same values confirm derived."""
    gradients, theirs = torch.zeros(0, len(asked.values.x)), None
    closed = confirms = differs = False
    held = asked.values.held
    made: Difference | None = None
    for made in differences(asked.values, asked.key, asked.values.direction(asked.key)):
        if not len(gradients):
            given = made.cotangents * made.sizes
            mine = asked.claim.rows(given)
            if isinstance(mine, Raised):
                return mine
            gradients, theirs = mine / made.sizes, asked.derived_rows(given)
            theirs = None if theirs is None else theirs / made.sizes
        confirms = confirms or (theirs is not None and _closes(made, theirs))
        closed = _closes(made, gradients) and not (held is not None and gradients[:, held].any())
        if closed:
            break
    if confirms:
        asked.trust.confirmed = True
    elif closed and made is not None and theirs is not None:
        asked.trust.refuted |= not made.closes(theirs, CLEARLY * made.limit)  # else they close alike
    if closed and confirms and theirs is not None and made is not None:
        differs = bool(differing(asked, gradients, theirs, made.cotangents).any()) or (
            asked.declared
            and not asked.hides
            and not asked.values.steps.is_short
            and _loses_digits(gradients, theirs)
        )
    visible = 0.0 if made is None else made.limit
    return Proof(closed, confirms, visible, differs, made, gradients)


def _closes(made: Difference, gradients: Tensor) -> bool:
    if made.is_flat:
        return bool((gradients[:, made.taken != 0] == 0).all())
    return made.closes(gradients, made.limit)
