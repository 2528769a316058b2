"""A target in 16 bits against itself in float32: where there is neither float64 nor a composite.

What is rounded too often shows. A formula that is wrong in both dtypes does not: that is left to the slope of
forward in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.checks.automatic_composite import Composite
from gradverify.verifier.checks.precision.judging import Truth
from gradverify.verifier.checks.precision.native import NativeCall, values_of
from gradverify.verifier.checks.precision.scatter import Scatter, Source
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import returned_tensors

OWN_FLOAT32 = "its own float32"


@dataclass(frozen=True)
class OwnFloat32:
    """The truth is what the target gives in float32 at the same rounded values."""

    name: str = OWN_FLOAT32

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The values in float32; the noise inside is not seen, what moved inputs do is."""
        problem = replace(call.exact, function=_through_float32(call.exact.function))
        values = values_of(problem, call.exact_cotangents)
        if isinstance(values, Raised):
            return f"in float32 it raises {values.error.type}"
        return Truth(values, (Scatter(Source(self.name, problem, call.exact_cotangents, seed)),))

    def plain(self, call: NativeCall) -> Composite | None:  # noqa: ARG002 - the protocol's signature
        """There is none."""
        return None


def _through_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of float64 tensors that computes in float32."""

    def called(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments and result
        given = [_cast(a, torch.float64, torch.float32) for a in arguments]
        return tuple(_cast(r, torch.float32, torch.float64) for r in returned_tensors(function(*given)))

    return called


def _cast(value: Any, of: torch.dtype, to: torch.dtype) -> Any:  # noqa: ANN401 - any argument
    return value.to(to) if isinstance(value, Tensor) and value.dtype is of else value
