"""`gradverify check` in this process, without what comes after a verdict and costs the most.

    python -m seeded.judging VERDICTS.jsonl SEED TARGET...

Neither looks for the cause of a failure nor shrinks it, and stops at the first case that fails: the verdict
is the command's. One line of JSON for every target as soon as it is judged; targets that stand in the file
already are not judged again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradverify.cli.asked import request_of
from gradverify.events import CaseVerified, Event, Found, Verify
from gradverify.model import Severity
from gradverify.report import render_json
from gradverify.session import verifying
from gradverify.session.request import Silent
from gradverify.session.run import prepare, report_of
from gradverify.verifier import run, worker


def main() -> None:
    verdicts, seed, targets = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

    def as_found(found: Any, *_: Any) -> Any:
        return found

    verifying.shrunk = as_found
    run.causes_of = lambda *_: ()
    worker.verify = until_wrong
    known = verdicts.read_text().splitlines() if verdicts.exists() else []
    done = {json.loads(line)["name"] for line in known}
    targets = [t for t in targets if t.partition("::")[2] not in done]
    if targets:
        judge(request_of(targets, seed=seed, in_process=True), verdicts)


def judge(request: Any, verdicts: Path) -> None:
    with prepare(request, Silent()) as session, verdicts.open("a") as out:
        for planned, at_case in session.one_by_one():
            begun = time.perf_counter()
            judged = verifying.verify_target(planned, request, at_case)
            listed = json.loads(render_json(report_of(session, [judged])))["targets"]
            target = next(t for t in listed if t["name"] == planned.target.name)
            target["seconds"] = round(time.perf_counter() - begun, 2)
            print(json.dumps(target), file=out, flush=True)


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
