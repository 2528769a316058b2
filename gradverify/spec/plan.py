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
from gradverify.spec.read import SpecFile


def plan_function(
    spec: SpecFile,
    key: str,
    *,
    seed: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    parameters: Sequence[Parameter] = (),
    effort: Effort = Effort.NORMAL,
) -> TargetPlan:
    """Plan the function that the spec calls `key`.

    Tolerances that are None come from the function's own `tolerance`, else from the spec's defaults,
    and so does the seed. Inputs are put in call order by `parameters` where the caller knows the live
    ones, else by what the module's source shows, else they stay in the order of the spec; lists of
    tensors are splatted where the parameter is a `*args`. `effort` decides how many
    of the combinations become cases.
    """
    function = _swept(spec.functions[key], effort)
    defaults = spec.defaults
    known = spec.signatures.get(key)
    order = parameters or (known.parameters if known else ())
    seed = defaults.seed if seed is None else seed
    return dataclasses.replace(
        _as_written(function),
        cases=tuple(
            _finished(case, case_seed(seed, function.name, case.id), order) for case in function.cases
        ),
        spares=tuple(
            _finished(case, case_seed(seed, function.name, case.id), order) for case in function.spares
        ),
        spec_file=spec.shown_path,
        spec_line=spec.document.line_of(("functions", key)),
        rtol=_first(rtol, function.rtol, defaults.rtol),
        atol=_first(atol, function.atol, defaults.atol),
        expected_failures=_expected_failures(spec, key, function),
    )


def _swept(function: SpecFunction, effort: Effort) -> SpecFunction:
    """Return a function with the cases that an effort asks for; the base case comes first in each."""
    sweep = function.sweep
    if effort is Effort.QUICK:
        return dataclasses.replace(function, cases=function.cases[:1])
    if effort is Effort.NORMAL or sweep is None or sweep.rows != "pairwise":
        return function
    built = build_cases(dataclasses.replace(sweep, rows="pairwise first"))
    return dataclasses.replace(function, cases=built.cases, infeasible=built.infeasible)


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
    function = _swept(function, effort)
    return dataclasses.replace(
        _as_written(function),
        source=InputSource.INFERRED,
        cases=tuple(
            _finished(case, case_seed(seed, function.name, case.id), parameters) for case in function.cases
        ),
        spares=tuple(
            _finished(case, case_seed(seed, function.name, case.id), parameters) for case in function.spares
        ),
        rtol=rtol,
        atol=atol,
    )


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
    beyond = tuple(
        dataclasses.replace(
            one, case=_finished(one.case, case_seed(seed, function.name, one.case.id), parameters)
        )
        for one in past.cases
    )
    return dataclasses.replace(plan, beyond=beyond, not_beyond=past.untried)


def _as_written(function: SpecFunction) -> TargetPlan:
    """Return what neither the file around a function nor the command line has a say in."""
    return TargetPlan(
        name=function.name,
        attribute=function.attribute,
        source=InputSource.SPEC if function.cases else InputSource.NONE,
        infeasible=function.infeasible,
        reference=function.reference,
        ignore=function.ignore,
        skip=function.skip,
        reference_arguments=function.reference_arguments,
        surrogate=function.surrogate,
        outputs=function.outputs,
        default_dtype=function.default_dtype,
        devices=function.devices,
        init=function.init,
        notes=function.notes,
    )


def _first(told: float | None, own: float | None, default: float) -> float:
    return next(value for value in (told, own, default) if value is not None)


def _expected_failures(spec: SpecFile, key: str, function: SpecFunction) -> tuple[ExpectedFailure, ...]:
    # A list of them has a line for each; below a single one there is no such path, and its own line counts.
    path = ("functions", key, "xfail")
    return tuple(
        dataclasses.replace(one, line=spec.document.line_of((*path, index)))
        for index, one in enumerate(function.expected_failures)
    )


def _finished(case: Case, seed: int, order: Sequence[Parameter]) -> Case:
    position = {parameter.name: index for index, parameter in enumerate(order)}
    variadic = {parameter.name for parameter in order if parameter.variadic}
    inputs = sorted(case.inputs, key=lambda item: position.get(item.name, len(position)))
    return dataclasses.replace(case, seed=seed, inputs=tuple(_splatted(item, variadic) for item in inputs))


def _splatted(item: Input, variadic: set[str]) -> Input:
    if isinstance(item, ListInput) and item.name in variadic:
        return dataclasses.replace(item, splatted=True)
    return item
