"""The same case at other sizes and numbers, so that constants show where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradverify.model import Case, Input, LiteralInput, TensorInput

GROWTHS = (1, 3)
"""What is added to the smallest size; one more to each next, so that sizes stay distinct."""

FACTOR = 1.375
"""What a number is multiplied by: exact in binary, and no ratio of small sizes."""


def resized(case: Case) -> Iterator[Case]:
    """The case with every size grown, equal sizes alike: of the tensors alone, then of literals too."""
    sizes = sorted({n for i in case.inputs if isinstance(i, TensorInput) for n in i.shape if n > 1})
    if case.hook or not sizes:
        return
    for growth in GROWTHS:
        grown = {n: n + growth + k for k, n in enumerate(sizes)}
        yield replace(
            case, id=f"{case.id}, sizes + {growth}", inputs=tuple(_grown(i, grown) for i in case.inputs)
        )
        with_literals = tuple(_literal_grown(_grown(i, grown), grown) for i in case.inputs)
        yield replace(case, id=f"{case.id}, sizes + {growth}", inputs=with_literals)


def generic(case: Case) -> Case:
    """The case with floats that are whole numbers made others: a factor of 1 would leave no trace."""
    return replace(case, inputs=tuple(_made_generic(i) for i in case.inputs))


def _made_generic(one: Input) -> Input:
    if not isinstance(one, LiteralInput) or not isinstance(one.value, float) or not one.value.is_integer():
        return one
    return replace(one, value=one.value * FACTOR if one.value else FACTOR)


def renumbered(case: Case) -> Iterator[Case]:
    """The case with one number changed at a time."""
    for k, one in enumerate(case.inputs):
        value = one.value if isinstance(one, LiteralInput) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for other in (value * FACTOR, value / FACTOR) if isinstance(value, float) else (value + 1, value + 2):
            inputs = (*case.inputs[:k], LiteralInput(one.name, other), *case.inputs[k + 1 :])
            yield replace(case, id=f"{case.id}, {one.name} = {other:g}", inputs=inputs)


def _grown(one: Input, grown: dict[int, int]) -> Input:
    if not isinstance(one, TensorInput) or one.value is not None:
        return one
    return replace(one, shape=tuple(grown.get(n, n) for n in one.shape))


def _literal_grown(one: Input, grown: dict[int, int]) -> Input:
    if not isinstance(one, LiteralInput):
        return one
    value = one.value
    if isinstance(value, tuple):
        return replace(one, value=tuple(grown.get(n, n) if type(n) is int else n for n in value))
    return replace(one, value=grown.get(value, value)) if type(value) is int else one
