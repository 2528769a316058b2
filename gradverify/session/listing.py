"""What `gradverify list` shows: targets, where their inputs come from, what checking them would cost."""

from __future__ import annotations

from gradverify.model import Mistake, ModuleReport
from gradverify.report import ListedTarget
from gradverify.session.planning import NoInputs, Planned, plan_or_reason
from gradverify.session.request import Progress, Request
from gradverify.session.run import prepare


def list_targets(
    request: Request, progress: Progress
) -> tuple[tuple[ListedTarget, ...], tuple[ModuleReport, ...], tuple[Mistake, ...]]:
    """Discover and plan without verifying. Raises as `gradverify.session.run.check` does."""
    with prepare(request, progress) as session:
        listed = tuple(_listed(planned, request) for planned in session.planned)
        modules = tuple(ModuleReport(m.shown_path, len(m.targets), m.passed_over) for m in session.modules)
        errors = tuple(m.error for m in session.modules if m.error is not None)
    return listed, modules, errors


def _listed(planned: Planned, request: Request) -> ListedTarget:
    plan = plan_or_reason(planned, request)
    if isinstance(plan, NoInputs):
        return ListedTarget(planned.target, reason=plan.finding.message)
    checks = ("gradcheck", "contract", "gradgradcheck", *(("reference",) if plan.reference else ()))
    return ListedTarget(planned.target, plan, checks)
