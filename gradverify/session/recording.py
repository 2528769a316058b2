"""What `record` does: run a program, and write a spec of the Function calls that happened in it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradverify.cases.further import with_cases
from gradverify.errors import SpecError, UsageError
from gradverify.model import Effort, InputSource, Outcome, Severity, Target, TargetReport, Verdict, with_parts
from gradverify.module_files import find_module
from gradverify.record.entries import (
    Dimensions,
    Sizing,
    Written,
    as_recorded,
    dimensions_of,
    entry_of,
    sizings,
)
from gradverify.record.hook.noting import FOREIGN
from gradverify.record.reading import Form, Recorded, forms_of, read_notes, read_others
from gradverify.record.running import run_program
from gradverify.rules import RULES
from gradverify.session.planning import Planned
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.run import Session, prepare
from gradverify.session.selection import Selection
from gradverify.session.verifying import verify_target
from gradverify.source import siblings_of
from gradverify.spec.draft import DraftedEntry, entry_data, function_of, render_spec
from gradverify.spec.plan import plan_deduced

REFUSED = frozenset({"GV001", "GV002"})
"""Forward does not take the arguments."""

OTHER_VALUES = "GV301"
"""A reference that computes other values."""

TRIAL_SECONDS = 30.0
"""Limit for one set of sizes: sizes that take longer are no sizes to check with."""

SEED = 0

_GUARD = re.compile(r"""^if\s+__name__\s*==\s*['"]__main__['"]""", re.MULTILINE)


@dataclass(frozen=True)
class Recording:
    """What came of a run."""

    program: int
    """The program's exit code."""
    functions: tuple[Recorded, ...] = ()
    text: str = ""
    """The spec; empty where no call was seen."""
    reasons: tuple[tuple[str, str], ...] = ()
    """(function, why its entry is commented out) pairs."""
    written: int = 0
    """Entries that hold."""
    untried: str = ""
    """Why the entries could not be tried; empty where they were."""
    others: tuple[tuple[str, str], ...] = ()
    """(module, name) of Functions that were called and are not recorded: nobody asked for their module."""


@dataclass(frozen=True)
class Ran:
    """A program that was recorded."""

    code: int
    """Its exit code."""
    functions: tuple[Recorded, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    """(module, name) of those that are not recorded, where no module was asked for."""


def run_recorded(command: Sequence[str], modules: Sequence[str]) -> Ran:
    """Run a command and note the Functions it calls: of `modules`, else of files below the current folder.

    Raises `UsageError` where the command cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="gradverify-record-") as folder:
        try:
            code = run_program(command, Path(folder), modules)
        except OSError as error:
            raise UsageError(f"`{command[0]}` cannot be started: {error.strerror}") from None
        others = () if modules else read_others(Path(folder))
        return Ran(code, read_notes(Path(folder)), others)


def draft_recording(ran: Ran, output: Path, request: Request, progress: Progress) -> Recording:
    """Draft the spec of what a program called, each entry at the first sizes that its forward accepts."""
    if not ran.functions:
        return Recording(ran.code, others=ran.others)
    files = tuple(dict.fromkeys(Path(f.file) for f in ran.functions if not _runs_again(f)))
    if not files:
        return _recording(ran, output, Session(request, progress))
    try:
        asked = replace(request, selections=tuple(Selection(file) for file in files), infer=False)
        with prepare(asked, progress) as session:
            return _recording(ran, output, session)
    except (SpecError, UsageError) as error:
        mistakes = error.problems if isinstance(error, SpecError) else ()
        why = mistakes[0].message if mistakes else str(error)
        return replace(_recording(ran, output, Session(request, progress)), untried=why)


def _runs_again(function: Recorded) -> bool:
    """Whether importing the Function's file would do what the program did."""
    return function.main and _GUARD.search(Path(function.file).read_text("utf-8", "replace")) is None


def _recording(ran: Ran, output: Path, session: Session) -> Recording:
    functions = ran.functions
    entries: dict[str, list[DraftedEntry]] = {}
    reasons: list[tuple[str, str]] = []
    for number, function in enumerate(functions, start=1):
        session.progress.verifying(function.name, number, len(functions), "")
        of_function = _entries(function, session)
        module = _module_of(function, output.resolve().parent)
        entries.setdefault(module, []).extend(entry for entry, _ in of_function)
        reasons += [(entry.name, reason) for entry, reason in of_function if reason]
    written = sum(entry.active for of_module in entries.values() for entry in of_module)
    broken = next((m.error.message for m in session.modules if m.error is not None), "")
    again = next((Path(f.file).name for f in functions if _runs_again(f)), "")
    if again:
        broken = f"importing {again} runs the program: put what it does under `if __name__ == '__main__':`"
    text = render_spec(entries)
    return Recording(ran.code, functions, text, tuple(reasons), written, broken, ran.others)


def _module_of(function: Recorded, folder: Path) -> str:
    """The module as a spec in a folder names it: by its path; an installed package by its dotted name.

    A path to where a package is installed would hold on this machine alone.
    """
    file = Path(function.file)
    own = file.is_relative_to(Path.cwd().resolve()) and not FOREIGN & set(file.parts)
    found = None if own or function.main else find_module(function.module, folder)
    if found is not None and found.resolve() == file:
        return function.module
    return Path(os.path.relpath(file, folder)).as_posix()


def _entries(function: Recorded, session: Session) -> list[tuple[DraftedEntry, str]]:
    """The entries of one Function, one for each form of its calls, with the reason where it is no spec."""
    found = (p for p in session.planned if p.target.attribute == function.name and _is_of(p, function))
    planned = next(found, None)
    drafted = []
    for number, form in enumerate(forms_of(function.calls), start=1):
        name = function.name if number == 1 else f"{function.name}@{number}"
        comments = _comments(function, form)
        entry, reason = _drafted(name, function, form, planned, session)
        if number > 1:
            entry = replace(entry, data={"target": function.name, **entry.data})
        if reason:
            comments = (*comments, f"{name}: {reason}")
        drafted.append((replace(entry, comments=comments), reason))
    return drafted


def _is_of(planned: Planned, function: Recorded) -> bool:
    return planned.module.path.resolve() == Path(function.file)


def _drafted(
    name: str, function: Recorded, form: Form, planned: Planned | None, session: Session
) -> tuple[DraftedEntry, str]:
    found = dimensions_of(form, form.names)
    plain = entry_of(found, as_recorded(found))
    if plain.gaps:
        return _entry(name, plain, active=False), "; ".join(f"`{name}` {why}" for name, why in plain.gaps)
    if not function.name.isidentifier():
        reason = "it is defined inside a function or a class, where no spec can name it"
        return _entry(name, plain, active=False), reason
    if planned is None:
        importable = any(m.path.resolve() == Path(function.file) and m.error is None for m in session.modules)
        reason = "importing its module defines no such Function" if importable else ""
        return _entry(name, plain, active=not reason), reason
    return _tried(name, found, planned, session)


def _tried(name: str, found: Dimensions, planned: Planned, session: Session) -> tuple[DraftedEntry, str]:
    """The entry at the first sizes that forward accepts."""
    refusal = ""
    for sizing in sizings(found):
        written = entry_of(found, sizing)
        report = _verified(name, written, planned, session.request)
        if isinstance(report, str):
            refusal = report
            continue
        if report.status is Verdict.FAILED and _passes_as_recorded(name, found, sizing, planned, session):
            remark = (
                next(iter(found.form.names)),
                "sizes as recorded: it fails at smaller ones, if they are valid",
            )
            plain = entry_of(found, as_recorded(found))
            return _entry(name, replace(plain, remarks=(*plain.remarks, remark))), ""
        return _entry(name, _with_reference(name, written, planned, session.request)), ""
    return _entry(name, entry_of(found, as_recorded(found)), active=False), refusal


def _with_reference(name: str, written: Written, planned: Planned, request: Request) -> Written:
    """The entry with a plain version that lies beside the Function, if its forward agrees at these inputs."""
    module = planned.module
    for candidate in _siblings(module.source, planned.target):
        spec = replace(written.spec, reference=f"{module.path.stem}:{candidate}")
        with_it = replace(written, spec=spec)
        report = _verified(name, with_it, planned, request)
        if isinstance(report, str):
            continue
        judged = dict(report.checks).get("reference") in {Outcome.PASSED, Outcome.FAILED}
        if judged and not any(f.code == OTHER_VALUES for f in report.findings):
            return with_it
    return written


def _siblings(source: str, target: Target) -> list[str]:
    own = [p.name for p in with_parts(target.parameters)]
    return siblings_of(source, target.name.partition("@")[0].rpartition(".")[2], own)


def _passes_as_recorded(
    name: str, found: Dimensions, sizing: Sizing, planned: Planned, session: Session
) -> bool:
    recorded = as_recorded(found)
    if recorded == sizing:
        return False
    report = _verified(name, entry_of(found, recorded), planned, session.request)
    return not isinstance(report, str) and report.status is Verdict.PASSED


def _verified(name: str, written: Written, planned: Planned, request: Request) -> TargetReport | str:
    """The verdict on typical values, or why the entry is not one that forward takes."""
    try:
        function = function_of(name.partition("@")[0], written.spec, [rule.code for rule in RULES])
    except SpecError as error:
        return error.problems[0].message
    plan = plan_deduced(
        function,
        seed=SEED,
        rtol=request.settings.rtol,
        atol=request.settings.atol,
        parameters=planned.target.parameters,
    )
    if plan.asked is not None:
        plan = with_cases(plan, replace(plan.asked, spares=False))
    plan = replace(plan, attribute=planned.target.attribute, source=InputSource.SPEC)
    quick = replace(request, settings=replace(request.settings, effort=Effort.QUICK), timeout=TRIAL_SECONDS)
    report = verify_target(
        replace(planned, plan=plan), quick, TargetProgress(Progress(), planned.target)
    ).report
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    refused = next((f for f in errors if f.code in REFUSED or f.code.startswith("GV9")), None)
    return refused.message if refused is not None else report


def _entry(name: str, written: Written, *, active: bool = True) -> DraftedEntry:
    return DraftedEntry(name, entry_data(written.spec), input_comments=written.remarks, active=active)


def _comments(function: Recorded, form: Form) -> tuple[str, ...]:
    calls = sum(call.count for call in form.calls)
    kinds = len(form.calls)
    lines = [f"recorded: {_counted(calls, 'call')}, {_counted(kinds, 'signature')}"]
    if function.strided:
        lines.append("its backward got a gradient that was not contiguous")
    if function.bounded:
        lines.append("it was called with more signatures than are noted")
    return tuple(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
