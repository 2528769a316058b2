"""Both Jacobians of a target without a float64 path: backward's in its dtype, the composite's in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.precision.arithmetic import plainly
from gradverify.verifier.checks.precision.native import NativeCall
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.truth import FromNative
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.compare import compare
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.problem import CallProblem, Problem
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged

MOST_ROWS = 256
"""Rows that are worth as many backwards of a kernel, to say where its gradient is wrong."""

ROUNDINGS = 16.0
"""Units of rounding of the largest entry of a block by which backward's entries may be off."""


def native_jacobians(sample: Sample) -> Judged | NotJudged | Raised:
    """Backward's rows beside those of the composite at the same rounded values."""
    if sample.problem.outputs.size > MOST_ROWS:
        return NotJudged(f"its Jacobian has more than {MOST_ROWS} rows")
    exact = exact_problem(sample)
    if exact is None:
        return NotJudged("there is no float64 path and no composite")
    return jacobians_beside(sample.problem, exact)


def exact_problem(sample: Sample) -> CallProblem | None:
    """The composite in float64 at the values of a native sample; None where there is none."""
    truth = FromNative(sample.subject)
    call = Place.typical(sample, truth, plainly(sample.subject.native), asked=True).call()
    composite = truth.composite(call) if isinstance(call, NativeCall) else None
    if composite is None or not isinstance(call, NativeCall):
        return None
    return replace(composite.problem, arguments=call.exact.arguments)


def jacobians_beside(native: Problem, exact: Problem) -> Judged | NotJudged | Raised:
    """The rows of a native problem's backward beside those of the same in float64."""
    mine, theirs = analytical_jacobian(native), analytical_jacobian(exact)
    if isinstance(mine, Raised):
        return mine
    values = exact.evaluate(exact.primals)
    if isinstance(theirs, Raised) or isinstance(values, Raised) or mine.value.shape != theirs.value.shape:
        return NotJudged("the composite could not be differentiated")
    inputs, outputs = Layout.of(native.primals), native.outputs
    measured = _as_measured(theirs.value, exact.outputs.flatten(values.value), exact, native)
    half_the_digits = float(outputs.rounding.max()) ** 0.5
    comparison = compare(mine.value, measured, inputs, outputs, Tolerance(half_the_digits))
    return Judged(comparison, measured, inputs, outputs)


def _as_measured(value: Tensor, centre: Tensor, exact: Problem, native: Problem) -> NumericalJacobian:
    """The composite's Jacobian, as far as the rounding of the native one lets it be reported."""
    inputs = Layout.of(native.primals)
    unit = inputs.rounding.max() / 2
    error = torch.zeros_like(value)
    for rows in native.outputs.slices:
        for columns in inputs.slices:
            error[rows, columns] = ROUNDINGS * unit * value[rows, columns].abs().max()
    nothing = torch.zeros_like(value)
    x = Layout.of(exact.primals).flatten(exact.primals).abs()
    return NumericalJacobian(
        value, error, value == 0, nothing, nothing, centre, unit * centre.abs(), torch.where(x > 0, x, 1.0)
    )
