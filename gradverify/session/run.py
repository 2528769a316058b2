"""One run: select, read specs, collect, bind, verify, report. Reads as the list of its steps.

Functions that need no verdict of their own: what was verified applies them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from gradverify import __version__
from gradverify.errors import InterruptedRunError, SpecError
from gradverify.model import (
    CaseReport,
    InputSource,
    Mistake,
    ModuleReport,
    Outcome,
    PassedOver,
    Report,
    TargetReport,
    Verdict,
)
from gradverify.rules import CHECK_FAMILIES
from gradverify.session.binding import bind_module
from gradverify.session.choosing import Chosen, choose
from gradverify.session.modules import Module, collect_module, module_at
from gradverify.session.outcome import NOT_VERIFIED, ExitCode, exit_code, summary_of
from gradverify.session.parallel import for_each_module, verify_in_threads
from gradverify.session.planning import Planned, plan_targets, seed_of
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.selection import keyword_filter
from gradverify.session.template import Template, template_for
from gradverify.session.verifying import Judged, timed_verification
from gradverify.session.worker import Worker

VERIFIED = frozenset({Verdict.PASSED, Verdict.FAILED, Verdict.XFAILED})
"""Verdicts on a target whose calls count as verification of what they apply."""


def verified_elsewhere(planned: Sequence[Planned], judged: Sequence[Judged]) -> dict[str, PassedOver]:
    """The targets that calls of a verified one apply, by their id: those without inputs, or not selected.

    `judged` are the verdicts on the first of `planned`, in the same order.
    """
    by_whom = {
        (Path(file).resolve(), name): one.report.target.name
        for one in judged
        if one.report.status in VERIFIED
        for file, name in one.applied
    }
    if not by_whom:
        return {}
    unselected = {t.id: (m, t) for m in {id(p.module): p.module for p in planned}.values() for t in m.unnamed}
    without_inputs = {
        one.report.target.id: (plan.module, one.report.target)
        for plan, one in zip(planned, judged, strict=False)
        if one.report.status is Verdict.UNCHECKED
        and any(f.code == "GV001" for f in one.report.findings)
        and not one.report.cases
    }
    found: dict[str, PassedOver] = {}
    for name, (module, target) in {**unselected, **without_inputs}.items():
        whom = by_whom.get((module.path.resolve(), target.attribute))
        if whom is not None:
            found[name] = PassedOver(target.name, target.line, f"verified where `{whom}` applies it")
    return found


MAX_WARM = 4
"""Workers alive at a time that were started afresh: each holds a torch of its own, some 200 MB."""

MAX_FORKED = 32
"""Workers alive at a time that were forked: they share torch, and hold their modules alone."""


@dataclass
class Session:
    """The modules of a run, imported and planned; a context manager that leaves no process behind."""

    request: Request
    progress: Progress
    modules: list[Module] = field(default_factory=list)
    empty_folders: tuple[str, ...] = ()
    """Folders in which no file is worth importing, as reports print them."""
    planned: list[Planned] = field(default_factory=list)
    template: Template | None = None
    """What workers are forked from, where they are."""

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every worker."""
        for module in self.modules:
            module.close()
        if self.template is not None:
            self.template.close()
            self.template = None

    def fork_workers(self) -> None:
        """Have workers forked where that is possible, unless whoever asks starts them otherwise."""
        if self.request.started is None and not self.request.in_process:
            self.template = template_for(self.request.settings)
            self.request = replace(self.request, started=partial(Worker, template=self.template))

    def keep(self, here: list[Planned], why_not: str) -> None:
        """Leave the other targets out, and the modules that have none left."""
        for module in self.modules:
            others = [p for p in self.planned if p.module is module]
            if others and not any(p.module is module for p in here):
                module.close()
                module.deselected = tuple(PassedOver(p.target.name, p.target.line, why_not) for p in others)
        self.planned = here

    def one_by_one(self) -> Iterator[tuple[Planned, TargetProgress]]:
        """Every planned target, with whom to tell how far it is; a module's worker ends with it."""
        for number, planned in enumerate(self.planned, start=1):
            yield planned, TargetProgress(self.progress, planned.target, number, len(self.planned))
            if number == len(self.planned) or self.planned[number].module is not planned.module:
                planned.module.close()


def check(request: Request, progress: Progress | None = None, chosen: Chosen | None = None) -> Report:
    """Verify what the request selects, where `chosen` is known that.

    Raises `UsageError` for selectors that match nothing and `SpecError` for wrong specs; both before
    anything is verified. A module that cannot be imported becomes an entry of `Report.errors`. Raises
    `InterruptedRunError`, with the report on what was judged, for Ctrl-C once something was.
    """
    with prepare(request, progress or Progress(), chosen) as session:
        judged: list[Judged] = []
        try:
            with contextlib.closing(in_order(session)) as verdicts:
                for verdict in verdicts:
                    judged.append(verdict)
                    elsewhere = verified_elsewhere(session.planned, judged)
                    open_ones = [one for one in judged if one.report.target.id not in elsewhere]
                    if sum(one.report.status in NOT_VERIFIED for one in open_ones) == request.stop_after:
                        break
        except KeyboardInterrupt:
            if not judged:
                raise
            session.request = replace(request, stopped_by="an interrupt")
            report = replace(report_of(session, judged), exit_code=ExitCode.INTERRUPTED)
            raise InterruptedRunError(report) from None
        return report_of(session, judged)


def in_order(session: Session) -> Generator[Judged]:
    """Every planned target's verdict in order, however many are verified at once."""
    if session.request.jobs > 1 and len(session.planned) > 1:
        yield from verify_in_threads(session.planned, session.request, session.progress)
    else:
        for planned, progress in session.one_by_one():
            yield timed_verification(planned, session.request, progress)


def prepare(request: Request, progress: Progress, chosen: Chosen | None = None) -> Session:
    """Read the specs, import the modules and plan their targets.

    `chosen` is what the request chooses, where that is known. Raises as `check` does; on the way out no
    process is left.
    """
    chosen = choose(request) if chosen is None else chosen
    session = Session(request, progress, empty_folders=chosen.empty_folders)
    try:
        if chosen.modules:
            session.fork_workers()
        mistakes = _collect_all(session, chosen)
        if mistakes:
            raise SpecError(mistakes)  # noqa: TRY301
        for module in session.modules:
            session.planned += plan_targets(module, session.request)
        _narrow(session)
    except BaseException:
        session.__exit__()
        raise
    return session


def _narrow(session: Session) -> None:
    """Leave out what -k does."""
    request, keep = session.request, keyword_filter(session.request.keyword)
    named = [p for p in session.planned if keep(p.target.id)]
    session.keep(named, f"not selected by -k {request.keyword}")


def _collect_all(session: Session, chosen: Chosen) -> list[Mistake]:
    """Import every module and bind its spec; returns what is wrong with the specs."""
    new = [module_at(path, chosen.specs.get(path), found) for path, found in chosen.modules.items()]
    session.modules += new
    most = MAX_WARM if session.template is None else MAX_FORKED
    warm = {id(module) for module in new[: most if len(new) <= most else most - 1]}

    def collect(module: Module) -> list[Mistake]:
        session.progress.importing(module.shown_path)
        collect_module(module, session.request)
        mistakes = bind_module(module, session.request)
        if id(module) not in warm:
            module.close()
        return mistakes

    found = for_each_module(new, collect, session.request.jobs)
    return [mistake for mistakes in found for mistake in mistakes]


def _not_reached(planned: Planned, stopped_by: str) -> TargetReport:
    reason = f"not reached: {stopped_by} stopped the run"
    return TargetReport(
        target=planned.target,
        status=Verdict.UNCHECKED,
        inputs=planned.plan.source if planned.plan is not None else InputSource.NONE,
        cases=len(planned.plan.cases) if planned.plan is not None else 0,
        checks=tuple((family.value, Outcome.NOT_RUN) for family in CHECK_FAMILIES),
        reason=reason,
        case_reports=(CaseReport("", Verdict.UNCHECKED, reason=reason),),
    )


def report_of(session: Session, judged: Sequence[Judged]) -> Report:
    """The report on a run whose first targets were judged; the others were not reached."""
    left_out = session.planned[len(judged) :]
    elsewhere = verified_elsewhere(session.planned, judged)
    judged = [one for one in judged if one.report.target.id not in elsewhere]
    reports = [
        *(one.report for one in judged),
        *(_not_reached(planned, session.request.stopped_by) for planned in left_out),
    ]
    errors = tuple(m.error for m in session.modules if m.error is not None)
    bugs = (*(m.bug for m in session.modules if m.bug), *(one.bug for one in judged if one.bug))
    return Report(
        settings=replace(session.request.settings, seed=_seed(session)),
        targets=tuple(reports),
        errors=errors,
        modules=module_reports(session, elsewhere),
        gradverify_version=__version__,
        torch_version=next((m.torch_version for m in session.modules if m.torch_version), ""),
        exit_code=exit_code(reports, user_errors=bool(errors), bugs=bool(bugs)),
        summary=summary_of(reports),
        stopped_early=bool(left_out),
        stopped_by=session.request.stopped_by,
        slowest=session.request.slowest,
        bugs=bugs,
    )


def module_reports(
    session: Session, elsewhere: Mapping[str, PassedOver] | None = None
) -> tuple[ModuleReport, ...]:
    """What was looked at, for the words around the verdicts: modules, then folders without any.

    `elsewhere` are targets by their id that have no verdict of their own.
    """
    folders = (ModuleReport(folder, 0) for folder in session.empty_folders)
    known = [m for m in session.modules if m.error is None]
    return (*(_module_report(m, elsewhere or {}) for m in known), *folders)


def _module_report(module: Module, elsewhere: Mapping[str, PassedOver]) -> ModuleReport:
    if module.deselected:
        return ModuleReport(module.shown_path, 0, module.deselected)
    spec = module.spec.shown_path if module.spec is not None else ""
    unnamed = tuple(
        PassedOver(t.name, t.line, f"not named in {spec}") for t in module.unnamed if t.id not in elsewhere
    )
    taken = len(module.targets) - len(module.unnamed)
    passed_over = (*module.passed_over, *(elsewhere[t.id] for t in module.targets if t.id in elsewhere))
    return ModuleReport(
        module.shown_path, taken, (*passed_over, *unnamed), spec, len(unnamed), module.without
    )


def _seed(session: Session) -> int:
    """The seed to print: the command line's, else the one the specs agree on."""
    if session.request.seed is not None:
        return session.request.seed
    seeds = {seed_of(session.request, m.spec) for m in session.modules if m.spec is not None}
    return seeds.pop() if len(seeds) == 1 else session.request.settings.seed
