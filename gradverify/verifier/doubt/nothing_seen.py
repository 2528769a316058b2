"""Whether a gradient that is right says anything: a loop of no rounds has a backward of any kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import mismatched, wrong_inputs
from gradverify.verifier.doubt.other_values import at_other_numbers
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs

NOTHING = "no output depends on any input, so that no gradient was seen"
"""What is said of a gradient that is zero, rightly, where something was invented."""

HIDDEN = "no output depends on {} here, and the gradient is wrong at other values of what was guessed"
"""What is said where the invented numbers hide what is wrong."""

REDRAWN = tuple(range(101, 909, 101))
"""Offsets from a case's seed to those of other masks, labels and dropped entries: one draw may hide all."""


def depends_on_nothing(sample: Sample) -> bool:
    """Whether the gradient at a sample where it is verified is zero in every entry.

    Not where other draws, or other sizes, have a gradient, which is right there.
    """
    if not _is_zero(sample):
        return False
    redrawn = [replace(sample.case, seed=sample.case.seed + offset) for offset in REDRAWN]
    for number, case in enumerate((*redrawn, *sample.subject.spares)):
        # Of integers every second draw has some twice.
        other = prepare(sample.subject, case, sample.point, (sample.draw + number) % 2)
        if isinstance(other, Sample) and not _is_zero(other) and mismatched(other) is False:
            return False
    return True


def hidden_inputs(sample: Sample, invented: Iterable[str]) -> tuple[str, ...]:
    """Inputs whose gradient is zero, rightly, and wrong at other values of the invented numbers.

    A window of less than one leaves attention its diagonal: no score counts, and none that is wrong is seen.
    """
    zero = _of_no_effect(sample)
    wrong: set[str] = set()
    for other in at_other_numbers(sample, invented) if zero else ():
        shown = zero - _of_no_effect(other)
        if shown:
            wrong |= shown & (wrong_inputs(other) or set())
    return tuple(name for name in sample.problem.input_names if name in wrong)


def _is_zero(sample: Sample) -> bool:
    return _of_no_effect(sample) == set(sample.problem.input_names)


def _of_no_effect(sample: Sample) -> set[str]:
    """Inputs to which a random grad_output gives zeros; none where backward raises."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    result = problem.pull_back(problem.primals, u)
    if isinstance(result, Raised):
        return set()
    given = zip(problem.input_names, result.value, strict=True)
    return {name for name, gradient in given if gradient is None or not gradient.any()}
