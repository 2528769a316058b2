"""What the end of the report says about one target: a failure in full, its worst finding first."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from gradverify.model import Finding, Location, Severity, TargetReport, Verdict
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit
from gradverify.report.fixes import patches_of
from gradverify.report.layout import STYLES, field, hang, spot, verbatim
from gradverify.report.targets import because, is_shown
from gradverify.report.words import clean, in_a_row

_TELLING = (
    *("GV901", "GV002", "GV102", "GV105"),
    *("GV410", "GV408", "GV401", "GV402", "GV403"),
    *("GV106", "GV301", "GV108", "GV101", "GV107", "GV103", "GV104"),
)
"""Codes whose findings come first, each before what it makes wrong: what raises or does not return, what
another call or a write has spoiled, wrong values; shapes and dtypes beside wrong values at last."""
_CONTINUED = 4
"""Columns before the further lines of a heading."""


def render_failure(report: TargetReport, style: TextStyle) -> str:
    """Return the block of one failed target alone, as the message of an exception."""
    return emit(block_lines(report, style, set()), style)


def block_lines(report: TargetReport, style: TextStyle, explained: set[str]) -> list[Text]:
    """Set a failed target's block; when quiet, whatever the list would have said about another one.

    `explained` holds the codes whose page was named already, and gains those named here.
    """
    if report.status is Verdict.FAILED:
        return _failure(report, style, explained)
    if style.verbosity >= 0 or report.status in (Verdict.SKIPPED, Verdict.XFAILED):
        return []
    shown = [found for found in report.findings if is_shown(found, style)]
    if not shown and report.status is Verdict.UNCHECKED:
        return _heading(report, None, because("unchecked", report), style)
    lines: list[Text] = []
    for found in shown:
        lines += _heading(report, found, found.message, style)
        lines += field("hint", found.hint, style) if found.hint else []
    return lines


def _failure(report: TargetReport, style: TextStyle, explained: set[str]) -> list[Text]:
    shown = [found for found in report.findings if is_shown(found, style)]
    if not shown:
        return _heading(report, None, because("failed", report), style)
    worst, *others = sorted(shown, key=_rank)
    lines = [*_heading(report, worst, worst.message, style), Text(), *_body(worst, style, explained)]
    before, reported, said = worst, True, {worst.hint}
    same, others = _of_one_mistake(worst, others) if style.verbosity <= 0 else ([], others)
    if same:
        names = in_a_row([f"`{clean(found.input or '')}`" for found in same])
        lines += [Text(), *field("also", f"{worst.code} for {names}: the fix makes that right, too", style)]
    for found in others:
        # One root may have many findings: what helps is said once.
        shown_hint = "" if found.hint in said and style.verbosity <= 0 else found.hint
        said.add(found.hint)
        body = _body(replace(found, hint=shown_hint), style, explained, before)
        lines += [Text()] if reported or body else []
        lines += [*_also(found, before, style), *body]
        before, reported = found, bool(body)
    return lines


def _of_one_mistake(worst: Finding, others: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that the fix of the worst one makes right, and the rest."""
    fix = patches_of([worst])
    same = [f for f in others if fix and f.code == worst.code and f.input and patches_of([f]) == fix]
    return same, [f for f in others if f not in same]


def _rank(found: Finding) -> tuple[int, int, float]:
    """Order findings by severity, then what explains others before what follows from it, then by size."""
    place = _TELLING.index(found.code) if found.code in _TELLING else len(_TELLING)
    return list(Severity).index(found.severity), place, -found.badness


def _heading(report: TargetReport, found: Finding | None, message: str, style: TextStyle) -> list[Text]:
    """Set `file:line: CODE name: message`, in the form that editors jump to."""
    where = found.location if found and found.location else Location(report.target.file, report.target.line)
    code = Text.assemble((one.label(found), one.look(found)), " ") if found else Text()
    name = (clean(report.target.name), "bold" if found else STYLES[report.status])
    prefix = Text.assemble((spot(where), "bold"), ": ", code, name, ": ")
    return hang(prefix, message, style, _CONTINUED)


def _also(found: Finding, before: Finding, style: TextStyle) -> list[Text]:
    """Set the heading of a further finding; its place only where that is another one."""
    place = f"{spot(found.location)}: " if found.location and found.location != before.location else ""
    prefix = Text.assemble(f"  also {place}", (one.label(found), one.look(found)), ": ")
    return hang(prefix, found.message, style, _CONTINUED)


def _body(found: Finding, style: TextStyle, explained: set[str], before: Finding | None = None) -> list[Text]:
    if found.severity is not Severity.ERROR and style.verbosity <= 0:
        return field("hint", found.hint, style) if found.hint else []
    lines = one.fields(found, style, before)
    if found.code not in explained:
        explained.add(found.code)
        lines += verbatim("explain", [f"gradverify explain {found.code}"])
    return lines
