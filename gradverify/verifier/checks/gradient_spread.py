"""How far rounding may move what two sides of a comparison give: values, and gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, Problem
from gradverify.verifier.numerics.rounding import nudged

ROUND_OFF_SAFETY = 10.0
"""Differences up to this many measured round-offs of the two sides are explained by them."""


def value_spread(problem: CallProblem, base: Tensor) -> Tensor:
    """How far rounding may move the outputs: inputs moved by a few units in the last place."""
    layout = Layout.of(problem.primals)
    spread = 4 * EPSILON * base.abs().nan_to_num(0.0, 0.0, 0.0)
    for seed in (1, 2):
        result = problem.evaluate(_moved(problem, layout, seed))
        if not isinstance(result, Raised):
            moved = problem.outputs.flatten(result.value)
            spread = torch.maximum(spread, (moved - base).abs().nan_to_num(0.0, 0.0, 0.0))
    return spread


def gradient_spread(problem: Problem, u: tuple[Tensor | None, ...], base: Tensor) -> Tensor:
    """The same for a gradient; a gradient that cancels has the rounding of its largest neighbour."""
    layout = Layout.of(problem.primals)
    largest = base.abs().nan_to_num(0.0, 0.0, 0.0).max() if base.numel() else base.new_zeros(())
    spread = 4 * EPSILON * largest.expand_as(base).clone()
    for seed in (1, 2):
        result = problem.pull_back(_moved(problem, layout, seed), u)
        if not isinstance(result, Raised):
            moved = layout.flatten(result.value)
            spread = torch.maximum(spread, (moved - base).abs().nan_to_num(0.0, 0.0, 0.0))
    return spread


def _moved(problem: Problem, layout: Layout, seed: int) -> tuple[Tensor, ...]:
    flat = layout.flatten(problem.primals)
    return layout.unflatten(nudged(flat, layout, torch.Generator().manual_seed(seed), most=4))
