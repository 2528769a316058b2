"""Every check and count of a target, for -v and for the HTML report."""

from __future__ import annotations

from gradverify.model import Closeness, Outcome, Swept, TargetKind, TargetReport
from gradverify.report.words import listed, plural, small


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
    unjudged = f"{entries}: round-off of the target's own operations" if report.not_judged else ""
    supports = ", ".join(_supported(report, name, answer) for name, answer in report.capabilities)
    origin = report.spec_file or report.deduced
    source = f"{report.inputs}, {origin}" if origin else str(report.inputs)
    one_sided = ", ".join(report.swept.on_one_side)
    pairs = (
        ("checks", checks),
        ("swept", ", ".join(filter(None, swept))),
        ("domain", ", ".join(report.domain.phrases)),
        ("varied", "; ".join(_variations(report.swept))),
        ("left out", listed(report.left_out) if report.points else ""),
        ("precision", "; ".join(_table(report.swept))),
        ("alone", report.swept.native),
        ("past", "; ".join(report.swept.past)),
        ("not past", "; ".join(report.swept.not_past)),
        ("branches", f"seen on one side only: {one_sided}" if one_sided else ""),
        ("not judged", unjudged),
        ("calls", called if calls.forward else ""),
        ("supports", supports),
        ("inputs", source),
    )
    return [(name, prose) for name, prose in pairs if prose]


def _supported(report: TargetReport, name: str, answer: str) -> str:
    """One line of the capability table, with the reason where no finding tells it."""
    refused = any(f.code == "GV505" for f in report.findings)
    reason = ""
    if (name, answer) == ("func", "no") and not refused:
        is_function = report.target.kind is TargetKind.FUNCTION
        reason = f" ({'forward takes ctx: no setup_context' if is_function else 'torch refuses custom ops'})"
    return f"{name.replace('_', ' ')} {answer}{reason}"


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
