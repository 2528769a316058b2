"""How far entries may move and stay valid: within their range and domain, and not over a declared kink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradverify.model import Case, ConcatInput, TensorInput, tensors_of
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.values import DOMAINS

SPLIT_BY_ZERO = "nonzero"
"""The domain of two parts, which no step may connect."""


def room_around(case: Case, arguments: Sequence[Argument]) -> list[Tensor]:
    """For each differentiable argument, float64 and shaped like it; infinite where nothing limits a move.

    Of what a hook builds only declared kinks are known.
    """
    kinks = {a.name: a.avoid for a in case.annotations}
    declared: dict[str, Sequence[TensorInput]] = {}
    for an_input in case.inputs:
        if isinstance(an_input, ConcatInput):
            declared[an_input.name] = an_input.parts
        else:
            declared |= {t.name: (t,) for t in tensors_of(an_input)}
    found = []
    for argument in (a for a in arguments if a.differentiable):
        value = argument.value.detach()
        if value.is_complex() or not value.is_floating_point():
            found.append(torch.full(value.shape, torch.inf, dtype=torch.float64, device=value.device))
            continue
        x = value.double()
        room = _apart(x, kinks.get(argument.name, ()))
        parts = declared.get(argument.name, ())
        if len(parts) == 1:
            room = torch.minimum(room, _room(x, parts[0]))
        elif parts and sum(p.shape[-1] for p in parts) == x.shape[-1]:
            each = zip(x.split([p.shape[-1] for p in parts], dim=-1), parts, strict=True)
            room = torch.minimum(room, torch.cat([_room(part, spec) for part, spec in each], dim=-1))
        found.append(room)
    return found


def _room(x: Tensor, spec: TensorInput) -> Tensor:
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    inside = torch.minimum(x - low, high - x).clamp_min(0.0)
    apart = (*spec.avoid, 0.0) if spec.domain == SPLIT_BY_ZERO else spec.avoid
    return torch.minimum(inside, _apart(x, apart))


def _apart(x: Tensor, points: Iterable[float]) -> Tensor:
    """The distance of each entry to the nearest of some points."""
    room = torch.full_like(x, torch.inf)
    for point in points:
        room = torch.minimum(room, (x - point).abs())
    return room
