"""Structured points lie on their structure, and retractions stay on it."""

from __future__ import annotations

import random

import pytest
import torch

from gradverify.model import Point, TensorInput
from gradverify.verifier.inputs.structures import place, place_integers, retraction
from gradverify.verifier.inputs.tensors import build_tensor

SHAPES = {"unit-norm": (3, 4), "simplex": (3, 4), "sorted": (3, 5)}


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12)


def is_on(structure: str, x: torch.Tensor) -> bool:  # noqa: PLR0911
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    match structure:
        case "spd":
            return close(x, x.mT) and bool((torch.linalg.eigvalsh(x) > 0.1).all())
        case "symmetric":
            return close(x, x.mT)
        case "invertible":
            return bool((torch.linalg.svdvals(x) > 1e-3).all())
        case "triangular":
            return close(x, torch.tril(x))
        case "cholesky-factor":
            return close(x, torch.tril(x)) and bool((torch.diagonal(x, dim1=-2, dim2=-1) > 0).all())
        case "orthogonal":
            return close(x.mT @ x, eye.expand_as(x))
        case "unit-norm":
            return close(x.norm(dim=-1), torch.ones(x.shape[:-1], dtype=x.dtype))
        case "simplex":
            return close(x.sum(dim=-1), torch.ones(x.shape[:-1], dtype=x.dtype)) and bool((x > 0).all())
        case _:
            return bool((x.diff(dim=-1) >= 0).all())


STRUCTURES = ["spd", "symmetric", "invertible", "triangular", "cholesky-factor", "orthogonal", *SHAPES]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("structure", STRUCTURES)
def test_points_and_steps_lie_on_the_structure(structure, seed):
    torch.manual_seed(seed)
    base = place(structure, torch.rand(SHAPES.get(structure, (2, 3, 3)), dtype=torch.float64) * 4 - 2)
    assert is_on(structure, base)
    retract = retraction(structure, base)
    if retract is None:
        return
    assert torch.allclose(retract(base), base, rtol=0, atol=1e-12)
    assert is_on(structure, retract(base + 1e-3 * torch.randn_like(base)))


def test_the_gradient_through_a_retraction_is_tangential():
    base = place("unit-norm", torch.randn(2, 3, dtype=torch.float64))
    x = base.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((retraction("unit-norm", base)(x) ** 3).sum(), x)
    assert torch.allclose((gradient * base).sum(dim=-1), torch.zeros(2, dtype=torch.float64), atol=1e-12)


def integers(structure, shape, bounds, **fields):
    return TensorInput("k", shape, dtype="int64", structure=structure, range=bounds, **fields)


@pytest.mark.parametrize("seed", range(20))
def test_integer_structures(seed):
    source = random.Random(seed)
    offsets = place_integers(integers("offsets", (4,), (0, 10)), source)
    assert offsets[0] == 0
    assert offsets[-1] == 10
    assert offsets == sorted(offsets)
    assert sorted(place_integers(integers("permutation", (5,), (0, 5)), source)) == list(range(5))
    rows = place_integers(integers("one-hot", (3, 4), (0, 2)), source)
    assert [sum(rows[k : k + 4]) for k in (0, 4, 8)] == [1, 1, 1]
    ascending = place_integers(integers("sorted", (6,), (2, 9)), source)
    assert ascending == sorted(ascending)
    assert all(2 <= v < 9 for v in ascending)
    assert set(place_integers(integers("sorted", (60,), (2, 6), avoid=(2, 4)), source)) == {3, 5}


def test_offsets_longer_than_their_range_repeat():
    assert place_integers(integers("offsets", (6,), (0, 2)), random.Random(0))[-1] == 2


def test_an_unknown_structure_is_refused():
    with pytest.raises(ValueError, match="no floating structure"):
        place("offsets", torch.zeros(2))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
@pytest.mark.parametrize(("point", "draw"), [(Point.TYPICAL, 0), (Point.TYPICAL, 1), (Point.SPECIAL, 1)])
def test_one_hot_rows_of_every_dtype(dtype, point, draw):
    spec = TensorInput("x", (6, 4), dtype=dtype, structure="one-hot", requires_grad=False)
    rows = build_tensor(spec, 0, point, draw, "cpu")
    assert rows.dtype is getattr(torch, dtype)
    assert rows.sum(-1).tolist() == [1] * 6
    assert set(rows.flatten().tolist()) == {0, 1}


def test_special_integers_in_order():
    spec = TensorInput("x", (9,), dtype="int64", structure="sorted", range=(0, 5), special=(7,))
    values = build_tensor(spec, 0, Point.SPECIAL, 0, "cpu").tolist()
    assert 7 in values
    assert values == sorted(values)
