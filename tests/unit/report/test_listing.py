"""What `gradverify list` prints."""

from dataclasses import replace

import pytest

from gradverify.model import InputSource
from gradverify.report.console import TextStyle
from gradverify.report.listing import ListedTarget, render_listing


@pytest.mark.parametrize(
    "style",
    [TextStyle(width=80), TextStyle(), TextStyle(verbosity=1), TextStyle(width=80, color=True)],
    ids=["80", "pipe", "verbose", "color"],
)
def test_screen(samples, style, snapshot):
    assert render_listing(samples.LISTED, samples.NOTHING.modules, style) == snapshot


def test_nothing_to_list(samples):
    text = render_listing((), samples.NOTHING.modules, TextStyle())
    assert text.startswith("utils.py: no function to check\n")
    assert "nothing was checked" not in text
    assert render_listing((), (), TextStyle()) == "no module to check\n"


def test_all_cases_when_verbose(samples):
    text = render_listing(samples.LISTED[:1], (), TextStyle(verbosity=1))
    assert all(case.id in text for case in samples.LISTED[0].plan.cases)
    assert "more (-v)" not in text


def test_sources_of_inputs(samples):
    plan = replace(samples.LISTED[0].plan, spec_file="", spec_line=0)
    sources = [plan, *(replace(plan, source=source) for source in (InputSource.INFERRED, InputSource.NONE))]
    listed = [ListedTarget(samples.target("f"), source) for source in sources]
    text = render_listing(listed, (), TextStyle())
    for words in ("inputs from the spec", "inputs inferred", "inputs not known yet"):
        assert words in text
    assert text.endswith("\n3 functions, 18 cases\n")
