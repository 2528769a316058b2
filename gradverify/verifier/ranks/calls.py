"""What one rank does when it is asked: call the target, differentiate what it returned, forget a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_map

from gradverify.verifier import guard
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import returned_tensors, same_bits
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import (
    Answer,
    Forward,
    Gradient,
    PackedTensor,
    Refused,
    packed,
    unpacked,
)

Argument = Callable[[Any, Sequence[Tensor]], Any]
"""What the target is passed for an item of a request, given the tensors of the call."""


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
        self, function: Callable[..., Any], argument: Argument, device: torch.device, watched: Watched
    ) -> None:
        """`watched` sees the collectives that the target enters."""
        self._function, self._argument, self._device, self._watched = function, argument, device, watched
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
