"""The ranks of a program that runs already: every process calls the check, and the first one leads it.

Requests and answers go through a gloo group of their own, made for the check; the target's collectives go
wherever it sends them.

What one rank does when it is asked: call the target, differentiate what it returned, forget a call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_map

from gradverify.model import Case, TargetPlan
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import vjp
from gradverify.verifier.inputs.arguments import OfRanks, OnEachRank
from gradverify.verifier.numerics.calling import returned_tensors, same_bits
from gradverify.verifier.ranks.across import Across
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import (
    Answer,
    Asked,
    Forward,
    Gradient,
    PackedTensor,
    Refused,
    Slot,
    packed,
    unpacked,
)
from gradverify.verifier.ranks.world import answers_of


def _laid_out(leaf: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """What is differentiated by, and a caller's tensor of its values: no leaf, which it may be written into.

    It lies in memory as another tensor does. Where that has one entry in several places it is a view, and
    differentiated by as it is: each place has a gradient.
    """
    shape, source = like.shape, leaf
    for dim, stride in enumerate(like.stride()):
        if not stride and shape[dim] > 1:
            source, like = source.narrow(dim, 0, 1), like.narrow(dim, 0, 1)
    fresh = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    fresh = fresh.copy_(source)
    if like.shape == shape:
        return leaf, fresh
    expanded = fresh.expand(shape)
    return expanded, expanded


@dataclass(frozen=True)
class _Called:
    """What a call leaves behind until its gradients are no longer needed."""

    leaves: tuple[Tensor, ...]
    outputs: tuple[Any, ...]


class Calls:
    """The calls of a target on one rank, kept until their gradients are no longer needed."""

    def __init__(
        self,
        function: Callable[..., Any],
        rank: int,
        found: Callable[[OnEachRank], Any],
        device: torch.device,
        watched: Watched,
    ) -> None:
        """`found` gives an object of this rank; `watched` sees the collectives that the target enters."""
        self._function, self._rank, self._found = function, rank, found
        self._device, self._watched = device, watched
        self._calls: dict[int, _Called] = {}
        self._single = False

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget calls."""
        for number in numbers:
            self._calls.pop(number, None)

    def answer(self, asked: Forward | Gradient) -> Answer | Refused:
        """Do what is asked; what the target raises is an answer, too."""
        self._watched.late, self._watched.told = asked.late, False
        states = _states(asked.seed)
        states.replay()
        with self._watched:
            result = (
                guard.call(self._forward, asked)
                if isinstance(asked, Forward)
                else guard.call(self._gradient, asked)
            )
        if isinstance(result, Raised):
            return Refused(result.error)
        results, written = result.value
        single = isinstance(asked, Forward) and self._single
        return Answer(results, single, not states.untouched(), written)

    def _argument(self, one: Any, passed: Sequence[Tensor]) -> Any:  # noqa: ANN401 - an argument
        """What the target is passed for an item of a request, given the tensors of the call."""
        match one:
            case Slot(number):
                return passed[number]
            case OfRanks(values):
                return values[self._rank]
            case OnEachRank():
                return self._found(one)
            case _:
                return one

    def _forward(self, asked: Forward) -> tuple[tuple[PackedTensor | None, ...], dict[int, PackedTensor]]:
        wanted = any(t.requires_grad for t in asked.tensors)
        given = [unpacked(t).to(self._device) for t in asked.tensors]
        leaves = [
            t.contiguous().clone().requires_grad_(p.requires_grad)
            for t, p in zip(given, asked.tensors, strict=True)
        ]
        with torch.set_grad_enabled(wanted):
            pairs = [
                _laid_out(leaf, t) if leaf.requires_grad else (leaf, t)
                for leaf, t in zip(leaves, given, strict=True)
            ]
            passed = [t for _, t in pairs]
            arguments = tree_map(lambda one: self._argument(one, passed), asked.arguments)
            returned = self._function(*arguments)
        self._single = isinstance(returned, Tensor)
        outputs = tuple(map(_arrived, returned_tensors(returned)))
        if wanted:
            self._calls[asked.number] = _Called(tuple(by for by, _ in pairs), outputs)
        # What is marked as dirty comes back as itself, with what was written.
        own = {n: t for n, t in enumerate(passed) if not any(one is t for one in outputs)}
        return _packed(outputs), _written(asked.tensors, own)

    def _gradient(self, asked: Gradient) -> tuple[tuple[PackedTensor | None, ...], dict[int, PackedTensor]]:
        called = self._calls[asked.of]
        given = {k: unpacked(g).to(self._device) for k, g in enumerate(asked.grad_outputs) if g is not None}
        given |= {
            k: torch.zeros_like(called.outputs[k]) for k in asked.zeros if _has_graph(called.outputs[k])
        }
        cotangents = {k: g.requires_grad_(asked.create_graph) for k, g in given.items()}
        ends = [k for k in cotangents if _has_graph(called.outputs[k])]
        wanted = [leaf for leaf in called.leaves if leaf.requires_grad]
        found: tuple[Tensor | None, ...] = (None,) * len(wanted)
        with torch.set_grad_enabled(asked.create_graph):
            if ends and wanted:
                passed = [g.view_as(g) if asked.create_graph else g for g in (cotangents[k] for k in ends)]
                outputs = [called.outputs[k] for k in ends]
                found = vjp(outputs, wanted, passed, keep=True, create=asked.create_graph)
        numbered = iter(found)
        results = tuple(next(numbered) if leaf.requires_grad else None for leaf in called.leaves)
        results = tuple(None if r is None else _arrived(r) for r in results)
        if asked.create_graph:
            self._calls[asked.number] = _Called((*called.leaves, *cotangents.values()), results)
        return _packed(results), _written(asked.grad_outputs, given)


@lru_cache(maxsize=16)
def _states(seed: int) -> guard.RandomStates:
    return guard.RandomStates(seed)


def _arrived(result: Any) -> Any:  # noqa: ANN401 - what user code returned
    """A result that may still be on its way, once it is here."""
    return result.wait() if isinstance(result, AsyncCollectiveTensor) else result


def _has_graph(output: Any) -> bool:  # noqa: ANN401 - what user code returned
    return isinstance(output, Tensor) and output.requires_grad


def _packed(results: Sequence[Any]) -> tuple[PackedTensor | None, ...]:
    return tuple(packed(r) if isinstance(r, Tensor) else None for r in results)


def _written(before: Sequence[PackedTensor | None], now: Mapping[int, Tensor]) -> dict[int, PackedTensor]:
    """What of the given tensors has other values now, by their numbers."""
    found: dict[int, PackedTensor] = {}
    for number, tensor in now.items():
        given = before[number]
        if given is not None and not same_bits(tensor.detach().cpu(), unpacked(given)):
            found[number] = packed(tensor)
    return found


@dataclass(frozen=True)
class Ended:
    """The check is over, with a verdict for every rank."""

    verdict: Any


def calls_here(function: Callable[..., Any], device: torch.device) -> Calls:
    """The target on this rank, called with what requests hold."""
    return Calls(function, dist.get_rank(), lambda one: one, device, Watched(lambda _: None))


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
