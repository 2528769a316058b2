"""The caller's random states, put aside while we draw our own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradverify.verifier import guard

SEED = 0
"""Where every call of the function starts from, so that a stochastic one repeats itself."""


@contextmanager
def states_kept() -> Iterator[None]:
    """Leave the caller's random states as they were."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    of_cuda = torch.cuda.get_rng_state_all() if guard.cuda_in_use() else []
    try:
        yield
    finally:
        random.setstate(of_python)
        torch.set_rng_state(of_torch)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
