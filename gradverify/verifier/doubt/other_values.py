"""Whether a mismatch hangs on values that were invented: it is looked for at others.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. If backward is wrong for every other
value as well, for labels in order and all alike, for small factors and large ones, then no choice of
them makes it right, and it does not matter that they were invented. Where forward takes few other values, or
backward is right at one of them, the doubt remains. A backward may be the derivative of what many rounds
converge to: with too few of them it is right, and looks wrong, whatever their number. So a count is tried
otherwise only where forward uses it in torch's own calls, in indices and in arithmetic.

A constant may be meant to be of some kind: a table of angles repeats its first half, or is alike in pairs of
a head, soft labels sum to one. A gradient that is right for all such values, and for no others, is no
mistake. So the mismatch is looked for again with the constants of each kind; each kind leaves room for values
that differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import (
    Doubt,
    Finding,
    TensorInput,
)
from gradverify.source import may_loop_over
from gradverify.verifier.checks.deliberate import OF_THE_DERIVATIVE
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.neighbours import (
    Neighbours,
    is_square,
    mismatched,
    with_values,
)
from gradverify.verifier.checks.samples import prepared
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    if_guessed,
)
from gradverify.verifier.doubt.domains import OF_GRAD_OUTPUT
from gradverify.verifier.doubt.other_shapes import at_even_sizes, names_of_other_shapes
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.probes import random_signs


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


OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs, and no value makes one."""


FACTORS = (2.5, 0.3, 0.01)
"""Other real numbers: large and small, none at which a wrong factor cannot be seen."""


APART = 1.5
"""The ratio of two other real numbers that are tried together."""


LEAST_RUN = 2
"""Other values that forward must take: one alone tells little."""


COUNTS = (2, 1, 4, 3, 16)
"""Other counts of groups, of the largest entries, of parts."""


LEAST_COUNTS = 3
"""Other counts that forward must take: most of them it refuses, and two may be no valid ones."""


MOST_SIZES = 4
"""Sizes of the inputs that are tried as counts."""


MOST_MEASURED = 12
"""Jacobians that are measured to settle one doubt."""


MEASURED = frozenset({"GV101", "GV106", "GV107", "GV110", "GV201", "GV202"})
"""Codes of findings that can be measured again at other values."""


_Integers = Callable[[Tensor, int], Tensor]
"""(integers, their exclusive bound) -> others of the same shape below the same bound."""


def _increasing(given: Tensor, bound: int) -> Tensor:
    return (torch.arange(given.numel(), device=given.device) % bound).to(given.dtype).reshape(given.shape)


def _alike(given: Tensor, bound: int) -> Tensor:
    del bound
    return torch.zeros_like(given)


def _decreasing(given: Tensor, bound: int) -> Tensor:
    return _increasing(given, bound).flatten().flip(0).reshape(given.shape)


def _spread(given: Tensor, bound: int) -> Tensor:
    spread = torch.linspace(0, bound - 1, given.numel(), device=given.device)
    return spread.round().to(given.dtype).reshape(given.shape)


INTEGERS: tuple[_Integers, ...] = (
    _increasing,
    _alike,
    _decreasing,
    _spread,
)
"""Labels, indices and permutations of other kinds: in order, all alike, backwards, from end to end."""


def whatever_invented(sample: Sample, names: Collection[str], wrong: str | None, *, code: str) -> bool:
    """Whether the mismatch for an input is there for all other values of the arguments with these names.

    `code` is that of the finding: what is the same for every grad_output may well be right for one.
    """
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    discrete = {n: v for n, v in given.items() if not isinstance(v, float)}
    factors = {n: v for n, v in given.items() if isinstance(v, float)}
    if set(given) != set(names) or not all(_is_plain(v) for v in discrete.values()):
        return False
    bounds = _bounds(sample)
    # Backward may be right for integers that are all different alone, of which there are none below a small
    # bound. Beyond it forward takes integers that are numbers, and refuses those that are places, as a GPU
    # does by ending the process. What is not linear in grad_output is so for any integers.
    beyond = {n: v.numel() for n, v in discrete.items() if _is_index(v) and v.numel() > bounds.get(n, 0)}
    if any(discrete[name].device.type != "cpu" for name in beyond):
        return False
    counts = {n for n, v in discrete.items() if type(v) is int}
    if counts and not _may_be_any(sample, counts):
        return False
    numbers = _numbers(sample)
    of_numbers = _discrete(discrete, {**bounds, **beyond}, numbers) if beyond else ()
    of_places = _discrete(discrete, bounds, numbers) if not beyond or code == OF_GRAD_OUTPUT else ()
    most = MOST_MEASURED // (1 + len(FACTORS) * bool(factors))
    runs = 0
    for row in (*itertools.islice(of_numbers, most), *itertools.islice(of_places, most)):
        moved = _at(sample, row)
        if moved is None:
            continue
        found = [_is_there(with_values(moved, own), wrong, code) for own in _of_factors(factors)]
        known = [f for f in found if f is not None]
        if not known:
            continue
        if 2 * sum(known) <= len(known) or (factors and len(known) <= LEAST_RUN):
            return False
        runs += bool(row)
    return not discrete or runs >= (LEAST_COUNTS if counts else LEAST_RUN)


def _is_there(sample: Sample, wrong: str | None, code: str) -> bool | None:
    """Whether it is there at these values; None where forward or backward refuses them."""
    if code == OF_GRAD_OUTPUT and wrong in ignoring_grad_output(sample.problem):
        return True
    return mismatched(sample, wrong, second_order=_is_second_order(code))


IDLE = 1e-9
"""Relative difference up to which outputs and gradients are those of another count: sums in another order."""


def _may_be_any(sample: Sample, counts: Collection[str]) -> bool:
    """Whether no value of some counts makes backward right where it is wrong at all that are tried.

    None does of those that neither outputs nor gradients depend on, as on how many rows make a tile. What the
    gradients alone depend on may be how far backward goes: the terms of a series. What the outputs depend on
    must be no number of rounds.
    """
    here, moves, runs = _outcome(sample, sample.key), set[bool](), 0
    for count in _numbers(sample) if here is not None else ():
        moved = _at(sample, dict.fromkeys(counts, count))
        there = _outcome(moved, sample.key) if moved is not None else None
        if here is not None and there is not None:
            moves |= {
                of_outputs for of_outputs in (True, False) if _differ(here[of_outputs], there[of_outputs])
            }
            runs += 1
    forward = getattr(sample.subject.function_class, "forward", None)
    plain = not any(may_loop_over(forward, name) for name in counts)
    return (True in moves and plain) or (not moves and runs >= LEAST_COUNTS)


def _differ(here: Sequence[Tensor], there: Sequence[Tensor]) -> bool:
    alike = [(a, b) for a, b in zip(here, there, strict=False) if a.shape == b.shape]
    same = all(torch.allclose(a, b, rtol=IDLE, atol=IDLE, equal_nan=True) for a, b in alike)
    return not same or len(alike) < max(len(here), len(there))


def _outcome(sample: Sample, seed: int) -> tuple[Sequence[Tensor], Sequence[Tensor]] | None:
    """The gradients for grad_outputs of random signs, and the outputs; None where either raises."""
    problem, outputs = sample.problem, sample.problem.outputs
    ran = problem.evaluate(problem.primals)
    pulled = problem.pull_back(problem.primals, outputs.unflatten(random_signs(outputs.size, seed)))
    if isinstance(ran, Raised) or isinstance(pulled, Raised):
        return None
    gradients = zip(pulled.value, problem.primals, strict=True)
    return [torch.zeros_like(x) if g is None else g for g, x in gradients], ran.value


def at_other_numbers(sample: Sample, names: Iterable[str]) -> Iterator[Sample]:
    """The sample with other numbers for the arguments with these names: real ones alike, then counts."""
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    real = [n for n, v in given.items() if isinstance(v, float)]
    counts = [n for n, v in given.items() if type(v) is int]
    signed = {n: given[n] for n in real}
    yield from (with_values(sample, _apart(signed, factor)) for factor in FACTORS if real)
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
    shapes = [i.shape for i in sample.case.inputs if isinstance(i, TensorInput)]
    sizes = [n for shape in shapes for n in (*shape, math.prod(shape))]
    return tuple(dict.fromkeys([*sizes[:MOST_SIZES], *COUNTS]))


def _bounds(sample: Sample) -> dict[str, int]:
    """The exclusive bounds of integer tensors."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.range is not None]
    return {i.name: int(i.range[1]) for i in given if i.range is not None}


def _is_index(value: Any) -> bool:  # noqa: ANN401 - an argument
    return isinstance(value, Tensor) and value.dtype is not torch.bool


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - an argument
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex() and value.numel() > 0
    return isinstance(value, bool | int)


def _of_factors(given: Mapping[str, float]) -> Iterator[Mapping[str, float]]:
    """The factors as they are, then all of them large, all small."""
    yield {}
    for factor in FACTORS if given else ():
        yield _apart(given, factor)


def _apart(given: Mapping[str, float], factor: float) -> dict[str, float]:
    """Numbers of one size, no two of which are equal: then a difference of them shows nothing, nor a swap."""
    sizes = (factor * APART**k for k in range(len(given)))
    return {n: math.copysign(size, v) for (n, v), size in zip(given.items(), sizes, strict=True)}


def _discrete(
    given: Mapping[str, Any], bounds: Mapping[str, int], numbers: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """The other values: all integer tensors of one kind at a time, with each flag, and all counts alike."""
    tensors = {n: v for n, v in given.items() if _is_index(v)}
    masks = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dtype is torch.bool}
    flags = [n for n, v in given.items() if isinstance(v, bool)]
    of_tensors = [{}, *({n: make(v, bounds[n]) for n, v in tensors.items()} for make in INTEGERS)]
    of_masks = [{}, *({n: torch.full_like(v, on) for n, v in masks.items()} for on in (True, False))]
    of_flags = [{}, *(dict.fromkeys(flags, on) for on in (True, False))]
    counts = [n for n, v in given.items() if type(v) is int]
    of_counts = [{}, *(dict.fromkeys(counts, k) for k in numbers if any(given[n] != k for n in counts))]
    several = (
        of_tensors if tensors else [{}],
        of_masks if masks else [{}],
        of_flags if flags else [{}],
        of_counts if counts else [{}],
    )
    rows = [{n: v for part in parts for n, v in part.items()} for parts in itertools.product(*several)]
    # What changes everything first: the row without a change is the sample itself.
    yield from sorted(rows, key=len, reverse=True)


_Values = Callable[[Tensor], Tensor | None]
"""A constant -> one of the same shape of some kind; None where its shape does not allow the kind."""


MOST_OF_CONSTANTS = 4096
"""Entries of the constants together that are tried: a table, no data set."""


@dataclass(frozen=True)
class _Kind:
    words: str
    """What they are, after `where the values of ... `."""
    of: _Values


def right_for_some(sample: Sample, name: str | None, *, second_order: bool) -> str:
    """The constants and their kind, in words, for which backward is right; empty where it is for none.

    One entry along a dimension, which forward broadcasts, is a kind, too.

    Right in the gradient by one input, or by any for None; `second_order`: the backward of backward.
    """
    constants = _constants_given(sample)
    if not constants or sum(v.numel() for v in constants.values()) > MOST_OF_CONSTANTS:
        return ""
    for kind, values in _tried(constants):
        moved = with_values(sample, values)
        if mismatched(moved, name, second_order=second_order) is False:
            names = " and ".join(f"`{one}`" for one in values)
            return f"that the values of {names} need not {kind.words}"
    for one, along, value in _single(constants):
        moved = with_values(sample, {one: value})
        if _same_outputs(moved) and mismatched(moved, name, second_order=second_order) is False:
            return f"that `{one}` has more than one entry along dimension {along}"
    return ""


def _single(constants: Mapping[str, Tensor]) -> Iterator[tuple[str, int, Tensor]]:
    """Every constant with one entry along one of its dimensions, which forward may broadcast."""
    for name, value in constants.items():
        for along in range(value.dim()):
            if value.shape[along] > 1:
                yield name, along, value.narrow(along, 0, 1).contiguous()


def _same_outputs(sample: Sample) -> bool:
    """Whether forward gives outputs of the same shapes as before."""
    ran = sample.problem.evaluate(sample.problem.primals)
    if isinstance(ran, Raised):
        return False
    given = [torch.view_as_real(o).shape if o.is_complex() else o.shape for o in ran.value]
    return given == [block.shape for block in sample.problem.outputs.blocks]


def _constants_given(sample: Sample) -> dict[str, Tensor]:
    """Real tensors that backward has no gradient for; one entry alone has no kind."""
    return {
        a.name: a.value
        for a in sample.arguments
        if isinstance(a.value, Tensor)
        and not a.differentiable
        and not a.in_list
        and a.value.is_floating_point()
        and a.value.layout is torch.strided
        and a.value.numel() > 1
    }


def _tried(constants: Mapping[str, Tensor]) -> Iterator[tuple[_Kind, dict[str, Tensor]]]:
    """Every kind with the constants that can be of it, where at least one was not of it already."""
    for kind in KINDS:
        values = {n: v for n, v in ((n, kind.of(v)) for n, v in constants.items()) if v is not None}
        if any(not torch.equal(v, constants[n]) for n, v in values.items()):
            yield kind, values


def _halves_alike(x: Tensor) -> Tensor | None:
    """[..., 2k] with the first k entries of each row twice."""
    if not x.dim() or x.shape[-1] % 2 or x.shape[-1] < 4:
        return None
    half = x[..., : x.shape[-1] // 2]
    return torch.cat([half, half], dim=-1)


def _pairs_alike(x: Tensor) -> Tensor | None:
    """[..., 2k] with every other entry of each row twice."""
    if not x.dim() or x.shape[-1] % 2 or x.shape[-1] < 4:
        return None
    return x[..., ::2].repeat_interleave(2, dim=-1)


def _summing_to_one(x: Tensor) -> Tensor | None:
    """Positive rows along the last dimension with the sum 1."""
    if not x.dim() or x.shape[-1] == 1:
        return None
    return x.abs() / x.abs().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


def _of_norm_one(x: Tensor) -> Tensor | None:
    """Rows along the last dimension with the norm 1."""
    return torch.nn.functional.normalize(x, dim=-1) if x.dim() and x.shape[-1] > 1 else None


def _zeros_and_ones(x: Tensor) -> Tensor | None:
    """A mask that is 1 where the value is above the median."""
    return (x > x.median()).to(x.dtype)


def _symmetric(x: Tensor) -> Tensor | None:
    """[..., n, n], the same transposed."""
    return (x + x.mT) / 2 if is_square(x) and x.shape[-1] > 1 else None


def _antisymmetric(x: Tensor) -> Tensor | None:
    """[..., n, n], minus the same transposed."""
    return (x - x.mT) / 2 if is_square(x) and x.shape[-1] > 1 else None


def _skew_filter(x: Tensor) -> Tensor | None:
    """[c, c, k, ...], whose convolution is minus its own adjoint: channels exchanged, the window turned."""
    if x.dim() < 3 or x.shape[0] != x.shape[1]:
        return None
    window = list(range(2, x.dim()))
    return (x - x.transpose(0, 1).flip(window)) / 2


def _orthogonal(x: Tensor) -> Tensor | None:
    """[..., n, n], whose inverse is its transpose."""
    return torch.linalg.qr(x).Q if is_square(x) and x.shape[-1] > 1 else None


KINDS = (
    _Kind("repeat their first half along the last dimension", _halves_alike),
    _Kind("be alike in pairs along the last dimension", _pairs_alike),
    _Kind("sum to one along the last dimension", _summing_to_one),
    _Kind("have the norm 1 along the last dimension", _of_norm_one),
    _Kind("be zeros and ones alone", _zeros_and_ones),
    _Kind("be a symmetric matrix", _symmetric),
    _Kind("be an antisymmetric matrix", _antisymmetric),
    _Kind("be a filter that is minus its own adjoint", _skew_filter),
    _Kind("be an orthogonal matrix", _orthogonal),
)
"""Tables of angles in both layouts, soft labels, directions, masks, metrics, rotations, their generators."""


def without(sample: Sample, names: Collection[str]) -> Neighbours | None:
    """The sample with None for some arguments, and nothing where forward does not take that."""
    arguments = tuple(Argument(a.name, None) if a.name in names else a for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return Neighbours(other) if isinstance(other, Sample) else None


def invented_values(near: Neighbours, finding: Finding) -> Finding | None:
    """No shape makes a backward that is not linear, nor a matrix, but what is not written where sizes differ.

    Other values settle nothing where the shape of the gradient shows that another shape may be meant. What is
    None where the mismatch is there as well had no shape that could have made it.
    """
    linear = finding.code != OF_GRAD_OUTPUT
    doubts = [d for d in inventions_of(near.sample) if linear or d.differ or (d.name and not d.of_shape)]
    if finding.code == OF_THE_DTYPE:
        doubts = [d for d in doubts if not d.of_values]
    given = tuple(d.name for d in doubts if d.optional)
    bare = near.once(without, given) if given and finding.input not in given else None
    left = doubts if bare is None else [d for d in doubts if not d.optional]
    testable = bool(doubts) and all(d.of_values for d in left)
    fits = testable and finding.input not in near.once(names_of_other_shapes)
    settled = fits and _is_there_whatever(bare or near, finding, left)
    return None if settled else if_guessed(finding, (d.what for d in doubts))


def _is_there_whatever(near: Neighbours, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was invented."""
    names = tuple(d.name for d in doubts)
    return finding.code in MEASURED and near.once(whatever_invented, names, finding.input, code=finding.code)


def constants(near: Neighbours, finding: Finding) -> Finding | None:
    """First at even sizes: a table may be one of halves, or of pairs."""
    if finding.code not in OF_THE_DERIVATIVE:
        return None
    return if_guessed(finding, [near.once(_kind, finding.input, second_order=_is_second_order(finding.code))])


def _kind(sample: Sample, name: str | None, *, second_order: bool) -> str:
    samples = filter(None, (at_even_sizes(sample), sample))
    return next(filter(None, (right_for_some(s, name, second_order=second_order) for s in samples)), "")


def _is_second_order(code: str) -> bool:
    return code.startswith("GV2")


def anything_invented(near: Neighbours, finding: Finding) -> Finding | None:
    """Options and factors are swept; other values are drawn again."""
    sample = near.sample
    inventions = inventions_of(sample)
    what = [d.what for d in inventions if d.certain or d.differ]
    redrawn = [d for d in inventions if d.of_values and not d.certain]
    if redrawn and not _is_there_whatever(near, finding, redrawn):
        what += [d.what for d in redrawn]
    what += [d.what for d in sample.subject.doubts if d.extreme]
    if _lost_entries(sample, finding.input):
        what.append(f"that zeros of `{finding.input}` are none of its entries")
    return if_guessed(finding, what)


def _lost_entries(sample: Sample, name: str | None) -> bool:
    """Whether an input in a sparse layout holds zeros, which are no entries of it and get no gradient."""
    given = (i for i in sample.case.inputs if isinstance(i, TensorInput) and i.name == name)
    return any(i.layout.startswith("sparse") for i in given) and has_zeros(sample, name)


def has_zeros(sample: Sample, name: str | None) -> bool:
    """Whether an input holds zeros."""
    names = sample.problem.input_names
    return name in names and bool((sample.problem.primals[names.index(name)] == 0).any())
