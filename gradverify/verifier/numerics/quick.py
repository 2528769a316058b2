"""The short proof: mostly two evaluations and two backwards, for who asks for no more than tolerances.

It is the certificate (`certificate.py`): for a tangent v and a cotangent u, uᵀ(J v) from forward must be
(Aᵀu)·v from backward. Here the value at x is known already, from the call whose graph is asked (`trial.py`
has the differences). A drop-in asks this of thousands of small problems, where our own work would cost as
much as the function: operations on tensors (1 to 3 µs each, whatever their size) are few, and what follows
from shapes alone is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.central import difference, value_at, weigh
from gradverify.verifier.numerics.certificate import ALONE, FAR, LEVELS, MAGNITUDES
from gradverify.verifier.numerics.flat import Layout, vector_of
from gradverify.verifier.numerics.problem import Gradients
from gradverify.verifier.numerics.quick_probes import Moves, Probe, moves_of, probes_of
from gradverify.verifier.numerics.rounding import OF_ONE
from gradverify.verifier.numerics.trial import TWO_VALUES, Asked, Trial

STEPS = ((2.0**-32, 2.0**-17), (2.0**-36, 2.0**-15), (2.0**-39, 2.0**-14), (0.0, 2.0**-13))
"""What has to be seen of a residual, and the step for as much or more. At 2^-17 truncation by two values,
h²/6, and the rounding of ordinary values, 2^-53/h, are alike: 2^-36. With sums, and rows whose derivative is
small beside f, rounding is eight times that, and for 10^5 entries a hundred times. What is finer drowns in
it, and takes a longer step; truncation is left to a third value there, which makes it h³/6. No longer than
these, since a step over a kink closes nothing. Measured on sums, products and softmax of 10^3 to 10^5
entries, and on the larger samples of PyTorch's operator database."""

STAIR = 2.0**-5
"""Step of the question put to a forward that is flat: two steps of bfloat16 at least, half a step of `round`
at most for values up to 10. Where it is flat on one side as far as that, it is flat there and no rounding."""


def proves(asked: Asked, rtol: float, atol: float) -> bool:
    """Whether backward is the derivative of forward, to within the tolerances, and gives it each time.

    `rtol` is the relative error in the gradient of any one input that must be visible, except where it is
    below `atol`. False says nothing but that the proof did not close. Two forwards; up to eight where two are
    too rough (`trial.py`), up to ten to show that forward is flat or even. Through the one graph, a backward
    for each of two magnitudes, or, where there are several outputs, one for all, one for each and one again.
    Inputs whose share of the derivative is too small to be seen among the others are probed once more, alone.
    All of it twice where an entry is not finite.
    """
    primals = asked.primals
    inputs = Layout.of(primals)
    wanted = rtol / math.sqrt(asked.outputs.size * inputs.size)
    moves = moves_of(primals, inputs, next(step for least, step in STEPS if wanted >= least))
    # A copy, before forward is called again: it may return the same memory every time.
    here = asked.outputs.flatten(asked.here)
    if _proves_along(moves, asked, here, rtol, atol):
        return True
    held = moves.held()
    return held is not None and _proves_along(held, asked, here, rtol, atol) and _holds(held, asked)


def _proves_along(moves: Moves, asked: Asked, here: Tensor, rtol: float, atol: float) -> bool:
    """The same along some steps."""
    inputs = moves.inputs
    fine, coarse = LEVELS
    wanted = rtol / math.sqrt(asked.outputs.size * inputs.size)
    trial = _tried(asked, moves, here, max(fine.allowed, min(coarse.allowed, wanted)))
    if trial is None:
        return False
    if trial.weighed.flat:
        if _flat_on_one_side(trial):
            return _pulls_back_nothing(trial, atol)
        moving = sum(map(bool, inputs.lengths))
        if moving < 2:
            return moving == 1 and _is_even(trial) and _pulls_back_nothing(trial, atol)
        return all(_closes_by_itself(trial, k, rtol, atol) for k, n in enumerate(inputs.lengths) if n)
    return trial.weighed.sees(trial.allowed, rtol, lambda: moves.noticed(atol)) and _closes(trial, rtol, atol)


def _holds(moves: Moves, asked: Asked) -> bool:
    """Whether backward gives exact zeros to entries that are not finite: they stay so however far they go."""
    probe = probes_of(asked.outputs, ALONE, 1.0)[0]
    result = asked.back_each([probe.shaped(probe.unweighed(), asked.outputs)])
    if isinstance(result, Raised):
        return False
    (gradients,) = result.value
    return all(
        g is None or not vector_of(g, block)[~x.reshape(-1).isfinite()].any()
        for g, x, block in zip(gradients, moves.here, moves.inputs.blocks, strict=True)
    )


def is_constant(asked: Asked) -> bool:
    """Whether forward stays what it is, beside x and further out on one side at least. 4 evaluations."""
    inputs = Layout.of(asked.primals)
    moves = moves_of(asked.primals, inputs, STEPS[0][1])
    trial = _tried(asked, moves, asked.outputs.flatten(asked.here), 0.0)
    return trial is not None and trial.weighed.flat and _flat_on_one_side(trial)


def _closes(trial: Trial, rtol: float, atol: float) -> bool:
    """Whether backward agrees with what forward has along all inputs, and along each that is faint there."""
    closed = _closed(trial)
    if closed is None:
        return False
    closing, shares, gradients = closed
    lengths = trial.moves.inputs.lengths
    faint = [k for k, n in enumerate(lengths) if n and abs(shares[k]) < trial.allowed / rtol]
    if not faint or sum(map(bool, lengths)) == 1:
        return True
    zero = [k for k in faint if all(_is_zero(given[k]) for given in gradients)]
    if zero and _stands_still(closing, zero):
        faint = [k for k in faint if k not in zero]
    return all(_closes_alone(closing, k, gradients, rtol, atol) for k in faint)


def _stands_still(whole: Trial, numbers: Sequence[int]) -> bool:
    """Whether forward stays what it is at x, to the last bit, where some inputs move at once: as if alone.

    One value says so, being compared with that at x: an even forward has another on either side.
    """
    value = value_at(whole.asked, whole.moves.only(numbers).point(1))
    return value is not None and torch.equal(value, whole.here)


def _closed(trial: Trial) -> tuple[Trial, list[float], list[Gradients]] | None:
    """By how many values it closed, what each input has of it, and all gradients; None where it did not."""
    probes = probes_of(trial.asked.outputs, MAGNITUDES, trial.weighed.unit)
    lines = [probe.weighed(trial.weighed) for probe in probes]
    expected = trial.expected(probes[0], lines[0])  # before user code could write into a grad_output
    gradients = trial.pull_back(probes, lines)
    del lines  # vectors as long as the outputs, as many as there are outputs
    if gradients is None:
        return None
    same = _same_again(probes, gradients)
    closing, shares = trial, trial.shares(probes[0], expected, gradients[0])
    if shares is None or not (same or trial.sums(probes[1:], gradients[1:])):
        finer = trial.by_more_values(probes, gradients)
        if finer is None:
            return None
        closing, shares = finer
    if not same and not _repeats(trial, probes[0], probes[0].weighed(trial.weighed), gradients[0]):
        return None
    return closing, shares, gradients


def _same_again(probes: Sequence[Probe], gradients: Sequence[Gradients]) -> bool:
    """Whether there is one output, and backward gives the same at another magnitude, to the last bit.

    Both are powers of two: no product rounds differently, and what closes for one closes for the other.
    """
    if len(gradients) != 2 or probes[1].only is not None:
        return False
    first, other = gradients
    return _identical(first, other, MAGNITUDES[1] / MAGNITUDES[0])


def _repeats(trial: Trial, probe: Probe, line: Tensor, expected: Gradients) -> bool:
    """Whether backward gives the same when it is asked again."""
    again = trial.pull_back([probe], [line])
    return again is not None and _identical(expected, again[0], 1.0)


def _closes_alone(
    whole: Trial, number: int, gradients: Sequence[Gradients], rtol: float, atol: float
) -> bool:
    """The same proof with one input moving alone, for which `gradients` are known to other grad_outputs.

    Where these are exactly zero for random ones, they are for every one: backward need not be asked.
    """
    zero = all(_is_zero(given[number]) for given in gradients)
    trial = _tried(whole.asked, whole.moves.only((number,)), whole.here, whole.allowed)
    if trial is None:
        return False
    if trial.weighed.flat:
        return zero or _is_flat_beside(trial, number, atol)
    probes = probes_of(trial.asked.outputs, ALONE, trial.weighed.unit)
    nothing: Gradients = (None,) * len(trial.moves.steps)
    lines = [probe.weighed(trial.weighed) for probe in probes]
    found = [nothing for _ in probes] if zero else trial.pull_back(probes, lines)
    if found is None or not trial.weighed.sees(trial.allowed, rtol, lambda: whole.moves.noticed(atol)):
        return False
    return bool(trial.sums(probes, found) or trial.by_more_values(probes, found))


def _closes_by_itself(whole: Trial, number: int, rtol: float, atol: float) -> bool:
    """The whole proof with one input moving alone.

    For where all together make forward stand still: one that it is compared with, a label, moves all away.
    """
    trial = _tried(whole.asked, whole.moves.only((number,)), whole.here, whole.allowed)
    if trial is None:
        return False
    if trial.weighed.flat:
        return _is_flat_beside(trial, number, atol)
    sees = trial.weighed.sees(trial.allowed, rtol, lambda: whole.moves.noticed(atol))
    return sees and _closed(trial) is not None


def _tried(asked: Asked, moves: Moves, here: Tensor, allowed: float) -> Trial | None:
    """What forward has along the steps; None where it raises or is not finite there."""
    found = difference(asked, moves.point, 1)
    weighed = None if found is None else weigh(asked.outputs, *found, TWO_VALUES * moves.length)
    if found is None or weighed is None:
        return None
    return Trial(asked, moves, allowed, weighed, here, found[1], found[0], TWO_VALUES)


def _flat_on_one_side(trial: Trial) -> bool:
    """Whether no row of f moves by a long step both ways: each has its value at x on one side at least.

    A jump on the other side is a stair.
    """
    far = trial.moves.longer(STAIR)
    moved: Tensor | None = None
    for k in (1, -1):
        value = value_at(trial.asked, far.point(k))
        if value is None:
            return False
        moved = value != trial.here if moved is None else moved & (value != trial.here)
        if not moved.any():
            return True
    return False


def _is_even(trial: Trial) -> bool:
    """Whether f has the same values on either side of x, at twice the step and far away, as |x| has at zero.

    Then its central differences are zero, and a gradient of zeros lies between its two slopes.
    """
    far = trial.moves.longer(FAR.step)
    for moves, k in ((trial.moves, 2), (far, 1), (far, 2)):
        found = difference(trial.asked, moves.point, k)
        if found is None or found[0].any():
            return False
    return True


def _is_flat_beside(trial: Trial, number: int, atol: float) -> bool:
    """Whether forward stays what it is beside x as an input moves, and backward says so.

    What it is beside x is what a derivative can tell: at x itself it may be another.
    """
    beside = trial._replace(here=trial.ahead.clone())
    return _flat_on_one_side(beside) and _pulls_back_nothing(trial, atol, number)


def _pulls_back_nothing(trial: Trial, atol: float, number: int | None = None) -> bool:
    """Whether backward gives zeros, for every grad_output; to one input, where `number` says which.

    To the last bit, or what rounding leaves where numbers like one cancel, if that is below `atol`; and the
    same each time.
    """
    probes = probes_of(trial.asked.outputs, MAGNITUDES, 1.0)
    gradients = trial.pull_back(probes, [probe.unweighed() for probe in probes])
    if gradients is None:
        return False
    told = [given if number is None else given[number : number + 1] for given in gradients]
    if all(_is_zero(g) for given in told for g in given):
        return True
    least = min(atol, OF_ONE)
    for probe, given in zip(probes, told, strict=True):
        size = probe.scale / math.sqrt(probe.rows.stop - probe.rows.start)
        if not all(g is None or bool((g.abs() <= least * size).all()) for g in given):
            return False
    return _same_again(probes, told) or _repeats(trial, probes[0], probes[0].unweighed(), gradients[0])


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.count_nonzero().item()


def _identical(actual: Gradients, expected: Gradients, factor: float) -> bool:
    """Whether `expected` is `factor` times `actual`, to the last bit; None agrees with None."""
    for a, e in zip(actual, expected, strict=True):
        if a is None or e is None:
            if a is not e:
                return False
        elif not torch.equal(a * factor, e):
            return False
    return True
