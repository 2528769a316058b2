"""Shapes that inference finds by what an error, or the gradient that came back, says of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.deduced import Deduced, DeducedTensor
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.infer.deduce import deduce


class Hat(Function):
    """Unpacked along its last dimension: three entries, of which the source speaks as of parts."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack((o, -z, y, z, o, -x, -y, x, o), -1).view(*w.shape, 3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y, z = g[..., 2, 1] - g[..., 1, 2], g[..., 0, 2] - g[..., 2, 0], g[..., 1, 0] - g[..., 0, 1]
        return torch.stack((x, y, z), -1)


class Turned(Function):
    """The imaginary part of a quaternion crossed with a vector: four and three entries."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, v)
        return torch.linalg.cross(q[..., 1:], v) + q[..., :1] * v

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        q, v = ctx.saved_tensors
        of_q = torch.cat(((g * v).sum(-1, keepdim=True), torch.linalg.cross(v, g)), -1)
        return of_q, torch.linalg.cross(g, q[..., 1:]) + q[..., :1] * g


class Solved(Function):
    """A matrix on the right is solved for, too; then the gradient of `a` has a dimension too many."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        m = a + 4 * torch.diag(torch.ones(len(a), dtype=a.dtype))
        x = torch.linalg.solve(m, b)
        ctx.save_for_backward(m, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        m, x = ctx.saved_tensors
        of_b = torch.linalg.solve(m.mT, g)
        return -of_b[..., :, None] * x[..., None, :], of_b


class Rows(Function):
    """Row pointers, computed with before an operation refuses them as floats."""

    @staticmethod
    def forward(ctx: Any, crow: Tensor, values: Tensor) -> Tensor:
        counts = crow[1:] - crow[:-1]
        rows = torch.arange(len(counts)).repeat_interleave(counts)
        ctx.save_for_backward(rows)
        return values.new_zeros(len(counts)).index_add(0, rows, values[: len(rows)])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, g[ctx.saved_tensors[0]]


def tensors_of(function: type[Function]) -> dict[str, DeducedTensor]:
    deduced = deduce(function, describe_target(function, function.__name__, "", __file__), None)
    assert isinstance(deduced, Deduced), deduced
    return {one.name: one for one in deduced.inputs if isinstance(one, DeducedTensor)}


def test_what_is_unpacked_has_so_many_entries() -> None:
    assert tensors_of(Hat)["w"].shape[-1] == "3"


def test_what_is_cut_before_it_is_crossed_is_longer() -> None:
    assert tensors_of(Turned)["q"].shape[-1] == "4"


def test_no_gradient_is_summed_where_a_lower_rank_needs_no_sum() -> None:
    assert {name: one.shape for name, one in tensors_of(Solved).items()} == {"a": ("n", "n"), "b": ("n",)}


def test_an_error_about_what_was_computed_is_about_what_it_was_computed_of() -> None:
    found = tensors_of(Rows)["crow"]
    assert (found.dtype, found.structure) == ("int64", "offsets")
