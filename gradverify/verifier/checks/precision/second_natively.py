"""Second order without a float64 path: the double backward in its dtype beside the composite's in float64.

The question is the one that is asked in float64, at one grad_output; only the tolerance is the dtype's: what
no formula may lose of the gradients' gradient. Where there is no composite, nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Outcome
from gradverify.verifier.checks.precision.arithmetic import plainly
from gradverify.verifier.checks.precision.conditioning import MOVES, allowed_error
from gradverify.verifier.checks.precision.judging import FAR
from gradverify.verifier.checks.precision.native import NativeCall
from gradverify.verifier.checks.precision.native_jacobians import jacobians_beside
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.scatter import INSIDE_DRAWS
from gradverify.verifier.checks.precision.truth import FromNative
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.second_order import compare_second_order, graph_alone
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import with_zeros
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.precision.formats import format_of
from gradverify.verifier.numerics.precision.random_rounding import erring
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.verdict import Judged

WEIGHTS_SEED = 211
"""Added to a case's seed for the weights of the gradients; any other would do."""

_NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)


def second_order_natively(sample: Sample) -> CheckResult:
    """What its double backward gives; `not-run` where there is nothing to hold it against."""
    found = graph_alone(sample)
    if found.outcome is not Outcome.NOT_RUN or found.capability:
        return found
    pair = _problems(sample)
    beyond = math.nan if pair is None else _beyond(*pair, sample.case.seed)
    if pair is None or math.isnan(beyond) or 1 < beyond <= FAR:
        return _NOT_RUN
    if beyond <= 1:
        return CheckResult(capability="yes")
    judged = jacobians_beside(*pair)
    if not isinstance(judged, Judged):
        return _NOT_RUN
    result = compare_second_order(sample, pair[0], judged, FirstOrder(CheckResult()))
    # What is beyond half of the digits in single entries alone, and not as a whole, is no finding.
    return replace(result, uncovered={}) if result.findings else _NOT_RUN


def _problems(sample: Sample) -> tuple[VjpProblem, VjpProblem] | None:
    """The backward of the target at its native values, and that of the composite at the same in float64."""
    truth = FromNative(sample.subject)
    place = Place.typical(sample, truth, plainly(sample.subject.native), asked=True)
    call = place.call()
    if not isinstance(call, NativeCall) or isinstance(truth.of(call, place.seed), str):
        return None
    composite = truth.composite(call)
    if composite is None:
        return None
    exact = replace(composite.problem, arguments=call.exact.arguments)
    return VjpProblem(call.problem, call.cotangents), VjpProblem(exact, call.exact_cotangents)


def _beyond(mine: VjpProblem, theirs: VjpProblem, seed: int) -> float:
    """The error of a weighted gradient's gradient in units of what no formula may lose; NaN: unknown."""
    signs = random_signs(mine.outputs.size, seed + WEIGHTS_SEED)
    got, truth = _pulled_back(mine, mine.primals, signs), _pulled_back(theirs, theirs.primals, signs)
    if got is None or truth is None or not all(t.isfinite().all() for t in truth):
        return math.nan
    form = format_of(mine.first_order.outputs.blocks[0].dtype)
    generator = torch.Generator().manual_seed(seed % 2**63)
    moved = []
    for _ in range(INSIDE_DRAWS):
        run = _pulled_back(theirs, [erring(p, form.unit, generator) for p in theirs.primals], signs)
        if run is None:
            return math.nan
        moved.append(run)
    # Of numbers of order one, and of the largest of these, what rounding leaves where they cancel.
    largest = max([1.0, *(t.abs().max().item() for t in truth if t.numel())])
    worst = 0.0
    for place, (mine_is, wanted) in enumerate(zip(got, truth, strict=True)):
        if not wanted.numel():
            continue
        absorbed = torch.full_like(wanted, MOVES * form.unit * largest)
        allowed = allowed_error(wanted, absorbed, [run[place] for run in moved], form)
        ratio = ((mine_is - wanted).abs().nan_to_num(torch.inf) / allowed).max().item()
        worst = max(worst, ratio)
    return worst


def _pulled_back(problem: VjpProblem, primals: Sequence[Tensor], signs: Tensor) -> list[Tensor] | None:
    """The gradients (flat, float64) of the weighted gradients by inputs and grad_outputs; None: it raises."""
    found = problem.pull_back(primals, problem.outputs.unflatten(signs))
    if isinstance(found, Raised):
        return None
    whole = with_zeros(found.value, primals)
    return [Layout.of([p]).flatten([g]) for p, g in zip(primals, whole, strict=True)]
