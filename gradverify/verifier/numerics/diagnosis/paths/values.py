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
        """Values of a tensor's shape and dtype that are not itself, inputs first.

        Within a loop those of the same pass.
        """
        found = 0
        here = self.passed.get(site, 0)
        for name, value in self._all(here):
            if value.shape != tensor.shape or value.dtype != tensor.dtype or torch.equal(value, tensor):
                continue
            found += 1
            if found > MOST_ALIKE:
                return
            yield name, value

    def _all(self, here: int) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.inputs:
            yield name, value.detach()
        for site, results in self.results.items():
            name = "" if site.part else text_of(site)
            if name:
                yield name, results[min(here, len(results) - 1)]
