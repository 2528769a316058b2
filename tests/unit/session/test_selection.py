"""What the command line selects."""

import pytest

from gradverify.errors import UsageError
from gradverify.model import Case, Target, TargetKind
from gradverify.session.selection import check_codes, keyword_filter, select_cases, select_named

CASES = tuple(Case(name, 0) for name in ("b=3,n=4,mode=sum", "b=1,n=4,mode=sum", "b=3,n=4,mode=mean"))
TARGETS = tuple(
    Target(name, name, TargetKind.FUNCTION, "m.py", 1) for name in ("Linear@nobias", "Linear@bias", "Relu")
)


@pytest.mark.parametrize(
    ("wanted", "count"), [("", 3), ("b=3", 2), ("mode=sum, b=1", 1), ("b=3,n=4,mode=mean", 1), ("n=4", 3)]
)
def test_cases(wanted, count):
    assert len(select_cases(CASES, wanted, "m.py::F")) == count


def test_case_that_does_not_exist():
    with pytest.raises(UsageError, match=r"m.py::F has no case \[b=7\]; its cases: \[b=3,n=4,mode=sum\], "):
        select_cases(CASES, "b=7", "m.py::F")


@pytest.mark.parametrize(("name", "count"), [("", 3), ("Linear", 2), ("Linear@bias", 1), ("Relu", 1)])
def test_names(name, count):
    assert len(select_named(TARGETS, name, "m.py")) == count


def test_nearest_name():
    with pytest.raises(UsageError, match=r"m.py has no target `Rleu`; did you mean `Relu`\?"):
        select_named(TARGETS, "Rleu", "m.py")


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("", True),
        ("linear", True),
        ("m.py::Lin", True),
        ("relu", False),
        ("not relu", True),
        ("relu or linear", True),
        ("linear and not (bias or relu)", False),
    ],
)
def test_keywords(expression, kept):
    assert keyword_filter(expression)("m.py::Linear@bias") is kept


@pytest.mark.parametrize("expression", ["and", "a and", "(a", "a or (b c)", "a or not", "not"])
def test_keywords_that_are_none(expression):
    """A mistake anywhere, also where the value of the rest would decide."""
    with pytest.raises(UsageError, match="is not an expression"):
        keyword_filter(expression)


def test_codes():
    assert check_codes(["GV1", "gv203"], "--select") == ("GV1", "gv203")
    with pytest.raises(UsageError, match="no code starts with `GV99`"):
        check_codes(["GV1", "GV99"], "--select")
