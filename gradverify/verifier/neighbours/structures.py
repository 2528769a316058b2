"""Sets of values that may be meant: a domain, unit rows, simplices, structured matrices, tables of halves.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold; a solver has one where it converges; a forward that clamps its input to its domain is constant
outside of it, where backward goes on. A neighbour lies on such a set. A forward that projects its inputs onto
the set itself is made for inputs off it, if backward goes by where they were: then the set excuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gradverify.model import Finding
from gradverify.rules import RULES
from gradverify.source import iterates
from gradverify.verifier.neighbours.asking import (
    Neighbour,
    Projection,
    anywhere,
    are_near,
    gradients_at,
    inputs_of,
    outputs_at,
    with_values,
)
from gradverify.verifier.neighbours.shapes import at_even_sizes
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import listed_names

SMALL = 0.1
"""Factor on inputs at which most iterations and series converge, alone or added to one or the identity."""

TAKES_BACK = 1e-2
"""Relative change of outputs or gradients below which an input was projected onto a set: the epsilon under a
root, and the like, may change them a little."""

LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""

MOST_OF_CONSTANTS = 4096
"""Entries of the constants together that are tried: a table, no data set."""

ON_NO_STRUCTURE = ("GV102", "GV104", "GV106", "GV2", "GV501", "GV601")
"""Codes that no set of inputs explains: a backward is linear in grad_output wherever they lie, and where the
first derivative is right in every direction, neither the second nor that of another dtype has an excuse."""

OF_STRUCTURES = frozenset(r.code for r in RULES if not r.code.startswith(ON_NO_STRUCTURE))


def is_matrix(x: Tensor) -> bool:
    """Whether the last two dimensions are those of a square matrix."""
    return x.dim() > 1 and 1 < x.shape[-1] == x.shape[-2]


def _any(_: Tensor) -> bool:
    return True


def _has_rows(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1


def _has_halves(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] % 2 == 0 and x.shape[-1] > 2


@dataclass(frozen=True)
class Kind:
    """A set of values of one tensor."""

    move: Callable[[Tensor], Tensor]
    """A tensor to one on the set."""
    declared: str = ""
    """How a spec declares an input on it, before `of ...`."""
    words: str = ""
    """What constants on it are, after `that the values of ... need not `."""
    along: Projection = anywhere
    fits: Callable[[Tensor], bool] = is_matrix


def _one_like(x: Tensor) -> Tensor:
    """The identity for square matrices, ones for what is none."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if is_matrix(x) else torch.ones_like(x)


def _symmetrised(x: Tensor, _: Tensor | None = None) -> Tensor:
    return (x + x.mT) / 2


def _diagonal(x: Tensor, _: Tensor | None = None) -> Tensor:
    return torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))


def _along_orthogonal(direction: Tensor, x: Tensor) -> Tensor:
    """Its part along x times an antisymmetric matrix: moving there leaves x orthogonal to first order."""
    turned = x.mT @ direction
    return x @ ((turned - turned.mT) / 2)


POSITIVE = Kind(torch.abs, "`domain: positive`", fits=_any)

UNIT = Kind(lambda x: x.abs().frac(), "`domain: unit`", fits=_any)

NEAR_ZERO = Kind(lambda x: SMALL * x, "`range: [-0.3, 0.3]`", fits=_any)

DOMAINS = (POSITIVE, UNIT, Kind(lambda x: 1 + x.abs(), "`range: [1, 4]`", fits=_any), NEAR_ZERO)
"""Outside of which a forward may be constant."""

CONVERGING = (
    NEAR_ZERO,
    Kind(lambda x: 1 + SMALL * x, "`range: [0.7, 1.3]`", fits=_any),
    Kind(lambda x: _one_like(x) + SMALL * x, "a `make:` function of matrices near the identity", fits=_any),
)
"""Values at which most iterations converge."""

UNIT_ROWS = Kind(
    lambda x: normalize(x, dim=-1),
    "`structure: unit-norm`",
    "have the norm 1 along the last dimension",
    lambda direction, x: direction - (direction * x).sum(dim=-1, keepdim=True) * x,
    _has_rows,
)

SIMPLEX = Kind(
    lambda x: normalize(x.abs(), p=1.0, dim=-1),
    "`structure: simplex`",
    "sum to one along the last dimension",
    lambda direction, _: direction - direction.mean(dim=-1, keepdim=True),
    _has_rows,
)

SYMMETRIC = Kind(_symmetrised, "`structure: symmetric`", "be a symmetric matrix", _symmetrised)

ORTHOGONAL = Kind(
    lambda x: torch.linalg.qr(x).Q, "`structure: orthogonal`", "be an orthogonal matrix", _along_orthogonal
)

DEFINITE = (
    Kind(lambda x: x @ x.mT + x.shape[-1] * _one_like(x), "`structure: spd`", along=_symmetrised),
    Kind(
        lambda x: _one_like(x) + SMALL * _symmetrised(x) / x.abs().max().clamp_min(1.0),
        "a `make:` function of symmetric matrices near the identity",
        along=_symmetrised,
    ),
)
"""An iteration that solves with such a matrix overflows at any other one; a series has converged near the
identity."""

SUPPORTS = (
    Kind(lambda x: _diagonal(x).abs(), "a `make:` function of diagonal matrices", along=_diagonal),
    Kind(torch.tril, "`structure: triangular`", along=lambda direction, _: direction.tril()),
    Kind(torch.triu, "a `make:` function of upper triangular matrices", along=lambda d, _: d.triu()),
)
"""Of inputs for which backward gives nothing outside of them."""

OF_CONSTANTS = (
    Kind(
        lambda x: torch.cat([x[..., : x.shape[-1] // 2]] * 2, dim=-1),
        words="repeat their first half along the last dimension",
        fits=_has_halves,
    ),
    Kind(
        lambda x: x[..., ::2].repeat_interleave(2, dim=-1),
        words="be alike in pairs along the last dimension",
        fits=_has_halves,
    ),
    SIMPLEX,
    UNIT_ROWS,
    Kind(lambda x: (x > x.median()).to(x.dtype), words="be zeros and ones alone", fits=_any),
    SYMMETRIC,
    Kind(lambda x: (x - x.mT) / 2, words="be an antisymmetric matrix"),
    Kind(
        lambda x: (x - x.transpose(0, 1).flip(list(range(2, x.dim())))) / 2,
        words="be a filter that is minus its own adjoint",
        fits=lambda x: x.dim() > 2 and x.shape[0] == x.shape[1],
    ),
    ORTHOGONAL,
)
"""Tables of angles in both layouts, soft labels, directions, masks, metrics, rotations, their generators."""


def _on(
    sample: Sample,
    kinds: Iterable[Kind],
    names: Collection[str],
    guess: str = "",
    *,
    everywhere: bool = False,
) -> Iterator[Neighbour]:
    """The neighbours at which some arguments lie on a set, as far as they fit it."""
    given = {
        a.name: a.value for a in sample.problem.arguments if a.name in names and not a.value.is_complex()
    }
    for kind in kinds:
        values = {name: kind.move(value) for name, value in given.items() if kind.fits(value)}
        if values:
            said = listed_names([*values])
            declared = f"{kind.declared} of {said}" if kind.declared else ""
            along = dict.fromkeys(values, kind.along)
            guessed = guess.format(names=said, words=kind.words)
            yield Neighbour(with_values(sample, values), guessed, declared, along, everywhere)


def of_any_structure(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Neighbours on every set that may be meant, of all inputs that can lie on it."""
    given = {n: p for n, p in inputs_of(sample).items() if p.dim() and not p.is_complex()}
    ignored = [_ignores_lengths(sample, n) for n in given if name in {"", n}]
    projects = bool(ignored) and all(forward for forward, _ in ignored)
    blind = projects and all(backward for _, backward in ignored)
    rows = () if projects and not blind else (UNIT_ROWS, ORTHOGONAL)  # whose rows are unit vectors
    gradients = gradients_at(sample)
    for kind in SUPPORTS:
        yield from _on(sample, [kind], [n for n, g in gradients.items() if _is_kept(g, kind)])
    yield from _on(sample, (*rows, *((SIMPLEX,) if blind else ()), SYMMETRIC, *DEFINITE), given)


def _is_kept(gradient: Tensor | None, kind: Kind) -> bool:
    """Whether a gradient that is not zero lies on a set of matrices."""
    if gradient is None or not is_matrix(gradient) or not gradient.any():
        return False
    return torch.equal(kind.along(gradient, gradient), gradient)


def _ignores_lengths(sample: Sample, name: str) -> tuple[bool, bool]:
    """Whether forward, and the gradient of an input, stay as they are when its rows become longer.

    Where forward does, the derivative is the smaller the longer the row.
    """
    primal = inputs_of(sample)[name]
    rows = torch.linspace(1.0, LOPSIDED, primal[..., 0].numel() + 1, dtype=primal.dtype)[1:]
    longer = {name: primal * rows.reshape(primal.shape[:-1]).unsqueeze(-1).to(primal.device)}
    outputs = outputs_at(sample), outputs_at(sample, longer)
    gradients = gradients_at(sample).get(name), gradients_at(sample, longer).get(name)
    return are_near(*outputs, TAKES_BACK), are_near(*gradients, TAKES_BACK)


def constants_of_a_kind(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Constants of each kind, first at even sizes: a table may be one of halves, or of pairs."""
    for one in filter(None, (at_even_sizes(sample), sample)):
        given = {
            a.name: a.value.numel()
            for a in one.arguments
            if isinstance(a.value, Tensor)
            and not (a.differentiable or a.in_list or a.value.layout is not torch.strided)
            and a.value.is_floating_point()
            and a.value.numel() > 1
        }
        if sum(given.values()) <= MOST_OF_CONSTANTS:
            yield from _on(one, OF_CONSTANTS, given, "that the values of {names} need not {words}")


def is_constant_there(finding: Finding) -> bool:
    """Whether forward does not move wherever backward is wrong."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return bool(worst) and all(e.expected == 0 for e in worst)


def inside_a_domain(sample: Sample, name: str) -> Iterator[Neighbour]:
    """An input inside of a domain, outside of which forward is constant."""
    guess = "that {names} has other values (forward is constant wherever backward is wrong)"
    yield from _on(sample, DOMAINS, {name} & inputs_of(sample).keys(), guess, everywhere=True)


def where_forward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Where forward repeats a step: values at which it converges, as an implicit gradient wants it."""
    function = sample.subject.function_class
    if function is not None and iterates(function.forward):
        guess = "that forward's iteration converges at such values"
        yield from _on(sample, CONVERGING, sample.problem.input_names, guess)


def where_backward_converges(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Where what backward repeats converges, or solves: it need not be linear anywhere else."""
    names, function = sample.problem.input_names, sample.subject.function_class
    yield from _on(sample, DEFINITE, names)
    if function is not None and iterates(own_backward(function)):
        yield from _on(sample, CONVERGING, names, "that backward's iteration converges at such values")


def without_signs(sample: Sample, _: str) -> Iterator[Neighbour]:
    """What acts on the first input without its minus signs, or what is before the point.

    An index that is read off a negative number counts from the end in forward, and not in backward.
    """
    for name, primal in [*inputs_of(sample).items()][1:]:
        if not primal.is_complex() and bool((primal < 0).any()):
            yield from _on(sample, (POSITIVE, UNIT), [name], "that negative values of {names} are valid")


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
        names = listed_names([*parts])
        guess = f"that {names} may hold values where forward and backward give zeros"
        along = {n: _outside(part) for n, part in parts.items()}
        yield Neighbour(there, guess, f"a `make:` function for {names} that leaves zeros there", along)


def _outside(part: Tensor) -> Projection:
    return lambda direction, _: direction.masked_fill(part, 0.0)


def _are_zero_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are zero in the same places where both have some: padding, or triangles."""
    if one.dim() != other.dim():
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    zeros = one[both] == 0
    return torch.equal(zeros, other[both] == 0) and bool(zeros.any()) and not bool(zeros.all())
