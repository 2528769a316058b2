"""Values that two inputs share: a maximum of two inputs has a kink where they are equal, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gradverify.model import TensorInput
from gradverify.model.case import EQUAL_INPUTS, KEEP_AWAY, MODERATE
from gradverify.verifier.inputs.values import DOMAINS, source_of

MOST_EQUAL = 256
"""Places at most at which two inputs are made equal: more of them show nothing more."""


def with_equal_values(
    specs: Sequence[TensorInput], values: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """New values, by name, of the inputs after the first, which have its shape and dtype.

    Each entry of the first is given to one of them, so that no three are equal: where two bounds are, nothing
    lies between them, and which of them counts is another question.
    """
    if not specs:
        return {}
    x = values[specs[0].name].reshape(-1)
    source = source_of(seed, "", "equal", EQUAL_INPUTS)
    places = source.sample(range(len(x)), min(len(x), MOST_EQUAL))
    made = {spec.name: values[spec.name].clone().reshape(-1) for spec in specs[1:]}
    for turn, place in enumerate(places):
        spec = specs[1 + turn % len(made)]
        if _is_valid(spec, x[place].item()):
            made[spec.name][place] = x[place]
    return {name: value.reshape(specs[0].shape) for name, value in made.items()}


def _is_valid(spec: TensorInput, value: complex) -> bool:
    """Whether a value, or each part of a complex one, may be one of this input."""
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    parts = (value.real, value.imag) if spec.dtype == "complex128" and value.imag else (value.real,)
    avoided = any(abs(part - point) < KEEP_AWAY * MODERATE for part in parts for point in spec.avoid)
    return all(low < part < high for part in parts) and not avoided
