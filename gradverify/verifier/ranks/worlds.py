"""The worlds of one target: one for each number of ranks, started when a case asks for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

from gradverify.events import Verify
from gradverify.model import Case, ObjectInput, Ranks, Target, TargetPlan
from gradverify.verifier.ranks.across import Across
from gradverify.verifier.ranks.messages import GROUP_PATHS, Setup
from gradverify.verifier.ranks.world import World


@dataclass
class Worlds:
    """Where a target's ranks come from; closed once another target is verified."""

    file: str
    """The user's module."""
    target: Target
    device: str
    default_dtype: str = ""
    _running: dict[tuple[int, int], World] = field(default_factory=dict)

    def across(self, case: Case, plan: TargetPlan, idle: int = 0) -> Across:
        """The target on the ranks of a case; `idle` ranks more take no part, and are not of its group."""
        size, ranks = case.world, plan.ranks or Ranks()
        if (size, idle) not in self._running:
            names = tuple(i.name for i in case.inputs)
            self._running[size, idle] = World(
                Setup(
                    size, self.file, tuple(sys.path), self.target, names, self.device, self.default_dtype,
                    store="", address="", idle_ranks=idle,
                )
            )  # fmt: skip
        across = Across.of(self._running[size, idle], case, ranks)
        grouped = any(isinstance(i, ObjectInput) and i.path in GROUP_PATHS for i in case.inputs)
        if grouped and not idle and size > 1:
            across.in_other_group = partial(self.across, case, plan, idle=1)
        several = [c.world for c in plan.cases if c.world > 1]
        across.is_swept = size == min(several, default=size)
        return across

    def close(self) -> None:
        """End all of them."""
        for world in self._running.values():
            world.close()
        self._running.clear()


def worlds_of(before: Worlds | None, module: ModuleType | None, request: Verify) -> Worlds | None:
    """Where the ranks of a request's target come from, None in one process: those of another target end."""
    if before is not None and before.target == request.target:
        return before
    if before is not None:
        before.close()
    if request.plan.ranks is None:
        return None
    file = str(getattr(module, "__file__", ""))
    return Worlds(file, request.target, request.settings.device, request.plan.default_dtype)
