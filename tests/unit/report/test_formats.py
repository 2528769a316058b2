"""The formats for other programs: what each says of every status, held against what others expect of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from gradverify.model import CaseReport, Verdict
from gradverify.report.console import TextStyle
from gradverify.report.github import render_github
from gradverify.report.html import render_html
from gradverify.report.junit import render_junit
from gradverify.report.markdown import render_markdown
from gradverify.report.sarif import render_sarif
from gradverify.report.words import help_uri
from gradverify.rules import RULES, rule

SARIF = json.loads((Path(__file__).parent / "sarif-2.1.0.json").read_text())
RENDERERS = [render_junit, render_sarif, render_github, render_html]


@pytest.fixture
def results(samples):
    return json.loads(render_sarif(samples.EVERYTHING))["runs"][0]["results"]


@pytest.mark.parametrize("name", ["EVERYTHING", "GREEN", "NOTHING"])
def test_sarif_is_what_its_schema_asks_for(samples, name):
    document = json.loads(render_sarif(getattr(samples, name)))
    jsonschema.Draft4Validator(SARIF).validate(document)


def test_sarif_schema_can_refuse(samples):
    document = json.loads(render_sarif(samples.EVERYTHING))
    document["runs"][0]["results"][0]["level"] = "terrible"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SARIF).validate(document)


def test_sarif_names_every_rule_and_each_result_points_at_its_own(samples, results):
    rules = json.loads(render_sarif(samples.EVERYTHING))["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.code for rule in RULES]
    assert [rule["helpUri"] for rule in rules] == [help_uri(rule.code) for rule in RULES]
    assert all(entry["help"]["markdown"] == rule(entry["id"]).page.markdown for entry in rules)
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)


def test_sarif_fingerprints_do_not_hang_on_lines_or_numbers(samples, results):
    def fingerprints(report):
        return [r["partialFingerprints"] for r in json.loads(render_sarif(report))["runs"][0]["results"]]

    moved = replace(samples.FAILED, target=replace(samples.FAILED.target, line=99))
    worded = replace(moved, findings=tuple(replace(f, message="other") for f in moved.findings))
    assert fingerprints(samples.report(samples.FAILED)) == fingerprints(samples.report(worded))
    found = [json.dumps(result["partialFingerprints"]) for result in results]
    assert len(set(found)) == len(found)


def test_sarif_leaves_nothing_unverified_out(samples):
    run = json.loads(render_sarif(samples.EVERYTHING))["runs"][0]
    levels = {
        result["message"]["text"].split(":")[0].split(" ")[0]: result["level"] for result in run["results"]
    }
    assert levels["sampler"] == levels["roi_align"] == "error"
    assert run["invocations"][0]["exitCode"] == 1
    said = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert said[0] == "later: unchecked: stopped by -x before it was reached"
    assert "import error: cannot be imported: ModuleNotFoundError" in said
    suppressed = [result["ruleId"] for result in run["results"] if "suppressions" in result]
    assert suppressed == ["GV101"]


def test_paths_are_relative_uris(samples, results):
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results}
    assert uris == {"mymodule.py", "other.py"}
    target = samples.target_report("f", Verdict.FAILED, file="a b/ü.py", findings=(samples.MISMATCH,))
    document = json.loads(render_sarif(samples.report(target)))
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "a%20b/%C3%BC.py", "uriBaseId": "%SRCROOT%"}


def test_junit_has_a_test_case_for_each_case_and_none_of_them_lies(samples):
    cases = (
        CaseReport("n=3", Verdict.PASSED),
        CaseReport("n=4", Verdict.FAILED, (("GV101", "wrong"), ("GV110", "imprecise"))),
        CaseReport("n=5", Verdict.INCONCLUSIVE, (("GV109", "noisy"),)),
        CaseReport("n=6", Verdict.UNCHECKED, (), "not reached"),
        CaseReport("n=7", Verdict.FAILED, (("GV901", "the process was killed"),)),
        CaseReport("n=8", Verdict.XFAILED, (("GV101", "wrong"),)),
        CaseReport("", Verdict.FAILED, (("GV004", "no longer"),)),
    )
    report = samples.report(replace(samples.FAILED, case_reports=cases))
    suite = ET.fromstring(render_junit(report)).find("testsuite")
    said = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert said == {
        "softmax[n=3]": [],
        "softmax[n=4]": ["failure"],
        "softmax[n=5]": ["failure"],
        "softmax[n=6]": ["error"],
        "softmax[n=7]": ["error"],
        "softmax[n=8]": ["skipped"],
        "softmax": ["failure"],
    }
    assert dict(suite.items()) == {
        "name": "mymodule.py::softmax", "tests": "7", "failures": "3", "errors": "2", "skipped": "1",
    }  # fmt: skip


def test_junit_counts_every_target_that_is_not_verified(samples):
    root = ET.fromstring(render_junit(samples.EVERYTHING))
    red = sum(
        samples.EVERYTHING.targets[k].status in ("failed", "inconclusive", "unchecked") for k in range(10)
    )
    assert int(root.get("failures")) + int(root.get("errors")) == red + len(samples.EVERYTHING.errors)
    assert root.get("skipped") == "2"


@pytest.mark.parametrize("name", ["EVERYTHING", "GREEN", "NOTHING"])
def test_junit_is_read_by_somebody_else(samples, name):
    """What we count is what another reader counts, and each element of ours is a result to it."""
    junitparser = pytest.importorskip("junitparser", reason="the test extra is not installed")
    report = getattr(samples, name)
    read = junitparser.JUnitXml.fromstring(render_junit(report).encode())
    ours = (read.tests, read.failures, read.errors, read.skipped)
    read.update_statistics()
    assert ours == (read.tests, read.failures, read.errors, read.skipped)
    assert ours[0] == len(report.targets) + len(report.errors)
    results = [type(result).__name__ for suite in read for case in suite for result in case.result]
    counted = tuple(results.count(kind) for kind in ("Failure", "Error", "Skipped"))
    assert counted == ours[1:]


def test_github_has_one_annotation_for_each_target_worst_first(samples):
    lines = [line for line in render_github(samples.EVERYTHING).splitlines() if line.startswith("::")]
    titles = [re.search(r"title=(\w+)", line)[1] for line in lines]
    assert titles == ["import", "numbers", "softmax", "boom", "sampler", "roi_align", "later", "gelu"]
    assert lines[2].startswith(
        "::error file=mymodule.py,line=44,title=softmax%3A failed (GV101%2C GV106%2C GV110)::"
    )
    assert "%0A" in lines[2]
    assert lines[-1].startswith("::warning ")
    assert not render_github(samples.GREEN).startswith("::")


def test_github_escapes_what_it_must(samples):
    finding = replace(samples.MISMATCH, message="100% wrong: a, b", hint="", reproduce="", changes=())
    report = samples.report(samples.target_report("f", Verdict.FAILED, file="a,b:c.py", findings=(finding,)))
    line = render_github(report).splitlines()[0]
    assert line == "::error file=a%2Cb%3Ac.py,line=1,title=f%3A failed (GV101)::GV101: 100%25 wrong: a, b"


def test_markdown_says_every_verdict_in_words(samples):
    rendered = render_markdown(samples.EVERYTHING, TextStyle())
    rows = [line for line in rendered.splitlines() if line.startswith("| ") and "&#58;" in line]
    assert len(rows) == len(samples.EVERYTHING.targets)
    for target in samples.EVERYTHING.targets:
        assert any(f" {target.status} | {target.target.name.replace('_', '&#95;')} " in row for row in rows)
    assert rendered.count("<details>") == 6
    assert "x = [[-1.25, 0.5, 2.0], [0.75, -0.25, 1.5]]" in rendered


SAID_IN_HTML = (
    "softmax", "diagonal-only", "y[0,2]/x[0,2]", "0.7925", "18 of 36", "tolerance 1e-07", "4 sizes",
    "replaced by linear in 0.4", "missing_package", "| loading kernel", "straight-through",
)  # fmt: skip


class Text(HTMLParser):
    """The text of a document, and its elements."""

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.open = "", [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in {"meta", "br", "rect", "line"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"meta", "br", "rect", "line"}:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def test_html_says_everything_and_loads_nothing(samples):
    picture = replace(
        samples.MISMATCH.map,
        actual=tuple((0.5,) * 6 for _ in range(6)),
        expected=tuple((float("nan"), *(-0.25,) * 5) for _ in range(6)),
    )
    pictured = replace(samples.FAILED, findings=(replace(samples.MISMATCH, map=picture),))
    report = samples.report(*(pictured if t is samples.FAILED else t for t in samples.EVERYTHING.targets))
    rendered = render_html(replace(report, errors=samples.EVERYTHING.errors))
    document = Text()
    document.feed(rendered)
    assert document.open == []
    missing = [words for words in SAID_IN_HTML if words not in document.text]
    assert not missing
    assert "script" not in document.tags
    assert document.tags.count("rect") == 3 * 36 + 3
    assert not re.findall(r"(?:src|url)\s*[=(]", rendered)
    assert "default-src 'none'" in rendered


@pytest.mark.parametrize("render", RENDERERS, ids=lambda f: f.__name__)
def test_twice_the_same_whatever_the_order_of_targets(samples, render):
    shuffled = replace(samples.EVERYTHING, targets=tuple(reversed(samples.EVERYTHING.targets)))
    if render is not render_github:
        assert render(shuffled) == render(samples.EVERYTHING)
    assert render(samples.EVERYTHING) == render(samples.EVERYTHING)
