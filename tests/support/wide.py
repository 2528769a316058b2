"""A spec at wide ranges, made of one that declares few: what nobody declared is declared to be wide.

A range, a structure or a value that the author declared stays as it is: nobody else can tell what forward
takes beyond it.
"""

from __future__ import annotations

from collections.abc import Collection

RANGES = ((-1000, 1000), (0.001, 1000), (0.01, 100), (0.1, 10), (-100, 100), (-10, 10))
"""Tried in turn until forward takes one and its numbers can tell: not every Function has negative inputs,
float16 squares no more than 255, and float32 has no exponential beyond 88."""

SAYS_ITS_VALUES = frozenset({"range", "structure", "make", "value", "choices", "layout", "mutated", "concat"})
"""Keys of an input that say what it holds, or that it is no plain tensor."""

FLOATING = frozenset({"float64", "float32", "bfloat16", "float16"})

Range = tuple[float, float]


def widened(spec: dict, wide: Range, names: Collection[str]) -> dict:
    """The spec with those functions alone in which some input could be widened."""
    functions = {name: _wide(entry, wide) for name, entry in spec["functions"].items() if name in names}
    return {**spec, "functions": {name: entry for name, entry in functions.items() if entry}}


def _wide(entry: dict, wide: Range) -> dict | None:
    inputs = entry.get("inputs", {})
    widened = {name: _wide_input(described, wide) for name, described in inputs.items()}
    return {**entry, "inputs": widened} if widened != inputs else None


def _wide_input(described: object, wide: Range) -> object:
    tensor = {"shape": described} if isinstance(described, list) else described
    if not isinstance(tensor, dict) or "shape" not in tensor or SAYS_ITS_VALUES & tensor.keys():
        return described
    if tensor.get("dtype", "float64") not in FLOATING:
        return described
    low, high = wide
    smallest = low if low > 0 else 1 / high
    ends = {
        "real": [low, high],
        "nonzero": [low, high],
        "positive": [smallest, high],
        "negative": [-high, -smallest],
    }
    domain = tensor.get("domain", "real")
    return {**tensor, "range": ends[domain]} if domain in ends else described
