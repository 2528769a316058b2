"""Declared values at which forward has no value, where others give one: nothing is verified there.

Of float64's measurements an entry of the output that is NaN or infinite is left out, as it has no derivative.
Where such an entry has a value at other declared values of the same inputs it is the values that decide, and
a pass over them would say more than was seen. One that has none at any of them is a masked one, say; and one
that has a value next to these has none at a single point, as a quotient at a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.model import Finding, Point
from gradverify.model.case import points_of
from gradverify.verifier.checks.dtypes.places import Declared, declared_values
from gradverify.verifier.checks.samples import exact_arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import Tensors

HINT = "Declare values at which forward has one (`range:`, `domain:`), or correct forward."

AS_DRAWN = "at typical values"

NEXT = 2.0**-12
"""How far values are moved, relative, to see whether they have none but at one point."""


def without_value(sample: Sample) -> Finding | None:
    """GV109 where forward is not finite at some declared values, and next to them, and finite at others.

    A dozen evaluations where a range is declared, else as many as there are typical draws. The values of what
    has no gradient (masks, indices) stay those of the sample.
    """
    asked = [(AS_DRAWN, sample.problem.primals), *_others(sample)]
    places = [(name, at, found) for name, at in asked if (found := _finite(sample, at)) is not None]
    if not places:
        return None
    ever = torch.stack([found for _, _, found in places]).any(dim=0)
    for name, at, found in places:
        lost = ever & ~found
        beside = _finite(sample, _beside(at)) if lost.any() else None
        if beside is not None and (lost & ~beside).any():
            said = (
                f"{name} forward has no value at {int(lost.sum())} of {lost.numel()} entries of its output "
            )
            said += "(nan or inf), as it has at other declared values: no gradient is verified there"
            return sample.finding("GV109", said, hint=HINT)
    return None


def _others(sample: Sample) -> Iterator[tuple[str, Tensors]]:
    subject, case, problem = sample.subject, sample.case, sample.problem
    drawn: list[tuple[str, Sequence[Argument]]] = []
    for point, draw in points_of(case, subject.settings.effort):
        again = exact_arguments_at(subject, case, point, draw) if point is Point.TYPICAL and draw else None
        drawn += [] if again is None or isinstance(again, Raised) else [(AS_DRAWN, again)]
    wide = (one for one in declared_values(sample, torch.float64) if one.point is Point.WIDE)
    drawn += [(_said(one), one.arguments) for one in wide]
    for name, arguments in drawn:
        by_name = {a.name: a.value for a in arguments if a.differentiable}
        if by_name.keys() == {*problem.input_names}:
            pairs = zip(problem.input_names, problem.primals, strict=True)
            yield name, tuple(by_name[own].to(x.dtype) for own, x in pairs)


def _said(declared: Declared) -> str:
    name = declared.name
    return name if name.startswith("near ") else f"over {name}" if name.startswith("the ") else f"at {name}"


def _beside(primals: Tensors) -> Tensors:
    """Other numbers, no two of them changed alike."""
    moved = []
    for number, x in enumerate(primals):
        shares = NEXT * torch.linspace(1.0, 2.0, x.numel(), dtype=torch.float64) * (-1) ** number
        moved.append(x.detach() * (1 + shares.reshape(x.shape).to(x.device, x.dtype)))
    return tuple(moved)


def _finite(sample: Sample, primals: Tensors) -> Tensor | None:
    """Whether each entry of the outputs is finite (bool, M); None where forward raises."""
    found = sample.problem.evaluate(primals)
    if isinstance(found, Raised):
        return None
    return torch.cat([value.detach().reshape(-1).isfinite() for value in found.value])
