"""Other values: what was made up at other ones, and sets on which all values may be meant to lie.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. A mismatch that is there at all other
values that forward takes hangs on none of them. A count that a loop may go by is the rounds of an iteration,
which is right once it has converged: that leaves the mismatch open.

A set is a domain, unit rows, simplices, structured matrices, tables of halves. A Function of unit vectors or
of symmetric matrices has a gradient that need be right only along that manifold; a solver has one where it
converges; a forward that clamps its input to its domain is constant outside of it, where backward goes on. A
neighbour lies on such a set. A forward that projects its inputs onto the set itself is made for inputs off
it, if backward goes by where they were: then the set excuses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gradverify.model import Doubt, Finding, TensorInput, tensors_of
from gradverify.source import asks_for_signs, iterates, may_loop_over
from gradverify.verifier.neighbours.asking import (
    OF_A_SLOPE,
    OF_SECOND_ORDER,
    Neighbour,
    Projection,
    anywhere,
    are_near,
    gradients_at,
    inputs_of,
    is_right,
    outputs_at,
    with_arguments,
    with_values,
)
from gradverify.verifier.neighbours.shapes import at_returned_shapes, even_sizes, returned_shapes
from gradverify.verifier.questions.findings import if_guessed, listed_names
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output."""

OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs, and no value makes one."""

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV201", "GV202"})
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

SMALL = 0.1
"""Factor on inputs at which most iterations and series converge, alone or added to one or the identity."""

TAKES_BACK = 1e-2
"""Relative change of outputs or gradients below which an input was projected onto a set: the epsilon under a
root, and the like, may change them a little."""

WIDER = 3.0
"""Times its largest entry by which an input is moved beyond all others."""

MOST_OF_CONSTANTS = 4096
"""Entries of the constants together that are tried: a table, no data set."""

OF_STRUCTURES = OF_A_SLOPE | {"GV103", "GV108", "GV301", "GV302", "GV303", "GV602"}
"""Codes that a set of inputs can explain: a backward is linear in grad_output wherever they lie, and where
the first derivative is right in every direction, neither the second nor that of another dtype has an excuse.
"""


def doubts_of(sample: Sample) -> list[Doubt]:
    """What of the inputs of this case was made up."""
    options, sizes = dict(sample.case.options), dict(sample.case.sizes)
    return [
        d
        for d in sample.subject.doubts
        if not (d.intent or d.extreme)
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
        and not (d.differ and len({sizes.get(n) for n in d.differ}) == 1)
    ]


def made_up(sample: Sample, finding: Finding) -> Finding | None:
    """What was made up leaves it open, unless it is there at all other values too.

    No shape makes a backward that is not linear. Other values settle nothing where the shape of the gradient
    shows that another shape may be meant.
    """
    linear, of_values = finding.code != OF_GRAD_OUTPUT, finding.code != OF_THE_DTYPE
    doubts = [
        d
        for d in doubts_of(sample)
        if (linear or d.differ or (d.name and not d.of_shape))
        and (of_values or not d.of_values)
        and d.of_gradient in {"", finding.input}
    ]
    fits = all(d.of_values for d in doubts) and finding.input not in returned_shapes(sample)
    settled = fits and is_there_whatever(sample, finding, doubts)
    return None if settled else if_guessed(finding, (d.what for d in doubts))


def is_there_whatever(sample: Sample, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was made up."""
    if finding.code not in MEASURED:
        return False
    second = finding.code.startswith(OF_SECOND_ORDER)
    told = told_at(at_other_values(sample, [d.name for d in doubts]), finding.input or "", second=second)
    return len(told) >= LEAST_ASKED and not any(told)


def told_at(several: Iterable[Sample], name: str, *, second: bool = False) -> list[bool]:
    """Whether the gradient of an input is right at each of the first samples that tell."""
    answers = (is_right(Neighbour(other), name, second=second) for other in islice(several, MOST_ASKED))
    return [answer for answer in answers if answer is not None]


def at_other_values(sample: Sample, names: Collection[str], *, rounds: bool = False) -> Iterator[Sample]:
    """The sample with other values of the arguments with these names, where all of them can have some.

    Unless `rounds`, none of a count that a loop may go by: with too few of them a backward that is the
    derivative of what they go to looks wrong, whatever their number.
    """
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    counts = [n for n, v in given.items() if type(v) is int]
    if len(given) < len(set(names)) or (not rounds and any(_may_be_rounds(sample, n) for n in counts)):
        return
    several = {n: _others(sample, n, v, APART**k) for k, (n, v) in enumerate(given.items())}
    for k in range(max(map(len, several.values()), default=0) if all(several.values()) else 0):
        other = with_arguments(sample, {n: values[k % len(values)] for n, values in several.items()})
        if other is not None:
            yield other


def _may_be_rounds(sample: Sample, name: str) -> bool:
    """Whether forward or backward may go round a loop as often as an argument says."""
    function = sample.subject.function_class
    return function is None or may_loop_over(function.forward, own_backward(function), name)


def _others(sample: Sample, name: str, value: Any, apart: float) -> list[Any]:  # noqa: ANN401 - an argument
    """Other values of an argument, each kind in an order of its own; none of what is of another kind.

    Real numbers are `apart`: then a difference of two shows nothing, nor a swap. Where an integer tensor has
    more entries than places, backward may be right for integers that are all different alone: forward takes
    integers that are numbers beyond, and refuses those that are places, of which it gets as many as there
    are. A GPU may die of a place too far.
    """
    inputs = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    match value:
        case bool():
            return [True, False]
        case int():
            sizes = [n for i in inputs for n in (*i.shape, math.prod(i.shape))][:MOST_SIZES]
            return [n for n in dict.fromkeys([*sizes, *COUNTS]) if n != value]
        case float():
            return [math.copysign(factor * apart, value) for factor in FACTORS]
        case Tensor(dtype=torch.bool):
            return [torch.full_like(value, on) for on in (True, False)]
        case Tensor() if not (value.is_floating_point() or value.is_complex()) and value.device.type == "cpu":
            bound = next((int(i.range[1]) for i in inputs if i.name == name and i.range), value.numel())
            bounds = sorted({bound, max(bound, value.numel())}, reverse=True)
            several = [integers_like(value, b, kind) for b in bounds for kind in INTEGERS if value.numel()]
            fewer = value.reshape(-1)[:bound]
            return several + [integers_like(fewer, bound, INTEGERS[0])] * (bound < value.numel())
        case _:
            return []


Integers = Callable[[Tensor, int], Tensor]
"""Places (N), counted from 0, and a bound -> integers below it."""

INTEGERS: tuple[Integers, ...] = (
    lambda places, bound: places % bound,
    lambda places, _: 0 * places,
    lambda places, bound: places.flip(0) % bound,
    lambda places, bound: (1 + places % max(1, bound - 1)) % bound,
    lambda places, bound: places * (bound - 1) // max(1, places.numel() - 1),
)
"""Labels, indices and permutations: in order, all alike, backwards, without 0 as it stands for a blank or for
padding, from end to end below their bound."""


def integers_like(given: Tensor, bound: int, kind: Integers) -> Tensor:
    """A tensor of integers of one kind."""
    places = torch.arange(given.numel(), device=given.device)
    return kind(places, bound).to(given.dtype).reshape(given.shape)


def declares_values(sample: Sample) -> bool:
    """Whether a spec says how large the values of some input are, which a structure does not."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return bool(sample.case.hook) or any(t.range is not None or t.value is not None or t.make for t in given)


def is_matrix(x: Tensor) -> bool:
    """Whether the last two dimensions are those of a square matrix."""
    return x.dim() > 1 and 1 < x.shape[-1] == x.shape[-2]


def _any(_: Tensor) -> bool:
    return True


def _has_rows(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1


def _has_halves(x: Tensor) -> bool:
    return _has_rows(x) and x.shape[-1] % 2 == 0 and x.shape[-1] > 2


@dataclass(frozen=True)
class Kind:
    """A set of values of one tensor."""

    declared: str
    """How a spec declares it, before `of ...`."""
    move: Callable[[Tensor], Tensor]
    """A tensor to one on the set."""
    fits: Callable[[Tensor], bool] = is_matrix
    along: Projection = anywhere


def _span(x: Tensor) -> Tensor:
    """Further than inputs of this one's size lie apart."""
    return WIDER * x.abs().max().clamp_min(1.0)


def _one_like(x: Tensor) -> Tensor:
    """The identity for square matrices, ones for what is none."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if is_matrix(x) else torch.ones_like(x)


def _symmetrised(x: Tensor, _: Tensor | None = None) -> Tensor:
    return (x + x.mT) / 2


def _diagonal(x: Tensor) -> Tensor:
    return torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))


def _along_orthogonal(direction: Tensor, x: Tensor) -> Tensor:
    """Its part along x times an antisymmetric matrix: moving there leaves x orthogonal to first order."""
    turned = x.mT @ direction
    return x @ ((turned - turned.mT) / 2)


NEAR_ZERO = Kind("`range: [-0.3, 0.3]`", lambda x: SMALL * x, _any)

WITHOUT_SIGNS = (
    Kind("`domain: positive`", torch.abs, _any),
    Kind("`domain: unit`", lambda x: x.abs().frac(), _any),
)

DOMAINS = (
    *WITHOUT_SIGNS,
    Kind("`range: [1, 4]`", lambda x: 1 + x.abs(), _any),
    NEAR_ZERO,
    Kind("a higher `range:`", lambda x: x + _span(x), _any),
    Kind("a lower `range:`", lambda x: x - _span(x), _any),
)
"""Outside of which a forward may be constant: of one input, the last two above and below the others."""

LEADING = Kind(
    "a `make:` function of rows with a large first entry",
    lambda x: torch.cat([1 + x[..., :1].abs(), SMALL * x[..., 1:]], dim=-1),
    _has_rows,
)
"""Such as a time before the places: what subtracts the squares of the others is positive there."""

CONVERGING = (
    NEAR_ZERO,
    Kind("`range: [0.7, 1.3]`", lambda x: 1 + SMALL * x, _any),
    Kind("a `make:` function of matrices near the identity", lambda x: _one_like(x) + SMALL * x, _any),
)
"""Values at which most iterations converge."""

UNIT_ROWS = Kind(
    "`structure: unit-norm`",
    lambda x: normalize(x, dim=-1),
    _has_rows,
    lambda direction, x: direction - (direction * x).sum(dim=-1, keepdim=True) * x,
)

SIMPLEX = Kind(
    "`structure: simplex`",
    lambda x: normalize(x.abs(), p=1.0, dim=-1),
    _has_rows,
    lambda direction, _: direction - direction.mean(dim=-1, keepdim=True),
)

SYMMETRIC = Kind("`structure: symmetric`", _symmetrised, along=_symmetrised)

ORTHOGONAL = Kind("`structure: orthogonal`", lambda x: torch.linalg.qr(x).Q, along=_along_orthogonal)

DEFINITE = (
    Kind("`structure: spd`", lambda x: x @ x.mT + x.shape[-1] * _one_like(x), along=_symmetrised),
    Kind(
        "a `make:` function of symmetric matrices near the identity",
        lambda x: _one_like(x) + SMALL * _symmetrised(x) / x.abs().max().clamp_min(1.0),
        along=_symmetrised,
    ),
)
"""An iteration that solves with such a matrix overflows at any other one; a series has converged near the
identity."""

SUPPORTS = (
    Kind("`structure: triangular`", torch.tril, along=lambda direction, _: direction.tril()),
    Kind("a `make:` function of upper triangular matrices", torch.triu, along=lambda d, _: d.triu()),
    Kind("a `make:` function of diagonal matrices", _diagonal, along=lambda d, _: _diagonal(d)),
)
"""Of inputs for which backward gives nothing outside of them."""

OF_CONSTANTS = (
    Kind(
        "a `make:` function that repeats the first half",
        lambda x: torch.cat([x[..., : x.shape[-1] // 2]] * 2, dim=-1),
        _has_halves,
    ),
    Kind(
        "a `make:` function of pairs that are alike",
        lambda x: x[..., ::2].repeat_interleave(2, dim=-1),
        _has_halves,
    ),
    SIMPLEX,
    UNIT_ROWS,
    Kind("a `make:` function of zeros and ones", lambda x: (x > x.median()).to(x.dtype), _any),
    SYMMETRIC,
    Kind("a `make:` function of antisymmetric matrices", lambda x: (x - x.mT) / 2),
    Kind(
        "a `make:` function of filters that are minus their own adjoint",
        lambda x: (x - x.transpose(0, 1).flip(list(range(2, x.dim())))) / 2,
        lambda x: x.dim() > 2 and x.shape[0] == x.shape[1],
    ),
    ORTHOGONAL,
)
"""Tables of angles in both layouts, soft labels, directions, masks, metrics, rotations, their generators."""

SOFT_LABELS = Kind(
    "`dtype: float64` and `structure: simplex`",
    lambda x: x.double().softmax(-1),
    lambda x: x.dtype is torch.int64 and x.dim() > 1,
)
"""In place of integers that are only multiplied."""


def _on(sample: Sample, kinds: Iterable[Kind], names: Collection[str]) -> Iterator[Neighbour]:
    """The neighbours at which some arguments lie on a set, as far as they fit it."""
    given = {
        a.name: a.value for a in sample.problem.arguments if a.name in names and not a.value.is_complex()
    }
    for kind in kinds:
        values = {name: kind.move(value) for name, value in given.items() if kind.fits(value)}
        if values:
            declared = f"{kind.declared} of {listed_names([*values])}"
            along = dict.fromkeys(values, kind.along)
            yield Neighbour(with_values(sample, values), declared=declared, along=along)


def of_any_structure(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Neighbours on every set that may be meant, of all inputs that can lie on it.

    Also of the shapes that backward returns: one rotation, where a stack of rows was guessed.
    """
    yield from _of_any_structure(sample, name)
    for other in at_returned_shapes(sample):
        yield from (replace(one, guess=other.guess) for one in _of_any_structure(other.sample, name))


def _of_any_structure(sample: Sample, name: str) -> Iterator[Neighbour]:
    given = {n: p for n, p in inputs_of(sample).items() if p.dim() and not p.is_complex()}
    gradients = gradients_at(sample)
    for kind in SUPPORTS:
        yield from _on(sample, [kind], [n for n, g in gradients.items() if _is_kept(g, kind)])
    for kind in (UNIT_ROWS, ORTHOGONAL, SIMPLEX):
        told = [_is_projected(sample, n, kind) for n in given if name in {"", n} and kind.fits(given[n])]
        projects, is_blind = bool(told) and all(f for f, _ in told), all(b for _, b in told)
        if is_blind if projects else kind is not SIMPLEX:
            yield from _on(sample, [kind], given)
    yield from _on(sample, (SYMMETRIC, *DEFINITE), given)


def _is_kept(gradient: Tensor | None, kind: Kind) -> bool:
    """Whether a gradient that is not zero lies on a set of matrices."""
    if gradient is None or not is_matrix(gradient) or not gradient.any():
        return False
    return torch.equal(kind.along(gradient, gradient), gradient)


def _is_projected(sample: Sample, name: str, kind: Kind) -> tuple[bool, bool]:
    """Whether forward, and the gradient of an input, stay as they are when it is moved onto a set."""
    there = {name: kind.move(inputs_of(sample)[name])}
    gradients = gradients_at(sample).get(name), gradients_at(sample, there).get(name)
    return (
        are_near(outputs_at(sample), outputs_at(sample, there), TAKES_BACK),
        are_near(*gradients, TAKES_BACK),
    )


def constants_of_a_kind(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Constants of each kind, first at even sizes: a table may be one of halves, or of pairs."""
    for one in (*(even.sample for even in even_sizes(sample)), sample):
        given = {
            a.name: a.value.numel()
            for a in one.arguments
            if isinstance(a.value, Tensor)
            and not (a.differentiable or a.in_list or a.value.layout is not torch.strided)
            and a.value.is_floating_point()
            and a.value.numel() > 1
        }
        if sum(given.values()) <= MOST_OF_CONSTANTS:
            yield from _on(one, OF_CONSTANTS, given)
        yield from _on(one, [SOFT_LABELS], [a.name for a in one.arguments if isinstance(a.value, Tensor)])


def inside_a_domain(sample: Sample, name: str) -> Iterator[Neighbour]:
    """An input inside of a domain, or all of them, outside of which forward is constant."""
    yield from _on(sample, DOMAINS, {name} & inputs_of(sample).keys())
    yield from _on(sample, [LEADING], inputs_of(sample))


def without_signs(sample: Sample, _: str) -> Iterator[Neighbour]:
    """What acts on the first input without its minus signs, or what is before the point.

    An index that is read off a negative number counts from the end in forward, and not in backward.
    """
    for name, primal in [*inputs_of(sample).items()][1:]:
        if not primal.is_complex() and (primal < 0).any():
            yield from _on(sample, WITHOUT_SIGNS, [name])


def where_all_is_positive(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Positive inputs, where neither forward nor backward takes another path for negative ones.

    Of a formula such as i0e(x).log() + x either holds for positive numbers alone.
    """
    function = sample.subject.function_class
    if function is not None and not (
        asks_for_signs(function.forward) or asks_for_signs(own_backward(function))
    ):
        yield from _on(sample, WITHOUT_SIGNS[:1], inputs_of(sample))


def where_forward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Where forward repeats a step: values at which it converges, as an implicit gradient wants it."""
    function = sample.subject.function_class
    if function is not None and iterates(function.forward):
        yield from _on(sample, CONVERGING, sample.problem.input_names)


def where_backward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Where what backward repeats converges, or solves: it need not be linear anywhere else."""
    function = sample.subject.function_class
    repeats = function is not None and iterates(own_backward(function))
    yield from _on(sample, (*DEFINITE, *(CONVERGING if repeats else ())), sample.problem.input_names)


def zeros_of_padding(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Zeros in the part of inputs that backward gives no gradient, as forward gives zeros there."""
    outputs, given = outputs_at(sample), inputs_of(sample)
    values = () if outputs is None else sample.problem.outputs.unflatten(outputs)
    parts = {
        name: gradient == 0
        for name, gradient in gradients_at(sample).items()
        if gradient is not None and any(_are_zero_alike(gradient, value) for value in values)
    }
    if parts:
        there = with_values(sample, {n: given[n].masked_fill(part, 0.0) for n, part in parts.items()})
        declared = (
            f"a `make:` function for {listed_names([*parts])} that leaves zeros where forward gives them"
        )
        yield Neighbour(there, declared=declared, along={n: _outside(part) for n, part in parts.items()})


def _outside(part: Tensor) -> Projection:
    return lambda direction, _: direction.masked_fill(part, 0.0)


def _are_zero_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are zero in the same places where both have some: padding, or triangles."""
    if one.dim() != other.dim():
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    zeros = one[both] == 0
    return torch.equal(zeros, other[both] == 0) and bool(zeros.any()) and not zeros.all()
