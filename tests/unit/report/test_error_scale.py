"""The scale of the HTML report: its words stay inside the picture, wherever the marks are."""

import re

import pytest

from gradverify.model import Entry
from gradverify.report.html import error_scale

WIDTH, LETTER = 400, 6.5


@pytest.mark.parametrize("error", [0.0, 3e-13, 1e-12, 1e-10, 1e-6, 1e-2, 1.0, 50.0])
@pytest.mark.parametrize("bound", [1e-16, 1e-14, 2.6e-13, 1e-11, 1e-4, 1.0])
def test_no_word_is_cut_off(error, bound):
    entry = Entry((0,), (0,), 1.0 + error, 1.0, bound)
    found = re.findall(
        r'<text x="([\d.-]+)" y="\d+" text-anchor="(\w+)"[^>]*font-size="11"[^>]*>([^<]*)<',
        error_scale(entry, 1e-7),
    )
    assert found
    for x, anchor, words in found:
        left = float(x) - (LETTER * len(words) if anchor == "end" else 0)
        assert left >= 0, words
        assert left + LETTER * len(words) <= WIDTH, words
