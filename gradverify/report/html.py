"""One HTML file that needs no other: no script, no network, readable on a phone."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from gradverify.model import Entry, Finding, Report, Severity, TargetReport
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit
from gradverify.report.finding import heads_of, row_of, short_name
from gradverify.report.fixes import fix_words
from gradverify.report.html_pictures import error_scale, jacobians
from gradverify.report.layout import raised
from gradverify.report.places import NOT_VERIFIED, help_uri, in_order, mistakes_in_order
from gradverify.report.targets import cases_words, particulars, verdict_words
from gradverify.report.text import mistake_lines, not_judged, not_named, summary_lines
from gradverify.report.words import clean, clean_lines

HEAD = Path(__file__).with_name("page.html").read_text("utf-8").rstrip("\n")
"""All that comes before the report's own content: its style, and a policy that lets it load nothing."""

STYLE = HEAD.partition("<style>")[2].partition("</style>")[0]
"""How the page looks."""

SIGNS = {"-": "removed", "+": "added"}
"""Classes of the lines of a fix."""

_PLAIN = TextStyle()


def render_html(report: Report) -> str:
    """Return the report as an HTML document."""
    return "\n".join([HEAD, *_content(report), "</main></body></html>"]) + "\n"


def render_fragment(report: Report, note: str = "") -> str:
    """Return the report as a part of another page, such as a notebook: its style is its own."""
    style = STYLE.replace(":root {", "& {").replace("body {", "& {").replace("main {", "& {")
    return (
        "\n".join(
            [
                f"<style>.gradverify {{{style}}}</style>",
                '<div class="gradverify">',
                *_content(report),
                f'<p class="about">{h(note)}</p>' if note else "",
                "</div>",
            ]
        )
        + "\n"
    )


def _content(report: Report) -> list[str]:
    summary = " ".join(line.plain for line in summary_lines(report, TextStyle(verbosity=1)))
    summary = summary.replace("   ", " · ")  # HTML shows spaces as one
    parts = [
        f'<p class="summary">{h(summary)}</p>',
        f'<p class="about">{h(_about(report))}</p>',
        *(_mistakes(report)),
    ]
    targets = in_order(report)
    if targets:
        parts.append(_table(targets))
    elif not report.errors:
        parts.append("<p>Nothing was checked.</p>")
    parts += [_target(target, report) for target in targets]
    parts += [f'<p class="about">{h(sentence)}</p>' for sentence in not_named(report)]
    if unjudged := not_judged(report):
        parts.append(f'<p class="about">{h(unjudged)}</p>')
    return parts


def h(text: str) -> str:
    """Text in which HTML and CI services find nothing to obey."""
    return html.escape(clean(text)).replace("##[", "&#35;#[")


def _about(report: Report) -> str:
    settings = report.settings
    words = [
        f"seed {settings.seed}",
        "every device" if settings.every_device else settings.device,
        f"engine {settings.engine}",
    ]
    if settings.select:
        words.append(f"only {', '.join(settings.select)}")
    if settings.ignore:
        words.append(f"without {', '.join(settings.ignore)}")
    if settings.strict:
        words.append("warnings fail")
    if report.stopped_early:
        words.append(f"stopped early ({report.stopped_by})")
    versions = f"gradverify {report.gradverify_version}, torch {report.torch_version or 'not loaded'}"
    return f"{versions}; {', '.join(words)}; exit code {report.exit_code}"


def _mistakes(report: Report) -> list[str]:
    return [_pre(emit(mistake_lines(m, _PLAIN), _PLAIN).splitlines()) for m in mistakes_in_order(report)]


def _table(targets: Sequence[TargetReport]) -> str:
    rows = []
    for number_, target in enumerate(targets):
        name = f'<a href="#t{number_}">{h(target.target.name)}</a>'
        place = f"{h(target.target.file)}:{target.target.line}"
        rows.append(
            f'<tr><td><span class="mark {target.status}">{target.status}</span></td>'
            f"<td>{name}<br><small>{place}</small></td><td>{h(cases_words(target))}</td>"
            f"<td>{h(verdict_words(target))}</td></tr>"
        )
    head = "<tr><th>Verdict</th><th>Function</th><th>Cases</th><th>What was verified</th></tr>"
    body = "\n".join([head, *rows])
    return f'<div class="wide"><table class="targets">{body}</table></div>'


def _target(target: TargetReport, report: Report) -> str:
    number_ = in_order(report).index(target)
    mark = f'<span class="mark {target.status}">{target.status}</span>'
    parts = [
        f'<section id="t{number_}"><h2>{mark} {h(target.target.name)}</h2>',
        f'<p class="about">{h(target.target.file)}:{target.target.line}: {h(verdict_words(target))}</p>',
        _definitions(particulars(target)),
    ]
    parts += [f"<p>ignored {h(code)}: {h(reason)}</p>" for code, reason in target.ignored]
    is_open = target.status in NOT_VERIFIED
    for found in target.findings:
        parts.append(_finding(found, report, is_open=is_open and found.severity is not Severity.NOTE))
    return "\n".join([*parts, "</section>"])


def _definitions(pairs: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{h(name)}</dt><dd>{h(words)}</dd>" for name, words in pairs)
    return f"<details><summary>what was swept</summary><dl>{items}</dl></details>" if items else ""


def _finding(found: Finding, report: Report, *, is_open: bool) -> str:
    opened = " open" if is_open else ""
    expected = " (expected)" if found.expected else ""
    code = f'<a href="{help_uri(found.code)}">{h(found.code)}</a>'
    said = f"{code} {found.severity}{expected}: {h(found.message)}"
    parts = [f'<details class="finding {found.severity}"{opened}><summary>{said}</summary>']
    if fix := fix_words(found):
        parts.append(_pre(fix, SIGNS))
    case = one.case_words(found.case, found.cases_affected) if found.case is not None else ""
    cause = found.cause and found.cause + one.factor_words(found.factor)
    pairs = [
        (name, words) for name, words in (("case", case), ("cause", cause), ("hint", found.hint)) if words
    ]
    parts.append("<dl>" + "".join(f"<dt>{name}</dt><dd>{h(words)}</dd>" for name, words in pairs) + "</dl>")
    if found.raised is not None:
        parts.append(_pre(emit(raised(found.raised, _PLAIN), _PLAIN).splitlines()))
    parts.append(_entries(found, report.settings.rtol))
    if found.map is not None:
        parts.append(jacobians(found.map, heads_of(found), h))
    if found.shown_inputs:
        parts.append(_pre([f"{shown.name} = {shown.text}" for shown in found.shown_inputs]))
    if printed := clean_lines(found.captured):
        parts.append("<p>printed meanwhile</p>" + _pre([f"| {line}" for line in printed]))
    if found.reproduce:
        parts.append(_pre([found.reproduce]))
    return "\n".join([*filter(None, parts), "</details>"])


def _entries(found: Finding, rtol: float) -> str:
    if found.entries is None or not found.entries.worst:
        return ""
    heads = heads_of(found)
    rows = "".join(_entry(entry, found) for entry in found.entries.worst)
    head = (
        f"<tr><th>worst</th><th>{heads[0]}</th><th>{heads[1]}</th><th>difference</th><th>known to</th></tr>"
    )
    count = f"{found.entries.wrong} of {found.entries.checked} entries"
    scale = error_scale(found.entries.worst[0], rtol)
    table = f'<div class="wide"><table class="numbers">{head}{rows}</table></div>'
    return f"<p>{count}</p>{table}{scale}"


def _entry(entry: Entry, found: Finding) -> str:
    row = row_of(entry, found, _PLAIN)
    cells = (h(short_name(entry, found)), row.actual, row.expected, row.difference, row.bound)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _pre(lines: Sequence[str], looks: Mapping[str, str] = MappingProxyType({})) -> str:
    """Lines as they are; each ends its own element, so that none of them begins a line of the file.

    `looks` has the class of a line by the character that it begins with.
    """
    classes = [f' class="{looks[line[0]]}"' if line[:1] in looks else "" for line in lines]
    return (
        "<pre>"
        + "".join(f"<span{one}>{h(line)}\n</span>" for one, line in zip(classes, lines, strict=True))
        + "</pre>"
    )
