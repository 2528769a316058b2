"""Pages and the table of rules, as `explain` and `rules` print them."""

import pytest

from gradverify.errors import UsageError
from gradverify.report.explain import render_rule, render_rules_table
from gradverify.rules import RULES


def test_page(snapshot):
    assert render_rule("GV101") == snapshot


def test_table(snapshot):
    assert render_rules_table() == snapshot


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_page_fits_80_columns(rule):
    page = render_rule(rule.code)
    assert page.startswith(f"{rule.code} {rule.name} ({rule.severity})\n  {rule.summary}\n")
    assert max(map(len, page.splitlines())) <= 80
    for title in ("What it checks", "Why it matters", "Example", "Remedy"):
        assert f"\n{title}\n" in page


def test_the_table_fits_80_columns():
    assert max(map(len, render_rules_table().splitlines())) <= 80


def test_unknown_code():
    with pytest.raises(UsageError, match="did you mean GV1"):
        render_rule("GV1O1")
