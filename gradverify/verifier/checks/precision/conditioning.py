"""How far a value may be off by the conditioning of what it computes, whoever computes it.

What a formula's own operations round away explains what they lose, and excuses it only up to a cap: half of
the dtype's digits of the values beside it, what rounded inputs do to the truth, and what vanishes beside
numbers of order one. Beyond it the formula is unstable (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2002: forward error against condition).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.verifier.checks.precision.native import NativeCall
from gradverify.verifier.numerics.compare import UNSEEN
from gradverify.verifier.numerics.precision.formats import Format, as_real

MOVES = 64.0
"""Standard deviations of what rounded inputs do to the truth that are no mistake."""


def allowed_error(truth: Tensor, absorbed: Tensor, moved: Sequence[Tensor], form: Format) -> Tensor:
    """What is no mistake of any formula (absolute, the truth's shape); infinite or NaN where unknown.

    `moved` are the values in float64 at inputs that err by a rounding each; none leaves their part out.
    """
    allowed: Tensor = form.unit**0.5 * typical(truth) + absorbed + UNSEEN * _smallest(form)
    if moved:
        allowed = allowed + MOVES * torch.stack([run - truth for run in moved]).square().mean(dim=0).sqrt()
    return allowed


def typical(truth: Tensor) -> Tensor:
    """The size of each entry with those of its row and of the whole (the truth's shape)."""
    size = truth.abs() + truth.square().mean().sqrt()
    return size + truth.square().mean(dim=-1, keepdim=True).sqrt() if truth.dim() else size


def absorbed_by_ones(call: NativeCall, values: Sequence[Tensor], reach: float) -> list[Tensor]:
    """What vanishes beside numbers of order one, for each value of a call (absolute, its shape).

    `1 + erf(x)` is 0 below -6, and `1 - y * y` where tanh is saturated: right formulas are so, and no loss
    is large beside the outputs that they have elsewhere. `reach` is the largest magnitude that inputs may
    have: where they are all tiny, so are the numbers that count. Grad_outputs are of order one.
    """
    outputs = len(call.problem.output_positions)
    largest = [t.abs().nan_to_num(0.0, 0.0, 0.0).max().item() for t in values[:outputs] if t.numel()]
    one = min(1.0, reach)
    slope = max([one, *largest])
    found = [
        torch.full_like(t, UNSEEN * value.form.unit * one)
        for t, value in zip(values[:outputs], call.values[:outputs], strict=True)
    ]
    for x, t, value in zip(call.exact.primals, values[outputs:], call.values[outputs:], strict=True):
        size = x.detach().abs().to(device="cpu", dtype=torch.float64)
        size = torch.where(size > 0, size, size.square().mean().sqrt()) if size.numel() else size
        shaped = as_real(x.detach()).new_zeros(t.shape)
        size = size[..., None] if size.dim() < shaped.dim() else size
        found.append(UNSEEN * value.form.unit * slope / (shaped + size).clamp_min(_smallest(value.form)))
    return found


def largest_input(call: NativeCall) -> float:
    """The largest magnitude among the inputs of a call."""
    return max((x.detach().abs().max().item() for x in call.exact.primals if x.numel()), default=1.0)


def _smallest(form: Format) -> float:
    """Below which numbers may be flushed to zero: float32's normal ones; 16 bits are computed in float32."""
    return form.tiny if form.is_short else torch.finfo(form.dtype).tiny
