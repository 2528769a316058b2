"""`gradverify suggest`: one target through its worker, for the backward that it should have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradverify.errors import UsageError
from gradverify.events import NotSuggested, Suggest, Suggested, Verify
from gradverify.model import Mistake, Target
from gradverify.session.outcome import ExitCode
from gradverify.session.planning import NoInputs, Planned, plan_or_reason, seed_of
from gradverify.session.request import Progress, Request
from gradverify.session.run import prepare
from gradverify.session.worker_ended import WorkerBrokenError, WorkerError


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
        asked = Suggest(Verify(planned.target, plan, settings))
        answers = planned.module.answers(asked, request)
    except WorkerBrokenError as error:
        return Suggestion(planned.target, NotSuggested("for a bug in gradverify"), bugs=(error.how,))
    except WorkerError as error:
        return Suggestion(planned.target, NotSuggested(f"the process {error.how} while it was tried"))
    answer = next(e for e in answers if isinstance(e, Suggested | NotSuggested))
    return Suggestion(planned.target, answer)
