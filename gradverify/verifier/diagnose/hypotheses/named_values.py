"""The tensors of a call by the names that a user would write: what a factor or a condition can be made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from gradverify.verifier.diagnose.evidence import Pair

Side = str
"""`column` for the entries of the block's input, `row` for those of its output."""


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of the call, whatever the point."""

    name: str
    of: Callable[[Pair], Tensor]
    """Its values, shaped; a complex tensor with its real and imaginary parts along a last dimension."""
    is_complex: bool = False


def named_tensors(pair: Pair) -> Iterator[NamedTensor]:
    """The block's own input and output first, then the other inputs, the other outputs, and constants."""
    point = pair.point
    yield NamedTensor(pair.name, _input(pair.source), pair.source_block.is_complex)
    yield NamedTensor(pair.output_name, _output(pair.output), pair.output_block.is_complex)
    for k, name in enumerate(point.input_names):
        if k != pair.source:
            yield NamedTensor(name, _input(k), point.inputs.blocks[k].is_complex)
    for k, name in enumerate(point.output_names):
        if k != pair.output:
            yield NamedTensor(name, _output(k), point.outputs.blocks[k].is_complex)
    for k, (name, _) in enumerate(point.constants):
        yield NamedTensor(name, _constant(k))


def side_shape(pair: Pair, side: Side) -> tuple[int, ...]:
    """The shape of the tensor whose entries a side has."""
    return pair.source_block.shape if side == "column" else pair.output_block.shape


def spread(tensor: Tensor, pair: Pair, side: Side) -> Tensor | None:
    """A value for every entry of a side, where the tensor broadcasts to it."""
    try:
        return tensor.expand(side_shape(pair, side)).reshape(-1)
    except RuntimeError:
        return None


def _input(k: int) -> Callable[[Pair], Tensor]:
    def values(pair: Pair) -> Tensor:
        block = pair.point.inputs.blocks[k]
        return pair.point.x[block.start : block.stop].reshape(block.shape)

    return values


def _output(k: int) -> Callable[[Pair], Tensor]:
    def values(pair: Pair) -> Tensor:
        block = pair.point.outputs.blocks[k]
        return pair.point.y[block.start : block.stop].reshape(block.shape)

    return values


def _constant(k: int) -> Callable[[Pair], Tensor]:
    return lambda pair: pair.point.constants[k][1]
