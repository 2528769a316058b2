"""Which line of backward reads memory where it should read values: two layouts, and what first differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gradverify.verifier.checks.variations.running import backward, called
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, operation_name, site_of_call, text_of

SAME = 1e-9
"""Relative deviation of values that were computed in another order: rounding, and no other memory."""

MOST_CALLS = 2000
"""Calls of one backward that are noted."""


@dataclass(frozen=True)
class _Noted:
    """One call of an operation in user code, with copies of what it got and gave."""

    site: Site
    got: tuple[Tensor, ...]
    gave: tuple[Tensor, ...]


@dataclass
class _Noting(TorchFunctionMode):
    """While it is active, every call of user code is noted."""

    calls: list[_Noted] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        got = _values((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        gave = _values(result)
        if gave and len(self.calls) < MOST_CALLS:
            self.calls.append(_Noted(site_of_call(operation_name(func), 0), got, gave))
        return result


def where_read(base: Verified, given: Sequence[Tensor], plain: Sequence[Tensor]) -> str:
    """A sentence on the first call whose values differ between two layouts; empty where none is seen."""
    runs = [_noted(base, grad_outputs) for grad_outputs in (plain, given)]
    for one, other in zip(*runs, strict=False):
        if one.site != other.site or not one.site.line:
            return ""
        if not _are_same(one.got, other.got):
            return (
                f"{_place(one.site)} is the first that gets other values than from a contiguous one: look at "
                "where they come from. "
            )
        if not _are_same(one.gave, other.gave):
            return f"{_place(one.site)} reads memory: of the same values it makes others. "
    return ""


def _noted(base: Verified, grad_outputs: Sequence[Tensor]) -> list[_Noted]:
    call = called(base.sample)
    if isinstance(call, Raised) or call.value.node is None:
        return []
    mode, node = _Noting(), call.value.node
    # Around torch.autograd.grad it would see that one call, and nothing of what goes on inside.
    handles = [node.register_prehook(lambda _: _enter(mode)), node.register_hook(lambda *_: _leave(mode))]
    backward(base.sample, call.value, grad_outputs)
    for handle in handles:
        handle.remove()
    return mode.calls


def _enter(mode: _Noting) -> None:
    mode.__enter__()  # type: ignore[no-untyped-call]


def _leave(mode: _Noting) -> None:
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _values(found: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Copies of plain tensors that have values: no meta ones, no subclasses with a mind of their own."""
    tensors = (leaf for leaf in _pytree.tree_leaves(found) if type(leaf) is Tensor)
    return tuple(t.detach().clone() for t in tensors if t.layout is torch.strided and not t.is_meta)


def _are_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(_is_same(a, b) for a, b in zip(one, other, strict=True))


def _is_same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    scale = a.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if a.numel() else 0.0
    return torch.allclose(a, b, rtol=SAME, atol=SAME * scale, equal_nan=True)


def _place(site: Site) -> str:
    quoted = text_of(site) or site.operation
    return f"`{quoted}` ({Path(site.file).name}:{site.line})"
