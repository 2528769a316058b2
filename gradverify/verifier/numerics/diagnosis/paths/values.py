"""The values that forward has, by the names that a user would know them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.sites import Site, text_of

MOST_ALIKE = 16
"""Values that are tried in the place of one."""

TRANSFORMS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("1 - {}", lambda v: 1 - v),
    ("-{}", torch.neg),
    ("1 / {}", torch.reciprocal),
    ("{}**2", torch.square),
    ("abs({})", torch.abs),
    ("exp({})", torch.exp),
    ("log({})", torch.log),
    ("sqrt({})", torch.sqrt),
)
"""What a value may be taken for, made of itself; `{}` stands for it."""


@dataclass(frozen=True)
class Values:
    """Inputs, and the results of an earlier run of the same forward."""

    inputs: Sequence[tuple[str, Tensor]]
    results: Mapping[Site, Sequence[Tensor]]
    """By site, in the order of the passes of a loop."""
    passed: dict[Site, int]
    """How often each site was passed so far, in this run."""

    def like(self, tensor: Tensor, site: Site) -> Iterator[tuple[str, Tensor]]:
        """Values of a tensor's shape by name, inputs first; within a loop those of the same pass.

        Numbers of another kind (masks, counts) come in the tensor's dtype.
        """
        seen: set[str] = set()
        for name, value in self._all(self.passed.get(site, 0)):
            if value.shape != tensor.shape or value.is_complex() != tensor.is_complex() or name in seen:
                continue
            seen.add(name)
            if len(seen) > MOST_ALIKE:
                return
            yield name, value.to(tensor.dtype)

    def _all(self, here: int) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.inputs:
            yield name, value.detach()
        for site, results in self.results.items():
            name = "" if site.part else text_of(site)
            if name:
                yield name, results[min(here, len(results) - 1)]
