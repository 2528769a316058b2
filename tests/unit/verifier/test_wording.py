"""How a difference is put into words."""

import math

from gradverify.model import Entries, Entry
from gradverify.verifier.checks.wording import by_how_much, is_finite


def _entries(actual, expected):
    return Entries(1, 4, (Entry((0,), (0,), actual, expected, 1e-9),))


def test_what_is_not_finite_is_no_difference():
    assert by_how_much(_entries(math.nan, 0.25)) == "nan for a derivative of 0.25"
    assert by_how_much(_entries(2.0, 1.5)) == "by up to 0.5 (backward 2, 1.5 expected)"
    assert not is_finite(_entries(math.inf, 0.0))
    assert is_finite(_entries(2.0, 1.5))
