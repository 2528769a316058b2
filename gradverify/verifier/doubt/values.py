"""Neighbours at other values: constants of a kind, and inputs without their minus signs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import Neighbour, same_outputs, with_values
from gradverify.verifier.doubt.shapes import even_sizes
from gradverify.verifier.guard import Raised

MOST_ENTRIES = 4096
"""Entries of the constants together that are tried: a table, no data set."""


def constants(sample: Sample) -> Iterator[Neighbour]:
    """Constants of each kind; then each with one entry along a dimension, which forward broadcasts.

    A tensor for which backward returns None is a table of angles, a target, a mask, a kernel. Its author
    knows more of its values than its shape tells: a rotary embedding repeats each cosine for both halves of a
    head, soft labels sum to one. A gradient that is right for all such values, and for no others, is no
    mistake. Each kind leaves room for values that differ. Some need an even size.
    """
    for one in (*(near.sample for near in even_sizes(sample)), sample):
        yield from _of_kinds(one)


def _of_kinds(sample: Sample) -> Iterator[Neighbour]:
    given = _constants(sample)
    if sum(v.numel() for v in given.values()) > MOST_ENTRIES:
        return
    for words, allows, made in KINDS:
        values = {n: made(v) for n, v in given.items() if allows(v)}
        if any(not torch.equal(v, given[n]) for n, v in values.items()):
            names = " and ".join(f"`{one}`" for one in values)
            yield Neighbour(with_values(sample, values), (f"that the values of {names} need not {words}",))
    for name, value in given.items():
        for along in (k for k, n in enumerate(value.shape) if n > 1):
            moved = with_values(sample, {name: value.narrow(along, 0, 1).contiguous()})
            if same_outputs(moved):
                yield Neighbour(moved, (f"that `{name}` has more than one entry along dimension {along}",))


def _constants(sample: Sample) -> dict[str, Tensor]:
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


def _has_rows(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1


def _has_halves(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] % 2 == 0 and x.shape[-1] >= 4


def _is_filter(x: Tensor) -> bool:
    """[c, c, k, ...]: as many channels out as in."""
    return x.dim() > 2 and x.shape[0] == x.shape[1]


def _minus_adjoint(x: Tensor) -> Tensor:
    """Channels exchanged and the window turned give minus the same."""
    return (x - x.transpose(0, 1).flip(list(range(2, x.dim())))) / 2


_Kind = tuple[str, Callable[[Tensor], bool], Callable[[Tensor], Tensor]]

KINDS: tuple[_Kind, ...] = (
    (
        "repeat their first half along the last dimension",
        _has_halves,
        lambda x: torch.cat([x[..., : x.shape[-1] // 2]] * 2, dim=-1),
    ),
    (
        "be alike in pairs along the last dimension",
        _has_halves,
        lambda x: x[..., ::2].repeat_interleave(2, dim=-1),
    ),
    (
        "sum to one along the last dimension",
        _has_rows,
        lambda x: torch.nn.functional.normalize(x.abs(), p=1.0, dim=-1),
    ),
    (
        "have the norm 1 along the last dimension",
        _has_rows,
        lambda x: torch.nn.functional.normalize(x, dim=-1),
    ),
    ("be zeros and ones alone", lambda _: True, lambda x: (x > x.median()).to(x.dtype)),
    ("be a filter that is minus its own adjoint", _is_filter, _minus_adjoint),
)
"""What constants are, after `that the values of ... need not`, whether their shape allows it, and how to make
them so: tables of angles in both layouts, soft labels, directions, masks."""


def without_minus_signs(sample: Sample) -> Iterator[Neighbour]:
    """What acts on the first input without its minus signs.

    A root, a logarithm, a rate or a variance is meant to be positive, and often neither says so nor refuses
    what is not. An index that is read off a negative number counts from the end in forward, and not in
    backward. Where positive values are refused, too, what is before the point: a place between rows of a
    table must not be large.
    """
    problem = sample.problem
    for name, primal in zip(problem.input_names[1:], problem.primals[1:], strict=True):
        if primal.is_complex() or not bool((primal < 0).any()):
            continue
        moved = with_values(sample, {name: primal.abs()})
        if isinstance(moved.problem.evaluate(moved.problem.primals), Raised):
            moved = with_values(sample, {name: primal.abs().frac()})
        yield Neighbour(moved, (f"that negative values of `{name}` are valid",))
