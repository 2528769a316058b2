"""What the source leaves open: kinds of matrices, extreme values, and whether a derivative is meant."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from gradverify.model import Doubt
from gradverify.verifier.collect.inference.evidence import Evidence
from gradverify.verifier.collect.inference.intent import deliberate_gradient
from gradverify.verifier.collect.inference.tempered import tempered


def doubts_of_source(value: Any, module: ModuleType | None, evidence: Evidence) -> Iterator[Doubt]:  # noqa: ANN401
    """What is in doubt whatever inputs are found for a target."""
    if evidence.factorization:
        yield Doubt("", f"what kind of matrix `{evidence.factorization}` gets")
    if evidence.clamps:
        yield Doubt("", "that such values are valid (backward clamps, and forward does not)", extreme=True)
    guard = tempered(getattr(value, "forward", None), getattr(value, "backward", None))
    if guard:
        yield Doubt("", f"that such values are valid (backward has {guard} of its own)", extreme=True)
    said = deliberate_gradient(value, module)
    if said:
        yield Doubt("", f"that backward should be the derivative (its source says `{said}`)", intent=True)
