"""Text that user code controls is shown, never obeyed: not by rich, a terminal, or a CI service."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from extent import extent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradverify.model import (
    CasePoint,
    Companion,
    Entries,
    Entry,
    Finding,
    Frame,
    JacobianMap,
    LintFinding,
    LintReport,
    Location,
    Mistake,
    ModuleReport,
    PassedOver,
    RaisedError,
    Severity,
    ShownInput,
    Swept,
    Verdict,
)
from gradverify.report.concise import render_concise
from gradverify.report.console import TextStyle, harmless
from gradverify.report.github import render_github
from gradverify.report.html import render_html
from gradverify.report.json_v1 import render_json
from gradverify.report.junit import render_junit
from gradverify.report.lint import render_lint, render_lint_concise, render_lint_github, render_lint_json
from gradverify.report.listing import ListedTarget, render_listing
from gradverify.report.markdown import render_markdown
from gradverify.report.sarif import render_sarif
from gradverify.report.text import render_mistakes, render_scrolled, render_text

HOSTILE = [
    "[red]x[/red]",
    "x[mask]",
    "[/a]",
    ":warning:",
    "\x1b[31mred\x1b[0m",
    "\x9b31m",
    "a\nb",
    "a\r\nb",
    "\n::error file=x.py,line=1::owned",
    "::set-output name=a::b",
    "x ##[error]owned",
    "\u202egnp.exe",
    "\x00\x07\x08\x7f",
    "\ud800",
    "tab\there",
    "line\u2028separator",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]>&amp;&#58;<!--",
    "```\n::error::owned\n```",
    "| a | [x](http://e.x) **b** @you",
    "a%0A::error::b,c=d",
]
STYLES = [TextStyle(), TextStyle(width=80), TextStyle(width=20), TextStyle(unicode=False, verbosity=1)]


def hostile_finding(text, severity):
    return Finding(
        "GV101",
        severity,
        text,
        hint=text,
        output=0,
        input=text,
        case=CasePoint(text, ((text, 1),), ((text, text),)),
        entries=Entries(1, 1, (Entry((0,), (0,), 1.0, 2.0, 0.1),)),
        map=JacobianMap((text,), (text,), ((1,),), (0.1, 0.2, 0.3)),
        raised=RaisedError(text, text, (Frame(text, 1, text, text, (0, len(text))),)),
        shown_inputs=(ShownInput(text, text),),
        captured=text,
        location=Location(text, 1),
        cause=text,
        reproduce=text,
    )


def hostile_report(samples, text, status):
    finding = hostile_finding(text, Severity.ERROR if status is Verdict.FAILED else Severity.WARNING)
    target = samples.target_report(
        text,
        status,
        file=text,
        findings=(finding,),
        ignored=((text, text),),
        reason=text,
        spec_file=text,
        devices=(text,),
        capabilities=((text, text),),
        surrogate=Companion(text, (text,), (text,), text),
        swept=Swept((text,), (text, "b"), (text,)),
        deduced=text,
    )
    mistake = Mistake(text, Location(text, 1, 1), text, 3, "import", None, text)
    modules = (ModuleReport(text, 0, (PassedOver(text, 1, text),)),)
    return samples.report(target, errors=(mistake,), modules=modules)


def assert_harmless(text):
    for line in text.split("\n"):
        assert line.isprintable(), repr(line)
        assert not re.match(r"\s*::", line), repr(line)
        assert "##[" not in line
    text.encode()


def assert_only_our_commands(rendered, count):
    commands = [line for line in rendered.split("\n") if re.match(r"\s*::", line)]
    ours = r"::(error|warning) (file=[^:,]*,)?(line=\d+,)?(col=\d+,)?title=[^:,]*::"
    assert all(re.match(ours, line) for line in commands), commands
    assert len(commands) == count if count else 1 <= len(commands) <= 2
    assert "##[" not in rendered
    assert all(line.isprintable() for line in rendered.split("\n"))


@pytest.mark.parametrize("style", STYLES, ids=repr)
@pytest.mark.parametrize("status", list(Verdict))
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_text_report(samples, text, status, style):
    report = hostile_report(samples, text, status)
    assert_harmless(render_text(report, style))
    assert_harmless(render_scrolled(report, style))
    assert_harmless(render_concise(report, style))


@pytest.mark.parametrize("style", STYLES, ids=repr)
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_other_screens(samples, text, style):
    report = hostile_report(samples, text, Verdict.FAILED)
    assert_harmless(render_mistakes(report.errors, style))
    assert_harmless(render_text(replace(report, targets=(), errors=()), style))
    plan = replace(samples.LISTED[0].plan, spec_file=text, reference=text, ignore=((text, text),))
    listed = ListedTarget(samples.target(text, file=text), plan, (text,))
    refused = ListedTarget(samples.target(text, file=text), None, reason=text)
    assert_harmless(render_listing((listed, refused), report.modules, style))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_json_keeps_it_exactly(samples, text):
    rendered = render_json(hostile_report(samples, text, Verdict.FAILED))
    rendered.encode("ascii")
    finding = json.loads(rendered)["targets"][0]["findings"][0]
    assert finding["message"] == text
    assert finding["captured"] == text


@pytest.mark.parametrize("text", ["[red]x[/red]", "x[mask]", "[/a]", ":warning:"])
def test_what_is_harmless_is_not_changed(samples, text):
    finding = Finding("GV101", Severity.ERROR, f"before {text} after")
    report = samples.report(samples.target_report("f", Verdict.FAILED, findings=(finding,)))
    assert f"before {text} after" in render_text(report, TextStyle())


def test_escapes_are_made_visible(samples):
    finding = Finding("GV101", Severity.ERROR, "a\x1b[31mb\nc\u202ed")
    report = samples.report(samples.target_report("f", Verdict.FAILED, findings=(finding,)))
    assert r"a\x1b[31mb\nc\u202ed" in render_text(report, TextStyle())


def test_colour_cannot_be_smuggled_into_a_coloured_report(samples):
    finding = Finding("GV101", Severity.ERROR, "\x1b[32mpassed\x1b[0m")
    report = samples.report(samples.target_report("f", Verdict.FAILED, findings=(finding,)))
    assert "\x1b[32m" not in render_text(report, TextStyle(color=True))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_messages(text):
    """Several lines stay several lines, none of which is obeyed."""
    message = harmless(f"first\n{text}\nlast\n")
    assert_harmless(message)
    assert message.startswith("first\n")
    assert message.endswith("\nlast\n")


def hostile_lint(text):
    found = LintFinding("GV803", Severity.ERROR, Location(text, 1, 1), text, text, text, text, len(text))
    return LintReport((found,), (Mistake(text, Location(text, 1, 1), text, 3, "import"),), 1, 1)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_lint(text):
    report = hostile_lint(text)
    for style in STYLES:
        assert_harmless(render_lint(report, style))
        assert_harmless(render_lint_concise(report, style))
    assert_harmless(render_lint_json(report))
    assert_only_our_commands(render_lint_github(report), 2)


HOSTILE_PARTS = st.sampled_from([*HOSTILE, "::", "\n", "\r", "##[", "`", "```", *"|<&", "]]>", "\x1b["])
HOSTILE_TEXT = st.lists(st.one_of(HOSTILE_PARTS, st.text(max_size=5)), max_size=6).map(
    lambda parts: "".join([*parts, "x"])  # no file is called nothing
)


@settings(
    max_examples=extent(20, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=HOSTILE_TEXT, status=st.sampled_from(list(Verdict)))
def test_every_format_whatever_is_put_together(samples, text, status):
    report = hostile_report(samples, text, status)
    for style in STYLES:
        assert_harmless(render_text(report, style))
        assert_harmless(render_concise(report, style))
    assert_only_our_commands(render_github(report), None)
    for rendered in (render_junit(report), render_sarif(report), render_html(report), render_json(report)):
        assert_harmless(rendered)
    ET.fromstring(render_junit(report))
    markdown = render_markdown(report, TextStyle())
    assert_harmless(markdown)
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"<[^>]*>", outside)) <= {"<details>", "<summary>", "</summary>", "</details>"}
    assert all(row.count("|") == 5 for row in outside.split("\n") if row.startswith("|"))
    parser = Tags()
    parser.feed(render_html(report))
    assert parser.found <= ALLOWED


def lines_are_harmless(text):
    for line in text.split("\n"):
        assert not re.match(r"\s*::", line), repr(line)
        assert "##[" not in line
        assert line.isprintable(), repr(line)
    text.encode()


@pytest.mark.parametrize("status", list(Verdict))
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_junit(samples, text, status):
    rendered = render_junit(hostile_report(samples, text, status))
    lines_are_harmless(rendered)
    root = ET.fromstring(rendered)
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out",
    }  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_sarif(samples, text):
    rendered = render_sarif(hostile_report(samples, text, Verdict.FAILED))
    lines_are_harmless(rendered)
    rendered.encode("ascii")
    assert json.loads(rendered)["runs"][0]["results"][0]["ruleId"] == "GV101"


@pytest.mark.parametrize("status", list(Verdict))
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_github(samples, text, status):
    """Only our own commands stand at the start of a line, each one whole."""
    always = status not in (Verdict.SKIPPED, Verdict.XFAILED)
    assert_only_our_commands(render_github(hostile_report(samples, text, status)), 2 if always else None)


@pytest.mark.parametrize("status", list(Verdict))
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_markdown(samples, text, status):
    rendered = render_markdown(hostile_report(samples, text, status), TextStyle())
    lines_are_harmless(rendered)
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", rendered, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"<[^>]*>", outside)) <= {
        "<details>", "<summary>", "</summary>", "</details>",
    }  # fmt: skip
    assert "](" not in outside
    assert "@" not in outside
    assert "**" not in outside


@pytest.mark.parametrize("status", list(Verdict))
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_html(samples, text, status):
    rendered = render_html(hostile_report(samples, text, status))
    lines_are_harmless(rendered)
    parser = Tags()
    parser.feed(rendered)
    assert parser.found <= ALLOWED
    assert not any(name.startswith("on") or name in {"src", "srcdoc"} for name in parser.attributes)
    assert all(href.startswith(("#t", "https://github.com/gradverify/")) for href in parser.links)


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "table", "tr", "th",
    "td", "span", "a", "br", "small", "section", "details", "summary", "dl", "dt", "dd", "pre", "figure",
    "figcaption", "svg", "rect", "line", "text",
}  # fmt: skip


class Tags(HTMLParser):
    """Which elements and attributes a document has."""

    def __init__(self):
        super().__init__()
        self.found, self.attributes, self.links = set(), set(), set()

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.links |= {value for name, value in attributes if name == "href"}
