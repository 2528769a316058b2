"""Valid values on either side of the numbers that a target's source compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.cases.inputs import DOMAIN_ENDS
from gradverify.model import Case, LiteralInput, TensorInput
from gradverify.model.case import KEEP_AWAY, is_floating

BESIDE = 1 / 64
"""Relative distance from a threshold: beyond the steps of a numerical derivative, 3 times 2^-10."""

LEAST = 1e-6
"""Magnitude of a threshold from which on: smaller ones guard a division; no value drawn is smaller."""

MOST = 1e4
"""Magnitude of a threshold up to which values beside it are drawn where no range is declared: as far as
undeclared values go."""

MOST_VALUES = 8
"""Of one input: two beside each of four numbers."""


def with_values_beside(cases: Sequence[Case], thresholds: Sequence[float] | None) -> tuple[Case, ...]:
    """The cases; the first of each combination of options has such values.

    The numbers that are passed beside tensors come last: any of them may be what values are held against.
    """
    if thresholds is None:
        return tuple(cases)
    seen, made = set(), []
    for case in cases:
        first = not case.hook and case.options not in seen
        seen.add(case.options)
        numbers = dict.fromkeys((*thresholds, *_passed(case))) if first else ()
        inputs = (_with_values(i, [*numbers]) if isinstance(i, TensorInput) else i for i in case.inputs)
        made.append(replace(case, inputs=tuple(inputs)) if numbers else case)
    return tuple(made)


def _passed(case: Case) -> Iterator[float]:
    """Numbers among the inputs that need not be a count, nor an index."""
    values = (i.value for i in case.inputs if isinstance(i, LiteralInput))
    yield from (value for value in values if isinstance(value, float) and value)


def _with_values(spec: TensorInput, thresholds: Sequence[float]) -> TensorInput:
    given = spec.value is not None or spec.structure or spec.make or spec.distinct
    if given or not is_floating(spec):
        return spec
    return replace(spec, beside=tuple(dict.fromkeys(_values(spec, thresholds)))[:MOST_VALUES])


def _values(spec: TensorInput, thresholds: Sequence[float]) -> Iterator[float]:
    ends = DOMAIN_ENDS.get(spec.domain, (None, None))
    low, high = spec.range or (-MOST if ends[0] is None else ends[0], MOST if ends[1] is None else ends[1])
    for number in thresholds:
        # What is held against it may be a magnitude.
        at = number if low < number < high else -number
        for share in (1 - BESIDE, 1 + BESIDE):
            value = float(f"{at * share:.4g}")
            near = any(abs(value - point) < KEEP_AWAY * min(1.0, abs(point) or 1.0) for point in spec.avoid)
            if low < value < high and abs(number) >= LEAST and not near:
                yield value
