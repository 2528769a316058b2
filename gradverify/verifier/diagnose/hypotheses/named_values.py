"""The tensors of a call by the names that a user would write: what a factor or a condition can be made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from torch import Tensor

from gradverify.verifier.diagnose.evidence import Pair
from gradverify.verifier.numerics.flat import Block

Side = Literal["column", "row"]
"""`column` for the entries of the block's input, `row` for those of its output."""


def named_values(pair: Pair) -> dict[str, Tensor]:
    """The block's own input and output first, then the other inputs, the other outputs, and constants.

    Of complex tensors the parts, along a last dimension, and the magnitude.
    """
    point = pair.point
    inputs = list(_shaped(point.input_names, point.inputs.blocks, point.x))
    outputs = list(_shaped(point.output_names, point.outputs.blocks, point.y))
    own = (inputs.pop(pair.source), outputs.pop(pair.output))
    found = {name: values for name, _, values in (*own, *inputs, *outputs)}
    magnitudes = {
        f"{name}.abs()": values.norm(dim=-1, keepdim=True)
        for name, block, values in (*own, *inputs, *outputs)
        if block.is_complex
    }
    return {**found, **magnitudes, **dict(point.constants)}


def side_shape(pair: Pair, side: Side) -> tuple[int, ...]:
    """The shape of the tensor whose entries a side has."""
    return pair.source_block.shape if side == "column" else pair.output_block.shape


def spread(tensor: Tensor, pair: Pair, side: Side) -> Tensor | None:
    """A value for every entry of a side, where the tensor broadcasts to it."""
    try:
        return tensor.expand(side_shape(pair, side)).reshape(-1)
    except RuntimeError:
        return None


def _shaped(
    names: Iterable[str], blocks: Iterable[Block], flat: Tensor
) -> Iterator[tuple[str, Block, Tensor]]:
    for name, block in zip(names, blocks, strict=True):
        yield name, block, flat[block.start : block.stop].reshape(block.shape)
