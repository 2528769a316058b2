"""From a function of a spec to the plan of its target: seeds, tolerances, call order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gradverify.cases.further import Asked, with_cases
from gradverify.cases.sweep import Sweep
from gradverify.model import Effort, ExpectedFailure, InputSource, Parameter, TargetPlan
from gradverify.spec.function import SpecFunction
from gradverify.spec.left_out import left_out
from gradverify.spec.read import SpecFile


def plan_function(  # noqa: PLR0913 - what the run decides
    spec: SpecFile,
    key: str,
    *,
    seed: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    configured: tuple[float, float] | None = None,
    parameters: Sequence[Parameter] = (),
    effort: Effort = Effort.NORMAL,
) -> TargetPlan:
    """Plan the function that the spec calls `key`.

    Tolerances that are None come from the function's own `tolerance`, else from the spec's defaults, where it
    has none from what is `configured` (rtol, atol); so does the seed. Inputs are put in call order by
    the live `parameters`, and stay in that of the spec without them; lists of tensors are splatted where the
    parameter is a `*args`. `effort` decides how many of the combinations become cases.
    """
    function, defaults = spec.functions[key], spec.defaults
    seed = defaults.seed if seed is None else seed
    usual = {"rtol": defaults.rtol, "atol": defaults.atol}
    given = zip(usual, configured or (), strict=False)
    usual |= {name: value for name, value in given if name not in defaults.model_fields_set}
    plan = dataclasses.replace(
        function.plan,
        spec_file=spec.shown_path,
        spec_line=spec.document.line_of(("functions", key)),
        dtypes=function.plan.dtypes or tuple(defaults.dtypes),
        rtol=next(value for value in (rtol, function.rtol, usual["rtol"]) if value is not None),
        atol=next(value for value in (atol, function.atol, usual["atol"]) if value is not None),
        expected_failures=_expected_failures(spec, key, function),
    )
    return _with_cases(plan, function.sweep, seed, parameters, effort)


def plan_deduced(
    function: SpecFunction,
    *,
    seed: int,
    rtol: float,
    atol: float,
    parameters: Sequence[Parameter],
    effort: Effort = Effort.NORMAL,
) -> TargetPlan:
    """Plan an entry that no file holds, because inference deduced it."""
    plan = dataclasses.replace(function.plan, source=InputSource.INFERRED, rtol=rtol, atol=atol)
    return _with_cases(plan, function.sweep, seed, parameters, effort)


def _with_cases(
    plan: TargetPlan, sweep: Sweep, seed: int, order: Sequence[Parameter], effort: Effort
) -> TargetPlan:
    """The plan with the cases of a sweep, and what is left out of it; as it is where nothing is planned."""
    if not plan.cases:
        return plan
    inferred = plan.source is InputSource.INFERRED
    asked = Asked(sweep, plan.name, seed, tuple(order), effort, inferred=inferred)
    plan = with_cases(plan, asked)
    return dataclasses.replace(plan, left_out=tuple(left_out(plan, asked)))


def _expected_failures(spec: SpecFile, key: str, function: SpecFunction) -> tuple[ExpectedFailure, ...]:
    # A list of them has a line for each; below a single one there is no such path, and its own line counts.
    path = ("functions", key, "xfail")
    return tuple(
        dataclasses.replace(one, line=spec.document.line_of((*path, index)))
        for index, one in enumerate(function.plan.expected_failures)
    )
