"""From a function of a spec to the plan of its target: seeds, tolerances, call order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gradverify.model import Case, InputSource, Parameter, TargetPlan
from gradverify.spec.cases import case_seed
from gradverify.spec.read import SpecFile


def plan_function(
    spec: SpecFile,
    key: str,
    *,
    seed: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    parameters: Sequence[Parameter] = (),
) -> TargetPlan:
    """Plan the function that the spec calls `key`. Values that are None come from the spec's defaults.

    Inputs are put in call order by `parameters` where the caller knows the live ones, else by what
    the module's source shows, else they stay in the order of the spec.
    """
    function = spec.functions[key]
    defaults = spec.defaults
    known = spec.signatures.get(key)
    order = parameters or (known.parameters if known else ())
    seed = defaults.seed if seed is None else seed
    return TargetPlan(
        name=function.name,
        attribute=function.attribute,
        source=InputSource.SPEC if function.cases else InputSource.NONE,
        cases=tuple(
            _finished(case, case_seed(seed, function.name, case.id), order) for case in function.cases
        ),
        infeasible=function.infeasible,
        reference=function.reference,
        ignore=function.ignore,
        skip=function.skip,
        spec_file=spec.shown_path,
        spec_line=spec.document.line_of(("functions", key)),
        rtol=defaults.rtol if rtol is None else rtol,
        atol=defaults.atol if atol is None else atol,
    )


def _finished(case: Case, seed: int, order: Sequence[Parameter]) -> Case:
    position = {parameter.name: index for index, parameter in enumerate(order)}
    inputs = sorted(case.inputs, key=lambda item: position.get(item.name, len(position)))
    return dataclasses.replace(case, seed=seed, inputs=tuple(inputs))
