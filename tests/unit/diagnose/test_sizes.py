"""Factors and laws of the sizes, as they are written."""

from __future__ import annotations

import pytest

from gradverify.verifier.diagnose.evidence import times_too_large
from gradverify.verifier.diagnose.hypotheses.branch import written
from gradverify.verifier.diagnose.hypotheses.factor import _of_law, size_law


def test_a_law_with_a_multiple_reads_as_people_write_it():
    four, six = (("x", (4,)),), (("x", (6,)),)
    assert size_law([(four, 2 / 4), (six, 2 / 6)]) == "2 / x.shape[0]"
    assert size_law([(four, 1 / 8), (six, 1 / 12)]) == "1/2 / x.shape[0]"
    assert size_law([(four, 2.0 * 4), (six, 2.0 * 6)]) == "2 * x.shape[0]"
    assert size_law([(four, -1 / 4), (six, -1 / 6)]) == "-1 / x.shape[0]"


def test_a_factor_near_one_keeps_its_digits():
    assert times_too_large(1.0002) == "is 1.0002 times what it should be"
    assert times_too_large(2.0) == "is 2 times too large"


@pytest.mark.parametrize(
    ("law", "advice"),
    [
        ("1 / n", "Multiply by `n`."),
        ("2 / n", "Multiply by `n / 2`."),
        ("1/2 / n", "Multiply by `2 * n`."),
        ("2 * n", "Divide by `2 * n`."),
        ("n", "Divide by `n`."),
        ("x.shape[0]", "Divide by `x.shape[0]`. Is a sum taken where a mean is meant?"),
    ],
)
def test_what_to_multiply_by_is_no_quotient(law, advice):
    assert _of_law(law) == advice


@pytest.mark.parametrize(
    ("multiple", "formula", "text"),
    [
        (0.5, "1 / x", "1 / (2 * x)"),
        (-2.0, "1 / x", "-2 / x"),
        (0.5, "x", "1/2 * x"),
        (-1.0, "1 / x", "-1 / x"),
    ],
)
def test_a_multiple_of_a_quotient_reads_as_people_write_it(multiple, formula, text):
    assert written(multiple, formula) == text
