"""What the points of a case add up to."""

import pytest

from gradverify.verifier.verify.case_state import _worse


@pytest.mark.parametrize(
    ("one", "other", "worse"),
    [
        ("wrong", "yes", "wrong"),
        ("yes", "wrong", "wrong"),
        ("no", "yes", "no"),
        ("", "yes", "yes"),
        ("yes", "", "yes"),
        ("", "", ""),
    ],
)
def test_a_capability_is_no_better_than_at_its_worst_point(one, other, worse):
    assert _worse(one, other) == worse
