"""From a formula and a backward to the causes that are named: through the verifier, without a worker."""

from __future__ import annotations

import torch

from gradverify.events import Found, Verify
from gradverify.model import (
    Case,
    Finding,
    InputSource,
    LiteralInput,
    Parameter,
    Settings,
    Target,
    TargetKind,
    TargetPlan,
    TensorInput,
)
from gradverify.session.outcome import merge_findings
from gradverify.verifier.process.run import verify
from gradverify.verifier.verify.verification import Live

SIZES = {"b": 3, "n": 4, "m": 5, "k": 6, "d": 2}
OTHER_SIZES = {"b": 5, "n": 3, "m": 4, "k": 7, "d": 6}
FLAGS = {"?yes": True, "?no": False}
"""Literals in the place of shapes."""


def case_at(shapes: dict[str, str], sizes: dict[str, int], seed: int, dtype: str = "float64") -> Case:
    inputs = []
    for name, shape in shapes.items():
        if shape in FLAGS:
            inputs.append(LiteralInput(name, FLAGS[shape]))
        elif shape.startswith("!"):
            below, _, dims = shape[1:].partition("/")
            bounds = (0.0, float(sizes[below]))
            inputs.append(TensorInput(name, tuple(sizes[c] for c in dims), dtype="int64", range=bounds))
        else:
            inputs.append(TensorInput(name, tuple(sizes[c] for c in shape), dtype=dtype))
    used = {c for shape in shapes.values() if shape not in FLAGS for c in shape if c in sizes}
    bound = tuple((c, sizes[c]) for c in sorted(used))
    return Case(",".join(f"{c}={v}" for c, v in bound), seed, bound, inputs=tuple(inputs))


def findings_on(
    function: type[torch.autograd.Function],
    shapes: dict[str, str],
    *,
    dtype: str = "float64",
    seed: int = 1,
    spare: bool = True,
    select: tuple[str, ...] = ("GV1",),
) -> tuple[Finding, ...]:
    target = Target(
        function.__name__, function.__name__, TargetKind.FUNCTION, "f.py", 1, tuple(map(Parameter, shapes))
    )
    plan = TargetPlan(
        target.name,
        target.attribute,
        InputSource.SPEC,
        (case_at(shapes, SIZES, seed, dtype),),
        spares=(case_at(shapes, OTHER_SIZES, seed + 1, dtype),) if spare else (),
    )
    events = verify(Verify(target, plan, Settings(select=select)), Live(function))
    return merge_findings([e.finding for e in events if isinstance(e, Found)])
