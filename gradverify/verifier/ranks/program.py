"""The ranks of a program that runs already: every process calls the check, and the first one leads it.

Requests and answers go through a gloo group of their own, made for the check; the target's collectives go
wherever it sends them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradverify.model import Case, TargetPlan
from gradverify.verifier.inputs.arguments import OfRanks
from gradverify.verifier.ranks.across import Across
from gradverify.verifier.ranks.calls import Calls
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import Answer, Asked, Forward, Gradient, Slot
from gradverify.verifier.ranks.world import answers_of


@dataclass(frozen=True)
class Ended:
    """The check is over, with a verdict for every rank."""

    verdict: Any


def calls_here(function: Callable[..., Any], device: torch.device) -> Calls:
    """The target on this rank, called with what requests hold."""
    rank = dist.get_rank()

    def argument(one: Any, passed: Sequence[Tensor]) -> Any:  # noqa: ANN401 - an argument
        if isinstance(one, Slot):
            return passed[one.number]
        return one.values[rank] if isinstance(one, OfRanks) else one

    return Calls(function, argument, device, Watched(lambda _: None))


class Program:
    """All ranks, seen from the first of them."""

    generation = 0
    """None of them is started again."""

    def __init__(self, calls: Calls, group: dist.ProcessGroup) -> None:
        """`group` carries requests and answers."""
        self._calls, self._group = calls, group
        self._numbers, self._dropped = itertools.count(), list[int]()

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return dist.get_world_size(self._group)

    def number(self) -> int:
        """A number for the next call."""
        return next(self._numbers)

    def drop(self, number: int, generation: int) -> None:  # noqa: ARG002 - there is one
        """Forget a call."""
        self._dropped.append(number)

    def ask(self, asked: Sequence[Asked], doing: str) -> list[Answer]:  # noqa: ARG002 - torch tells of hangs
        """What every rank answers. Raises `RaisedElsewhereError` for what the target raised."""
        dropped, self._dropped = tuple(self._dropped), []
        dist.broadcast_object_list([(dropped, tuple(asked))], 0, self._group)
        reported = _done(self._calls, dropped, asked[0])
        gathered: list[Any] = [None] * self.size
        dist.gather_object(reported, gathered, 0, self._group)
        return answers_of(dict(enumerate(gathered)))

    def end(self, verdict: Any) -> None:  # noqa: ANN401 - whatever every rank is sent
        """Let the others go, with the verdict."""
        dist.broadcast_object_list([Ended(verdict)], 0, self._group)

    def across(self, case: Case, plan: TargetPlan, idle: int = 0) -> Across:  # noqa: ARG002 - none can be added
        """The target on the ranks of this program."""
        assert plan.ranks is not None  # noqa: S101 - who asks has set them
        return Across.of(self, case, plan.ranks)


def follow(calls: Calls, group: dist.ProcessGroup) -> Any:  # noqa: ANN401 - the verdict
    """On every other rank: do what the first one asks, until it has a verdict."""
    rank = dist.get_rank()
    while True:
        box: list[Any] = [None]
        dist.broadcast_object_list(box, 0, group)
        if isinstance(box[0], Ended):
            return box[0].verdict
        dropped, asked = box[0]
        dist.gather_object(_done(calls, dropped, asked[rank]), None, 0, group)


def _done(calls: Calls, dropped: Sequence[int], asked: Asked) -> Any:  # noqa: ANN401 - an answer
    calls.drop(dropped)
    assert isinstance(asked, Forward | Gradient)  # noqa: S101 - what to forget comes beside
    return calls.answer(asked)
