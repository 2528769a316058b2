"""Backward is not linear in grad_output: which function of it is used in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 1e-6
"""Gradients agree within this share of the sum of their terms; the true Jacobian is a measured one."""

ROUNDED_TERMS = 1e-11
"""... and within this share of the largest: what cancels in backward has the rounding of its terms."""

ONES = "1"
"""In place of grad_output: backward ignores it."""

_FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("grad_output.sign()", torch.sign),
    ("grad_output.abs()", torch.abs),
    ("grad_output.relu()", torch.relu),
    ("grad_output / grad_output.norm()", lambda u: u / u.norm()),
    ("grad_output**2", lambda u: u * u),
    ("(grad_output > 0)", lambda u: (u > 0).double()),
    ("(grad_output != 0)", lambda u: (u != 0).double()),
)
"""What is in the place of grad_output, as a user would write it."""


@dataclass(frozen=True)
class Mixture:
    """One backward of a dense grad_output."""

    cotangent: Tensor
    """M entries."""
    gradient: Tensor
    """One input's, n entries."""


def cotangent_function(mixtures: Sequence[Mixture], true: Tensor) -> str | None:
    """φ in Python, where gradient = trueᵀ φ(grad_output) for every mixture; these differ in magnitude.

    `true` is M × n. A gradient that is the same for every grad_output, and not zero, is trueᵀ 1: `ONES`.
    """
    if all(_agrees(m, true, torch.ones_like(m.cotangent)) for m in mixtures):
        return ONES
    for text, function in _FUNCTIONS:
        if all(_agrees(m, true, function(m.cotangent)) for m in mixtures):
            return text
    bound = _clamp(mixtures, true)
    return None if bound is None else f"grad_output.clamp(-{bound:.4g}, {bound:.4g})"


def _agrees(mixture: Mixture, true: Tensor, cotangent: Tensor) -> bool:
    terms = cotangent.abs() @ true.abs()
    allowed = SAME * terms + ROUNDED_TERMS * terms.max()
    return bool(((mixture.gradient - cotangent @ true).abs() <= allowed).all()) and bool(terms.any())


def _clamp(mixtures: Sequence[Mixture], true: Tensor) -> float | None:
    """The c of a clamp to ±c: the largest grad_output shows it, the others must agree."""
    largest = max(mixtures, key=lambda m: m.cotangent.abs().min().item())
    signed = largest.cotangent.sign() @ true
    square = (signed @ signed).item()
    c = (largest.gradient @ signed).item() / square if square > 0 else 0.0
    if c <= 0 or not all(_agrees(m, true, m.cotangent.clamp(-c, c)) for m in mixtures):
        return None
    return c
