"""How much the tests sweep: what takes minutes is swept by `tests/exhaustive` alone."""

import os

import pytest

EXHAUSTIVE = "GRADVERIFY_EXHAUSTIVE" in os.environ


long = pytest.mark.skipif(not EXHAUSTIVE, reason="takes long: tests/exhaustive does it")
"""A test that the short suite leaves out."""


def extent(short, whole):
    """A number of draws, examples or copies: the whole one where `tests/exhaustive` asks for it."""
    return whole if EXHAUSTIVE else short


def with_long(short, rest):
    """What a test is parametrized with: the rest is skipped, so that its snapshots are known to be in use."""
    return [*short, *(pytest.param(case, marks=long) for case in rest)]
