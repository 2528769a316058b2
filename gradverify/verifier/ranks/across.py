"""A target that runs on all ranks as one function of whole tensors, which autograd differentiates.

A call, its gradient, and the gradient of that are steps of one kind: tensors go out in parts, a result comes
back from each rank, and what was called stays there until it can no longer be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gradverify.model import Case, Ranks, tensors_of
from gradverify.verifier.ranks.collectives import (
    draw_too,
    in_parts,
    not_counted,
    of_one_rank,
    requiring,
    seed_of_ranks,
    whole_results,
    with_shapes,
    write_back,
)
from gradverify.verifier.ranks.messages import Forward, Gradient, Slot
from gradverify.verifier.ranks.placement import MisplacedError, Placed, of_input, of_output
from gradverify.verifier.ranks.world import Ranks as AllRanks

LOST = "the ranks that a graph belongs to have ended"


@dataclass(frozen=True)
class Difference:
    """A value that must be the same on every rank and is not."""

    rank: int
    of_first: Tensor
    of_rank: Tensor


@dataclass
class Called:
    """A call that the ranks remember."""

    world: AllRanks
    number: int
    generation: int
    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]

    def __del__(self) -> None:
        """Let the ranks forget it."""
        self.world.drop(self.number, self.generation)


@dataclass
class Across:
    """The target on all ranks; called with whole tensors."""

    world: AllRanks
    inputs: tuple[Placed, ...]
    """Of every tensor in the order of a call."""
    words: tuple[str, ...]
    """`Ranks.outputs`."""
    late: int = -1
    """The rank that comes late to every collective; -1 for none."""
    differences: dict[tuple[str, int], Difference] = field(default_factory=dict)
    """The first replicated value of each output, and each gradient, that was another on some rank."""
    in_other_group: Callable[[], Across] | None = None
    """The same in a group that is not the whole world; None where it is passed no group."""
    is_swept: bool = True
    """It is varied: on the smallest world of several ranks, and not on the others."""
    apart: int = -1
    """The rank whose own part of every gradient is asked for, whatever the spec says; -1 for the whole."""

    @classmethod
    def of(cls, world: AllRanks, case: Case, ranks: Ranks) -> Across:
        """The target on the inputs of a case."""
        placed = tuple(of_input(t) for i in case.inputs for t in tensors_of(i))
        return cls(world, placed, ranks.outputs)

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        """Call the target. Raises what it raises on a rank, and `OutOfStepError`."""
        tensors: list[Tensor] = []

        def slot(one: Any) -> Any:  # noqa: ANN401 - an argument
            if not isinstance(one, Tensor):
                return one
            tensors.append(one)
            return Slot(len(tensors) - 1)

        template = tree_map(slot, tuple(arguments))
        step = _Step(self, template)
        results = OnRanks.apply(step, *tensors)  # type: ignore[no-untyped-call]
        returned = tuple(_restored(step, results if isinstance(results, tuple) else (results,)))
        return returned[0] if step.single else returned

    @contextmanager
    def one_rank(self, rank: int) -> Iterator[None]:
        """While it lasts, the gradient of a replicated input is what one rank returned."""
        self.apart = rank
        try:
            yield
        finally:
            self.apart = -1

    @contextmanager
    def with_late(self, rank: int) -> Iterator[None]:
        """While it lasts, one rank comes late to every collective."""
        self.late = rank
        try:
            yield
        finally:
            self.late = -1

    def note(self, what: str, number: int, rank: int, first: Tensor, other: Tensor) -> None:
        """Keep the first difference of an `output`, or a `gradient`."""
        self.differences.setdefault((what, number), Difference(rank, first, other))

    def placed(self, position: int) -> Placed:
        """How the output at a position lies on the ranks."""
        return of_output(self.words[0] if len(self.words) == 1 else self.words[position])


@dataclass
class _Step:
    """A call of the target: how it is asked, and what came back."""

    across: Across
    template: tuple[Any, ...]
    present: tuple[bool, ...] = ()
    connected: Sequence[bool] = ()
    """Which of its outputs some rank can differentiate."""
    single: bool = False
    called: Called | None = None

    def run(self, tensors: Sequence[Tensor], needed: Sequence[bool], *, create: bool) -> list[Tensor | None]:
        """The whole outputs."""
        across, world, inputs = self.across, self.across.world, self.across.inputs
        if len(inputs) != len(tensors):
            raise RuntimeError(f"{len(tensors)} tensors for {len(inputs)} declared ones")
        number, seed = world.number(), seed_of_ranks()
        given = in_parts([p.value for p in inputs], tensors, world.size)
        asked = [
            Forward(
                number, self.template,
                requiring(each, needed), seed, across.late == rank,
            )
            for rank, each in enumerate(given)
        ]  # fmt: skip
        answers = world.ask(asked, "in forward")
        draw_too(answers)
        write_back(answers, [p.value for p in inputs], tensors)
        self.single = answers[0].single
        count = max(len(a.results) for a in answers)
        if len(across.words) not in {1, count}:
            raise MisplacedError(
                f"forward returned {count} outputs, and {len(across.words)} have a placement"
            )
        placed = tuple(map(across.placed, range(count)))
        results, self.connected = whole_results(
            answers, [p.value for p in placed], tensors, partial(across.note, "output")
        )
        self.present = tuple(r is not None for r in results)
        if create:
            rows = [[a.results[k] for a in answers] for k in range(count)]
            kept = tuple(with_shapes(p, row) for p, row in zip(placed, rows, strict=True))
            self.called = Called(world, number, world.generation, inputs, kept)
        return results


@dataclass
class _GradientStep:
    """The gradients of a call, of its tensors for its outputs."""

    across: Across
    of: Called
    like: tuple[Tensor, ...]
    """The tensors of that call: where a rank gives no gradient, zeros of this shape are used."""
    undefined: tuple[bool, ...]
    """Which of its outputs has no grad_output."""
    present: tuple[bool, ...] = ()
    connected: Sequence[bool] = ()
    called: Called | None = None

    def run(self, tensors: Sequence[Tensor], _: Sequence[bool], *, create: bool) -> list[Tensor | None]:
        """The whole gradients; `tensors` are those of the call and then its grad_outputs that are defined."""
        of, world = self.of, self.of.world
        if of.generation != world.generation:
            raise RuntimeError(LOST)  # whoever asked runs forward again, on ranks that are started anew
        grads = iter(tensors[len(self.like) :])
        given = [None if gone else next(grads) for gone in self.undefined]
        number, seed = world.number(), seed_of_ranks()
        places = [p.gradient for p in of.outputs]
        split = in_parts(places, given, world.size)
        asked = [
            Gradient(
                number, of.number, tuple(each), not_counted(places, given, rank), create, seed,
                self.across.late == rank,
            )
            for rank, each in enumerate(split)
        ]  # fmt: skip
        answers = world.ask(asked, "in backward")
        draw_too(answers)
        write_back(answers, places, given)
        placed = [p.gradient for p in of.inputs]
        if self.across.apart >= 0:
            placed = [of_one_rank(p, self.across.apart) for p in placed]
        results, self.connected = whole_results(
            answers, placed, self.like, partial(self.across.note, "gradient")
        )
        self.present = tuple(r is not None for r in results)
        if create:
            of_grads = [p for p, gone in zip(places, self.undefined, strict=True) if not gone]
            inputs = tuple(Placed(p, p) for p in (*placed, *of_grads))
            outputs = tuple(Placed(p, p) for p in placed)
            self.called = Called(world, number, world.generation, inputs, outputs)
        return results


class OnRanks(torch.autograd.Function):
    """A step on all ranks, differentiable as often as the ranks can."""

    @staticmethod
    def forward(ctx: Any, step: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        """Run a step; results that no rank can differentiate are marked."""
        needed = ctx.needs_input_grad[1:]
        create = any(needed)
        every = step.run(tensors, needed, create=create)
        results = [r for r in every if r is not None]
        ctx.set_materialize_grads(False)
        ctx.step, ctx.called = step, step.called
        step.called = None
        ctx.save_for_backward(*tensors)
        pairs = zip(every, step.connected, strict=True)
        ctx.mark_non_differentiable(*(r for r, connected in pairs if r is not None and not connected))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # noqa: ANN401
        """The gradients of a step, themselves a step."""
        tensors = ctx.saved_tensors
        every = _restored(ctx.step, grads)
        step = _GradientStep(ctx.step.across, ctx.called, tuple(tensors), tuple(g is None for g in every))
        defined = [g for g in every if g is not None]
        if not torch.is_grad_enabled():
            found = step.run([*tensors, *defined], (), create=False)
            return (None, *found)
        results = OnRanks.apply(step, *tensors, *defined)  # type: ignore[no-untyped-call]
        return (None, *_restored(step, results))


def _restored(step: _Step | _GradientStep, results: Iterable[Tensor | None]) -> list[Tensor | None]:
    found = iter(results)
    return [next(found) if there else None for there in step.present]
