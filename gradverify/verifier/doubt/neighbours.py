"""Whether a mismatch is there at neighbours of a sample: at other values of what was guessed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.numerics.proof import Certificate
from gradverify.verifier.numerics.verdict import Judged

_Answer = TypeVar("_Answer")

LARGEST_JACOBIAN = 200_000
"""Entries of a Jacobian that is built to see whether anything in it is wrong; of a larger one, some rows
are. Doubling each of four sizes makes a Jacobian 256 times as large."""


@dataclass(frozen=True)
class Neighbours:
    """A sample, and what was measured beside it: each question is answered once, whoever asks."""

    sample: Sample
    _answers: dict[object, Any] = field(default_factory=dict)

    def once(self, measure: Callable[..., _Answer], *arguments: Hashable, **named: Hashable) -> _Answer:
        """What `measure` gives of the sample."""
        key = measure, arguments, tuple(named.items())
        if key not in self._answers:
            self._answers[key] = measure(self.sample, *arguments, **named)
        answer: _Answer = self._answers[key]
        return answer


def with_values(sample: Sample, values: Mapping[str, Any]) -> Sample:
    """The sample with other values of some arguments."""
    arguments = tuple(
        replace(a, value=values[a.name]) if a.name in values else a for a in sample.problem.arguments
    )
    return replace(sample, arguments=arguments, problem=replace(sample.problem, arguments=arguments))


def mismatched(sample: Sample, name: str | None = None, *, second_order: bool = False) -> bool | None:
    """Whether backward, or its own, differs from the derivative at this sample, for one input or for any.

    None where forward or backward refuses the inputs.
    """
    wrong = wrong_inputs(sample, second_order=second_order)
    return wrong if wrong is None else bool(wrong if name is None else name in wrong)


def wrong_inputs(sample: Sample, *, second_order: bool = False) -> frozenset[str] | None:
    """Inputs whose gradient, or its own, differs from the derivative at this sample.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if isinstance(judged, Certificate):
        return frozenset()
    if not isinstance(judged, Judged):
        return None
    wrong = judged.comparison.wrong | judged.comparison.nonfinite
    blocks = zip(judged.inputs.blocks, problem.input_names, strict=True)
    found = frozenset(name for block, name in blocks if bool(wrong[:, block.start : block.stop].any()))
    return found if second_order else found | ignoring_grad_output(sample.problem)


def one_like(x: Tensor) -> Tensor:
    """The identity for square matrices, ones for what is none."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if is_square(x) else torch.ones_like(x)


def is_square(x: Tensor) -> bool:
    """Whether the last two dimensions are those of a square matrix."""
    return x.dim() > 1 and x.shape[-1] == x.shape[-2]
