"""The same case at other sizes and numbers, so that constants show where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from gradverify.model import Case, Input, LiteralInput, TensorInput
from gradverify.verifier.suggest.constants import MOST_FACTOR

GROWTHS = (1, 4)
"""What is added to the smallest size; one more to each next, so that sizes stay distinct."""

ALONE = 2
"""What is added to one size alone: halves stay whole."""

HELD_OUT = 5
"""What is added to one size alone where a draft is judged: from these sizes nothing was concluded."""

FACTOR = 1.375
"""What a number is multiplied by: exact in binary, and no ratio of small sizes."""


def resized(case: Case) -> Iterator[Case]:
    """The case with every size grown: of the tensors alone, then of literals too.

    The sizes that a spec names are grown, and with them what follows from them (`2*n`); then every number by
    itself, for what only looks as if it did.
    """
    if case.hook:
        return
    made: list[tuple[Input, ...]] = [case.inputs]
    sizes = sorted({size for _, size in case.sizes})
    for growth in GROWTHS:
        spread = {size: size + growth + k for k, size in enumerate(sizes)}
        named = _followed(case.sizes, {name: spread[size] for name, size in case.sizes})
        for grown in (named, {n: n + growth + k for k, n in enumerate(_numbers(case))}):
            plain = tuple(_grown(i, grown) for i in case.inputs)
            for inputs in (plain, tuple(_literal_grown(i, grown) for i in plain)):
                if inputs not in made:
                    made.append(inputs)
                    yield replace(case, id=f"{case.id}, sizes + {growth}", inputs=inputs)


def one_resized(case: Case, growth: int) -> Iterator[tuple[str, list[Case]]]:
    """For each size that the spec names (each number where it names none), the case with it alone grown.

    Which sizes follow it is guessed: what forward takes is right. Of what only has the same number of entries
    one input at a time is left as it is.
    """
    named = case.sizes or tuple((str(n), n) for n in _numbers(case))
    for name, size in named if not case.hook else ():
        grown = {**dict(named), name: size + growth}
        every = tuple(_grown(i, _followed(named, grown)) for i in case.inputs)
        itself = tuple(_grown(i, {size: size + growth}) for i in case.inputs)
        literals = tuple(_literal_grown(i, _followed(named, grown)) for i in every)
        left = [
            (*changed[:k], one, *changed[k + 1 :])
            for changed in (every, itself)
            for k, one in enumerate(case.inputs)
            if one != changed[k] and isinstance(one, TensorInput)
        ]
        sizes = ",".join(f"{n}={grown[n]}" for n, _ in case.sizes) or f"{size} -> {size + growth}"
        made = [m for m in dict.fromkeys([every, literals, itself, *left]) if m != case.inputs]
        if made:
            yield name, [replace(case, id=sizes, inputs=inputs) for inputs in made]


def _numbers(case: Case) -> list[int]:
    return sorted({n for i in case.inputs if isinstance(i, TensorInput) for n in i.shape if n > 1})


def _followed(named: Sequence[tuple[str, int]], grown: Mapping[str, int]) -> dict[int, int]:
    """What becomes of each size of a tensor when the named ones become these; the others stay.

    A spec writes `n`, then `2*n` or `n*m`, and seldom `n + 1` or `n + m`: what is seldom is believed last.
    """
    sizes = [(size, grown[name]) for name, size in named]
    pairs = list(combinations(sizes, 2))
    found: dict[int, int] = {}
    for size, becomes in (
        *sizes,
        *((f * size, f * becomes) for f in range(2, MOST_FACTOR + 1) for size, becomes in sizes),
        *((a[0] * b[0], a[1] * b[1]) for a, b in pairs),
        *((size + one, becomes + one) for one in (1, -1) for size, becomes in sizes),
        *((a[0] + b[0], a[1] + b[1]) for a, b in pairs),
    ):
        found.setdefault(size, becomes)
    return {n: m for n, m in found.items() if n > 1}


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
