"""A small number in backward that forward does not have: its author guards a division, a root or a logarithm.

Such a gradient is another one where forward has a pole, or nearly so, and the right one everywhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gradverify.verifier.collect.inference.bodies import bodies

LARGEST = 1e-4
"""The largest number that is taken for such an epsilon."""

_KINDS = frozenset({"eps", "tiny", "smallest_normal"})
"""What `torch.finfo` calls its small numbers."""


def tempered(forward: Any, backward: Any) -> str:  # noqa: ANN401 - whatever the user's methods are
    """The small number of backward as it is written, where forward has none; else empty."""
    found = next(_small(backward), "")
    return found if found and not any(_small(forward)) else ""


def _small(function: Any) -> Iterator[str]:  # noqa: ANN401
    for body, known in bodies(function):
        for node in ast.walk(body):
            if isinstance(node, ast.Attribute) and node.attr in _KINDS:
                yield node.attr
            value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                value = known.get(node.id)
            if isinstance(value, float) and 0 < value <= LARGEST:
                yield ast.unparse(node)
