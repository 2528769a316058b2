"""The two random sides of the short proof: how far each input goes, and what each output is multiplied by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.numerics.central import Weighed
from gradverify.verifier.numerics.certificate import KEPT_ROWS, noticed
from gradverify.verifier.numerics.flat import Layout, tensor_of, vector_of
from gradverify.verifier.numerics.probes import LESS_WIDE, short_values, signed_values, sizes_of


class Moves(NamedTuple):
    """Each input, and how far it goes; None for one that stays."""

    inputs: Layout
    here: Sequence[Tensor]
    """Plain float64 tensors."""
    steps: Sequence[Tensor | None]
    length: float
    """h, in units of each entry's size."""

    def point(self, k: float) -> list[Tensor]:
        """Fresh tensors at x + k · step."""
        inputs, here, steps, _ = self
        moved = [
            x.clone() if step is None else torch.add(x, step, alpha=k)
            for x, step in zip(here, steps, strict=True)
        ]
        if inputs.is_plain:
            return moved
        return [tensor_of(x.reshape(-1), b) for x, b in zip(moved, inputs.blocks, strict=True)]

    def only(self, numbers: Sequence[int]) -> Moves:
        """Some inputs moving, by number, and the others not."""
        return self._replace(steps=[s if k in numbers else None for k, s in enumerate(self.steps)])

    def held(self) -> Moves | None:
        """The same without steps of entries that are not finite, which no step moves; None where all are."""
        finite = [x.isfinite() for x in self.here]
        if all(bool(f.all()) for f in finite):
            return None
        steps = [
            None if s is None else torch.where(f, s, 0.0) for s, f in zip(self.steps, finite, strict=True)
        ]
        return self._replace(steps=steps)

    def longer(self, length: float) -> Moves:
        """The same with longer steps."""
        steps = [None if s is None else s * (length / self.length) for s in self.steps]
        return self._replace(steps=steps, length=length)

    def noticed(self, atol: float) -> float:
        """What an error of atol in one entry makes in the derivative along v."""
        steps = torch.cat([step.reshape(-1) for step in self.steps if step is not None])
        return noticed(atol, steps) / self.length


def moves_of(primals: Sequence[Tensor], inputs: Layout, length: float) -> Moves:
    """Steps that are exact: T = fl(x + h v) - x."""
    here: list[Tensor] = []
    steps: list[Tensor | None] = []
    for primal, block in zip(primals, inputs.blocks, strict=True):
        x = primal if block.is_plain else vector_of(primal, block)
        tangent = sizes_of(x, LESS_WIDE).mul_(short_values(x.shape, block.start))
        here.append(x)
        steps.append(torch.add(x, tangent, alpha=length, out=tangent).sub_(x))
    return Moves(inputs, here, steps, length)


class Probe(NamedTuple):
    """One grad_output before it is weighed."""

    values: Tensor
    """A vector of what it is defined for: a view of the pool where it is long, else made once and kept."""
    magnitude: float
    """What a view of the pool is multiplied by; 1 where that is done."""
    only: int | None
    """The one output that it is defined for, by number; None for all of them."""
    rows: slice
    """Where that lies among all rows."""
    scale: float
    """Its size, times the root of the number of rows that it weighs."""

    def weighed(self, by: Weighed) -> Tensor:
        """The same with every row divided by what it counts."""
        values, magnitude, only, rows, _ = self
        line = values / (by.size if only is None else by.size[rows])
        return line if magnitude == 1 else line.mul_(magnitude)

    def unweighed(self) -> Tensor:
        """The same with every row as it is, fresh."""
        return self.values * self.magnitude

    def shaped(self, values: Tensor, outputs: Layout) -> Sequence[Tensor | None]:
        """A grad_output for every output, None for those that stay undefined."""
        if self.only is None:
            return outputs.shaped(values)
        block = outputs.blocks[self.only]
        own = values.view(block.shape) if block.is_plain else tensor_of(values, block)
        return [own if number == self.only else None for number in range(len(outputs.blocks))]


def probes_of(outputs: Layout, magnitudes: tuple[float, ...], unit: float) -> Sequence[Probe]:
    """Probes whose weighed rows are of such magnitudes where J v is of ordinary size.

    They will be divided by differences, which are `unit` times J v.
    """
    lengths, sizes = tuple(outputs.lengths), tuple([m * unit for m in magnitudes])
    return (_kept_probes if outputs.size <= KEPT_ROWS else _probes)(lengths, sizes)


def _probes(lengths: tuple[int, ...], sizes: tuple[float, ...]) -> Sequence[Probe]:
    """One grad_output for all outputs, and the same at the other sizes; of several, one for each alone."""
    count = sum(lengths)
    if len(lengths) == 1:
        return [_probe(0, slice(0, count), size, None) for size in sizes]
    stops = list(accumulate(lengths))
    rows = [slice(stop - length, stop) for stop, length in zip(stops, lengths, strict=True)]
    each = [_probe(k + 1, rows[k], sizes[-1], k) for k, length in enumerate(lengths) if length]
    return [_probe(0, slice(0, count), sizes[0], None), *each]


@lru_cache(maxsize=256)
def _kept_probes(lengths: tuple[int, ...], sizes: tuple[float, ...]) -> Sequence[Probe]:
    """The same, multiplied once for all: a small problem's proof is that much cheaper."""
    return [p._replace(values=p.unweighed(), magnitude=1.0) for p in _probes(lengths, sizes)]


def _probe(key: int, rows: slice, size: float, only: int | None) -> Probe:
    count = rows.stop - rows.start
    values = signed_values(count, 7 * key + 1)
    return Probe(values, size, only, rows, abs(size) * math.sqrt(count))
