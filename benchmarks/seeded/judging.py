"""`gradverify check` in this process, without what comes after a verdict and costs the most.

    python -m seeded.judging REPORT.json SEED TARGET...

Neither looks for the cause of a failure nor shrinks it, and stops at the first case that fails: the verdict
is the command's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradverify.cli.asked import request_of
from gradverify.events import CaseVerified, Event, Found, Verify
from gradverify.model import Severity
from gradverify.report import render_json
from gradverify.session import verifying
from gradverify.session.run import check
from gradverify.verifier import run, worker


def main() -> None:
    report, seed, targets = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

    def as_found(found: Any, *_: Any) -> Any:
        return found

    verifying.shrunk = as_found
    run.causes_of = lambda *_: ()
    worker.verify = until_wrong
    report.write_text(render_json(check(request_of(targets, seed=seed, in_process=True))))


def until_wrong(request: Verify, live: Any) -> Iterator[Event]:
    """The events of a target up to the end of the first case that has an error."""
    is_wrong = False
    for event in run.verify(request, live):
        yield event
        is_wrong |= isinstance(event, Found) and event.finding.severity is Severity.ERROR
        if is_wrong and isinstance(event, CaseVerified) and not request.plan.expected_failures:
            return


if __name__ == "__main__":
    main()
