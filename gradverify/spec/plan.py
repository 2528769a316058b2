"""From a function of a spec to the plan of its target: seeds, tolerances, call order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gradverify.model import (
    Case,
    Effort,
    ExpectedFailure,
    Input,
    InputSource,
    ListInput,
    Parameter,
    SizeConstant,
    TargetPlan,
)
from gradverify.spec.beyond import past_constants
from gradverify.spec.cases import build_cases, case_seed
from gradverify.spec.function import SpecFunction
from gradverify.spec.left_out import combined, left_out
from gradverify.spec.other_sizes import degenerate, of_one, open_sized, with_each_option
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
    `parameters` where the caller knows the live ones, else by what the module's source shows, else they stay
    in the order of the spec; lists of tensors are splatted where the parameter is a `*args`. `effort` decides
    how many of the combinations become cases.
    """
    whole, defaults = spec.functions[key], spec.defaults
    known = spec.signatures.get(key)
    order = parameters or (known.parameters if known else ())
    seed = defaults.seed if seed is None else seed
    function = _swept(whole, effort)
    at_open, at_degenerate = _unlisted(function, effort)
    usual = [defaults.rtol, defaults.atol]
    if configured is not None:
        reported = [key in defaults.model_fields_set for key in ("rtol", "atol")]
        usual = [own if said else other for own, other, said in zip(usual, configured, reported, strict=True)]
    return dataclasses.replace(
        _seeded(function.plan, seed, order),
        open_sized=_in_call_order(function.name, at_open, seed, order),
        degenerate=_in_call_order(function.name, at_degenerate, seed, order),
        left_out=left_out(whole, function, effort),
        spec_file=spec.shown_path,
        spec_line=spec.document.line_of(("functions", key)),
        dtypes=function.plan.dtypes or tuple(defaults.dtypes),
        rtol=next(value for value in (rtol, function.rtol, usual[0]) if value is not None),
        atol=next(value for value in (atol, function.atol, usual[1]) if value is not None),
        expected_failures=_expected_failures(spec, key, function),
    )


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
    swept = _swept(function, effort)
    tried = swept.sweep is not None and swept.cases and effort is not Effort.QUICK
    sweep, bases = swept.sweep, with_each_option(swept.cases)
    at_one = [case for base in bases for case in of_one(sweep, base)] if sweep is not None and tried else []
    at_options = combined(sweep, swept.cases, inferred=True) if sweep is not None and tried else ()
    return dataclasses.replace(
        _seeded(swept.plan, seed, parameters),
        open_sized=_in_call_order(function.name, at_options, seed, parameters),
        degenerate=_in_call_order(function.name, at_one, seed, parameters),
        source=InputSource.INFERRED,
        left_out=left_out(function, swept, effort, inferred=True),
        rtol=rtol,
        atol=atol,
    )


def _swept(function: SpecFunction, effort: Effort) -> SpecFunction:
    """Return a function with the cases that an effort asks for; the base case comes first in each."""
    plan, sweep = function.plan, function.sweep
    if effort is Effort.QUICK:
        plan = dataclasses.replace(plan, cases=plan.cases[:1], declared=plan.cases)
    elif effort is Effort.THOROUGH and sweep is not None and sweep.rows == "pairwise":
        built = build_cases(dataclasses.replace(sweep, rows="pairwise first"))
        plan = dataclasses.replace(plan, cases=built.cases, infeasible=built.infeasible)
    return dataclasses.replace(function, plan=plan)


def _unlisted(function: SpecFunction, effort: Effort) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Cases with what the spec leaves open (sizes, options together), and with a 0 or 1 it does not list."""
    sweep = function.sweep
    if sweep is None or not function.cases or effort is Effort.QUICK:
        return (), ()
    bases = with_each_option(function.cases)
    at_open = [case for base in bases for case in open_sized(sweep, base)]
    at_degenerate = [case for base in bases for case in degenerate(sweep, base)]
    return (
        (*at_open, *combined(sweep, function.cases)),
        tuple(at_degenerate) if effort is Effort.THOROUGH else (),
    )


def _seeded(plan: TargetPlan, seed: int, order: Sequence[Parameter]) -> TargetPlan:
    return dataclasses.replace(
        plan,
        cases=_in_call_order(plan.name, plan.cases, seed, order),
        declared=_in_call_order(plan.name, plan.declared, seed, order),
        spares=_in_call_order(plan.name, plan.spares, seed, order),
    )


def _in_call_order(
    name: str, cases: Sequence[Case], seed: int, order: Sequence[Parameter]
) -> tuple[Case, ...]:
    return tuple(in_call_order(case, case_seed(seed, name, case.id), order) for case in cases)


def plan_beyond(
    plan: TargetPlan,
    function: SpecFunction,
    constants: Sequence[SizeConstant],
    *,
    seed: int,
    parameters: Sequence[Parameter],
) -> TargetPlan:
    """Add the cases past the constants of a target's source to its plan."""
    past = past_constants(function, constants)
    cases = _in_call_order(plan.name, [one.case for one in past.cases], seed, parameters)
    beyond = tuple(dataclasses.replace(one, case=case) for one, case in zip(past.cases, cases, strict=True))
    return dataclasses.replace(plan, beyond=beyond, not_beyond=past.untried)


def _expected_failures(spec: SpecFile, key: str, function: SpecFunction) -> tuple[ExpectedFailure, ...]:
    # A list of them has a line for each; below a single one there is no such path, and its own line counts.
    path = ("functions", key, "xfail")
    return tuple(
        dataclasses.replace(one, line=spec.document.line_of((*path, index)))
        for index, one in enumerate(function.plan.expected_failures)
    )


def in_call_order(case: Case, seed: int, order: Sequence[Parameter]) -> Case:
    """The case with its seed, and its inputs as the live parameters come."""
    each = [p for one in order for p in (one, *one.parts)]
    position = {parameter.name: index for index, parameter in enumerate(each)}
    variadic = {parameter.name for parameter in each if parameter.variadic}
    inputs = sorted(case.inputs, key=lambda item: position.get(item.name, len(position)))
    return dataclasses.replace(case, seed=seed, inputs=tuple(_splatted(item, variadic) for item in inputs))


def _splatted(item: Input, variadic: set[str]) -> Input:
    if isinstance(item, ListInput) and item.name in variadic:
        return dataclasses.replace(item, splatted=True)
    return item
