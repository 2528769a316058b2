"""Spec, import and configuration errors."""

from dataclasses import replace

import pytest

from gradverify.model import Location, Mistake
from gradverify.report.console import TextStyle
from gradverify.report.text import render_mistakes

STYLES = [TextStyle(), TextStyle(width=80), TextStyle(width=80, color=True)]


@pytest.mark.parametrize("style", STYLES, ids=["pipe", "80", "color"])
def test_screen(samples, style, snapshot):
    assert render_mistakes((*samples.SPEC_ERRORS, samples.IMPORT_ERROR), style) == snapshot


def test_spec_errors(samples):
    assert render_mistakes(samples.SPEC_ERRORS, TextStyle()) == (
        "mymodule.gradverify.yaml:7:11: unknown key `shpe` in functions.softmax.inputs.w;"
        " did you mean `shape`?\n"
        "    7 |       w: {shpe: [3]}\n"
        "      |           ^^^^\n"
        "mymodule.gradverify.yaml:9:3: `softmx` is not defined in mymodule.py; did you mean `softmax`?\n"
        "    9 |   softmx:\n"
        "      |   ^^^^^^\n"
        "\n"
        "2 errors in 1 spec file; nothing was checked\n"
    )


def test_a_whole_line_has_no_caret():
    mistake = Mistake("empty", Location("a.yaml", 12), "x: ")
    text = render_mistakes([mistake], TextStyle())
    assert text == "a.yaml:12: empty\n   12 | x:\n\n1 error in 1 spec file; nothing was checked\n"


def test_the_caret_is_under_wide_and_escaped_characters():
    mistake = Mistake("bad", Location("a.yaml", 1, 4), "漢\t: x", 1)
    assert "    1 | 漢\\t: x\n      |      ^\n" in render_mistakes([mistake], TextStyle())


def test_a_caret_beyond_the_end_of_the_line():
    mistake = Mistake("value is missing", Location("a.yaml", 1, 4), "x:", 1)
    assert "    1 | x:\n      |   ^\n" in render_mistakes([mistake], TextStyle())


@pytest.mark.parametrize(
    ("column", "shown"),
    [(1, "abc" + "x" * 117 + "…"), (50_001, "…" + "x" * 40 + "abc" + "x" * 77 + "…")],
)
def test_a_long_line_is_cut_around_the_caret(column, shown):
    line = "x" * (column - 1) + "abc" + "x" * 50_000
    text = render_mistakes([Mistake("bad", Location("a.yaml", 1, column), line, 3)], TextStyle())
    source, caret = text.splitlines()[1:3]
    assert source == f"    1 | {shown}"
    assert caret.index("^^^") == source.index("abc")


def test_a_long_word_is_underlined_as_far_as_it_is_shown():
    text = render_mistakes([Mistake("bad", Location("a.yaml", 1, 1), "y" * 9000, 9000)], TextStyle())
    assert text.splitlines()[2] == "      | " + "^" * 121


def test_without_a_place():
    text = render_mistakes([Mistake("unknown key `sed`", kind="config")], TextStyle())
    assert text == "unknown key `sed`\n\n1 error in the configuration file; nothing was checked\n"


def test_counts(samples):
    elsewhere = replace(samples.SPEC_ERRORS[0], location=Location("other.yaml", 1))
    both = (*samples.SPEC_ERRORS, elsewhere, samples.IMPORT_ERROR, samples.IMPORT_ERROR)
    last = render_mistakes(both, TextStyle()).splitlines()[-1]
    assert last == "3 errors in 2 spec files, 2 modules could not be imported; nothing was checked"
