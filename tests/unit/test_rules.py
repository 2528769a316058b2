"""The table of codes: complete, in order, and every page worth reading."""

import ast
import re

import pytest

from gradverify.errors import UsageError
from gradverify.model import Severity
from gradverify.rules import RULES, Family, matching, rule

NAMES = {
    "GV001": "no-inputs",
    "GV002": "forward-raised",
    "GV004": "unexpected-pass",
    "GV003": "not-differentiable",
    "GV101": "jacobian-mismatch",
    "GV102": "backward-raised",
    "GV103": "wrong-gradient-shape",
    "GV104": "wrong-gradient-dtype",
    "GV105": "wrong-gradient-count",
    "GV106": "grad-output-ignored",
    "GV107": "missing-gradient",
    "GV108": "nonfinite-gradient",
    "GV109": "inconclusive",
    "GV110": "imprecise-gradient",
    "GV201": "second-derivative-mismatch",
    "GV202": "second-derivative-detached",
    "GV203": "second-derivative-raised",
    "GV301": "forward-differs",
    "GV302": "gradient-differs",
    "GV303": "second-derivative-differs",
    "GV401": "grad-output-mutated",
    "GV402": "input-mutated",
    "GV403": "saved-tensor-mutated",
    "GV404": "grad-output-layout",
    "GV405": "input-layout",
    "GV406": "requires-grad-subset",
    "GV407": "undefined-grad",
    "GV408": "repeat-call",
    "GV409": "repeat-backward",
    "GV410": "nondeterministic",
    "GV411": "tensor-on-ctx",
    "GV412": "degenerate-size",
    "GV501": "jvp-mismatch",
    "GV502": "vmap-mismatch",
    "GV503": "compile-mismatch",
    "GV504": "opcheck",
    "GV505": "func-mismatch",
    "GV701": "device-mismatch",
    "GV801": "opaque-backward",
    "GV802": "tensor-kept-on-ctx",
    "GV803": "gradient-count",
    "GV804": "grad-output-in-place",
    "GV805": "needs-input-grad-index",
    "GV806": "no-setup-context",
    "GV807": "misused-save-for-backward",
    "GV808": "unpaired-custom-fwd",
    "GV809": "grad-output-strides",
    "GV810": "old-style-function",
    "GV811": "input-in-place",
    "GV601": "precision-loss",
    "GV602": "low-precision-nonfinite",
    "GV603": "autocast",
    "GV812": "unset-ctx-attribute",
    "GV813": "saved-tensor-count",
    "GV814": "grad-output-count",
    "GV815": "grad-output-unused",
    "GV816": "state-outside-ctx",
    "GV817": "differentiates-forward",
    "GV901": "crashed",
    "GV902": "timed-out",
    "GV903": "out-of-memory",
}
WARNINGS = {"GV001", "GV109", "GV110", "GV411", "GV801", "GV802", "GV808", "GV809", "GV810", "GV816", "GV902"}
WARNINGS |= {"GV903"}
NOTES = {"GV203", "GV806", "GV817"}
every_rule = pytest.mark.parametrize("entry", RULES, ids=lambda entry: entry.code)


def test_codes_and_names():
    assert {entry.code: entry.name for entry in RULES} == NAMES
    codes = [entry.code for entry in RULES]
    assert codes == sorted(set(codes))
    assert len({entry.name for entry in RULES}) == len(RULES)


def test_severities():
    by_severity = {severity: {e.code for e in RULES if e.severity is severity} for severity in Severity}
    assert by_severity[Severity.WARNING] == WARNINGS
    assert by_severity[Severity.NOTE] == NOTES


def test_families():
    assert {e.code for e in RULES if e.family is Family.RUN} == {"GV001", "GV004", "GV901", "GV902", "GV903"}
    assert {e.code for e in RULES if e.family is Family.PRECISION} == {"GV601", "GV602", "GV603"}
    assert rule("GV109").family is Family.GRADCHECK
    assert {e.code for e in RULES if e.family is Family.GRADGRADCHECK} == {"GV201", "GV202", "GV203"}
    assert {e.code for e in RULES if e.family is Family.REFERENCE} == {"GV301", "GV302", "GV303"}


@every_rule
def test_pages_are_complete(entry):
    for prose in (entry.checks, entry.matters, entry.remedy):
        assert prose[0].isupper() or prose.startswith(("torch", "`"))
        assert prose.endswith(".")
        assert 1 <= len(re.findall(r"[.?](?: |$)", prose)) <= 4
        assert prose.count("`") % 2 == 0
        assert "  " not in prose
        assert prose.isprintable()
    assert entry.summary
    assert not entry.summary.endswith(".")


@every_rule
def test_examples_parse_and_are_short(entry):
    tree = ast.parse(entry.example)
    assert entry.example.endswith("\n")
    assert 4 <= sum(bool(line.strip()) for line in entry.example.splitlines()) <= 12
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
    for code in re.findall(r"GV\d{3}", entry.checks + entry.matters + entry.remedy):
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
