"""How much the tests sweep: `pytest --all-seeds` has everything, the test command what shows most of it."""

import os

import pytest

ASKED = "GRADVERIFY_ALL_SEEDS"
"""The variable that `tests/conftest.py` sets for the option, for its runners and what tests start as well."""

ALL_SEEDS = ASKED in os.environ

long = pytest.mark.long
"""A test of the long list: the test command leaves it out, `pytest --all-seeds` runs it."""


def extent(short, whole):
    """A number of draws, examples or copies; the whole one where everything is asked for."""
    return whole if ALL_SEEDS else short


def with_long(short, rest):
    """What a test is parametrized with: the rest is of the long list, its snapshots are in use."""
    return [*short, *(pytest.param(case, marks=long) for case in rest)]
