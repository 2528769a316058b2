"""The caller's random states, put aside while we draw our own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from gradverify.verifier import guard

SEED = 0
"""Where every call of the function starts from, so that a stochastic one repeats itself."""


@contextmanager
def states_kept() -> Iterator[None]:
    """Leave the caller's random states as they were."""
    numpy = sys.modules.get("numpy")
    of_numpy = _put_aside(numpy.random) if numpy is not None else None
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
            _put_back(numpy.random, of_numpy)


def _put_aside(random_of_numpy: Any) -> Any:  # noqa: ANN401
    """Give NumPy another generator and return its own, which is faster than copying the state of that."""
    if not hasattr(random_of_numpy, "set_bit_generator"):  # before NumPy 1.24
        return random_of_numpy.get_state()
    kept = random_of_numpy.get_bit_generator()
    random_of_numpy.set_bit_generator(_numpy_generator())
    return kept


def _put_back(random_of_numpy: Any, kept: Any) -> None:  # noqa: ANN401
    if hasattr(random_of_numpy, "set_bit_generator"):
        random_of_numpy.set_bit_generator(kept)
    else:
        random_of_numpy.set_state(kept)


@cache
def _numpy_generator() -> Any:  # noqa: ANN401
    return sys.modules["numpy"].random.MT19937(SEED)
