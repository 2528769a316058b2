"""Words, wrapping and figures."""

import math

import pytest

from gradverify.model import Part, indexed
from gradverify.report.words import clean, clean_lines, figures, listed, number, plural, small, wrap


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é δ 漢", "plain é δ 漢"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202e\ud800\x9b", r"\u202e\ud800\x9b"),
    ],
)
def test_clean(text, shown):
    assert clean(text) == shown
    assert clean(shown) == shown


def test_clean_lines():
    assert clean_lines("\na\tb\r\n\x1bc\n") == ["a       b", r"\x1bc"]
    assert clean_lines(" \n ") == []


def test_wrap():
    assert wrap("one two three", None, 0, 0) == ["one two three"]
    assert wrap("one two three", 9, 2, 2) == ["one two", "three"]
    assert wrap("", 10, 0, 0) == [""]
    assert wrap("a `gradverify check x` b", 12, 0, 0) == ["a", "`gradverify check x`", "b"]
    assert wrap("there are 12 entries", 12, 0, 0) == ["there are", "12 entries"]
    assert wrap("漢字 漢字", 6, 0, 0) == ["漢字", "漢字"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.79251, "0.7925"),
        (0.628, "0.6280"),
        (2.0, "2.000"),
        (1234.0, "1234"),
        (123456.0, "1.235e+05"),
        (1.7e-8, "1.700e-08"),
        (0.0, "0"),
        (-0.0, "-0"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_figures_tell_numbers_apart():
    assert figures(1.0, 2.0) == ("1.000", "2.000")
    assert figures(1.00000001, 1.0) == ("1.00000001", "1.00000000")
    assert figures(1.0, math.nextafter(1.0, 2.0)) == ("1.0000000000000000", "1.0000000000000002")
    assert figures(1.0, 1.0) == ("1.000", "1.000")
    assert figures(math.nan, math.nan) == ("nan", "nan")


def test_small_words():
    assert [plural(1, "case"), plural(2, "case"), plural(0, "entry", "entries")] == [
        "1 case",
        "2 cases",
        "0 entries",
    ]
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert [indexed("y", (0, 2)), indexed("y", ())] == ["y[0,2]", "y"]
    assert [indexed("z", (0, Part.IMAG)), indexed("z", (Part.REAL,))] == ["z[0].imag", "z.real"]
    assert [small(3e-10), small(1.7e-8), small(0.15)] == ["3e-10", "1.7e-08", "0.15"]
