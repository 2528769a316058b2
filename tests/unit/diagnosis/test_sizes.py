"""Factors and laws of the sizes, as they are written."""

from __future__ import annotations

import pytest

from gradverify.verifier.checks.causes import _inverse_of_quotient
from gradverify.verifier.checks.saying import times_too_large
from gradverify.verifier.numerics.diagnosis.sizes import always_two, size_law

SMALL = (("x", (4, 2)),)
LARGE = (("x", (6, 2)),)


def test_a_law_with_a_multiple_reads_as_people_write_it():
    four, six = (("x", (4,)),), (("x", (6,)),)
    assert size_law([(four, 2 / 4), (six, 2 / 6)]) == "2 / x.shape[0]"
    assert size_law([(four, 1 / 8), (six, 1 / 12)]) == "1/2 / x.shape[0]"
    assert size_law([(four, 2.0 * 4), (six, 2.0 * 6)]) == "2 * x.shape[0]"
    assert size_law([(four, -1 / 4), (six, -1 / 6)]) == "-1 / x.shape[0]"


def test_a_size_that_is_always_two_may_be_meant():
    assert always_two([SMALL, LARGE]) == ["x.shape[1]"]
    assert always_two([SMALL, (("x", (6, 3)),)]) == []


def test_a_factor_near_one_keeps_its_digits():
    assert times_too_large(1.0002) == "is 1.0002 times what it should be"
    assert times_too_large(2.0) == "is 2 times too large"


@pytest.mark.parametrize(
    ("law", "inverse"), [("1 / n", "n"), ("2 / n", "n / 2"), ("1/2 / n", "2 * n"), ("2 * n", ""), ("n", "")]
)
def test_what_to_multiply_by_is_no_quotient(law, inverse):
    assert _inverse_of_quotient(law) == inverse
