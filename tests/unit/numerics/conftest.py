"""Calls of functions as problems."""

from types import SimpleNamespace

import pytest

from gradverify.verifier import guard
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Layout, returned_tensors


def problem_of(function, *tensors, seed=0):
    """Make one call of a function into a problem; all tensors are differentiated."""
    states = guard.RandomStates(seed)
    states.replay()
    outputs = returned_tensors(function(*[t.clone() for t in tensors]))
    arguments = tuple(Argument(f"x{i}", t, differentiable=True) for i, t in enumerate(tensors))
    positions = tuple(range(len(outputs)))
    return CallProblem(function, arguments, positions, Layout.of(outputs), states)


@pytest.fixture
def maps():
    """What makes problems of functions."""
    return SimpleNamespace(problem_of=problem_of)
