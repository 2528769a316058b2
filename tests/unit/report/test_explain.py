"""Pages and the table of rules, as `explain` and `rules` print them."""

import pytest

from gradverify.errors import UsageError
from gradverify.report import render_rule, render_rules_table
from gradverify.report.explain import render_rule_markdown
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


@pytest.mark.parametrize("entry", RULES, ids=lambda entry: entry.code)
def test_markdown_holds_what_the_page_of_the_terminal_holds(entry):
    page = render_rule_markdown(entry.code)
    assert page.startswith(f"# {entry.code} {entry.name}\n\n**{entry.severity}**: {entry.summary}\n")
    said = (entry.checks, entry.matters, f"```python\n{entry.example}```", entry.remedy)
    assert [page.index(part) for part in said] == sorted(page.index(part) for part in said)
