"""`check --fix`: changes of backward are written into their files, and stay where all is right with them."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Self

from gradverify.errors import UsageError
from gradverify.model import Finding, LinePatch, Report, Severity, TargetReport, Verdict
from gradverify.report.fixes import are_one_fix, is_safe, patches_of
from gradverify.session.request import Request
from gradverify.session.selection import Selection, split_target

Check = Callable[[Request], Report]
"""What verifies a request."""

FRESH = 7919
"""Added to the seed: values that no search for a change has seen."""

INSTALLED = "site-packages"
"""The folder of packages, whose files are not the user's to change."""


@dataclass(frozen=True)
class Fix:
    """The changes that make one target right."""

    target: str
    """Its id, as a command takes it."""
    name: str
    function: tuple[str, int]
    """File and line of the Function, which several targets may be of."""
    patches: tuple[LinePatch, ...]


@dataclass(frozen=True)
class Fixes:
    """What became of the changes that a report has."""

    report: Report
    """Of the files as they are now."""
    written: tuple[Fix, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    """Names of targets that stay as they were, with the reason."""


@dataclass
class _Files:
    """The texts of files before and after; a context that puts back what is not kept."""

    before: dict[Path, bytes] = field(default_factory=dict)
    written: dict[Path, bytes] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self.restore()

    def restore(self) -> None:
        for path, text in self.written.items():
            if path.read_bytes() == text:  # else somebody has saved it meanwhile
                _write(path, self.before[path])
        self.written.clear()

    def write(self, fixes: Iterable[Fix]) -> None:
        """The files as they were before, with some changes. Raises `_StaleError`, and `OSError`."""
        self.restore()
        for path, patches in _by_file(fixes).items():
            self.before[path] = path.read_bytes()
            self.written[path] = _patched(self.before[path], patches)
            _write(path, self.written[path])


class _StaleError(Exception):
    """The file is not the one that was verified."""


def fix(report: Report, request: Request, check: Check, *, unsafe: bool) -> Fixes:
    """Write the changes of failed targets, verify again, and put back what is not right with them.

    Without `unsafe` only what a spec verifies is changed. With the changes a target must pass at the seed
    of the request and at one that no search has seen, and no other may fail that passed. Raises
    `UsageError` where a file cannot be written.
    """
    fixes, left = _possible(report, unsafe=unsafe)
    after = report
    try:
        with _Files() as files:
            were: list[dict[str, Verdict]] = [_statuses(report)]
            while fixes:
                try:
                    files.write(fixes)
                except _StaleError as stale:
                    files.restore()
                    return Fixes(report, left=(*left, *((f.name, str(stale)) for f in fixes)))
                runs = _verified(request, check, fixes)
                if len(were) < len(runs) and _is_any_other_wrong(runs[1], fixes):
                    files.restore()
                    were.append(_statuses(check(_afresh(request, fixes))))
                    files.write(fixes)
                after, worse = runs[0], _worse(runs, were, fixes)
                if not worse:
                    break
                left += [(f.name, why) for f in fixes if (why := worse.get(f.target))]
                fixes = [f for f in fixes if f.target not in worse]
            else:
                files.restore()
                after = report
    except OSError as error:
        raise UsageError(f"--fix: cannot write {error.filename}: {error.strerror}") from None
    order = [t.target.name for t in report.targets]
    left.sort(key=lambda one: order.index(one[0]))
    return Fixes(after, tuple(fixes), tuple(left))


def _possible(report: Report, *, unsafe: bool) -> tuple[list[Fix], list[tuple[str, str]]]:
    """Changes that may be written, and the names of targets whose changes may not, with the reason."""
    fixes, left = [], []
    for target in report.targets:
        errors = [f for f in target.findings if f.severity is Severity.ERROR]
        patches = patches_of(errors)
        if target.status is not Verdict.FAILED or not patches:
            continue
        one, why = target.target, _unfit(target, errors, patches, unsafe=unsafe)
        if why:
            left.append((one.name, why))
        else:
            fixes.append(Fix(one.id, one.name, (one.file, one.line), tuple(patches)))
    return fixes, left


def _unfit(
    target: TargetReport, errors: Sequence[Finding], patches: Sequence[LinePatch], *, unsafe: bool
) -> str:
    """Why the changes of a target are not written; empty where they may be."""
    if not are_one_fix(patches):
        return "its gradients want different changes of one place"
    if not all(patches_of([found]) for found in errors):
        return "the change makes some of its errors right, not all"
    if any(INSTALLED in Path(patch.path).parts for patch in patches):
        return "its file belongs to an installed package"
    if unsafe or is_safe(target):
        return ""
    if any(change.refuses for found in errors for change in found.changes):
        return "with the change a second derivative raises: pass --unsafe-fixes if none is meant"
    return "its inputs were inferred: pass --unsafe-fixes, or write a spec"


def _verified(request: Request, check: Check, fixes: Sequence[Fix]) -> tuple[Report, Report]:
    """The report that was asked for, and that on all targets of the changed files at the fresh seed."""
    return check(replace(request, stop_after=None)), check(_afresh(request, fixes))


def _afresh(request: Request, fixes: Sequence[Fix]) -> Request:
    seed = 0 if request.seed is None else request.seed
    return replace(_of_whole_files(request, fixes), seed=seed + FRESH)


def _is_any_other_wrong(after: Report, fixes: Sequence[Fix]) -> bool:
    """Whether a target without a change does not pass: it may not have passed before."""
    changed = {one.target for one in fixes}
    return any(t.status is not Verdict.PASSED and t.target.id not in changed for t in after.targets)


def _worse(
    runs: Sequence[Report], were: Sequence[Mapping[str, Verdict]], fixes: Sequence[Fix]
) -> dict[str, str]:
    """By the target of a change, why it is to be taken back.

    `were` are the verdicts before: on the same targets, at the same seeds, by the same checks.
    """
    worse: dict[str, str] = {}
    for after, before in zip(runs, [*were, {}], strict=False):
        now = {t.target.id: t for t in after.targets}
        for one in fixes:
            if one.target not in now or now[one.target].status is not Verdict.PASSED:
                worse.setdefault(one.target, _still(now.get(one.target)))
        spoilt = [t.target for t in now.values() if before.get(t.target.id) is Verdict.PASSED is not t.status]
        for other in spoilt:
            # Entries of one Function share its backward; else any of the changes may be to blame.
            own = [f for f in fixes if f.function == (other.file, other.line)]
            why = f"with the change {other.name} does not pass any more"
            worse = {**{f.target: why for f in own or fixes}, **worse}
    return worse


def _still(target: TargetReport | None) -> str:
    """Why the change of a target is not enough."""
    if target is None:
        return "with the change it is not verified"
    codes = dict.fromkeys(f.code for f in target.findings if f.severity is Severity.ERROR)
    still = f" still, by {', '.join(codes)}" if codes else ""
    return f"with the change it is {target.status}{still}"


def _statuses(report: Report) -> dict[str, Verdict]:
    return {t.target.id: t.status for t in report.targets}


def _of_whole_files(request: Request, fixes: Sequence[Fix]) -> Request:
    """The request for all targets of the files of some, and for every check."""
    files = dict.fromkeys(Path(split_target(fix.target)[0]) for fix in fixes)
    return replace(
        request,
        selections=tuple(Selection(path) for path in files),
        settings=replace(request.settings, select=()),
        keyword="",
        stop_after=None,
    )


def _by_file(fixes: Iterable[Fix]) -> dict[Path, list[LinePatch]]:
    """The changes of each file, each once: targets may share a backward."""
    found: dict[Path, dict[tuple[int, tuple[str, ...], tuple[str, ...]], LinePatch]] = {}
    for one in fixes:
        for patch in one.patches:
            of_file = found.setdefault(Path(patch.path).resolve(), {})
            of_file[patch.line, patch.removed, patch.added] = patch
    return {path: [of_file[key] for key in sorted(of_file)] for path, of_file in found.items()}


def _patched(text: bytes, patches: Sequence[LinePatch]) -> bytes:
    """A file's content with other lines, whose ends are those of the lines before.

    Raises `_StaleError` where other lines are there.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    lines = io.StringIO(text.decode(encoding), newline="").readlines()
    end = _end_of(lines[0]) or "\n"
    for patch in reversed(patches):
        first = patch.line - 1
        old = lines[first : first + len(patch.removed)]
        if [line.rstrip("\r\n") for line in old] != [*patch.removed]:
            raise _StaleError("its file has changed since it was verified, or two changes overlap")
        new = [line + end for line in patch.added[:-1]]
        new += [line + _end_of(old[-1]) for line in patch.added[-1:]]
        lines[first : first + len(old)] = new
    return "".join(lines).encode(encoding)


def _end_of(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _write(path: Path, text: bytes) -> None:
    """Write it; what Python keeps of the old one goes, which may be of the same second and size."""
    path.write_bytes(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
