"""One HTML file that needs no other: no script, no network, readable on a phone.

Pictures of the HTML report, as SVG: Jacobians, their difference, an error beside the tolerance.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from gradverify.model import Entry, Finding, JacobianMap, Report, Severity, TargetReport
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit
from gradverify.report.finding import heads_of, row_of, short_name
from gradverify.report.fixes import fix_words
from gradverify.report.layout import raised
from gradverify.report.targets import cases_words, particulars, verdict_words
from gradverify.report.text import mistake_lines, not_judged, not_named, summary_lines
from gradverify.report.words import (
    NOT_VERIFIED,
    clean,
    clean_lines,
    help_uri,
    in_order,
    mistakes_in_order,
    number,
    small,
)

_CELL = 14
"""Units of a picture for one entry."""
_GAP = 1
"""Units between entries."""
_LEVELS = ("#eef1f4", "#fbd5a5", "#f59b4c", "#d9542b", "#8c1c13")
"""Differences: right, then four levels of wrong."""
_UNJUDGED = "#b9b4d8"
_NONFINITE = "#c020c0"

_LOWEST, _HIGHEST = -17, 3
"""Decades of relative error on the scale: below float64's rounding, and above a factor of a hundred."""

_OF_A_LETTER = 6.5
"""Units of the picture that a letter of its words takes at most, on average."""


def jacobians(picture: JacobianMap, heads: tuple[str, str], escape: Callable[[str], str]) -> str:
    """Return the Jacobian as backward has it, as it should be, and where they differ."""
    figures = []
    if picture.actual and picture.expected:
        largest = max((abs(v) for row in picture.expected for v in row if math.isfinite(v)), default=0.0)
        for head, values in zip(heads, (picture.actual, picture.expected), strict=True):
            figures.append(_values(picture, values, head, largest or 1.0, escape))
    figures.append(_difference(picture, escape))
    rows, columns = _span(picture.row_labels), _span(picture.column_labels)
    said = f"rows {escape(rows)}; columns {escape(columns)}"
    return f'<div class="pictures">{"".join(figures)}</div><p class="about">{said}</p>'


def error_scale(entry: Entry, rtol: float) -> str:
    """Return the worst entry's relative error on a scale of decades, with the tolerance marked on it."""
    if not (math.isfinite(entry.actual) and math.isfinite(entry.expected)):
        return ""
    size = abs(entry.expected) or abs(entry.actual)
    if not size:
        return ""
    error, known = abs(entry.actual - entry.expected) / size, entry.error_bound / size
    marks = [_mark(error, "#8c1c13", f"error {small(error)}", 12)]
    if rtol > 0:
        marks.append(_mark(rtol, "#0b57a4", f"tolerance {small(rtol)}", 30))
    if 0 < known < math.inf:
        marks.append(_mark(known, "#5c6470", f"measured to {small(known)}", 48))
    line = '<line x1="10" y1="60" x2="390" y2="60" stroke="#c3c8ce"/>'
    ticks = "".join(
        f'<text x="{_at(10.0**d):.0f}" y="72" font-size="9" fill="#5c6470" text-anchor="middle">1e{d}</text>'
        for d in range(-16, 3, 4)
    )
    words = "relative error of the worst entry, and the tolerance"
    opened = f'<svg class="scale" viewBox="0 0 400 76" role="img" aria-label="{words}">'
    return f"{opened}{line}{ticks}{''.join(marks)}</svg>"


def _mark(value: float, color: str, words: str, y: int) -> str:
    """Return a line down to the scale with words beside it; the lowest words keep clear of the next line."""
    x, lowest = _at(value), y > 40
    has_room = x - 5 > _OF_A_LETTER * len(words)
    anchor, shift = ("end", -5) if has_room and (x > 260 or lowest) else ("start", 5)
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="3"'  # where it crosses another line
    at = f'x="{x + shift:.1f}" y="{y}" text-anchor="{anchor}" {halo}'
    return (
        f'<line x1="{x:.1f}" y1="{y - 8}" x2="{x:.1f}" y2="60" stroke="{color}" stroke-width="2"/>'
        f'<text {at} font-size="11" fill="{color}">{words}</text>'
    )


def _at(value: float) -> float:
    decades = min(max(math.log10(value), _LOWEST), _HIGHEST) if value > 0 else _LOWEST
    return 10 + 380 * (decades - _LOWEST) / (_HIGHEST - _LOWEST)


def _values(
    picture: JacobianMap,
    values: Sequence[Sequence[float]],
    head: str,
    largest: float,
    escape: Callable[[str], str],
) -> str:
    cells = [
        (i, j, _diverging(value / largest) if math.isfinite(value) else _NONFINITE, number(value))
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    return _figure(picture, cells, f"{head} (blue − to red +, full at ±{small(largest)})", escape)


def _difference(picture: JacobianMap, escape: Callable[[str], str]) -> str:
    first, second, third = map(small, picture.thresholds)
    words = ("right", f"< {first}", f"< {second}", f"< {third}", f"at least {third}", "not judged")
    cells = [
        (i, j, _UNJUDGED if level < 0 else _LEVELS[level], words[level])
        for i, row in enumerate(picture.levels)
        for j, level in enumerate(row)
    ]
    used = {level for row in picture.levels for level in row}
    legend = ", ".join(
        f'<span style="color:{_UNJUDGED if level < 0 else _LEVELS[level]}">■</span> {escape(words[level])}'
        for level in sorted(used)
    )
    return _figure(picture, cells, "|difference|", escape, legend)


def _figure(
    picture: JacobianMap,
    cells: Sequence[tuple[int, int, str, str]],
    caption: str,
    escape: Callable[[str], str],
    legend: str = "",
) -> str:
    rows, columns = len(picture.levels), len(picture.levels[0]) if picture.levels else 0
    step = _CELL + _GAP
    labels, heads = [
        [escape(name) for name in names] for names in (picture.row_labels, picture.column_labels)
    ]
    rectangles = "".join(
        f'<rect x="{j * step}" y="{i * step}" width="{_CELL}" height="{_CELL}" fill="{color}">'
        f"<title>{labels[i]} by {heads[j]}: {escape(words)}</title></rect>"
        for i, j, color, words in cells
    )
    side = max(rows, columns, 8) * step  # a small Jacobian is not blown up
    opened = f'<svg viewBox="0 0 {side} {rows * step}" role="img" aria-label="{escape(caption)}">'
    words = f"{escape(caption)}{': ' + legend if legend else ''}"
    ground = f'<rect width="{columns * step}" height="{rows * step}" fill="#dfe3e8"/>'
    return f"<figure>{opened}{ground}{rectangles}</svg><figcaption>{words}</figcaption></figure>"


def _diverging(share: float) -> str:
    """Blue for negative, white for zero, red for positive; a root, so that small values are seen."""
    strength = min(1.0, abs(share)) ** 0.5
    low = round(255 - 200 * strength)
    return (
        f"#{low:02x}{round(255 - 130 * strength):02x}ff"
        if share < 0
        else f"#ff{round(255 - 150 * strength):02x}{low:02x}"
    )


def _span(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} … {labels[-1]}" if labels else ""


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
