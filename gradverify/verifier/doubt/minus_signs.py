"""Whether a mismatch hangs on negative values: it is looked for again without the minus signs of an input.

A root, a logarithm, a rate or a variance is meant to be positive, and often neither says so nor refuses what
is not. An index that is read off a negative number counts from the end in forward, and not in backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import Neighbours, with_values, wrong_inputs


def needless_minus_signs(near: Neighbours, wrong: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """What was guessed, in words, of the first input without whose minus signs backward is right; else empty.

    Right in the gradient of `wrong`, or of any for None; `names` are the inputs that are tried.
    """
    for name in names:
        primal = near.sample.problem.primals[near.sample.problem.input_names.index(name)]
        if primal.is_complex() or not bool((primal < 0).any()):
            continue
        still = near.once(_wrong_without, name)
        if still is not None and not (still if wrong is None else wrong in still):
            return (f"that negative values of `{name}` are valid",)
    return ()


def _wrong_without(sample: Sample, name: str) -> frozenset[str] | None:
    """Inputs whose gradient is wrong where an input has lost its minus signs, as `wrong_inputs`.

    And what is before the point, where that is refused: a place between rows of a table must not be large.
    """
    positive = sample.problem.primals[sample.problem.input_names.index(name)].abs()
    wrong = wrong_inputs(with_values(sample, {name: positive}))
    return wrong_inputs(with_values(sample, {name: positive.frac()})) if wrong is None else wrong
