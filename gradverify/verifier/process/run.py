"""A request in, events out: a target is verified at all its samples, then it is asked why what is wrong is.

The same code serves the worker process and the Python API.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from gradverify.events import AllowanceSpent, DiagnosisStarted, Event, Found, Verify
from gradverify.verifier import guard
from gradverify.verifier.diagnose import is_diagnosed, wants_a_change
from gradverify.verifier.guard import NotJudgedError, OutOfStepError
from gradverify.verifier.verify.kept import Allowance
from gradverify.verifier.verify.loop import verified
from gradverify.verifier.verify.shrinking import with_smaller_inputs
from gradverify.verifier.verify.verification import Live, Verification, stopped_by, verifying


def verify(request: Verify, live: Live) -> Generator[Event, None, None]:
    """Verify a target on its cases; findings are sent as they are made."""
    with verifying(request, live) as asked:
        try:
            yield from with_smaller_inputs(_with_causes(asked), request.plan, live.kept, asked.build)
        except (OutOfStepError, NotJudgedError) as error:
            where = asked.visited[-1].where if asked.visited else None
            yield from asked.reported([stopped_by(error, where)])


def _with_causes(asked: Verification) -> Iterator[Event]:
    kept = asked.live.kept
    kept.begin()
    before = guard.CALLS.made
    yield from verified(asked)
    kept.allowance = Allowance.after(guard.CALLS.made - before)
    if any(is_diagnosed(f) or wants_a_change(f) for f in asked.findings):
        from gradverify.verifier.diagnose.findings import causes_of  # noqa: PLC0415 - where one failed

        yield DiagnosisStarted()
        causes = causes_of(asked.request.plan, asked.build, kept, asked.visited, asked.findings)
        yield from map(Found, causes)
        if kept.allowance.is_short:
            yield AllowanceSpent(kept.allowance.calls)
