"""What the source leaves open: kinds of matrices, extreme values, and whether a derivative is meant."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from gradverify.model import Doubt
from gradverify.source import definitions_behind
from gradverify.verifier.infer.facts import Evidence
from gradverify.verifier.infer.intent import deliberate_gradient

LARGEST_EPSILON = 1e-4
"""The largest number that is taken for one that guards a division, a root or a logarithm."""

_KINDS = frozenset({"eps", "tiny", "smallest_normal"})
"""What `torch.finfo` calls its small numbers."""


def doubts_of_source(value: Any, module: ModuleType | None, evidence: Evidence) -> Iterator[Doubt]:  # noqa: ANN401
    """What is in doubt whatever inputs are found for a target."""
    if evidence.factorization:
        yield Doubt("", f"what kind of matrix `{evidence.factorization}` gets")
    if evidence.clamps:
        yield Doubt("", "that such values are valid (backward clamps, and forward does not)", extreme=True)
    epsilon = next(_epsilons(getattr(value, "backward", None)), "")
    if epsilon and not any(_epsilons(getattr(value, "forward", None))):
        # Such a gradient is another one where forward has a pole, or nearly so, and the right one elsewhere.
        yield Doubt("", f"that such values are valid (backward has {epsilon} of its own)", extreme=True)
    said = deliberate_gradient(value, module)
    if said:
        yield Doubt("", f"that backward should be the derivative (its source says `{said}`)", intent=True)


def _epsilons(function: Any) -> Iterator[str]:  # noqa: ANN401 - whatever the user's methods are
    """Small numbers of a function, or of what it calls by name, as they are written."""
    for body, known in definitions_behind(function):
        for node in ast.walk(body):
            if isinstance(node, ast.Attribute) and node.attr in _KINDS:
                yield node.attr
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                value = known.get(node.id)
            if isinstance(value, float) and 0 < value <= LARGEST_EPSILON:
                yield ast.unparse(node)
