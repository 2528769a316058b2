"""One run: select, read specs, collect, bind, verify, report. Reads as the list of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata, util
from pathlib import Path

from gradverify.errors import SpecError, UsageError
from gradverify.model import (
    InputSource,
    Mistake,
    ModuleReport,
    Outcome,
    Report,
    TargetReport,
    Verdict,
)
from gradverify.rules import RULES
from gradverify.session.aggregate import CHECK_FAMILIES
from gradverify.session.modules import Module, bind_module, collect_module
from gradverify.session.outcome import exit_code, summary_of
from gradverify.session.planning import Planned, plan_targets
from gradverify.session.request import Progress, Request, Silent
from gradverify.session.selection import Selection, keyword_filter
from gradverify.session.verifying import verify_target
from gradverify.spec import SpecFile, SpecLookup, shown_path


@dataclass
class Session:
    """The modules of a run, imported and planned; a context manager that leaves no process behind."""

    request: Request
    progress: Progress
    modules: list[Module] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)

    def __enter__(self) -> Session:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every worker."""
        for module in self.modules:
            module.close()


def check(request: Request, progress: Progress | None = None) -> Report:
    """Verify what the request selects.

    Raises `UsageError` for selectors that match nothing and `SpecError` for wrong specs; both before
    anything is verified. A module that cannot be imported becomes an entry of `Report.errors`.
    """
    with prepare(request, progress or Silent()) as session:
        reports: list[TargetReport] = []
        stopped = False
        for number, planned in enumerate(session.planned, start=1):
            if stopped:
                break
            report = verify_target(planned, request, session.progress, number, len(session.planned))
            reports.append(report)
            stopped = request.stop_at_first and report.status in {
                Verdict.FAILED,
                Verdict.INCONCLUSIVE,
                Verdict.UNCHECKED,
            }
        left_out = session.planned[len(reports) :]
        reports += [_not_reached(planned) for planned in left_out]
        return _report(session, reports, stopped_early=bool(left_out))


def prepare(request: Request, progress: Progress) -> Session:
    """Read the specs, import the modules and plan their targets.

    Raises as `check` does; on the way out no process is left.
    """
    _require_torch()
    keep = keyword_filter(request.keyword)
    specs = _read_specs(request)
    session = Session(request, progress)
    try:
        for path, names in _by_module(request.selections).items():
            progress.importing(shown_path(path))
            session.modules.append(collect_module(path, specs.get(path), names, request))
        _require_device(request.settings.device, session.modules)
        mistakes = [m for module in session.modules for m in bind_module(module, request)]
        if mistakes:
            raise SpecError(mistakes)
        for module in session.modules:
            session.planned += [p for p in plan_targets(module, request) if keep(p.target.id)]
    except BaseException:
        session.__exit__()
        raise
    return session


def _by_module(selections: Sequence[Selection]) -> dict[Path, list[Selection]]:
    modules: dict[Path, list[Selection]] = {}
    for selection in selections:
        modules.setdefault(selection.path.absolute(), []).append(selection)
    return modules


def _read_specs(request: Request) -> dict[Path, SpecFile]:
    """The spec of each module; the mistakes of all of them at once."""
    modules = list(_by_module(request.selections))
    codes = [rule.code for rule in RULES]
    lookup = SpecLookup(request.specs, request.specs_folder, codes)
    specs, mistakes = {}, []
    for path in request.specs:
        if not path.is_file():
            raise UsageError(f"--spec: there is no file `{path}`")
    for module in modules:
        try:
            spec = lookup.find(module)
        except SpecError as error:
            mistakes += [m for m in error.problems if m not in mistakes]
        else:
            if spec is not None:
                specs[module] = spec
    if mistakes:
        raise SpecError(mistakes)
    unclaimed = lookup.unclaimed(modules)
    if unclaimed:
        raise UsageError(f"--spec: `{shown_path(unclaimed[0])}` names none of the modules that are checked")
    return specs


def _require_torch() -> None:
    if util.find_spec("torch") is None:
        raise UsageError("gradverify needs PyTorch, and this Python has none: install torch beside it")


def _require_device(device: str, modules: Sequence[Module]) -> None:
    """Refuse a CUDA device that is not there, as soon as some worker can tell."""
    if device == "cpu":
        return
    count = next((m.cuda_devices for m in modules if m.cuda_devices is not None), None)
    if count is None:
        return
    index = int(device.partition(":")[2] or 0)
    if index >= count:
        there = f"torch sees {count} CUDA device{'' if count == 1 else 's'}"
        raise UsageError(f"--device {device}: no such device here ({there})")


def _not_reached(planned: Planned) -> TargetReport:
    return TargetReport(
        target=planned.target,
        status=Verdict.UNCHECKED,
        inputs=planned.plan.source if planned.plan is not None else InputSource.NONE,
        cases=len(planned.plan.cases) if planned.plan is not None else 0,
        checks=tuple((family.value, Outcome.NOT_RUN) for family in CHECK_FAMILIES),
        reason="not reached: -x stopped the run",
    )


def _report(session: Session, reports: Sequence[TargetReport], *, stopped_early: bool) -> Report:
    errors: tuple[Mistake, ...] = tuple(m.error for m in session.modules if m.error is not None)
    torch_version = next((m.torch_version for m in session.modules if m.torch_version), "")
    return Report(
        settings=replace(session.request.settings, seed=_seed(session)),
        targets=tuple(reports),
        errors=errors,
        modules=tuple(ModuleReport(m.shown_path, len(m.targets), m.passed_over) for m in session.modules),
        gradverify_version=metadata.version("gradverify"),
        torch_version=torch_version,
        exit_code=exit_code(reports, user_errors=bool(errors)),
        summary=summary_of(reports),
        stopped_early=stopped_early,
    )


def _seed(session: Session) -> int:
    """The seed to print: the command line's, else the one the specs agree on."""
    if session.request.seed is not None:
        return session.request.seed
    seeds = {m.spec.defaults.seed for m in session.modules if m.spec is not None}
    return seeds.pop() if len(seeds) == 1 else 0
