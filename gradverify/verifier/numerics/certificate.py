"""The certificate: a backward verified by a few random probes, whatever the size of its Jacobian.

For a tangent v and a cotangent u, uᵀ(J v) from forward alone must equal (Aᵀu)·v from backward. J v is a
central difference D (`central.py`) along one direction in which every input entry moves by its own size, and
u weighs each row by the inverse of |D_i|, so that every row counts by its *relative* error. No error estimate
is needed: a residual below the threshold is itself the proof, because a wrong gradient and an error of the
difference cancel with a probability of nothing. Where it does not close, it is tried with a longer step
(noise) or a shorter one (kinks), some rows at a time (`straddled.py`), and with each input moving alone: one
that makes forward jump says nothing of the others. Where that does not close, nothing is said, and the whole
Jacobian is measured instead.

(Random probing of a vector-Jacobian product is the dot-product test of adjoint codes: Claerbout, *Earth
Soundings Analysis*, 1992, ch. 5.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from gradverify.verifier.numerics.central import DAMPING, CentralDifference, Level
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.functionals import (
    ALONE,
    KEPT_ROWS,
    MAGNITUDES,
    BackEach,
    Functionals,
    ProofPoint,
    noticed,
    pull_back,
)
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.straddled import faint_after_turns

__all__ = ["ALONE", "FAR", "KEPT_ROWS", "LEVELS", "MAGNITUDES", "Certificate", "certify", "noticed"]

LEVELS = (Level(2.0**-12, 2.0**-33), Level(2.0**-19, 2.0**-28))
"""The first resolves smooth functions, the second straddles fewer kinks. Measured on PyTorch's operator
database."""

LONG_STEP = 2.0**-8
"""Step for what is smooth at the first level and does not close: 16 times less rounding, and a truncation,
h^4 / 30, that is still half of what the first level allows."""

UNDAMPED = 4096
"""Entries of a Jacobian up to which every row counts by its own size alone, be it 1e-30 of the others': where
that does not close, this many entries are quickly measured."""

SHARE = 2.0**-14
"""Share of atol that is still seen in an entry where that is asked for instead of relative errors: in rows
that are zero but for rounding, as gradients beside a saturated softmax are, these are all that is seen."""

CONTRADICTION = 4.0
"""What two steps leave, in units of their difference, up to which that says nothing of the gradient: rounding
or truncation of the one is so many times that of the other, and more at other steps."""

FAR = Level(2.0**-4, 0.0)
"""A forward that is flat is asked once more at this step, in units of each entry's size: one that rounds to
bfloat16 (2^-8) inside looks flat at a smaller one."""


@dataclass(frozen=True)
class Certificate:
    """Backward is the derivative at this point, by a proof that closed."""

    visible: float
    """The relative error of a typical entry that would have kept the proof from closing."""


@dataclass(frozen=True)
class _Tried:
    """What came of one direction."""

    level: Level | None = None
    """At which it closed; None where it did not."""
    shares: tuple[float, ...] = ()
    """What each input has of the derivative then, for rows of weight one."""
    flat: CentralDifference | None = None
    """Forward did not move at all."""
    refused: bool = False
    """Backward raises, or gives a gradient to what cannot move."""
    open: CentralDifference | None = None
    """What forward has at the first level, where none closed."""
    within: ProofPoint | None = None
    """Where what did not close may have been rounding: the point at which small rows count by more."""
    contradicts: bool = False
    """None closed, and forward itself has another derivative at each of two steps."""


def certify(
    problem: Problem,
    *,
    rtol: float,
    key: int = 0,
    back_each: BackEach | None = None,
    atol: float | None = None,
    damping: float = DAMPING,
) -> Certificate | None:
    """Try to prove a problem's backward with probes; None where the proof does not close.

    `rtol` is the relative error in the gradient of any one input that must be visible. `key` chooses the
    probes. `back_each` goes back through a graph that is there already. With an `atol` it tries for what rtol
    asks for and no more, and need not see what in a noisy row is below `atol`. A row counts by no less than
    the mean of its output's over `damping`. At most 8
    forwards (16 with an `atol`, where two steps contradict each other) and one graph with a backward for each
    grad_output; inputs whose share of
    the derivative is too small to be seen among the others are probed once more, alone. Where that does not
    close, at most 20 more, and as many for each input.
    """
    inputs = Layout.of(problem.primals)
    if not inputs.size or not problem.outputs.size:
        return None
    x = inputs.flatten(problem.primals)
    point = ProofPoint(
        problem,
        inputs,
        x,
        tangent_of(x, inputs, key, short=atol is None),
        key,
        back_each,
        rtol,
        atol,
        damping=damping,
    )
    tried = _tried(point, point.tangent, MAGNITUDES)
    point = tried.within or point
    if tried.flat is not None and _is_flat(point, tried.flat):
        return _certificate(point, _levels(point)[0])
    if tried.refused:
        return None
    if tried.level is not None:
        faint = _faint(point, tried.shares, tried.level.allowed / rtol)
        proven = all(_closes_alone(point, number) for number in faint)
        return _certificate(point, tried.level) if proven else None
    smooth = tried.open is not None and tried.open.smooth
    return _certificate(point, _levels(point)[1]) if _closes_in_parts(point, smooth=smooth) else None


def damping_of(problem: Problem) -> float:
    """The damping at which a proof sees a wrong tail of a function whose values span many decades."""
    few = problem.outputs.size * Layout.of(problem.primals).size <= UNDAMPED
    return math.inf if few else DAMPING


def _within(point: ProofPoint) -> ProofPoint:
    """The same point, where a row counts at least so much that a small share of atol shows in it."""
    seen = SHARE * noticed(point.atol, point.tangent) if point.atol else 0.0
    return replace(point, least=seen / _levels(point)[0].allowed)


def _closes_in_parts(point: ProofPoint, *, smooth: bool) -> bool:
    """Whether it closes for some rows at a time, or for each input by itself.

    Entries near zero move by no more than they do for everyone: fewer of them cross something. Where forward
    is `smooth`, no row does; but one input may have moved all away from what forward is at x.
    """
    point = replace(point, tangent=tangent_of(point.x, point.inputs, point.key))
    several = len(point.moving) > 1
    faint = None if smooth else faint_after_turns(point, point.tangent)
    if faint is not None and all(_closes_alone(point, number) for number in faint if several):
        return True
    return several and all(_closes_alone(point, number, MAGNITUDES) for number in point.moving)


def _may_be_rounding(found: CentralDifference, within: ProofPoint) -> bool:
    """Whether what did not close may be rounding in rows that are small for who asks for tolerances.

    Where forward is smooth in every row, what does not close is the gradient.
    """
    return within.least > 0 and not found.smooth and found.unbroken(within.least)


def _certificate(point: ProofPoint, level: Level) -> Certificate:
    return Certificate(level.allowed * point.typical)


def _levels(point: ProofPoint) -> tuple[Level, Level]:
    """How forward is asked first, and where it bends.

    They allow what an error of rtol in one typical entry makes, where that is more and is all that is asked.
    """
    fine, coarse = LEVELS
    if point.atol is None:
        return fine, coarse
    return Level(fine.step, max(fine.allowed, min(coarse.allowed, point.rtol / point.typical))), coarse


def _tried(point: ProofPoint, tangent: Tensor, magnitudes: tuple[float, ...]) -> _Tried:
    """The proof along one direction, at the first level and at the one that suits forward there.

    Where these contradict each other, once more with small rows counting by more.
    """
    tried = _tried_once(point, tangent, magnitudes)
    if not tried.contradicts or tried.within is not None:
        return tried
    within = _within(point)
    again = _tried_once(within, tangent, magnitudes) if within.least else tried
    return replace(again, within=within) if again.level is not None else tried


def _tried_once(point: ProofPoint, tangent: Tensor, magnitudes: tuple[float, ...]) -> _Tried:
    """The same. Where what the first level leaves may be rounding, small rows count by more then."""
    level, coarse = _levels(point)
    first = found = point.along(tangent, level)
    functionals: Functionals | None = None
    within: ProofPoint | None = None
    left: list[list[float]] = []
    last = False
    while found is not None and not found.weighed.flat:
        functionals = functionals or pull_back(point, found.weighed, magnitudes)
        if functionals is None or (found.held and not functionals.vanish_where(point.unmoved)):
            return _Tried(refused=True, within=within)
        shares = functionals.close(point.inputs, found.step, found.weighed, level.allowed)
        if shares is not None and point.visible(found.weighed, level):
            return _Tried(level, tuple(shares), within=within)
        if shares is None:
            left.append(functionals.left(point.inputs, found.step, found.weighed))
        if last:
            break
        if within is None and _may_be_rounding(found, _within(point)):
            point = within = _within(point)
            found, functionals = replace(found, weighed=found.weighed.at_least(within.least)), None
        else:
            level, last = Level(LONG_STEP, level.allowed) if found.smooth else coarse, True
            found = point.along(tangent, level)
    flat = found if found is not None and found.weighed.flat else None
    contradicts = within is None and len(left) > 1 and _contradict(left[0], left[1], level.allowed)
    return _Tried(flat=flat, open=None if flat is not None else first, within=within, contradicts=contradicts)


def _contradict(left: list[float], other: list[float], allowed: float) -> bool:
    """Whether what two steps leave differs by as much as there is: a gradient that is off leaves the same."""
    return all(
        max(abs(a), abs(b)) <= max(allowed, CONTRADICTION * abs(a - b))
        for a, b in zip(left, other, strict=True)
    )


def _faint(point: ProofPoint, shares: tuple[float, ...], least: float) -> list[int]:
    """Inputs, by number, whose gradient could be off by rtol without being seen among the others."""
    moving = point.moving
    return [number for number in moving if abs(shares[number]) < least] if len(moving) > 1 else []


def _closes_alone(point: ProofPoint, number: int, magnitudes: tuple[float, ...] = ALONE) -> bool:
    """The same proof with one input moving alone."""
    tangent = point.alone(number)
    tried = _tried(point, tangent, magnitudes)
    if tried.flat is not None:
        return _is_flat_alone(point, tangent, tried.flat, number)
    if tried.level is not None or tried.refused:
        return not tried.refused
    if tried.open is not None and tried.open.smooth:
        return False  # what does not close is the gradient
    return faint_after_turns(point, tangent, magnitudes) is not None


def _is_flat(point: ProofPoint, near: CentralDifference) -> bool:
    """Whether forward is constant to the last bit far around, and backward says so: zeros, for every u."""
    far = point.along(point.tangent, FAR)
    constant = far is not None and far.weighed.flat
    functionals = pull_back(point, near.weighed) if constant else None
    return functionals is not None and functionals.vanish()


def _is_flat_alone(point: ProofPoint, tangent: Tensor, near: CentralDifference, number: int) -> bool:
    """Whether forward stays what it is beside an input, on one side of each row, and its gradient is zero.

    Beside it, for an input may have a value that makes forward jump at this point alone (a label that is
    compared): what it is on either side is what a derivative can tell. Zero to the last bit, or to within
    `atol` where that is all that is asked: what cancels in forward may be rounding in backward.
    """
    functionals = pull_back(point, near.weighed, ALONE)
    if functionals is None or not functionals.vanish(number, point.atol or 0.0):
        return False
    below = SHARE * noticed(point.atol, tangent) if point.atol else 0.0
    flat = point.flat_beside(tangent, LEVELS[0].step, below)
    return flat is not None and bool(flat.all())
