"""What `init` does: deduce inputs for every target without a spec, and write them down as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradverify.cases.inputs import TensorSpec
from gradverify.deduced import Attempt, Deduced
from gradverify.errors import UsageError
from gradverify.model import InputSource, TargetPlan, TargetReport, Verdict, shown_path
from gradverify.session.modules import Module
from gradverify.session.planning import ON_RANKS, Planned, deduce_inputs, plan_from
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.run import Session, prepare
from gradverify.session.verifying import verify_target
from gradverify.session.worker_ended import WorkerError
from gradverify.spec.draft import (
    DraftedEntry,
    NotExtensibleError,
    entry_data,
    entry_to_fill_in,
    extended_spec,
    is_mentioned,
    render_spec,
)

DETACHED = ("GV202",)
"""What a spec makes an error of, and inferred inputs a warning."""


@dataclass(frozen=True)
class Draft:
    """A spec file to be written."""

    path: Path
    text: str
    entries: tuple[DraftedEntry, ...]
    existed: bool = False
    """It completes a file that is there."""

    @property
    def is_spec(self) -> bool:
        """Whether it can be read: a file that names no function is refused."""
        return self.existed or any(entry.active for entry in self.entries)

    @property
    def to_confirm(self) -> int:
        """Entries that are commented out."""
        return sum(not entry.active for entry in self.entries)


def draft_spec(request: Request, progress: Progress, *, afresh: bool) -> Draft:
    """Draft the spec of one module: a new one, or the present one with what it lacks.

    With `afresh` a present one counts for nothing. Raises as `gradverify.session.run.check` does, and
    `UsageError` for several modules or one that cannot be imported.
    """
    of_modules = tuple(replace(selection, of_spec=False) for selection in request.selections)
    with prepare(replace(request, selections=of_modules), progress) as session:
        if len(session.modules) != 1:
            raise UsageError(_not_one(session))
        module = session.modules[0]
        if module.error is not None:
            place = module.error.location
            line = f":{place.line}" if place is not None else ""
            raise UsageError(f"{module.shown_path}{line}: {module.error.message}")
        if not session.planned:
            raise UsageError(f"{module.shown_path} defines no torch.autograd.Function, and no spec names it")
        spec = None if afresh else module.spec
        text = spec.path.read_text("utf-8") if spec is not None else ""
        free = _as_discovered(session.planned) if afresh else [p for p in session.planned if p.plan is None]
        planned = [p for p in free if not (p.target.unreached or is_mentioned(text, p.target.name))]
        entries = []
        for number, one in enumerate(planned, start=1):
            progress.verifying(one.target.id, number, len(planned), "")
            entries.append(_drafted(replace(one, plan=None, case_filter=""), session.request))
        return _draft(module, text, tuple(entries), afresh=afresh)


def _not_one(session: Session) -> str:
    """Why there is not one module to draft the spec of."""
    if session.modules:
        return f"init drafts the spec of one module: {len(session.modules)} are named"
    folders = " and ".join(f"`{folder}`" for folder in session.empty_folders) or "what is named"
    return f"{folders} has no module that defines a torch.autograd.Function"


def _as_discovered(planned: Sequence[Planned]) -> list[Planned]:
    """The Functions behind the targets that are selected, each once, whatever a spec calls them."""
    wanted = {p.target.attribute for p in planned}
    modules = list({id(p.module): p.module for p in planned}.values())
    return [Planned(m, t, None) for m in modules for t in m.discovered if t.attribute in wanted]


def _draft(module: Module, text: str, entries: tuple[DraftedEntry, ...], *, afresh: bool) -> Draft:
    beside = module.path.with_name(f"{module.path.stem}.gradverify.yaml")
    path = module.spec.path if module.spec is not None else beside
    if module.spec is None or afresh:
        name = path.parent.resolve() == module.path.parent.resolve()
        reference = module.path.name if name else module.path.as_posix()
        return Draft(path, render_spec({reference: entries}), entries)
    try:
        extended = extended_spec(text, entries) if entries else text
    except NotExtensibleError as error:
        raise UsageError(f"{shown_path(path)}: {error}") from None
    return Draft(path, extended, entries, existed=True)


def _drafted(planned: Planned, request: Request) -> DraftedEntry:
    name = planned.target.name
    try:
        found = deduce_inputs(planned, request)
        if not isinstance(found, Deduced):
            return _skeleton(planned, found)
        return _judged(planned, found, request)
    except WorkerError as error:
        planned.module.close()
        ended = f"{name}: while inputs were looked for, the process {error.how}."
        return replace(_skeleton(planned, ()), comments=(ended,))


def _judged(planned: Planned, found: Deduced, request: Request) -> DraftedEntry:
    """The entry, with what a spec must say so that it is judged as it is without one."""
    plan = plan_from(planned, found, request)
    remarks = {d.name: f"{d.certain[0]} in the source" if d.certain else "guessed" for d in found.doubts}
    remarks |= dict((*found.remarks, *((name, said) for name, said, _ in found.never)))
    constant = (i.name for i in found.inputs if isinstance(i, TensorSpec) and i.requires_grad is False)
    remarks |= {name: "backward returns None for it: a constant?" for name in constant if name in remarks}
    entry = DraftedEntry(planned.target.name, entry_data(found.spec), input_comments=tuple(remarks.items()))
    inferred = _status(planned, plan, request)
    as_spec = replace(plan, source=InputSource.SPEC, doubts=(), remarks=(), never=())
    if inferred.status is Verdict.PASSED and not inferred.findings:
        return entry
    if _status(planned, as_spec, request).status is inferred.status:
        return entry
    if any(f.code in DETACHED for f in inferred.findings):
        ignored = {"GV202": "first order only (drafted: the second derivative is silently cut)"}
        accepted = replace(as_spec, ignore=tuple(ignored.items()))
        if _status(planned, accepted, request).status is inferred.status:
            return replace(entry, data={**entry.data, "ignore": ignored})
    if any(f.cause == "looks-surrogate" for f in inferred.findings):
        return _deliberate(entry)
    guesses = (*(d.what for d in found.doubts), *(f"what `{name}` is" for name, *_ in found.never))
    guessed = ", ".join(guesses) or "the kind of values"
    comments = (f"{planned.target.name} is {inferred.status}: {guessed} had to be guessed.",
                "If these inputs are valid, remove the # from the entry; else correct it.")  # fmt: skip
    return replace(entry, active=False, comments=comments)


def _deliberate(entry: DraftedEntry) -> DraftedEntry:
    """An entry of what looks like a deliberate gradient, with the line by which its author says so."""
    comments = (f"{entry.name} is inconclusive: its gradient looks deliberate, not like the derivative.",
                "If it is meant, give the reason and remove the #; else it is a mistake.")  # fmt: skip
    data = {**entry.data, "surrogate": {"reason": "to fill in"}}
    return replace(entry, data=data, active=False, comments=comments)


def _status(planned: Planned, plan: TargetPlan, request: Request) -> TargetReport:
    return verify_target(
        replace(planned, plan=plan), request, TargetProgress(Progress(), planned.target)
    ).report


def _skeleton(planned: Planned, attempts: tuple[Attempt, ...]) -> DraftedEntry:
    """An entry to fill in, with what was tried."""
    name = planned.target.name
    on_ranks = any(a.arguments == ON_RANKS for a in attempts)
    tried = tuple(f"  {'' if on_ranks else 'tried '}{a.arguments}: {a.answer}" for a in attempts)
    comments = (f"{name}: no inputs could be inferred. Give their shapes and remove the #.", *tried)
    known = attempts[0].inputs if attempts else ()
    entry = entry_to_fill_in(planned.target, on_ranks=on_ranks, known=known)
    return DraftedEntry(name, entry, comments, active=False)
