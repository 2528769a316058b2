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


def plant_all(
    planned: Planned, plan: TargetPlan, settings: Settings, request: Request
) -> tuple[Mutation, ...]:
    """Plant every fault; each has the time and memory of a target.

    A fault that ends its process is noticed by that, and the next one gets another. Raises `WorkerError`
    where no process can be had, or for a bug of ours.
    """
    found: list[Mutation] = []
    for fault in _names(planned, request):
        worker = planned.module.running(request)
        asked = Mutate(Verify(planned.target, plan, settings), fault)
        try:
            answers = worker.ask(asked, request.timeout, request.memory)
            found += [event.mutation for event in answers if isinstance(event, Mutated)]
        except WorkerBrokenError:
            raise
        except WorkerError as error:
            planned.module.close()
            found.append(Mutation(fault, (), MutationOutcome.CAUGHT, _code_of(error)))
    return tuple(found)


def _names(planned: Planned, request: Request) -> tuple[str, ...]:
    worker = planned.module.running(request)
    listed = [e for e in worker.ask(ListFaults(), request.timeout) if isinstance(e, Faults)]
    return listed[0].names


def _code_of(error: WorkerError) -> str:
    match error:
        case WorkerTimedOutError():
            return "GV902"
        case WorkerTooBigError():
            return "GV903"
        case _:
            return "GV901"
