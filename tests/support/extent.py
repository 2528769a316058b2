"""How much the tests sweep: what takes minutes is swept by `tests/exhaustive` alone."""

import os

EXHAUSTIVE = "GRADVERIFY_EXHAUSTIVE" in os.environ


def extent(short, long):
    """A number of draws, examples or copies: the long one where `tests/exhaustive` asks for it."""
    return long if EXHAUSTIVE else short
