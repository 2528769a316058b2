"""`--mutate` and `selftest`: known faults planted in a target that passed, one request for each."""

from __future__ import annotations

from gradverify.events import Faults, ListFaults, Mutate, Mutated, Verify
from gradverify.model import Mutation, MutationOutcome, Settings, TargetPlan
from gradverify.session.planning import Planned
from gradverify.session.request import Request
from gradverify.session.worker_errors import (
    WorkerBrokenError,
    WorkerError,
    WorkerTimedOutError,
    WorkerTooBigError,
)

_CODES = {WorkerTimedOutError: "GV902", WorkerTooBigError: "GV903"}
"""What is said of a process that a fault has ended, other than GV901."""


def plant_all(
    planned: Planned, plan: TargetPlan, settings: Settings, request: Request
) -> tuple[Mutation, ...]:
    """Plant every fault; each has the time and memory of a target.

    A fault that ends its process is noticed by that, and the next one gets another. Raises `WorkerError`
    where no process can be had, or for a bug of ours.
    """
    found: list[Mutation] = []
    listed = planned.module.running(request).ask(ListFaults(), request.timeout)
    for fault in next(e.names for e in list(listed) if isinstance(e, Faults)):
        planned.module.running(request)  # what keeps it from being had is no doing of the fault
        asked = Mutate(Verify(planned.target, plan, settings), fault)
        try:
            answers = planned.module.answers(asked, request)
            found += [event.mutation for event in answers if isinstance(event, Mutated)]
        except WorkerBrokenError:
            raise
        except WorkerError as error:
            planned.module.close()
            code = _CODES.get(type(error), "GV901")
            found.append(Mutation(fault, (), MutationOutcome.CAUGHT, code))
    return tuple(found)
