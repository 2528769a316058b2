"""`--dump`: each error of a target as files that show it without gradverify."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from gradverify.events import Dump, Dumped, Verify
from gradverify.model import Finding, Severity, TargetReport
from gradverify.session.aggregate import TargetState
from gradverify.session.planning import Planned
from gradverify.session.request import Request
from gradverify.session.worker_errors import WorkerError

_TELLING = re.compile(r"[\w@/-]+\.py::[\w@]+")
"""A target's id of which no character is lost in a file name."""


def dumped(report: TargetReport, planned: Planned, state: TargetState, request: Request) -> TargetReport:
    """Let the worker write every error's files, and name them in the report.

    A target that takes the process down has lost its worker: another one draws the inputs, which calls none
    of the target's code.
    """
    errors = [f for f in report.findings if f.severity is Severity.ERROR and not f.expected and f.case]
    if request.dump is None or not errors:
        return report
    asked = Dump(
        Verify(
            planned.target,
            replace(state.plan, cases=(*state.every_case, *state.shrunk)),
            state.settings,
        ),
        tuple(zip(_names(report.target.id, errors), errors, strict=True)),
        str(request.dump.absolute()),
        str(planned.module.path.resolve()),
    )
    try:
        if state.plan.ranks is None:
            answers = [e for e in planned.module.answers(asked, request) if isinstance(e, Dumped)]
        else:
            answers = [Dumped("", "a script runs in one process, and this shows on several ranks")] * len(
                errors
            )
    except WorkerError as error:
        planned.module.close()
        answers = [Dumped("", f"the process {error.how}")] * len(errors)
    written = {id(f): _with(f, answer, request) for f, answer in zip(errors, answers, strict=True)}
    return replace(report, findings=tuple(written.get(id(f), f) for f in report.findings))


def _with(finding: Finding, answer: Dumped, request: Request) -> Finding:
    if answer.name and request.dump is not None:
        return replace(finding, dump=(request.dump / answer.name).as_posix())
    said = f"(--dump wrote nothing: {answer.refusal}.)"
    return replace(finding, hint=f"{finding.hint} {said}".strip())


def _names(target: str, findings: Sequence[Finding]) -> list[str]:
    """File names without suffix, the same in every run: `folder.mymodule-Linear-GV101-weight`."""
    names: list[str] = []
    for finding in findings:
        output = f"out{finding.output}" if finding.output else ""
        parts = [target.replace(".py::", "-"), finding.code, finding.input or "", output]
        name = re.sub(r"[^\w@.-]+", "_", "-".join(filter(None, parts)).replace("/", "."))
        if not _TELLING.fullmatch(target):
            name += f"-{hashlib.sha256(target.encode()).hexdigest()[:8]}"
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names
