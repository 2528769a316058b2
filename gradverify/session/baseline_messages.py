"""What a run has to say of its baseline: entries that are no longer needed, and those for new findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradverify.model import Effort, Outcome, TargetReport, Verdict, shown_path
from gradverify.rules import rule
from gradverify.session.baseline import Known, entry_of
from gradverify.session.modules import Module
from gradverify.session.outcome import fails
from gradverify.session.request import Request


def about_the_baseline(
    request: Request, modules: Sequence[Module], reports: Sequence[TargetReport]
) -> Iterator[str]:
    """Sentences on the entries of a baseline, then the entries that new findings would need."""
    if request.baseline is None:
        return
    paths = {module.shown_path: module.path for module in modules}
    by_target = {(paths[r.target.file], r.target.name): r for r in reports if r.target.file in paths}
    for known in request.known:
        report = by_target.get((known.module, known.name))
        if report is not None and request.today >= known.until:
            yield f"{known.said} is no longer expected: the entry ended on {known.until}"
        elif report is not None and _is_fixed(known, report, request):
            yield f"{known.said} no longer occurs: remove the entry"
        elif _is_gone(known, modules):
            yield f"{known.said} is in the baseline, but there is no such target: remove the entry"
    entries = list(dict.fromkeys(_entries(request, by_target, request.baseline)))
    if entries:
        file = shown_path(request.baseline)
        yield f"to make what is new known, give a reason and add to {file}:\n\n" + "\n".join(entries)


def _entries(
    request: Request, by_target: dict[tuple[Path, str], TargetReport], baseline: Path
) -> Iterator[str]:
    for (module, name), report in by_target.items():
        for finding in report.findings:
            if fails(finding, strict=request.settings.strict) or (
                finding.code == "GV109" and not finding.expected
            ):
                yield entry_of(module, name, finding, baseline, request.today)


def _is_fixed(known: Known, report: TargetReport, request: Request) -> bool:
    """Whether all of a target was judged, and the finding is not there."""
    settings = request.settings
    narrowed = any(s.case for s in request.selections) or settings.effort is Effort.QUICK
    if (
        narrowed
        or not settings.selects(known.code)
        or any(known.code.startswith(p) for p, _ in report.ignored)
    ):
        return False
    judged = dict(report.checks).get(rule(known.code).family.value) is not Outcome.NOT_RUN
    done = report.status in {Verdict.PASSED, Verdict.XFAILED} and report.cases_verified == report.cases
    return judged and done and not any(known.covers(f) for f in report.findings)


def _is_gone(known: Known, modules: Sequence[Module]) -> bool:
    return any(
        m.path == known.module and m.error is None and all(t.name != known.name for t in m.targets)
        for m in modules
    )
