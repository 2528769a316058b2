"""`check --watch`: a verdict is kept until something that it depends on changes; then it is made again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from gradverify import __version__
from gradverify.errors import SpecError, UsageError
from gradverify.model import Mistake, Report, Settings, TargetPlan, TargetReport, Verdict
from gradverify.session.baseline import about_the_baseline
from gradverify.session.cache import remember
from gradverify.session.choosing import Chosen, choose
from gradverify.session.folders import python_files
from gradverify.session.modules import Module
from gradverify.session.outcome import ExitCode, summary_of
from gradverify.session.planning import Planned
from gradverify.session.request import Progress, Request
from gradverify.session.run import Session, in_order, prepare, report_of
from gradverify.session.verifying import Judged
from gradverify.session.watch.dependencies import (
    Contents,
    Dependencies,
    Look,
    Overtaking,
    but_earlier,
    look_at,
    still_holds,
)
from gradverify.session.watch.worker_pool import WorkerPool
from gradverify.spec.find import SUFFIXES

MOST_OVERTAKEN = 5
"""Rounds overtaken in a row; the next runs to its end, so that code which saves what is watched gets one."""

NO_ORDER: Mapping[str, int] = {}

Key = tuple[Path, str]
"""A module and the name of one of its targets."""


@dataclass(frozen=True)
class Kept:
    """A verdict, with what it was made of."""

    judged: Judged
    plan: TargetPlan | None
    case_filter: str
    dependencies: Dependencies
    at: str
    """The time of day."""


@dataclass(frozen=True)
class Round:
    """What one look at everything gave."""

    report: Report
    again: tuple[str, ...]
    """Ids of the targets that were verified in it."""
    turned: tuple[tuple[str, Verdict, Verdict], ...]
    """(target id, verdict before, verdict now) where these differ."""


@dataclass
class Watch:
    """What is known between two rounds; a context manager that leaves no process behind."""

    clock: Callable[[], float]
    time_of_day: Callable[[], str]
    also: frozenset[Path] = frozenset()
    """Files that are watched beside all that verdicts depend on: the configuration's."""
    seen: Look = field(default_factory=dict)
    """What is watched, as it was before the last round read it."""
    _contents: Contents = field(default_factory=Contents)
    _kept: dict[Key, Kept] = field(default_factory=dict)
    _dependencies: dict[Path, Dependencies] = field(default_factory=dict)
    _modules: dict[Path, Module] = field(default_factory=dict)
    """As they were imported with these dependencies."""
    _terms: tuple[object, ...] = ()
    """What of the request every verdict depends on."""
    _reported: dict[str, Verdict] = field(default_factory=dict)
    """What was reported last."""
    _overtaken: int = 0

    def __post_init__(self) -> None:
        """Nothing is started yet."""
        self._watched: frozenset[Path] = frozenset()
        self._overtaking = Overtaking(self.clock)
        self.workers = WorkerPool(self._overtaking, self.clock)

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every worker that waits."""
        self.workers.close()

    def look(self) -> Look:
        """What is watched, as it is now."""
        return look_at(self._watched)

    def forget(self) -> None:
        """Keep no verdict."""
        self._kept.clear()
        self._modules.clear()

    def round(self, asked: Callable[[], Request], progress: Progress) -> Round:
        """Verify what does not hold any more.

        `asked` reads what is asked for, which a configuration may change. Raises `OvertakenError` where
        something was saved meanwhile: what was verified until then is known to the next round.
        """
        given: frozenset[Path] = frozenset()
        earlier = self.look()
        try:
            request = replace(asked(), started=self.workers.take, clock=self.clock)
            self.workers.suit(request.settings)
            given = _given(request)
            chosen = choose(request)
            self._look_at(request, chosen)
            self.seen = but_earlier(self.look(), earlier)
            return self._verify(request, chosen, progress)
        except SpecError as error:
            self._watch_mistakes(error.problems, given, earlier)
            return self._refused(error.problems)
        except UsageError as error:
            self._watch_mistakes((), given, earlier)
            return self._refused((Mistake(str(error), kind="usage"),))
        finally:
            self._overtaking.begin((), self._contents)
            self.workers.refill()

    def _look_at(self, request: Request, chosen: Chosen) -> None:
        """What everything depends on now; modules with other dependencies will be imported again."""
        if (terms := _terms(request)) != self._terms:
            self.forget()
            self._terms = terms
        now = {path: self._contents.dependencies(path, chosen.specs.get(path)) for path in chosen.modules}
        self._modules = {p: m for p, m in self._modules.items() if now.get(p) == self._dependencies.get(p)}
        self._dependencies = now
        self._watched = watched(request, now, self.also)

    def _verify(self, request: Request, chosen: Chosen, progress: Progress) -> Round:
        patient = self._overtaken >= MOST_OVERTAKEN
        self._overtaken += 1
        self._overtaking.begin(() if patient else self._watched, self._contents)
        with prepare(request, progress, chosen, self._modules) as session:
            left = [one for one in session.planned if not self._holds(one)]
            with contextlib.closing(in_order(replace(session, planned=left))) as verdicts:
                for one, judged in zip(left, verdicts, strict=True):
                    self._kept[_key(one)] = self._kept_of(one, judged)
            self._overtaken = 0
            self._keep_only(session)
            report = self._report(session, {_key(one) for one in left})
            remember(request, session.modules, report.targets)
            for sentence in about_the_baseline(request, session.modules, report.targets):
                request.tell(sentence)
        return Round(report, tuple(one.target.id for one in left), self._turned(report))

    def _holds(self, planned: Planned) -> bool:
        one = self._kept.get(_key(planned))
        if one is None or (one.plan, one.case_filter) != (planned.plan, planned.case_filter):
            return False
        now = self._dependencies[planned.module.path]
        if one.dependencies.source != now.source and not _is_placeless(one.judged.report):
            return False
        return still_holds(planned.target.attribute, planned.plan, one.dependencies, now)

    def _kept_of(self, planned: Planned, judged: Judged) -> Kept:
        dependencies = self._dependencies[planned.module.path]
        return Kept(judged, planned.plan, planned.case_filter, dependencies, self.time_of_day())

    def _keep_only(self, session: Session) -> None:
        """Forget targets that are gone. Of a module that cannot be imported nothing new is known."""
        there = {_key(one) for one in session.planned}
        broken = {module.path for module in session.modules if module.error is not None}
        self._kept = {k: one for k, one in self._kept.items() if k in there or k[0] in broken}
        self._modules = {module.path: module for module in session.modules}

    def _report(self, session: Session, again: set[Key]) -> Report:
        """The report on everything: verdicts that were kept, each with its time, and those made now."""
        judged = []
        for planned in session.planned:
            one = self._kept[_key(planned)]
            as_of = "" if _key(planned) in again else one.at
            judged.append(
                replace(one.judged, report=replace(one.judged.report, target=planned.target, as_of=as_of))
            )
        report = report_of(session, judged)
        broken = {m.path for m in session.modules if m.error is not None}
        stale = self._stale("its module cannot be imported now", broken)
        order = {module.shown_path: number for number, module in enumerate(session.modules)}
        return _with(report, stale, order)

    def _refused(self, mistakes: Sequence[Mistake]) -> Round:
        """Nothing can be verified: every verdict is what it was, and none of them is green."""
        stale = self._stale("nothing can be checked now", {path for path, _ in self._kept})
        report = Report(
            Settings(), (), tuple(mistakes), gradverify_version=__version__, exit_code=ExitCode.USAGE
        )
        return Round(_with(report, stale), (), ())

    def _stale(self, why: str, modules: Collection[Path]) -> list[TargetReport]:
        """Verdicts of modules that cannot be verified any more, as reasons."""
        return [
            replace(
                one.judged.report,
                status=Verdict.UNCHECKED,
                reason=f"{why}; {one.judged.report.status} as of {one.at}",
                findings=(),
                case_reports=(),
                mutations=None,
            )
            for (path, _), one in self._kept.items()
            if path in modules
        ]

    def _turned(self, report: Report) -> tuple[tuple[str, Verdict, Verdict], ...]:
        """(target id, verdict before, verdict now) where these differ; what is now is remembered."""
        now = {target.target.id: target.status for target in report.targets}
        before, self._reported = self._reported, now
        return tuple(
            (name, before[name], now[name]) for name in now if before.get(name, now[name]) != now[name]
        )

    def _watch_mistakes(self, mistakes: Iterable[Mistake], given: frozenset[Path], earlier: Look) -> None:
        """Watch the file of a mistake as well: it is corrected there, or where something is missing."""
        named = {Path(m.location.file).absolute() for m in mistakes if m.location is not None}
        folders = {path.parent for path in named | given}
        self._watched |= named | given | self.also | folders
        self.seen = but_earlier(self.look(), earlier)


def watched(
    request: Request, dependencies: Mapping[Path, Dependencies], also: frozenset[Path]
) -> frozenset[Path]:
    """What to watch: all that the modules depend on, and the folders where modules and specs may appear."""
    files = {*also, *_given(request), *(path.resolve() for path in dependencies)}
    files |= {path for one in dependencies.values() for path in one.files}
    selected = [one.path.absolute() for one in request.selections if one.path.is_dir()]
    folders = {*selected, request.specs_folder.absolute()}
    for folder in selected:
        modules = set(python_files(folder, request.excluded))
        files |= modules
        folders |= {above for path in modules for above in path.parents if above.is_relative_to(folder)}
    folders |= {path.parent for path in files - also}
    specs = {path for folder in folders for path in folder.glob("*") if path.suffix in SUFFIXES}
    return frozenset(files | folders | specs)


def _given(request: Request) -> frozenset[Path]:
    """The files that are named on the command line."""
    named = (*(one.path for one in request.selections), *request.specs)
    baseline = (request.baseline,) if request.baseline is not None else ()
    return frozenset(path.absolute() for path in (*named, *baseline) if not path.is_dir())


def _terms(request: Request) -> tuple[object, ...]:
    """What of a request every verdict depends on."""
    tolerances = (request.settings, request.seed, request.rtol, request.atol, request.infer, request.known)
    limits = (request.timeout, request.import_timeout, request.budget, request.memory)
    extent = (request.selections, request.mutate, request.dump, request.extra_arguments, request.today)
    return (*tolerances, *limits, *extent)


def _key(planned: Planned) -> Key:
    return planned.module.path, planned.target.name


def _is_placeless(report: TargetReport) -> bool:
    """Whether it says nothing of lines, which move when another part of their file is edited."""
    return report.status is Verdict.PASSED and not any(f.location or f.raised for f in report.findings)


def _with(report: Report, more: Sequence[TargetReport], order: Mapping[str, int] = NO_ORDER) -> Report:
    """A report on further targets too, in the order of their modules."""
    both = (*report.targets, *more)
    targets = tuple(sorted(both, key=lambda target: order.get(target.target.file, 0)))
    return replace(report, targets=targets, summary=summary_of(targets))
