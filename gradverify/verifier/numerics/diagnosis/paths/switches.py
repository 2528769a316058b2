"""Functions with switches in their backward: a use of a value cut, another derivative let through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.formulas import FUNCTIONS
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge, OnePass

FORMULAS = {"1": torch.ones_like, **dict(FUNCTIONS)}
"""Local derivatives by how they are written; `{}` stands for the value."""


@dataclass
class Switches:
    """What is altered in the next backward."""

    dropped: frozenset[Edge | OnePass] = frozenset()
    instead: Change | None = None
    passes: dict[Edge, int] = field(default_factory=dict)
    """How often forward has come by each use."""

    def is_cut(self, edge: Edge, number: int) -> bool:
        """Whether a pass of a use has no gradient."""
        if not self.dropped:
            return False
        last = self.passes.get(edge, 1) - 1
        return (
            edge in self.dropped
            or (number > 0 and OnePass(edge, "first") in self.dropped)
            or (number < last and OnePass(edge, "last") in self.dropped)
            or (number == 0 and OnePass(edge, "all but the first") in self.dropped)
            or (number == last and OnePass(edge, "all but the last") in self.dropped)
        )


class Tap(torch.autograd.Function):
    """One use of a value, whose gradient may be cut."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, switches: Switches, edge: Edge) -> Tensor:  # noqa: ANN401
        """The value."""
        ctx.switches, ctx.edge = switches, edge
        ctx.number = switches.passes.get(edge, 0)
        switches.passes[edge] = ctx.number + 1
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:  # noqa: ANN401
        """Its gradient, or none where the use is cut."""
        return None if ctx.switches.is_cut(ctx.edge, ctx.number) else gradient, None, None


class Carried(torch.autograd.Function):
    """A value that has been computed otherwise; its gradient is the tensor's."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:  # noqa: ANN401
        """The value."""
        del ctx, tensor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """The gradient as it is."""
        del ctx
        return gradient, None


class Conjugated(torch.autograd.Function):
    """A value whose gradient is conjugated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ANN401
        """The value."""
        del ctx
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401
        """The conjugate of the gradient."""
        del ctx
        return gradient.conj().resolve_conj()


class Join(torch.autograd.Function):
    """The result of an operation; gradients also go through other derivatives of it, when switched on."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        result: Tensor,
        switches: Switches,
        changes: tuple[Change, ...],
        *others: Tensor,
    ) -> Tensor:
        """The result."""
        del others
        # Looked up in every backward, of which there are many with another change each.
        ctx.switches, ctx.places = switches, {change: place for place, change in enumerate(changes)}
        ctx.count = len(changes)
        # A copy: forward may write into its result, which views of a Function refuse.
        return result.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The result's gradient; also for the change that is switched on."""
        others: list[Tensor | None] = [None] * ctx.count
        place = ctx.places.get(ctx.switches.instead)
        if place is not None:
            others[place] = gradient
        return gradient, None, None, *others


class Weighted(torch.autograd.Function):
    """A value whose gradient is multiplied by a formula of it, or of the operation's result."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, result: Tensor, switches: Switches, edge: Edge) -> Tensor:  # noqa: ANN401
        """The value."""
        ctx.switches, ctx.edge = switches, edge
        ctx.value, ctx.result = value.detach(), result.detach()
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:  # noqa: ANN401
        """The gradient times the formula that is switched on."""
        change = ctx.switches.instead
        if change is None or change.edge != ctx.edge or change.kind != "formula":
            return None, None, None, None
        of = ctx.result if change.of_result else ctx.value
        return gradient * FORMULAS[change.name](of), None, None, None
