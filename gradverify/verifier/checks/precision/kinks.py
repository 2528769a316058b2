"""What a native gradient may be where the composite in float64 has a kink.

What torch derives of a composite is one gradient of several there: half of it to each of two equal numbers,
and zero at zero. A backward that takes another one is as right, as it is in float64. So the slopes of the
composite are measured, and what lies between those of the two sides is accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import returned_tensors, substitute, with_zeros
from gradverify.verifier.numerics.directional_derivative import slopes_along
from gradverify.verifier.numerics.jacobian import natural_slope
from gradverify.verifier.numerics.problem import CallProblem, Layout, Problem
from gradverify.verifier.numerics.tolerance import SAFETY, Tolerance
from gradverify.verifier.numerics.tracing import short_format
from gradverify.verifier.numerics.verdict import Judged, judge


def half_the_digits(native: Problem) -> float:
    """The relative error that no formula may exceed in the dtype of a native problem's outputs.

    Or in a shorter one that forward rounds to inside, as products of bfloat16 are added in float32.
    """
    unit: float = native.outputs.rounding.max().item()
    dtype = getattr(torch, short_format(native) or "float64")
    return math.sqrt(max(unit, torch.finfo(dtype).eps) if dtype.is_floating_point else unit)


def with_backward_of(native: CallProblem, exact: CallProblem) -> CallProblem | None:
    """The composite in float64, with the native backward for its own; None where forward raises."""
    differentiable = [a for a in exact.arguments if a.differentiable]
    arguments = tuple(Argument(a.name, a.value, differentiable=True, held=a.held) for a in differentiable)
    values = exact.evaluate(exact.primals)
    if isinstance(values, Raised):
        return None
    both = _Both(native, exact)

    def function(*primals: Tensor) -> Any:  # noqa: ANN401 - outputs of a Function
        return _Lent.apply(both, *primals)  # type: ignore[no-untyped-call]

    positions = tuple(range(len(values.value)))
    outputs = Layout.of(values.value)
    return replace(exact, function=function, arguments=arguments, output_positions=positions, outputs=outputs)


def slopes_at_kinks(
    native: CallProblem, exact: CallProblem, theirs: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """The composite's Jacobian (M × N), of which `theirs` is torch's, and the slopes that torch has not.

    An entry of the first is the native one's own where it is right by the slopes of the composite, and
    torch's is not the only one: at a kink, where torch's is not the slope on both sides, or where several
    inputs meet in one. An entry of the second (NaN elsewhere) is a slope of the composite, the same on both
    sides, where torch's is another or no number, as that of a constant in the place of a quotient of zeros,
    and the native one is wrong.
    """
    lent = with_backward_of(native, exact)
    tolerance = Tolerance(half_the_digits(native))
    judged = None if lent is None else judge(lent, tolerance)
    if lent is None or not isinstance(judged, Judged) or judged.comparison.wrong.shape != theirs.shape:
        return theirs, torch.full_like(theirs, torch.nan)
    found, measured = judged.comparison, judged.measured
    at_kink = measured.kink > 0
    without = at_kink.any(dim=1) & ~slopes_along(lent, measured, seed).linear
    allowed = tolerance.allowed(measured.value, judged.inputs) + found.bound
    is_another = found.covered & ((theirs - measured.value).abs() > allowed)
    has_others = found.kinks | is_another | without[:, None]
    is_wrong = found.wrong & (at_kink | ~without[:, None])
    accepted = has_others & ~is_wrong & found.analytical.isfinite()
    size = natural_slope(measured.centre, measured.scale, judged.outputs)
    is_smooth = ~at_kink & ~without[:, None] & (SAFETY * measured.error <= half_the_digits(native) * size)
    of_none = is_smooth & ~accepted & (theirs.isnan() | (is_another & found.wrong))
    known = torch.where(of_none, measured.value, torch.nan)
    return torch.where(accepted, found.analytical, theirs), known


@dataclass(frozen=True)
class _Both:
    native: CallProblem
    exact: CallProblem


class _Lent(Function):
    """Forward of the one, backward of the other."""

    @staticmethod
    def forward(ctx: Any, both: _Both, *primals: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.native = both.native
        ctx.save_for_backward(*primals)
        exact = both.exact
        returned = returned_tensors(exact.function(*substitute(exact.arguments, primals)))
        return tuple(returned[p].clone() for p in exact.output_positions)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        native, primals = ctx.native, ctx.saved_tensors
        short = [p.to(x.dtype) for p, x in zip(primals, native.primals, strict=True)]
        kinds = [block.dtype for block in native.outputs.blocks]
        back = native.pull_back(short, [u.to(kind) for u, kind in zip(cotangents, kinds, strict=True)])
        if isinstance(back, Raised):
            raise RuntimeError(back.error.message)  # noqa: TRY004 - no type is checked
        gradients = with_zeros(back.value, short)
        return None, *(g.to(p.dtype) for g, p in zip(gradients, primals, strict=True))
