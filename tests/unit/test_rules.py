"""The table of codes: in order, and every page complete and worth reading."""

import ast
import re

import pytest

from gradverify.errors import UsageError
from gradverify.rules import PAGES, RULES, matching, rule

every_rule = pytest.mark.parametrize("entry", RULES, ids=lambda entry: entry.code)


def test_codes_are_in_order_and_names_stand_for_one_code():
    codes = [entry.code for entry in RULES]
    assert codes == sorted(set(codes))
    assert len({entry.name for entry in RULES}) == len(RULES)
    assert all(re.fullmatch(r"GV\d{3}", entry.code) and entry.summary for entry in RULES)


def test_every_code_has_its_page_and_no_page_is_left_over():
    assert {file.name for file in PAGES.iterdir()} == {f"{entry.code}.md" for entry in RULES}


@every_rule
def test_a_page_begins_with_what_the_table_says(entry):
    assert entry.page.markdown.startswith(
        f"# {entry.code} {entry.name}\n\n**{entry.severity}**: {entry.summary}\n"
    )


@every_rule
def test_pages_are_complete(entry):
    for prose in (entry.page.checks, entry.page.matters, entry.page.remedy):
        assert prose[0].isupper() or prose.startswith(("torch", "`"))
        assert prose.endswith(".")
        assert 1 <= len(re.findall(r"[.?](?: |$)", prose)) <= 4
        assert prose.count("`") % 2 == 0
        assert "  " not in prose
        assert prose.isprintable()
    assert not entry.summary.endswith(".")


@every_rule
def test_examples_parse_and_are_short(entry):
    tree = ast.parse(entry.page.example)
    assert entry.page.example.endswith("\n")
    assert 4 <= sum(bool(line.strip()) for line in entry.page.example.splitlines()) <= 12
    function = tree.body[0]
    if entry.code == "GV504":  # of an operator, with what registers it
        assert isinstance(function, ast.FunctionDef)
        assert "custom_op" in ast.unparse(function)
        return
    assert len(tree.body) == 1
    assert isinstance(function, ast.ClassDef)
    methods = {item.name for item in function.body if isinstance(item, ast.FunctionDef)}
    assert "forward" in methods


@every_rule
def test_codes_that_a_page_mentions_exist(entry):
    for code in re.findall(r"GV\d{3}", entry.page.checks + entry.page.matters + entry.page.remedy):
        assert rule(code)


def test_rule_in_either_case():
    assert rule("gv101") is rule("GV101")


@pytest.mark.parametrize(("code", "hint"), [("GV10", "did you mean GV"), ("nonsense", "gradverify rules")])
def test_unknown_code(code, hint):
    with pytest.raises(UsageError, match=hint):
        rule(code)


def test_matching():
    assert [entry.code for entry in matching("GV2")] == ["GV201", "GV202", "GV203"]
    assert matching("gv101") == (rule("GV101"),)
    assert matching("GV") == RULES
    assert matching("GV0X") == ()
    assert matching("") == ()
