"""Markdown for a step summary: a table of targets, and what failed in full under a fold each."""

from __future__ import annotations

import re
from dataclasses import replace

from gradverify.model import Report, TargetReport, Verdict
from gradverify.report.console import TextStyle, emit
from gradverify.report.targets import cases_words, verdict_words
from gradverify.report.text import block_lines, mistake_lines, not_judged, not_named, summary_lines
from gradverify.report.words import NOT_VERIFIED, clean, in_order, mistakes_in_order

MARKS = {
    Verdict.PASSED: "✅",
    Verdict.FAILED: "❌",
    Verdict.INCONCLUSIVE: "❔",
    Verdict.UNCHECKED: "❗",
    Verdict.SKIPPED: "➖",
    Verdict.XFAILED: "➖",
}
"""Beside the word, never instead of it."""

_SPECIAL = re.compile(r"[^\w\s.,;=/-]|_", re.ASCII)
_FENCE = re.compile(r"`{3,}")


def render_markdown(report: Report, style: TextStyle) -> str:
    """Return the report as GitHub's Markdown."""
    plain = replace(style, width=None, color=False, unicode=True, verbosity=max(0, style.verbosity))
    parts = [
        "## gradverify",
        " ".join(escaped(line.plain) for line in summary_lines(report, replace(plain, verbosity=1))).replace(
            "   ",
            " · ",  # Markdown shows spaces as one
        ),
    ]
    parts += [_fenced(emit(mistake_lines(mistake, plain), plain)) for mistake in mistakes_in_order(report)]
    if report.targets:
        parts.append(_table(report))
    explained: set[str] = set()
    bad = [target for target in in_order(report) if target.status in NOT_VERIFIED]
    parts += [_details(target, plain, explained) for target in bad]
    parts += map(escaped, not_named(report))
    if unjudged := not_judged(report):
        parts.append(escaped(unjudged))
    if not report.targets and not report.errors:
        parts.append("nothing was checked")
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text in which Markdown and HTML find nothing to do: what could mean something becomes an entity."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};" if match[0].isascii() else match[0], clean(text))


def _table(report: Report) -> str:
    rows = ["| | function | cases | verdict |", "|---|---|---|---|"]
    for target in in_order(report):
        cells = (
            f"{MARKS[target.status]} {target.status}",
            f"{escaped(target.target.name)} ({escaped(target.target.file)}&#58;{target.target.line})",
            cases_words(target),
            escaped(verdict_words(target)),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _details(target: TargetReport, style: TextStyle, explained: set[str]) -> str:
    loud = style if target.status is Verdict.FAILED else replace(style, verbosity=-1)
    lines = block_lines(target, loud, explained)
    name = f"{escaped(target.target.name)}&#58; {target.status}"
    return f"<details><summary>{name}</summary>\n\n{_fenced(emit(lines, style))}\n\n</details>"


def _fenced(text: str) -> str:
    """Put text behind a fence longer than any within it."""
    longest = max((len(run) for run in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"
