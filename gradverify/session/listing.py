"""What `gradverify list` shows: targets, where their inputs come from, what would be checked."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import Effort, Engine, Mistake, ModuleReport, Settings, TargetPlan
from gradverify.report.listing import ListedTarget
from gradverify.rules import RULES, Family
from gradverify.session.outcome import ExitCode
from gradverify.session.planning import NoInputs, Planned, fitting, plan_or_reason
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.run import module_reports, prepare


@dataclass(frozen=True)
class Listing:
    """Everything that `list` shows."""

    targets: tuple[ListedTarget, ...]
    modules: tuple[ModuleReport, ...]
    errors: tuple[Mistake, ...]
    bugs: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """What the process exits with."""
        if self.bugs:
            return ExitCode.BUG
        if self.errors:
            return ExitCode.USAGE
        return ExitCode.OK if self.targets else ExitCode.NOTHING


def list_targets(request: Request, progress: Progress) -> Listing:
    """Discover and plan without verifying. Raises as `gradverify.session.run.check` does."""
    with prepare(request, progress) as session:
        listed = tuple(
            _listed(planned, session.request, progress) for planned, progress in session.one_by_one()
        )
        return Listing(
            listed,
            modules=module_reports(session),
            errors=tuple(m.error for m in session.modules if m.error is not None),
            bugs=tuple(m.bug for m in session.modules if m.bug),
        )


def _listed(planned: Planned, request: Request, progress: TargetProgress) -> ListedTarget:
    progress.at("")
    plan = plan_or_reason(planned, request)
    if isinstance(plan, NoInputs):
        return ListedTarget(planned.target, reason=plan.finding.message)
    if plan.skip:
        return ListedTarget(planned.target, plan)
    return ListedTarget(
        planned.target,
        plan,
        check_names(plan, request.settings),
        tuple(finding.message for finding in fitting(plan, request)[1]),
    )


def check_names(plan: TargetPlan, settings: Settings) -> tuple[str, ...]:
    """The families of checks that would run, in the order in which they do."""
    ignored = (*settings.ignore, *(code for code, _ in plan.ignore))
    second = plan.ranks is None or plan.ranks.second_order
    families = [Family.GRADCHECK, Family.CONTRACT, *([Family.GRADGRADCHECK] if second else [])]
    families += [Family.REFERENCE] if plan.reference or plan.surrogate is not None else []
    families += [Family.PRECISION] if _is_natively_judged(plan, settings) else []
    return tuple(f.value for f in families if _is_asked(f, settings, ignored))


def _is_asked(family: Family, settings: Settings, ignored: tuple[str, ...]) -> bool:
    """Whether some code of a family is selected and not ignored; the first order is what others build on."""
    codes = [r.code for r in RULES if r.family is family]
    kept = [c for c in codes if not c.startswith(ignored)]
    return family is Family.GRADCHECK or any(map(settings.selects, kept))


def _is_natively_judged(plan: TargetPlan, settings: Settings) -> bool:
    """Whether a target is judged in a native dtype: one that is listed, else float32."""
    listed = settings.dtypes or plan.dtypes
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return any(d != "float64" for d in listed) if listed else not cheap
