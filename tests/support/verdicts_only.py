"""Verdicts without what follows a failure: its cause, a change of backward, the smallest inputs.

That takes most of the time of a wrong Function and says nothing of whether it is wrong. `apply` leaves it out
in the processes that `forked_command` forks where `CAUSES_OF` is in their environment: names, with spaces
between them, of targets whose causes are looked for nevertheless. `pytest --all-seeds` leaves nothing out.
"""

import os

CAUSES_OF = "GRADVERIFY_TESTS_CAUSES_OF"

VARIABLES = {CAUSES_OF: ""}
"""What leaves out the causes of all targets."""


def apply():
    """Patch what this process has imported, or will: what its template forks."""
    if CAUSES_OF not in os.environ:
        return
    from gradverify.verifier.diagnose import findings  # noqa: PLC0415
    from gradverify.verifier.process import run, server  # noqa: PLC0415 - in the fork that it is for

    names, causes_of = frozenset(os.environ[CAUSES_OF].split()), findings.causes_of
    findings.causes_of = lambda plan, *given: causes_of(plan, *given) if plan.name in names else iter(())
    run.with_smaller_inputs = lambda events, *_: events
    server.AS_LOADED = server.Surroundings.take()  # else user code would seem to have done it
