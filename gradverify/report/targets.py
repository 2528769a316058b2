"""The list of targets: a line for each with what was verified, what else there is to say, and details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import (
    LIMITING,
    SEVERAL_RANKS,
    Closeness,
    Companion,
    Effort,
    Finding,
    InputSource,
    Outcome,
    Severity,
    Swept,
    TargetReport,
    Verdict,
)
from gradverify.report import finding as one
from gradverify.report.console import TextStyle
from gradverify.report.layout import LABEL, STYLES, field, hang
from gradverify.report.words import clean, listed, plural, small

_MARKS = {
    Verdict.PASSED: ("✓", "ok"),
    Verdict.FAILED: ("✗", "FAIL"),
    Verdict.INCONCLUSIVE: ("?", "?"),
    Verdict.UNCHECKED: ("!", "!"),
    Verdict.SKIPPED: ("-", "-"),
    Verdict.XFAILED: ("-", "-"),
}
_NAMES = 0.4
"""Share of the columns kept for names; a longer one pushes its own line only."""
_FOLLOW = 4
"""Columns before what is said under a target's line."""


def target_lines(targets: Sequence[TargetReport], style: TextStyle) -> list[Text]:
    """Set the targets of one module."""
    longest = max((cell_len(clean(report.target.name)) for report in targets), default=0)
    names = min(longest, int(_NAMES * (style.width or 100)))
    cases = max((len(cases_words(report)) for report in targets), default=0)
    lines: list[Text] = []
    for report in targets:
        lines += _headline(report, names, cases, style)
        if style.verbosity > 0:
            lines += _particulars(report, style)
        lines += _remarks(report, style)
    return lines


def _headline(report: TargetReport, names: int, cases: int, style: TextStyle) -> list[Text]:
    name = clean(report.target.name)
    mark = _MARKS[report.status][not style.unicode]
    marks = max(len(pair[not style.unicode]) for pair in _MARKS.values())
    prefix = Text.assemble(
        f"  {name}{' ' * (names - cell_len(name))}  ",
        (mark.ljust(marks), STYLES[report.status]),
        f"  {cases_words(report).ljust(cases)}  ",
    )
    indent = 2 + names + 2 + marks + 2 + cases + 2
    room = style.width - indent if style.width and not style.verbosity else 0
    words = verdict_words(report, style.findings, room)
    if not style.unicode:
        for mark_, plain in (_MARKS[Verdict.PASSED], _MARKS[Verdict.FAILED]):
            words = words.replace(mark_, plain)
    return hang(prefix, words, style, indent)


def cases_words(report: TargetReport) -> str:
    """Say how many cases there are, and how many of them were verified if not all."""
    if not report.cases:
        return ""
    judged = report.status in (Verdict.PASSED, Verdict.INCONCLUSIVE) and report.cases_verified != report.cases
    return (
        f"{report.cases_verified} of {plural(report.cases, 'case')}"
        if judged
        else plural(report.cases, "case")
    )


def verdict_words(report: TargetReport, findings: str = "below", room: int = 0) -> str:
    """Say what a target's verdict means, and when it was given if that was earlier.

    `findings` is where they are from there. Where the line has no `room` for it (columns; 0 for any),
    what was varied is left out.
    """
    return _meaning(report, findings, room)


def _meaning(report: TargetReport, findings: str, room: int) -> str:
    match report.status:
        case Verdict.PASSED:
            said = _verified(report, _varied(report))
            return said if not room or cell_len(said) <= room else _verified(report, "")
        case Verdict.FAILED:
            reported = f"failed: {listed(codes_of(report))} ({findings}){_credit(report)}"
            return reported if report.findings else because("failed", report)
        case Verdict.INCONCLUSIVE:
            return because("inconclusive", report)
        case Verdict.UNCHECKED:
            return because("unchecked", report)
        case Verdict.SKIPPED:
            return because("skipped", report)
        case Verdict.XFAILED:
            return because(f"expected failure {listed(codes_of(report))}", report)


def _credit(report: TargetReport) -> str:
    """Say that the first order is right where the second alone is wrong."""
    return "; 1st order ✓, 2nd order ✗" if report.first_order_only else ""


def because(word: str, report: TargetReport) -> str:
    """Add a target's reason to a word, unless one of its findings says the same."""
    said = any(found.message == report.reason for found in report.findings)
    return f"{word}: {report.reason}" if report.reason and not said else word


def codes_of(report: TargetReport) -> list[str]:
    """Return the codes of a target's errors, or of the warnings that failed it, each once, in order.

    Expected ones only where there are no others: they fail nothing.
    """
    told = [f for f in report.findings if f.severity is not Severity.NOTE]
    found = [f for f in told if not f.expected] or told
    codes = {severity: [f.code for f in found if f.severity is severity] for severity in Severity}
    return list(dict.fromkeys(codes[Severity.ERROR] or codes[Severity.WARNING]))


def _verified(report: TargetReport, varied: str) -> str:
    outcomes = dict(report.checks)
    words = []
    if outcomes.get("gradcheck") is Outcome.PASSED:
        spoke = f" by {' and '.join(report.witnesses)}" if report.witnesses else ""
        words.append(f"{_orders(report)}{spoke}")
    if report.surrogate is not None:
        words.append(_surrogate(report.surrogate))
    elif outcomes.get("reference") is Outcome.PASSED:
        words.append("reference")
    verified = ", ".join(words) or ("no float64 path" if report.swept.native else "contract only")
    verified += _natively(report)
    if report.inputs is InputSource.INFERRED:
        verified += ", inputs inferred"
    verified += "".join(f", {phrase}" for phrase in _narrower_than_it_reads(report))
    verified += f", {varied}" if varied else ""
    verified += _untried(report.swept.not_past)
    if report.smallest_visible_error is not None:
        verified += f"; sees errors > {small(report.smallest_visible_error)}"
    return f"{verified}; quick: base case only" if report.effort is Effort.QUICK else verified


def _narrower_than_it_reads(report: TargetReport) -> Iterator[str]:
    """Say what a pass is a pass for, where a reader would take it for more."""
    domain = report.domain
    if domain.real_alone:
        yield "real inputs only"
    if report.inputs is InputSource.INFERRED:
        yield from domain.ranges
    if domain.constants:
        yield f"{listed([f'`{name}`' for name in domain.constants])} constant"
    if domain.sizes and report.effort is not Effort.QUICK:
        yield "one size only"
    if any(one.startswith(SEVERAL_RANKS) for one in report.left_out):
        yield "one process only"
    if report.not_judged:
        yield f"{plural(report.not_judged, 'entry', 'entries')} not judged"


_ORDER = tuple(Closeness)

BLIND = 0.1
"""Relative error of a whole value that could hide in a dtype: beyond it a pass there says next to nothing."""


def _natively(report: TargetReport) -> str:
    """Say which native dtypes were judged, `, float32, bfloat16 rounded`, and where no mistake would show."""
    said = []
    for dtype in report.swept.dtypes:
        known = [p for p in report.swept.precision if p.dtype == dtype]
        worst = max((p.closeness for p in known), key=_ORDER.index)
        hidden = max((p.hides or 0.0 for p in known if p.closeness is not Closeness.UNKNOWN), default=0.0)
        blind = f" (sees errors > {small(hidden)})" if hidden > BLIND and not report.swept.native else ""
        said.append((dtype if worst is Closeness.WITHIN else f"{dtype} {worst}") + blind)
    alone = " alone" if said and report.swept.native else ""
    said += _not_natively(report)
    return f", {', '.join(said)}{alone}{_hidden(report)}" if said else ""


def _not_natively(report: TargetReport) -> list[str]:
    """Say what was asked for and not judged; that float32 was not, which was not requested, -v tells."""
    if dict(report.capabilities).get("autocast") == "no":
        return ["refuses autocast"]
    left = {p.dtype for p in report.swept.precision if p.closeness is Closeness.UNKNOWN} - {"float32"}
    return [f"{dtype} not judged" for dtype in sorted(left)]


def _hidden(report: TargetReport) -> str:
    """Say how large an error of a whole gradient could hide, where there is no float64 that shows it."""
    hidden = [p.hides for p in report.swept.precision if p.hides is not None]
    return f"; sees errors > {small(max(hidden))}" if report.swept.native and hidden else ""


def _untried(not_past: Sequence[str]) -> str:
    """Say at and past which constants of the source nothing is known; why, -v tells."""
    names = list(dict.fromkeys(said.partition(":")[0].partition(" (")[0] for said in not_past))
    if not names:
        return ""
    return f", not at {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _varied(report: TargetReport) -> str:
    layouts, subsets = len(report.swept.layouts), len(report.swept.requires_grad)
    words = [plural(layouts, "layout")] if layouts else []
    return ", ".join(words + ([f"{subsets} requires_grad sets"] if subsets > 1 else []))


def _surrogate(surrogate: Companion) -> str:
    if not surrogate.path:
        return f"contract only, by declaration: {surrogate.reason}"
    covered = f" for {listed([f'`{name}`' for name in surrogate.inputs])}" if surrogate.inputs else ""
    return f"the gradient of {surrogate.path}{covered}, by declaration"


def _orders(report: TargetReport) -> str:
    double_backward = dict(report.capabilities).get("double_backward")
    alone = dict(report.capabilities).get("evaluation_mode") == "no"
    mode = ", in training mode alone" if alone else ""
    if double_backward == "no":
        return f"1st order (2nd raises an error){mode}"
    second = dict(report.checks).get("gradgradcheck") is Outcome.PASSED
    return f"1st and 2nd order{mode}" if second and double_backward == "yes" else f"1st order{mode}"


def _remarks(report: TargetReport, style: TextStyle) -> list[Text]:
    """Set the findings that have no block of their own: a failed target has one for all of them."""
    lines: list[Text] = []
    for code, reason in report.ignored:
        lines += _remark("ignored", f"{code}: {reason}", style)
    if report.status is Verdict.FAILED:
        return lines
    hints: set[str] = set()
    for found in report.findings:
        if is_shown(found, style):
            lines += _short(replace(found, hint="") if found.hint in hints else found, style)
            hints.add(found.hint)
            if style.verbosity > 0:
                lines += _indented(one.fields(found, _narrower(style)))
    return lines


def is_shown(found: Finding, style: TextStyle) -> bool:
    """Tell whether a finding is shown at this verbosity; every one is counted."""
    if found.severity is Severity.NOTE:
        return style.verbosity > 0 or (style.verbosity == 0 and found.code in LIMITING)
    return not found.expected or style.verbosity > 0


def _short(found: Finding, style: TextStyle) -> list[Text]:
    """Set a finding shortly: its sentence and what to try."""
    severity = f"{found.severity}: " if one.has_severity(found) else ""
    lines = _remark(found.code, severity + found.message, style, one.look(found))
    if found.hint and style.verbosity <= 0 and found.severity is not Severity.NOTE:
        lines += _remark("hint", found.hint, style)
    return lines


def _remark(label: str, prose: str, style: TextStyle, look: str = "dim") -> list[Text]:
    """Set one labelled sentence under a target's line."""
    prefix = Text.assemble(" " * _FOLLOW, (label.ljust(LABEL), look))
    return hang(prefix, prose, style, _FOLLOW + LABEL)


def _particulars(report: TargetReport, style: TextStyle) -> list[Text]:
    narrower = _narrower(style)
    return _indented([line for name, prose in particulars(report) for line in field(name, prose, narrower)])


def _narrower(style: TextStyle) -> TextStyle:
    """Take from the width the two columns that `_indented` adds."""
    return style if style.width is None else replace(style, width=style.width - 2)


def _indented(lines: Sequence[Text]) -> list[Text]:
    """Set fields two columns further right, under a target's line."""
    return [Text.assemble("  ", line) for line in lines]


def particulars(report: TargetReport) -> list[tuple[str, str]]:
    """Every check and count of a target, as (label, words) pairs."""
    ran = any(outcome is not Outcome.NOT_RUN for _, outcome in report.checks)
    checks = ", ".join(f"{check} {outcome}" for check, outcome in report.checks) if ran else ""
    sizes, points = plural(report.sizes_swept, "size"), plural(report.points, "point")
    swept = [sizes, points, listed(report.devices)] if report.points else []
    if report.infeasible:
        swept.append(f"{plural(report.infeasible, 'case')} dropped as infeasible")
    calls = report.evaluations
    called = f"{plural(calls.forward, 'forward')}, {plural(calls.backward, 'backward')}"
    entries = plural(report.not_judged, "entry", "entries")
    unjudged = f"{entries}: their slopes drown in round-off, or jump at a tie" if report.not_judged else ""
    supports = ", ".join(f"{name.replace('_', ' ')} {answer}" for name, answer in report.capabilities)
    origin = report.spec_file or report.deduced
    source = f"{report.inputs}, {origin}" if origin else str(report.inputs)
    pairs = (
        ("checks", checks),
        ("swept", ", ".join(filter(None, swept))),
        ("domain", ", ".join(report.domain.phrases)),
        ("varied", "; ".join(_variations(report.swept))),
        ("left out", listed(report.left_out) if report.points else ""),
        ("precision", "; ".join(_table(report.swept))),
        ("alone", report.swept.native),
        ("past", "; ".join(report.swept.past)),
        ("not at", "; ".join(report.swept.not_past)),
        ("not judged", unjudged),
        ("calls", called if calls.forward else ""),
        ("supports", supports),
        ("inputs", source),
    )
    return [(name, prose) for name, prose in pairs if prose]


def _table(swept: Swept) -> list[str]:
    """Say what became of each value in each native dtype."""
    lines = []
    for judged in swept.precision:
        words = [f"{judged.value or 'all'} {judged.closeness}"]
        if judged.closeness is not Closeness.UNKNOWN and judged.worst:
            words.append(f"at {small(judged.worst)} of the limit")
        if judged.hides is not None:
            words.append(f"a factor of {small(judged.hides)} could hide")
        if judged.reason:
            words.append(judged.reason)
        lines.append(f"{judged.dtype}: {', '.join(words)}")
    return lines


def _variations(swept: Swept) -> list[str]:
    subsets = [f"({names.replace(',', ', ')})" for names in swept.requires_grad]
    said = [f"requires_grad of {listed(subsets)}"] if len(subsets) > 1 else []
    return [listed(names) for names in (swept.layouts, swept.calls) if names] + said
