"""What was invented, and whether a mismatch hangs on it: it is looked for again at other values of it.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. If backward is wrong for every other
value as well, for labels in order and all alike, for small factors and large ones, then no choice of
them makes it right, and it does not matter that they were invented. Where forward takes few other values, or
backward is right at one of them, the doubt stands.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Doubt, Finding
from gradverify.source import definition
from gradverify.verifier.checks.subject import Sample, prepared
from gradverify.verifier.doubt.neighbours import mismatched, tensor_inputs, with_values

FACTORS = (2.5, 0.3, 0.01)
"""Other real numbers: large and small, none at which a wrong factor cannot be seen."""

LEAST_RUN = 2
"""Other values that forward must take: one alone tells little."""

COUNTS = (2, 1, 4, 3, 16)
"""Other counts of groups, of the largest entries, of parts."""

LEAST_COUNTS = 3
"""Other counts that forward must take: most of them it refuses, and two may be no valid ones."""

MOST_SIZES = 4
"""Sizes of the inputs that are tried as counts."""

MOST_JUDGED = 12
"""Jacobians that are measured to settle one doubt."""

MEASURED = frozenset({"GV101", "GV106", "GV107", "GV110", "GV201", "GV202"})
"""Codes of findings that can be measured again at other values."""


def inventions_of(sample: Sample) -> tuple[Doubt, ...]:
    """What of the inputs of this case was invented."""
    options, sizes = dict(sample.case.options), dict(sample.case.sizes)
    return tuple(
        d
        for d in sample.subject.doubts
        if not d.intent
        and not d.extreme
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
        and not (d.differ and len({sizes.get(n) for n in d.differ}) == 1)
    )


def whatever_invented(sample: Sample, finding: Finding, names: Iterable[str]) -> bool:
    """Whether the mismatch is there for all other values of the arguments with these names."""
    if finding.code not in MEASURED:
        return False
    second_order = finding.code.startswith("GV2")
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    discrete = {n: v for n, v in given.items() if not isinstance(v, float)}
    factors = [n for n, v in given.items() if isinstance(v, float)]
    counts = {n for n, v in discrete.items() if type(v) is int}
    bounds = {n: int(i.range[1]) for n, i in tensor_inputs(sample.case).items() if i.range is not None}
    if (
        set(given) != set(names)
        or not all(_is_plain(v) for v in discrete.values())
        # No such integers are all different, as backward may want them.
        or any(v.numel() > bounds.get(n, 0) for n, v in discrete.items() if _is_index(v))
        or not all(_is_plain_count(sample.subject.function_class, name) for name in counts)
    ):
        return False
    rows = list(_discrete(discrete, bounds, _numbers(sample)))
    runs = 0
    for row in rows[: MOST_JUDGED // (1 + len(FACTORS) * bool(factors))]:
        moved = _at(sample, row)
        if moved is None:
            continue
        own = ({}, *(dict.fromkeys(factors, factor) for factor in FACTORS if factors))
        found = [mismatched(with_values(moved, one), finding.input, second_order=second_order) for one in own]
        known = [f for f in found if f is not None]
        if not known:
            continue
        if 2 * sum(known) <= len(known) or (factors and len(known) <= LEAST_RUN):
            return False
        runs += bool(row)
    return not discrete or runs >= (LEAST_COUNTS if counts else LEAST_RUN)


def at_other_numbers(sample: Sample, names: Iterable[str]) -> Iterator[Sample]:
    """The sample with other numbers for the arguments with these names: real ones alike, then counts."""
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    real = [n for n, v in given.items() if isinstance(v, float)]
    counts = [n for n, v in given.items() if type(v) is int]
    yield from (with_values(sample, dict.fromkeys(real, factor)) for factor in FACTORS if real)
    for count in _numbers(sample) if counts else ():
        moved = _at(sample, dict.fromkeys(counts, count))
        if moved is not None:
            yield moved


def _at(sample: Sample, row: Mapping[str, Any]) -> Sample | None:
    """The sample at other values; None where forward refuses other counts, which may shape its outputs."""
    if not any(type(v) is int for v in row.values()):
        return with_values(sample, row)
    arguments = tuple(replace(a, value=row.get(a.name, a.value)) for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return other if isinstance(other, Sample) else None


def _numbers(sample: Sample) -> tuple[int, ...]:
    """Other counts: those that the inputs have, one of which may be meant, small ones and a large one."""
    shapes = [i.shape for i in tensor_inputs(sample.case).values()]
    sizes = [n for shape in shapes for n in (*shape, math.prod(shape))]
    return tuple(dict.fromkeys([*sizes[:MOST_SIZES], *COUNTS]))


def _is_index(value: Any) -> bool:  # noqa: ANN401 - an argument
    return isinstance(value, Tensor) and value.dtype is not torch.bool


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - an argument
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex() and value.numel() > 0
    return isinstance(value, bool | int)


def _discrete(
    given: Mapping[str, Any], bounds: Mapping[str, int], numbers: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """The other values: all integer tensors of one kind at a time, with each flag, and all counts alike."""
    tensors = {n: v for n, v in given.items() if _is_index(v)}
    masks = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dtype is torch.bool}
    flags = [n for n, v in given.items() if isinstance(v, bool)]
    counts = [n for n, v in given.items() if type(v) is int]
    alike = zip(*(_labels(v, bounds[n]) for n, v in tensors.items()), strict=True)
    kinds = (
        [dict(zip(tensors, made, strict=True)) for made in alike],
        [{n: torch.full_like(v, on) for n, v in masks.items()} for on in (True, False)],
        [dict.fromkeys(flags, on) for on in (True, False)],
        [dict.fromkeys(counts, k) for k in numbers if any(given[n] != k for n in counts)],
    )
    several = ([{}, *filter(None, kind)] for kind in kinds)
    rows = [{n: v for part in parts for n, v in part.items()} for parts in itertools.product(*several)]
    # What changes everything first: the row without a change is the sample itself.
    yield from sorted(rows, key=len, reverse=True)


def _labels(given: Tensor, bound: int) -> Iterator[Tensor]:
    """Labels, indices and permutations of other kinds: in order, all alike, backwards, from end to end."""
    increasing = torch.arange(given.numel()) % bound
    spread = torch.linspace(0, bound - 1, given.numel()).round()
    for made in (increasing, torch.zeros_like(increasing), increasing.flip(0), spread):
        yield made.to(given.dtype).reshape(given.shape)


def _is_plain_count(function: Any, name: str) -> bool:  # noqa: ANN401 - the user's class
    """Whether forward hands a number to no loop, and to no function that may have one.

    A backward may be the derivative of what many rounds converge to: with too few of them it is right, and
    looks wrong, whatever their number.
    """
    body = definition(getattr(function, "forward", None))
    return body is not None and not any(_may_loop(node, name) for node in ast.walk(body))


def _may_loop(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(), args=args, keywords=keywords):
            return any(_names(a, name) for a in (*args, *(k.value for k in keywords)))
        case ast.While(test=test):
            return _names(test, name)
        case ast.Assign(targets=[ast.Name()], value=value):
            return _names(value, name) and not isinstance(value, ast.Call)  # another name of it
        case _:
            return False


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))
