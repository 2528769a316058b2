"""`gradverify suggest`: one target through its worker, for the backward that it should have.

`suggest --diff` and `--write`: the known change of a backward as lines, else a derived backward.
"""

from __future__ import annotations

import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gradverify.cases.further import without_cases
from gradverify.errors import UsageError
from gradverify.events import NotSuggested, Suggest, Suggested, Verify
from gradverify.model import (
    LinePatch,
    Mistake,
    Report,
    Severity,
    SourceChange,
    Target,
    TargetKind,
    TargetReport,
    Verdict,
)
from gradverify.report.fixes import are_one_fix, patches_of
from gradverify.session.outcome import ExitCode
from gradverify.session.planning import NoInputs, Planned, plan_or_reason, seed_of
from gradverify.session.request import Progress, Request
from gradverify.session.run import prepare
from gradverify.session.worker_ended import WorkerBrokenError, WorkerError
from gradverify.source import Method, functions_of, is_bound_above


@dataclass(frozen=True)
class Suggestion:
    """What `suggest` answers."""

    target: Target | None
    answer: Suggested | NotSuggested
    errors: tuple[Mistake, ...] = ()
    """A module that cannot be imported."""
    bugs: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What the process exits with."""
        if self.bugs:
            return ExitCode.BUG
        if self.errors:
            return ExitCode.USAGE
        return ExitCode.OK if isinstance(self.answer, Suggested) else ExitCode.FINDINGS


def suggest_backward(request: Request, progress: Progress) -> Suggestion:
    """Write the backward of the one target that is selected.

    Raises `UsageError` where it is not one target, and as `gradverify.session.run.check` does.
    """
    with prepare(request, progress) as session:
        errors = tuple(m.error for m in session.modules if m.error is not None)
        bugs = tuple(m.bug for m in session.modules if m.bug)
        if errors or bugs:
            return Suggestion(None, NotSuggested("the module cannot be imported"), errors, bugs)
        if len(session.planned) != 1:
            names = [p.target.name for p in session.planned]
            listed = f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
            raise UsageError(f"suggest takes one Function, module.py::Name; this names {len(names)}{listed}")
        planned = session.planned[0]
        progress.verifying(planned.target.id, 1, 1, "")
        return _asked(planned, session.request)


def _asked(planned: Planned, request: Request) -> Suggestion:
    plan = plan_or_reason(planned, request)
    if isinstance(plan, NoInputs):
        bugs = (planned.module.bug,) if planned.module.bug else ()
        return Suggestion(planned.target, NotSuggested(plan.finding.message), bugs=bugs)
    if not plan.cases:
        return Suggestion(
            planned.target,
            NotSuggested(f"its spec gives it no case{f' (skipped: {plan.skip})' if plan.skip else ''}"),
        )
    settings = replace(
        request.settings, seed=seed_of(request, planned.module.spec), rtol=plan.rtol, atol=plan.atol
    )
    try:
        asked = Suggest(Verify(planned.target, without_cases(plan), settings))
        answers = planned.module.answers(asked, request)
    except WorkerBrokenError as error:
        return Suggestion(planned.target, NotSuggested("for a bug in gradverify"), bugs=(error.how,))
    except WorkerError as error:
        return Suggestion(planned.target, NotSuggested(f"the process {error.how} while it was tried"))
    answer = next(e for e in answers if isinstance(e, Suggested | NotSuggested))
    return Suggestion(planned.target, answer)


Derive = Callable[[], Suggested | NotSuggested]
"""What writes a backward from the reference, or from forward itself."""

ONCE = "once_differentiable"


@dataclass(frozen=True)
class Change:
    """What would make one target right."""

    report: Report
    """The target's, with the change in each of its errors."""
    patches: tuple[LinePatch, ...] = ()
    reason: str = ""
    """Why there are none."""


def change_of(report: Report, derive: Derive) -> Change:
    """The change that verification found, else the whole backward as it is derived."""
    (target,) = report.targets
    name = target.target.id
    if target.status is Verdict.PASSED:
        return Change(report, reason=f"{name} passed: there is nothing to change")
    if target.status is not Verdict.FAILED:
        return Change(report, reason=f"{name} is {target.status}: it is not known to be wrong")
    if known := known_change(target):
        return Change(report, known)
    answer = derive()
    if isinstance(answer, NotSuggested):
        return Change(report, reason=f"{name}: no backward can be suggested: {answer.reason}")
    patch = _patch_of(target.target, answer)
    if isinstance(patch, str):
        return Change(report, reason=f"{name}: {patch}; `gradverify suggest {name}` shows what to paste")
    return Change(replace(report, targets=(_with(target, patch),)), (patch,))


def known_change(target: TargetReport) -> tuple[LinePatch, ...]:
    """The lines of backward after whose change all errors of a target are gone; none where none are known."""
    errors = [f for f in target.findings if f.severity is Severity.ERROR]
    patches = patches_of(errors)
    return tuple(patches) if are_one_fix(patches) and all(patches_of([f]) for f in errors) else ()


def _with(target: TargetReport, patch: LinePatch) -> TargetReport:
    change = (SourceChange(Path(patch.path).name, patch.line, "", "", patch),)
    found = (replace(f, changes=change) if f.severity is Severity.ERROR else f for f in target.findings)
    return replace(target, findings=tuple(found))


def _patch_of(target: Target, answer: Suggested) -> LinePatch | str:
    """The lines of backward, and those of the derived one; else why no lines of one method are enough."""
    if answer.saved or answer.attributes:
        return "forward must save other values for the derived backward"
    if answer.not_at or not answer.sizes_varied:
        return "the derived backward may belong to some options or sizes alone"
    with tokenize.open(target.file) as file:
        lines = file.readlines()
    source = "".join(lines)
    method = _own_backward(target, source)
    if method is None:
        return "no class of the file defines its backward"
    if ONCE in answer.backward and not is_bound_above(source, ONCE, method.node.lineno):
        return f"the derived backward needs `{ONCE}`, which the module does not import above it"
    return _replaced(target.file, lines, method, answer.backward)


def _own_backward(target: Target, source: str) -> Method | None:
    if target.kind is not TargetKind.FUNCTION:
        return None
    function = next((f for f in functions_of(source) if f.name == target.attribute), None)
    method = None if function is None else function.backward
    return method if method is not None and function is not None and function.defines(method) else None


def _replaced(file: str, lines: list[str], method: Method, backward: str) -> LinePatch:
    """The method with its decorators as lines, without those that both begin and end with."""
    node = method.node
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
    last = node.end_lineno or node.lineno
    new = textwrap.indent(backward.strip("\n"), " " * node.col_offset).split("\n")
    while last - first > 1 and new and lines[first].rstrip("\n") == new[0]:
        first, new = first + 1, new[1:]
    while last - first > 1 and new and lines[last - 1].rstrip("\n") == new[-1]:
        last, new = last - 1, new[:-1]
    return LinePatch.within(file, lines, first, last, new)
