"""What a spec declares of inputs that forward refuses: their shapes, as written and at the case's sizes."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Case, Finding, TensorInput
from gradverify.session.planning import Planned
from gradverify.spec.read import SpecFile

REFUSED = "GV002"
"""The code of a forward that raises. Its message holds sizes, so it is shown at those of the spec."""

MOST_SHOWN = 4
"""Inputs whose shapes are told."""


def with_declared_shapes(finding: Finding, planned: Planned, cases: tuple[Case, ...]) -> Finding:
    """A refusal with the shapes that the spec declares in its hint; any other finding as it is."""
    spec, case = (
        planned.module.spec,
        next((c for c in cases if finding.case and c.id == finding.case.id), None),
    )
    function = next((f for f in planned.module.functions if f.name == planned.target.name), None)
    if finding.code != REFUSED or spec is None or case is None or function is None:
        return finding
    shapes = [
        f"`{i.name}: {text}` is {list(i.shape)} ({spec.shown_path}:{line})"
        for i in case.inputs
        if isinstance(i, TensorInput)
        for text, line in _declared(spec, function.key, i.name)
    ]
    told = ", ".join(shapes[:MOST_SHOWN])
    return replace(finding, hint=f"{finding.hint} At {case.id}, {told}.") if shapes else finding


def _declared(spec: SpecFile, key: str, name: str) -> list[tuple[str, int]]:
    """The shape of an input as its spec writes it, and the line of it; empty where it writes none."""
    data: object = spec.document.data
    for part in ("functions", key, "inputs", name):
        data = data.get(part) if isinstance(data, dict) else None
    shape = data.get("shape") if isinstance(data, dict) else data
    if not isinstance(shape, list):
        return []
    return [(f"[{', '.join(map(str, shape))}]", spec.document.line_of(("functions", key, "inputs", name)))]
