"""Whatever user code does comes back as a value."""

from __future__ import annotations

import random

import pytest
import torch

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned, raised_errors
from gradverify.verifier.guard.global_state import GlobalState


@pytest.fixture(autouse=True)
def nothing_let_through(monkeypatch):
    """As in a worker; a run in the process of the tests lets Ctrl-C through."""
    monkeypatch.setattr(guard, "LET_THROUGH", None)


def fails():
    return undefined_name  # noqa: F821


def refuses():
    raise RuntimeError("not implemented for float64")


def exits():
    raise SystemExit(3)


def interrupts():
    raise KeyboardInterrupt


def recurses():
    return recurses()


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no")


def unprintable():
    raise Unprintable


def test_a_value_comes_back():
    assert guard.call(lambda: 3) == Returned(3)


@pytest.mark.parametrize(
    ("function", "type_", "deliberate"),
    [
        (fails, "NameError", False),
        (refuses, "RuntimeError", True),
        (exits, "SystemExit", True),
        (interrupts, "KeyboardInterrupt", True),
        (recurses, "RecursionError", False),
        (unprintable, "Unprintable", True),
        (lambda: torch.zeros(2) @ torch.zeros(3), "RuntimeError", False),
    ],
)
def test_every_exception_comes_back(function, type_, deliberate):
    result = guard.call(function)
    assert isinstance(result, Raised)
    assert (result.error.type, result.error.deliberate) == (type_, deliberate)


def test_frames_are_the_users_alone_and_end_where_it_was_raised():
    error = guard.call(fails).error
    assert {frame.file for frame in error.frames} == {__file__}
    last = error.frames[-1]
    assert last.source.startswith("return undefined_name")
    assert last.source[slice(*last.caret)] == "undefined_name"


def test_a_long_message_and_a_deep_traceback_are_cut():
    def speaks():
        raise RuntimeError("x" * 100_000)

    assert len(guard.call(speaks).error.message) == raised_errors.MAXIMAL_MESSAGE
    assert len(guard.call(recurses).error.frames) <= raised_errors.MAXIMAL_FRAMES


def test_random_states_are_replayed():
    numpy = pytest.importorskip("numpy")
    states = guard.RandomStates(7)

    def draw():
        return torch.rand(1).item(), random.random(), numpy.random.rand()

    states.replay()
    first = draw()
    assert draw() != first
    states.replay()
    assert draw() == first
    states.replay_for_backward()
    assert states.untouched()
    second = draw()
    assert not states.untouched()
    assert all(one != other for one, other in zip(first, second, strict=True))
    states.replay_for_backward()
    assert draw() == second


def test_global_state_is_restored(monkeypatch, tmp_path):
    state = GlobalState.take()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADVERIFY_TEST", "set by user code")
    state.restore()
    assert GlobalState.take() == state
