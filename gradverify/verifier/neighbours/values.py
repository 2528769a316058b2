"""Other values: numbers, labels and masks that were made up, constants of a kind, a domain, padding.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. A forward that clamps its input to
its domain, against rounding, is constant outside of it, where backward goes on with the derivative at the
edge. A solver gives its fixed point the implicit gradient, whatever rounds lead there. A table of angles
repeats its first half, soft labels sum to one. Such a backward is right at the values that are meant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Doubt, Finding, Point, TensorInput, tensors_of
from gradverify.model.case import is_floating
from gradverify.source import iterates, may_loop_over
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.samples import prepared
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import if_guessed, listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.neighbours.asking import (
    OF_SECOND_ORDER,
    Near,
    Neighbour,
    is_right,
    is_square,
    with_arguments,
    with_values,
)
from gradverify.verifier.neighbours.shapes import at_even_sizes, names_of_other_shapes
from gradverify.verifier.neighbours.structures import OF_GRAD_OUTPUT, SMALL, one_like
from gradverify.verifier.numerics.probes import random_signs

OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs, and no value makes one."""

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""

MEASURED = OF_THE_DERIVATIVE - {"GV108"}
"""Codes of findings that can be asked again at other values."""

FACTORS = (2.5, 0.3, 0.01)
"""Other real numbers: large and small, none at which a wrong factor cannot be seen."""

APART = 1.5
"""The ratio of two other real numbers that are tried together."""

COUNTS = (2, 1, 4, 3, 16)
"""Other counts of groups, of the largest entries, of parts."""

MOST_SIZES = 4
"""Sizes of the inputs that are tried as counts."""

MOST_ASKED = 12
"""Neighbours that are asked of one doubt."""

LEAST_ASKED = 2
"""Of these must have told something: one alone tells little."""


def doubts_of(sample: Sample) -> tuple[Doubt, ...]:
    """What of the inputs of this case was made up."""
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


def made_up(near: Near, finding: Finding) -> Finding | None:
    """What was made up leaves it open, unless it is there at all other values too.

    No shape makes a backward that is not linear. Other values settle nothing where the shape of the gradient
    shows that another shape may be meant. What is None where the mismatch is there as well made none of it.
    """
    linear = finding.code != OF_GRAD_OUTPUT
    doubts = [d for d in doubts_of(near.sample) if linear or d.differ or (d.name and not d.of_shape)]
    if finding.code == OF_THE_DTYPE:
        doubts = [d for d in doubts if not d.of_values]
    optional = tuple(d.name for d in doubts if d.optional)
    bare = near.once(_without, optional) if optional and finding.input not in optional else None
    left = doubts if bare is None else [d for d in doubts if not d.optional]
    testable = bool(doubts) and all(d.of_values for d in left)
    fits = testable and finding.input not in near.once(names_of_other_shapes)
    settled = fits and is_there_whatever(near if bare is None else Near(bare), finding, left)
    return None if settled else if_guessed(finding, (d.what for d in doubts))


def is_there_whatever(near: Near, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was made up."""
    second = finding.code.startswith(OF_SECOND_ORDER)
    names = tuple(d.name for d in doubts)
    return finding.code in MEASURED and near.once(_stays, names, finding.input or "", second)


def _stays(sample: Sample, names: tuple[str, ...], wrong: str, second: bool) -> bool:  # noqa: FBT001
    if not names:
        return is_right(Neighbour(sample), wrong, second=second) is False
    several = itertools.islice(at_other_values(sample, names), MOST_ASKED)
    answers = [is_right(Neighbour(other), wrong, second=second) for other in several]
    told = [answer for answer in answers if answer is not None]
    return len(told) >= LEAST_ASKED and not any(told)


def _without(sample: Sample, names: Collection[str]) -> Sample | None:
    """The sample with None for some arguments; None where forward does not take that."""
    arguments = tuple(Argument(a.name, None) if a.name in names else a for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return other if isinstance(other, Sample) else None


def at_other_values(sample: Sample, names: Collection[str], *, rounds: bool = False) -> Iterator[Sample]:
    """The sample with other values of the arguments with these names, where all of them can have some.

    Unless `rounds`, none of a count that forward may loop over: with too few of them a backward that is the
    derivative of what they go to looks wrong, whatever their number.
    """
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    forward = getattr(sample.subject.function_class, "forward", None)
    counts = [n for n, v in given.items() if type(v) is int]
    plain = all(isinstance(v, bool | int | float) or _is_plain(v) for v in given.values())
    loops = not rounds and any(may_loop_over(forward, n) for n in counts)
    if len(given) < len(set(names)) or not plain or loops:
        return
    factors = {n: v for n, v in given.items() if isinstance(v, float)}
    rest = {n: v for n, v in given.items() if n not in factors}
    of_factors = [_apart(factors, f) for f in FACTORS] if factors else []
    of_rest = [*_discrete(sample, rest)]
    both = [{**r, **f} for r, f in zip(of_rest, itertools.cycle(of_factors), strict=False)]
    for row in (*both, *(of_rest[:LEAST_ASKED] if both else of_rest), *of_factors):
        other = with_arguments(sample, row)
        if other is not None:
            yield other


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - an argument
    """Whether it is a tensor of integers or of truth values, on the CPU: a GPU may die of a place too far."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return False
    return value.numel() > 0 and value.device.type == "cpu"


def _apart(given: Mapping[str, float], factor: float) -> dict[str, Any]:
    """Numbers of one size, no two of which are equal: then a difference of them shows nothing, nor a swap."""
    sizes = (factor * APART**k for k in range(len(given)))
    return {n: math.copysign(size, v) for (n, v), size in zip(given.items(), sizes, strict=True)}


def _discrete(sample: Sample, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All integer tensors of one kind at a time, all masks and all flags alike, all counts alike.

    Where an integer tensor has more entries than places, backward may be right for integers that are all
    different alone: forward takes integers that are numbers beyond, and refuses those that are places.
    """
    bounds = {i.name: int(i.range[1]) for i in sample.case.inputs if isinstance(i, TensorInput) and i.range}
    tensors = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dtype is not torch.bool}
    beyond = {n: v.numel() for n, v in tensors.items() if v.numel() > bounds.get(n, 0)}
    for bound in ({**bounds, **beyond}, bounds) if beyond else (bounds,):
        for kind in INTEGERS if tensors else ():
            yield {n: kind(v, bound.get(n, v.numel())) for n, v in tensors.items()}
    masks = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dtype is torch.bool}
    flags = [n for n, v in given.items() if isinstance(v, bool)]
    for on in (True, False) if masks or flags else ():
        yield {n: torch.full_like(v, on) for n, v in masks.items()} | dict.fromkeys(flags, on)
    counts = {n: v for n, v in given.items() if type(v) is int}
    shapes = [i.shape for i in sample.case.inputs if isinstance(i, TensorInput)]
    sizes = [n for shape in shapes for n in (*shape, math.prod(shape))][:MOST_SIZES]
    for count in dict.fromkeys([*sizes, *COUNTS]) if counts else ():
        if any(v != count for v in counts.values()):
            yield dict.fromkeys(counts, count)


def _increasing(given: Tensor, bound: int) -> Tensor:
    return (torch.arange(given.numel(), device=given.device) % bound).to(given.dtype).reshape(given.shape)


def _alike(given: Tensor, _: int) -> Tensor:
    return torch.zeros_like(given)


def _decreasing(given: Tensor, bound: int) -> Tensor:
    return _increasing(given, bound).flatten().flip(0).reshape(given.shape)


def _spread(given: Tensor, bound: int) -> Tensor:
    spread = torch.linspace(0, bound - 1, given.numel(), device=given.device)
    return spread.round().to(given.dtype).reshape(given.shape)


INTEGERS = (_increasing, _alike, _decreasing, _spread)
"""Labels, indices and permutations: in order, all alike, backwards, from end to end below their bound."""


@dataclass(frozen=True)
class Kind:
    """A kind of constants."""

    words: str
    """What they are, after `that the values of ... need not `."""
    of: Callable[[Tensor], Tensor]
    fits: Callable[[Tensor], bool]


MOST_OF_CONSTANTS = 4096
"""Entries of the constants together that are tried: a table, no data set."""


def constants_of_a_kind(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Constants of each kind, first at even sizes: a table may be one of halves, or of pairs."""
    for one in filter(None, (at_even_sizes(sample), sample)):
        given = {
            a.name: a.value
            for a in one.arguments
            if isinstance(a.value, Tensor)
            and not (a.differentiable or a.in_list or a.value.layout is not torch.strided)
            and a.value.is_floating_point()
            and a.value.numel() > 1
        }
        if sum(v.numel() for v in given.values()) > MOST_OF_CONSTANTS:
            return
        for kind in KINDS:
            values = {n: kind.of(v) for n, v in given.items() if kind.fits(v)}
            if any(not torch.equal(v, given[n]) for n, v in values.items()):
                named = " and ".join(f"`{n}`" for n in values)
                yield Neighbour(with_values(one, values), f"that the values of {named} need not {kind.words}")


def _in_two(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] % 2 == 0 and x.shape[-1] > 2


def _of_rows(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1


KINDS = (
    Kind(
        "repeat their first half along the last dimension",
        lambda x: torch.cat([x[..., : x.shape[-1] // 2]] * 2, dim=-1),
        _in_two,
    ),
    Kind(
        "be alike in pairs along the last dimension",
        lambda x: x[..., ::2].repeat_interleave(2, dim=-1),
        _in_two,
    ),
    Kind(
        "sum to one along the last dimension",
        lambda x: x.abs() / x.abs().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny),
        _of_rows,
    ),
    Kind(
        "have the norm 1 along the last dimension",
        lambda x: torch.nn.functional.normalize(x, dim=-1),
        _of_rows,
    ),
    Kind("be zeros and ones alone", lambda x: (x > x.median()).to(x.dtype), lambda _: True),
    Kind("be a symmetric matrix", lambda x: (x + x.mT) / 2, is_square),
    Kind("be an antisymmetric matrix", lambda x: (x - x.mT) / 2, is_square),
    Kind(
        "be a filter that is minus its own adjoint",
        lambda x: (x - x.transpose(0, 1).flip(list(range(2, x.dim())))) / 2,
        lambda x: x.dim() > 2 and x.shape[0] == x.shape[1],
    ),
    Kind("be an orthogonal matrix", lambda x: torch.linalg.qr(x).Q, is_square),
)
"""Tables of angles in both layouts, soft labels, directions, masks, metrics, rotations, their generators."""

DOMAINS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "`domain: positive`": torch.abs,
    "`domain: unit`": lambda x: x.abs().frac(),
    "`range: [1, 4]`": lambda x: 1 + x.abs(),
    "`range: [-0.3, 0.3]`": lambda x: SMALL * x,
}
"""How a spec declares a domain, and values in it made of an input's own."""

CONVERGING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "`range: [-0.3, 0.3]`": lambda x: SMALL * x,
    "`range: [0.7, 1.3]`": lambda x: 1 + SMALL * x,
    "a `make:` function of matrices near the identity": lambda x: one_like(x) + SMALL * x,
}
"""The same of values at which most iterations converge."""

NOT_CONVERGED = "that forward's iteration converges at such values"


def inside_a_domain(sample: Sample, name: str) -> Iterator[Neighbour]:
    """An input inside of a domain, outside of which forward is constant."""
    given = dict(zip(sample.problem.input_names, sample.problem.primals, strict=True))
    guess = f"that `{name}` has other values (forward is constant wherever backward is wrong)"
    for declared, move in DOMAINS.items() if name in given and not given[name].is_complex() else ():
        there = with_values(sample, {name: move(given[name])})
        yield Neighbour(there, guess, f"{declared} of `{name}`", everywhere=True)


def is_constant_there(finding: Finding) -> bool:
    """Whether forward does not move wherever backward is wrong."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return bool(worst) and all(e.expected == 0 for e in worst)


def where_forward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Where forward repeats a step: values at which it converges."""
    function = sample.subject.function_class
    if function is None or not iterates(function.forward):
        return
    given = {a.name: a.value for a in sample.arguments if a.differentiable}
    for declared, move in CONVERGING.items():
        there = with_values(sample, {name: move(value) for name, value in given.items()})
        yield Neighbour(there, NOT_CONVERGED, declared)


def declares_values(sample: Sample) -> bool:
    """Whether a spec says how large the values of some input are, which a structure does not."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return bool(sample.case.hook) or any(t.range is not None or t.value is not None or t.make for t in given)


def where_backward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """The same where backward repeats a step: what it gives before that converges is not linear."""
    function = sample.subject.function_class
    if function is not None and iterates(own_backward(function)):
        given = {a.name: a.value for a in sample.arguments if a.differentiable}
        for declared, move in CONVERGING.items():
            there = with_values(sample, {name: move(value) for name, value in given.items()})
            yield Neighbour(there, "that backward's iteration converges at such values", declared)


def without_signs(sample: Sample, name: str) -> Iterator[Neighbour]:
    """What acts on the first input without its minus signs, or what is before the point.

    An index that is read off a negative number counts from the end in forward, and not in backward.
    """
    given = [*zip(sample.problem.input_names, sample.problem.primals, strict=True)]
    for one, primal in given[1:]:
        if not primal.is_complex() and bool((primal < 0).any()):
            moves = (primal.abs(), primal.abs().frac())
            several = (
                Neighbour(with_values(sample, {one: m}), f"that negative values of `{one}` are valid")
                for m in moves
            )
            yield from itertools.islice((n for n in several if is_right(n, name) is not None), 1)


def zeros_of_padding(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Zeros in the part of inputs that backward gives no gradient, as forward gives zeros there."""
    problem = sample.problem
    parts: dict[str, Tensor] = {}
    signs = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    values, pulled = problem.evaluate(problem.primals), problem.pull_back(problem.primals, signs)
    if isinstance(values, Raised) or isinstance(pulled, Raised):
        return
    for name, primal, gradient in zip(problem.input_names, problem.primals, pulled.value, strict=True):
        if (
            gradient is not None
            and primal.dim()
            and any(_are_the_same(gradient == 0, v == 0) for v in values.value)
        ):
            parts[name] = gradient == 0
    if parts:
        given = dict(zip(problem.input_names, problem.primals, strict=True))
        there = with_values(sample, {n: given[n].masked_fill(part, 0.0) for n, part in parts.items()})
        names = listed_names([*parts])
        along = {n: _outside(part) for n, part in parts.items()}
        guess = f"that {names} may hold values where forward and backward give zeros"
        yield Neighbour(there, guess, f"a `make:` function for {names} that leaves zeros there", along)


def _outside(part: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda direction, _: direction.masked_fill(part, 0.0)


def _are_the_same(one: Tensor, other: Tensor) -> bool:
    """Whether two masks are one where both have entries, some of them set: padded rows, or triangles.

    Behind the dimensions that both have, the first one must be set for all of a row or for none of it.
    """
    count = min(one.dim(), other.dim())
    rows, others = (m.reshape(*m.shape[:count], -1).all(dim=-1) for m in (one, other))
    if not torch.equal(one, rows.reshape(*rows.shape, *[1] * (one.dim() - count)).expand_as(one)):
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(rows.shape, others.shape, strict=True))
    return torch.equal(rows[both], others[both]) and bool(rows[both].any()) and not bool(rows[both].all())


def declared_by(point: Point, name: str, drawn: TensorInput | None) -> str:
    """What limits the values of an input; a parameter of a module is an input of its Function."""
    if name.startswith("self."):
        return f"in an entry for the Function that gets `{name}`, with a `range:` of it"
    if drawn is not None and not is_floating(drawn):
        return f"a `make:` function for `{name}`"
    return f"`avoid: [0]` of `{name}`" if point is Point.SPECIAL else f"a `range:` of `{name}`"
