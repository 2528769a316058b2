"""Shapes that inference finds by what an error, or the gradient that came back, says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.cases.inputs import TensorSpec
from gradverify.cases.sizes import Expression
from gradverify.deduced import Deduced
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.infer.search import MOST_LACKING
from gradverify.verifier.targets.discover import describe_target


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


class Columns(Function):
    """Asks for a column for each matrix, in the names of the matrices' sizes."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        n, m, _ = a.shape
        assert b.shape == (n, m, 1)
        assert c.size() == b.size()
        ctx.save_for_backward(a, b + c)
        return a.mT @ (b + c)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return b @ g.mT, a @ g, a @ g


class OneScale(Function):
    """Two points are constants, and their scale is one number for all columns; four rows at least."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        if any(ctx.needs_input_grad[:2]):
            raise RuntimeError("no gradients with respect to x and y")
        if scale.size(-1) > 1:
            raise ValueError("several scales")
        if x.shape[0] <= 8:
            raise ValueError("too few rows")
        ctx.save_for_backward(x - y, scale)
        return (x - y) / scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        difference, scale = ctx.saved_tensors
        return None, None, (-g * difference / scale**2).sum_to_size(scale.shape)


class IndexedInBackward(Function):
    """Forward hands an index on, which backward alone reads, one entry at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chosen: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(chosen, table)
        return x @ table.mT

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        chosen, table = ctx.saved_tensors
        for one in chosen:
            table[one].norm()
        return g @ table, None, None


class Flat(Function):
    """As a kernel reads: whatever lies in memory behind a shorter tensor, here zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * read(y, x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * read(y, x.shape), read(g * x, y.shape)


def read(tensor: Tensor, shape: torch.Size) -> Tensor:
    flat = torch.cat((tensor.detach().flatten(), tensor.new_zeros(shape.numel())))
    return flat[: shape.numel()].reshape(shape)


class OfAnotherDevice(Function):
    """Refuses every tensor that is not where it wants it."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        OfAnotherDevice.calls += 1
        raise RuntimeError("x must be a CUDA tensor")

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g


def tensors_of(function: type[Function]) -> dict[str, TensorSpec]:
    deduced = deduce(function, describe_target(function, function.__name__, "", __file__), None)
    assert isinstance(deduced, Deduced), deduced
    return {one.name: one for one in deduced.inputs if isinstance(one, TensorSpec)}


def test_what_is_unpacked_has_so_many_entries() -> None:
    assert tensors_of(Hat)["w"].shape[-1] == 3


def test_what_is_cut_before_it_is_crossed_is_longer() -> None:
    assert tensors_of(Turned)["q"].shape[-1] == 4


def test_no_gradient_is_summed_where_a_lower_rank_needs_no_sum() -> None:
    n = Expression("n")
    assert {name: one.shape for name, one in tensors_of(Solved).items()} == {"a": (n, n), "b": (n,)}


def test_a_shape_in_the_sizes_of_another_one_is_taken_from_an_assertion() -> None:
    shapes = {name: one.shape for name, one in tensors_of(Columns).items()}
    assert shapes["b"] == shapes["c"] == (*shapes["a"][:2], 1)


def test_what_forward_refuses_to_differentiate_is_a_constant_and_bounds_are_kept() -> None:
    found = tensors_of(OneScale)
    assert {name: one.requires_grad for name, one in found.items()} == {"x": False, "y": False, "scale": None}
    assert (found["x"].shape[0], found["scale"].shape[-1]) == (9, 1)


def test_what_backward_alone_indexes_by_is_an_index() -> None:
    assert tensors_of(IndexedInBackward)["chosen"].dtype == "int64"


def test_an_error_about_what_was_computed_is_about_what_it_was_computed_of() -> None:
    found = tensors_of(Rows)["crow"]
    assert (found.dtype, found.structure) == ("int64", "offsets")


def test_sizes_that_a_kernel_takes_are_no_sizes_of_their_own() -> None:
    target = describe_target(Flat, "Flat", "", __file__)
    apart, together = (
        deduce(Flat, replace(target, compiled=compiled), None) for compiled in ((), ("_C.multiply",))
    )
    assert isinstance(apart, Deduced) and isinstance(together, Deduced)
    (x, y), (u, v) = ([i.shape for i in one.inputs if isinstance(i, TensorSpec)] for one in (apart, together))
    assert x != y
    assert u == v


def test_a_search_ends_early_where_every_call_lacks_a_device() -> None:
    found = deduce(OfAnotherDevice, describe_target(OfAnotherDevice, "OfAnotherDevice", "", __file__), None)
    assert isinstance(found, tuple) and all(one.missing for one in found)
    assert OfAnotherDevice.calls <= 3 * MOST_LACKING
