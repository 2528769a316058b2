"""What `gradverify list` shows: targets, where their inputs come from, what checking them would cost."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import Mistake, ModuleReport
from gradverify.report.listing import ListedTarget
from gradverify.session.costing import check_names, cost_of, fitting
from gradverify.session.outcome import ExitCode
from gradverify.session.planning import NoInputs, Planned, plan_or_reason
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
    cost = cost_of(plan, request.settings)
    return ListedTarget(
        planned.target,
        plan,
        check_names(plan, request.settings),
        cost.usual,
        cost.a_point,
        cost.input_bytes,
        tuple(finding.message for finding in fitting(plan, request)[1]),
    )
