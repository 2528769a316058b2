"""The right formula at wrong values: an operand forgotten or exchanged, the input saved for the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import Pair, Pairs, Probe, wrong_ones

SAME = 1e-7
"""A measured derivative at other values is backward's to within this share of the largest entry."""


def operand(pairs: Pairs) -> Cause | None:
    """Backward's block is the true one with another input replaced: by ones, or reordered."""
    first = pairs[0]
    for j in range(len(first.point.inputs.blocks)):
        if j == first.source and not _varies(pairs):
            continue
        for kind, change in _changes(first, j):
            if all(_is_true_at(pair, _replaced(pair, j, change)) for pair in _wrong_first(pairs)):
                return Cause("operand", Strength.WEAK, other=first.point.input_names[j], kind=kind)
    return None


def output_for_input(pairs: Pairs) -> Cause | None:
    """Backward's block is the true one at the output in place of the input."""
    for pair in pairs:
        if pair.x.numel() != pair.y.numel():
            return None
    if not _varies(pairs):
        return None
    if all(_is_true_at(pair, _at_output(pair)) for pair in _wrong_first(pairs)):
        return Cause("wrong-saved", Strength.WEAK, kind="output")
    return None


def _varies(pairs: Pairs) -> bool:
    """Whether backward's block depends on the data at all: else it is right at many values of the input."""
    return any(
        a.claimed.shape == b.claimed.shape and not torch.equal(a.claimed, b.claimed)
        for a in pairs
        for b in pairs
    )


def _wrong_first(pairs: Pairs) -> list[Pair]:
    """Points where a refutation is likeliest first: each costs a Jacobian."""
    wrong = wrong_ones(pairs)
    return [*wrong, *(pair for pair in pairs if not pair.is_wrong)]


def _changes(pair: Pair, j: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    shape = pair.point.inputs.blocks[j].shape
    if pair.point.inputs.blocks[j].is_complex:
        return
    yield "all ones", torch.ones_like
    if len(shape) > 1:
        yield "transposed and reshaped", lambda t: t.mT.reshape(t.shape)
        yield "reshaped and transposed", lambda t: t.reshape(t.mT.shape).mT
    for dim in range(len(shape)):
        yield f"flipped along dimension {dim}", _flipped(dim)
        yield f"shifted by 1 along dimension {dim}", _shifted(dim, 1)
        yield f"shifted by -1 along dimension {dim}", _shifted(dim, -1)


def _flipped(dim: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.flip(dim)


def _shifted(dim: int, by: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.roll(by, dim)


def _replaced(pair: Pair, j: int, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    block = pair.point.inputs.blocks[j]
    x = pair.point.x.clone()
    values = x[block.start : block.stop].reshape(block.shape)
    other = change(values).reshape(-1)
    if torch.equal(other, values.reshape(-1)):
        return None
    x[block.start : block.stop] = other
    return x


def _at_output(pair: Pair) -> Tensor:
    x = pair.point.x.clone()
    x[pair.source_block.start : pair.source_block.stop] = pair.y
    return x


def _is_true_at(pair: Pair, x: Tensor | None) -> bool:
    """Whether the derivative of forward at x is what backward gives here."""
    probe = pair.point.probe
    if x is None or probe is None or not x.isfinite().all():
        return False
    same = torch.full_like(pair.true, SAME * pair.scale)
    if pair.is_wrong and pair.explained_by(pair.true, same):
        return False  # what no measurement there could tell from the right one fits any value without a part
    if not _agrees_in_one_direction(pair, x, probe):
        return False
    measured = probe.jacobian(x)
    return measured is not None and pair.explained_by(pair.cut(measured), same)


def _agrees_in_one_direction(pair: Pair, x: Tensor, probe: Probe) -> bool:
    """A first glance that costs two evaluations: the derivative along one direction of the input."""
    block = pair.source_block
    direction = torch.zeros_like(x)
    generator = torch.Generator().manual_seed(7)
    own = torch.rand(block.stop - block.start, generator=generator, dtype=torch.float64) - 0.5
    direction[block.start : block.stop] = own
    ahead, behind = probe.value(x + GLANCE_STEP * direction), probe.value(x - GLANCE_STEP * direction)
    if ahead is None or behind is None:
        return False
    rows = slice(pair.output_block.start, pair.output_block.stop)
    slope = (ahead - behind)[rows] / (2 * GLANCE_STEP)
    return bool(((slope - pair.claimed @ own).abs() <= GLANCE * pair.scale * own.abs().sum()).all())


GLANCE_STEP = 2.0**-16
"""Step of the glance, in units of inputs of moderate size: error 1e-9 of a smooth function's slope."""

GLANCE = 1e-4
"""How far the glance may be off, in units of the largest entry: it only spares full measurements."""
