"""Calling user code and differentiating it: the plain functions that problems are made of.

What a tensor held before user code ran: a write shows by content, bit by bit, and by torch's counter.

Memory written through NumPy, a raw pointer or `.data` does not move the counter, and a write that happens to
change nothing moves it alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _disabled_torch_dispatch_impl, _disabled_torch_function_impl
from torch.autograd.function import BackwardCFunction

from gradverify.verifier.guard.engine import run_every_node, vjp
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call


@dataclass(frozen=True)
class Snapshot:
    """A tensor as it was."""

    tensor: Tensor
    copy: Tensor
    version: int

    @staticmethod
    def of(tensor: Tensor) -> Snapshot:
        """Remember a tensor's content and version."""
        return Snapshot(tensor, tensor.detach().clone(), tensor._version)  # noqa: SLF001 - its only name

    @property
    def rewritten(self) -> bool:
        """Whether its content is another now."""
        return not same_bits(self.tensor.detach(), self.copy)

    @property
    def counted(self) -> bool:
        """Whether torch's counter saw a write."""
        return self.tensor._version != self.version  # noqa: SLF001

    @property
    def changed(self) -> bool:
        """Whether it was written to, even if only with the values it had."""
        return self.counted or self.rewritten

    @property
    def by_how_much(self) -> str:
        """`: 6 of 6 entries changed`, or that only the counter shows it."""
        now, before = self.tensor.detach(), self.copy
        if now.shape != before.shape:
            return f": its shape is {list(now.shape)} now, {list(before.shape)} before"
        count = int((now != before).sum())
        if not count:
            return " (with the values it has at these inputs; its version counter moved)"
        return f": {count} of {now.numel()} entries changed"


@dataclass(frozen=True)
class Kept:
    """What forward kept for backward, as it was before a backward ran: by sums of its bits, not as copies.

    A large target's saved tensors are not held twice. A write that only changes places behind torch's
    counter does not show.
    """

    marks: list[tuple[Tensor, int, int | None]]
    """Each with its version and the sum of its bits."""

    @staticmethod
    def of(outputs: Sequence[Tensor]) -> Kept:
        """Of every Python Function behind some outputs."""
        return Kept([(t, t._version, bits_of(t)) for t in _kept(outputs)])  # noqa: SLF001 - its only name

    @property
    def is_written(self) -> bool:
        """Whether a backward has written into it: the graph gives another gradient from now on."""
        return any(t._version != version or bits_of(t) != bits for t, version, bits in self.marks)  # noqa: SLF001


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The whole numbers of so many bytes."""


def bits_of(tensor: Tensor) -> int | None:
    """The sum of all entries as whole numbers, wrapped around.

    None for a tensor that torch cannot read like that: sparse, nested, quantised, without memory, of another
    library's layout.
    """
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        return int(plain.view(_WHOLE[plain.element_size()]).sum())
    except Exception:  # noqa: BLE001 - a subclass of Tensor may raise anything
        return None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same, NaN equal to itself; what torch cannot compare does not differ."""
    try:
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if torch.equal(a, b):
            return True
        both = (t.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for t in (a, b))
        return torch.equal(*both)
    except Exception:  # noqa: BLE001 - the same
        return True


def nodes_behind(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """The nodes of the graph of some outputs, each once."""
    met: dict[int, Any] = {}
    waiting: list[Any] = list(map(_node, outputs))
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in met:
            met[id(node)] = node
            waiting += [following for following, _ in node.next_functions]
            yield node


def _kept(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors that Python Functions of a graph have saved, and those among the attributes of a ctx."""
    for node in nodes_behind(outputs):
        if isinstance(node, BackwardCFunction):
            yield from (t for t in (*_saved(node), *vars(node).values()) if isinstance(t, Tensor))


def _node(output: Tensor) -> Any:  # noqa: ANN401 - the class of the node is the user's
    try:
        return output.grad_fn
    except RuntimeError:  # a view whose base was written to: backward raises the same
        return None


def _saved(node: Any) -> Sequence[Any]:  # noqa: ANN401 - the class of the node is the user's
    try:
        return node.saved_tensors or ()
    except RuntimeError:  # they are gone, or written to: backward raises the same
        return ()


Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]

SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
"""Layouts that leave zeros out."""


def substitute(arguments: Sequence[Argument], primals: Sequence[Tensor]) -> list[Any]:
    """The arguments of a call, with other values for the differentiable ones and copies of the rest."""
    values = iter(primals)
    substituted = [
        a.moved(next(values))
        if a.differentiable
        else a.value.clone()
        if isinstance(a.value, Tensor)
        else a.value
        for a in arguments
    ]
    return arguments_of_call(arguments, substituted)


def returned_tensors(result: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what user code returned
    """What forward returned as a tuple, by position; dicts and tuples in it are opened, in their order.

    A sparse tensor is dense to every check, like the gradient that comes back through `to_dense`.
    """
    return tuple(map(_dense, _leaves(result)))


SHORTEST = 2
"""Bytes of the shortest floating numbers that torch computes with."""


def foreign_kind(result: Any) -> str:  # noqa: ANN401 - what user code returned
    """What forward returned that nothing here knows, by name; else empty.

    A subclass of Tensor with operations of its own, or floating numbers of 8 bits.
    """
    for one in _leaves(result):
        if _has_own_operations(type(one)):
            return type(one).__qualname__
        if isinstance(one, Tensor) and one.is_floating_point() and one.element_size() < SHORTEST:
            return str(one.dtype)
    return ""


def _has_own_operations(kind: type) -> bool:
    if not issubclass(kind, Tensor) or kind is Tensor:
        return False
    for name, disabled in (
        ("__torch_function__", _disabled_torch_function_impl),
        ("__torch_dispatch__", _disabled_torch_dispatch_impl),
    ):
        own, plain = getattr(kind, name), getattr(Tensor, name)
        if getattr(own, "__func__", own) not in (getattr(plain, "__func__", plain), disabled):
            return True
    return False


def _dense(returned: Any) -> Any:  # noqa: ANN401
    return returned.to_dense() if isinstance(returned, Tensor) and returned.layout in SPARSE else returned


def is_nested(result: Any) -> bool:  # noqa: ANN401
    """Whether a result is more than tensors side by side: a dict, a dataclass, tuples in tuples."""
    parts = result if isinstance(result, tuple | list) else (result,)
    return any(isinstance(p, tuple | list | dict) or dataclasses.is_dataclass(p) for p in parts)


def _leaves(result: Any) -> Iterator[Any]:  # noqa: ANN401
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, f.name) for f in dataclasses.fields(result)]
    elif isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        for one in result:
            yield from _leaves(one)
    else:
        yield result


def differentiate(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    keep: bool = False,
    create: bool = False,
    itself: bool = False,
    training: bool = False,
) -> Gradients:
    """Backward of the outputs that have a grad_output and a graph; None where nothing connects.

    User code gets copies of the grad_outputs, and what it returns is copied: what it writes into later is no
    one else's. `training`: as a training step goes through a module, by `.backward()`.
    """
    ends: list[Tensor] = []
    given: list[Tensor] = []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and output.requires_grad:
            ends.append(output)
            given.append(cotangent if itself else cotangent.clone())
    if not ends:
        return (None,) * len(leaves)
    if training and not create:
        found = _by_backward(ends, leaves, given, keep=keep)
    else:
        found = vjp(ends, leaves, given, keep=keep, create=create)
    taken = as_laid_out if itself or create else _as_ours
    return tuple(map(taken, found, leaves))


def _by_backward(
    ends: Sequence[Tensor], leaves: Sequence[Tensor], given: Sequence[Tensor], *, keep: bool
) -> tuple[Tensor | None, ...]:
    """What `.backward()` leaves in the `.grad` of leaves, as a training step has it.

    Reversible blocks and checkpoints call it again inside, for parameters that no input of theirs leads to.
    """
    for leaf in leaves:
        leaf.grad = None
    run_every_node(ends, given, keep=keep)
    found = tuple(leaf.grad for leaf in leaves)
    for leaf in leaves:
        leaf.grad = None
    return found


differentiate_again = partial(differentiate, keep=True)
"""The same, leaving the graph for another backward."""

differentiate_with_graph = partial(differentiate, keep=True, create=True)
"""The same, with a graph of backward itself."""

differentiate_in_place = partial(differentiate, itself=True)
"""Backward with the very tensors that are given and returned: for who looks at what becomes of them, or gives
them their places in memory."""


def copies(tensors: Sequence[Tensor]) -> Tensors:
    """Fresh tensors of the same values, without a graph."""
    return tuple(t.detach().clone() for t in tensors)


def with_zeros(gradients: Gradients, like: Sequence[Tensor]) -> Tensors:
    """Gradients with zeros in place of missing ones."""
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, like, strict=True))


def _as_ours(gradient: Tensor | None, leaf: Tensor) -> Tensor | None:
    """A gradient in memory that user code does not know: the next call may write into what it returned."""
    taken = as_laid_out(gradient, leaf)
    return taken if taken is None or taken is not gradient else taken.clone()


def as_laid_out(gradient: Tensor | None, leaf: Tensor) -> Tensor | None:
    """A sparse gradient of a dense input, as `Embedding(sparse=True)` gives it, is dense to every check.

    And zeros that torch keeps without memory have some: the first product of them loads torch's compiler,
    which takes a second.
    """
    if gradient is None or leaf.layout is not torch.strided:
        return gradient
    if type(gradient) is not Tensor and _has_own_operations(type(gradient)):
        gradient = _as_plain(gradient)
    if gradient.layout is not torch.strided:
        return gradient.to_dense()
    return gradient.clone() if gradient._is_zerotensor() else gradient  # noqa: SLF001 - no public name


def _as_plain(gradient: Tensor) -> Tensor:
    """The values of a subclass with operations of its own: the next backward gets them as they are."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - no public name
        return gradient.as_subclass(Tensor)
