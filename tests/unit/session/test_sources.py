"""Which definitions differ between two sources, as far as reading tells."""

import pytest

from gradverify.session.sources import changed_names

BEFORE, AFTER = "class A:\n    x = 1\n", "class A:\n    x = 2\n"


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("", {"A"}),
        ("a = A.apply", {"A", "a"}),
        ("a = A.apply\nb = c = a", {"A", "a", "b", "c"}),
        ("a = B.apply", {"A"}),
        ("a = A.apply()", None),
        ("a, b = A.apply", None),
        ("a = {1: A.apply}", None),
        ("register(A)", None),
        ("B.a = A.apply", None),
    ],
)
def test_another_name_differs_with_what_it_names(statement, changed):
    assert changed_names(f"{BEFORE}{statement}\n", f"{AFTER}{statement}\n") == changed
