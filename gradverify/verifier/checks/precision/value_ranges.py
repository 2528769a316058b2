"""Values at which short formats overflow or cancel: typical ones moved, where the spec allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.model import Case, Point, TensorInput, tensors_of
from gradverify.verifier.checks.samples import exact_arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument


@dataclass(frozen=True)
class ValueRange:
    """Typical values times a factor, plus a shift."""

    name: str
    factor: float = 1.0
    shift: float = 0.0

    def moves(self, argument: Argument, free: frozenset[str]) -> Tensor:
        """An argument's value in this range; one that the spec limits stays as it was drawn."""
        value: Tensor = argument.value
        if argument.name not in free and argument.in_list not in free:
            return value
        if self.factor == 1 and not self.shift:
            return value
        return value * self.factor + self.shift


AS_DRAWN = ValueRange("")

EXTREMES = (
    ValueRange("values times 60", factor=60.0),
    ValueRange("values plus 1000", shift=1000.0),
    ValueRange("values times 0.001", factor=1e-3),
)
"""Measured: overflow without a maximum shows at 60 times, cancellation in E[x^2] - E[x]^2 at plus 1000."""


def free_inputs(case: Case) -> frozenset[str]:
    """Names of the inputs that nothing in the spec limits; none where a hook draws them."""
    if case.hook:
        return frozenset()
    return frozenset(i.name for i in case.inputs if all(map(_is_free, tensors_of(i))) and tensors_of(i))


def declared_range(sample: Sample) -> Sequence[Argument] | None:
    """The arguments at the declared range of the spec, None where it declares none."""
    tensors = [t for i in sample.case.inputs for t in tensors_of(i)]
    if sample.case.hook or not any(t.range is not None and _is_floating(t) for t in tensors):
        return None
    drawn = exact_arguments_at(sample.subject, sample.case, Point.WIDE, 0)
    return None if isinstance(drawn, Raised) else drawn


def _is_free(spec: TensorInput) -> bool:
    drawn = spec.value is None and not spec.make and not spec.structure and not spec.avoid
    return drawn and _is_floating(spec) and spec.range is None and spec.domain == "real"


def _is_floating(spec: TensorInput) -> bool:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype.is_floating_point or dtype.is_complex
