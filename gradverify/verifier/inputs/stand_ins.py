"""What stands for a function or a module of any arguments where it is not known what is passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

STAND_IN = "gradverify.verifier.inputs.stand_ins.StandIn"
"""What a spec calls the class by."""


class StandIn(nn.Module):
    """A smooth function of whatever it gets, without parameters.

    It keeps the shape of the largest tensor; with `returns` it gives so many different ones in a tuple.
    """

    def __init__(self, returns: int = 0) -> None:
        super().__init__()
        self._returns = returns

    def forward(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """The hyperbolic tangent of the largest tensor, plus a part of every other of its shape."""
        tensors = list(_floats([*given, *named.values()]))
        if not tensors:
            return 0.75
        first = max(range(len(tensors)), key=lambda k: tensors[k].numel())
        value = tensors[first].tanh()
        for place, other in enumerate(tensors):
            if place != first and other.shape == value.shape:
                value = value + (other * (0.5 + place)).sin() / 4
        return tuple(value * (1 + 0.5 * k) for k in range(self._returns)) if self._returns else value


def _floats(values: Any) -> Iterator[Tensor]:  # noqa: ANN401
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _floats(value.values() if isinstance(value, dict) else value)
