"""Verdicts without what follows a failure: its cause, the change of backward, the smallest inputs.

That takes most of the time of a wrong Function and says nothing of whether it is wrong. `apply` leaves it out in
the processes that `forked_command` forks where `NAMED` is in their environment: names of targets that are
explained nevertheless, behind spaces. `pytest --all-seeds` explains all.
"""

import os

NAMED = "GRADVERIFY_TESTS_EXPLAIN"


def apply():
    """Patch what this process has imported, or will: the front, its template and what that forks."""
    if NAMED not in os.environ:
        return
    from gradverify.session import verifying  # noqa: PLC0415 - in the fork that it is for
    from gradverify.verifier.diagnose import findings  # noqa: PLC0415

    explained = frozenset(os.environ[NAMED].split())
    shrunk, causes_of = verifying.shrunk, findings.causes_of

    def shrunk_where_asked(report, planned, *given):
        return shrunk(report, planned, *given) if planned.target.name in explained else report

    def causes_where_asked(plan, *given):
        return causes_of(plan, *given) if plan.name in explained else iter(())

    verifying.shrunk, findings.causes_of = shrunk_where_asked, causes_where_asked
