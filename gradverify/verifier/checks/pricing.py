"""What one call of a target costs, by the processor: the one place behind the front that reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from gradverify.model import Price, price_of
from gradverify.verifier.checks.subject import Sample

P = ParamSpec("P")
T = TypeVar("T")

SLOW = 0.2
"""Seconds for drawing a sample and running its forward, from which on some evidence is looked for first."""

CALLS = 3
"""Calls of which the cheapest counts: others pay for caches, or for what else the machine does."""


def price_at(sample: Sample, clock: Callable[[], float] = time.thread_time) -> Price:
    """The class of one forward with its backward; `clock` counts the seconds that this thread has worked."""
    problem = sample.problem
    ones = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    taken = []
    for _ in range(CALLS):
        begun = clock()
        problem.pull_back(problem.primals, ones)
        taken.append(clock() - begun)
    price = price_of(min(taken))
    # Ranks work in processes of their own, and wait for each other: what this one spends says little.
    return Price.HUNDREDTHS if sample.case.world and price is Price.LEAST else price


def timed(do: Callable[P, T], *given: P.args, **named: P.kwargs) -> tuple[T, float]:
    """What a function gives, and its seconds by the clock, which counts waiting for kernels too."""
    begun = time.perf_counter()
    result = do(*given, **named)
    return result, time.perf_counter() - begun
