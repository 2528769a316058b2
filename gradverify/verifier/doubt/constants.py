"""Whether a mismatch hangs on values that constant tensors of inferred inputs are not meant to have.

A tensor for which backward returns None is a table of angles, a target, a mask, a kernel. Its author knows
more of its values than its shape tells: a rotary embedding repeats each cosine for both halves of a head,
soft labels sum to one. A gradient that is right for all such values, and for no others, is no mistake. So the
mismatch is looked for again with the constants of each kind; each kind leaves room for values that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import is_square, mismatched, with_values
from gradverify.verifier.guard import Raised

_Values = Callable[[Tensor], Tensor | None]
"""A constant -> one of the same shape of some kind; None where its shape does not allow the kind."""

MOST_ENTRIES = 4096
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
    constants = _constants(sample)
    if not constants or sum(v.numel() for v in constants.values()) > MOST_ENTRIES:
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
