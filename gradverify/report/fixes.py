"""A change of backward as lines of its file: in a report, and as a diff that `git apply` takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gradverify.model import CONTEXT, Finding, InputSource, LinePatch, Severity, TargetReport, Verdict

NO_NEWLINE = "\\ No newline at end of file"
"""What a diff says below the last line of a file that does not end."""


def patches_of(findings: Iterable[Finding]) -> list[LinePatch]:
    """The changes that make the gradients of these findings right, each once, in the order of their lines."""
    found = [c.patch for finding in findings for c in finding.changes if c.patch is not None]
    distinct = {(p.path, p.line, p.removed, p.added): p for p in found}
    return [distinct[key] for key in sorted(distinct)]


def are_one_fix(patches: Sequence[LinePatch]) -> bool:
    """Whether there are changes, and no two want another text in one place."""
    ends = [(p.path, p.line + len(p.removed)) for p in patches]
    return bool(patches) and all(
        path != after.path or end <= after.line for (path, end), after in zip(ends, patches[1:], strict=False)
    )


def is_safe(report: TargetReport) -> bool:
    """Whether `check --fix` may write the changes: under a spec, all errors made right, in one way."""
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    known = all(patches_of([f]) for f in errors) and are_one_fix(patches_of(errors))
    if any(change.refuses for found in errors for change in found.changes):
        return False
    return known and report.inputs is InputSource.SPEC and report.status is Verdict.FAILED


def signed_lines(patch: LinePatch) -> list[str]:
    """The lines that differ with `-` and `+` before them, as little indented as they can be."""
    removed, added = _different(patch.removed, patch.added)
    lines = [*removed, *added]
    shared = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [
        *(f"- {line[shared:]}".rstrip() for line in removed),
        *(f"+ {line[shared:]}".rstrip() for line in added),
    ]


def _different(removed: Sequence[str], added: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Both without the lines at their ends that are the same."""
    while removed and added and removed[-1] == added[-1]:
        removed, added = removed[:-1], added[:-1]
    while removed and added and removed[0] == added[0]:
        removed, added = removed[1:], added[1:]
    return removed, added


def fix_words(finding: Finding) -> list[str]:
    """The changes as plain lines: where, what goes, what comes."""
    return [
        line
        for patch in patches_of([finding])
        for line in (f"fix {patch.path}:{patch.line}", *signed_lines(patch))
    ]


def unified_diff(patches: Sequence[LinePatch]) -> str:
    """Changes as one diff. They are in order, and no two overlap."""
    text = ""
    for path, group in groupby(patches, lambda p: p.path):
        text += f"--- a/{path}\n+++ b/{path}\n"
        shift = 0
        for near in _clusters([*group]):
            text += _hunk(near, shift)
            shift += sum(len(p.added) - len(p.removed) for p in near)
    return text


def _clusters(patches: Sequence[LinePatch]) -> list[list[LinePatch]]:
    """Changes of one file, those together whose context meets: hunks must not."""
    clusters: list[list[LinePatch]] = []
    for patch in patches:
        if clusters and _gap(clusters[-1][-1], patch) <= 2 * CONTEXT:
            clusters[-1].append(patch)
        else:
            clusters.append([patch])
    return clusters


def _gap(before: LinePatch, after: LinePatch) -> int:
    return after.line - before.line - len(before.removed)


def _hunk(patches: Sequence[LinePatch], shift: int) -> str:
    lines = [f" {line}" for line in patches[0].above]
    for patch, following in zip(patches, [*patches[1:], None], strict=True):
        lines += [f"-{line}" for line in patch.removed]
        lines += [NO_NEWLINE] if patch.is_unterminated and not patch.below else []
        lines += [f"+{line}" for line in patch.added]
        gap = len(patch.below) if following is None else _gap(patch, following)
        further = [] if following is None else following.above[max(0, 2 * CONTEXT - gap) :]
        lines += [f" {line}" for line in (*patch.below, *further)[:gap]]
    lines += [NO_NEWLINE] if patches[-1].is_unterminated else []
    first = patches[0].line - len(patches[0].above)
    old, new = (sum(line[0] in signs for line in lines) for signs in (" -", " +"))
    return "".join(f"{line}\n" for line in (f"@@ -{first},{old} +{first + shift},{new} @@", *lines))
