"""How tensors lie on ranks: every word of the table, taken apart and made whole."""

import pytest
import torch
from torch.distributed.tensor import Shard

from gradverify.model import TensorInput
from gradverify.verifier.ranks.placement import (
    Placement,
    chunks,
    columns_of_ranks,
    is_same,
    of_input,
    of_output,
    parts,
    whole,
)


def never(*_):
    raise AssertionError("nothing differs")


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("word", ["local", "replicate", "shard(0)", "shard(1)"])
def test_what_is_taken_apart_is_made_whole_again(word, world):
    place = Placement.of(word)
    value = torch.randn(world, 4, 3) if word == "local" else torch.randn(4, 6)
    assert torch.equal(whole(place, parts(place, value, world), never), value)


def test_sums_and_means():
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    assert whole(Placement.of("partial"), rows, never).tolist() == [4.0, 8.0]
    assert whole(Placement.of("partial(avg)"), rows, never).tolist() == [2.0, 4.0]
    assert whole(Placement.of("on(1)"), rows, never).tolist() == [3.0, 6.0]


@pytest.mark.parametrize(("size", "world"), [(6, 2), (5, 3), (2, 4), (0, 2), (7, 3)])
def test_chunks_are_those_of_dtensor(size, world):
    value = torch.arange(size)
    ours = [chunk.tolist() for chunk in chunks(value, world, 0)]
    theirs, _ = Shard(0)._split_tensor(value, world, with_padding=False)
    assert ours == [chunk.tolist() for chunk in theirs]


def test_shapes_that_differ_between_ranks():
    place = Placement("local", shapes=((1, 2), (3, 2)))
    flat = torch.arange(8.0)
    first, second = parts(place, flat, 2)
    assert first.shape == (1, 2)
    assert second.shape == (3, 2)
    assert torch.equal(whole(place, [first, second], never), flat)


def test_replicated_values_that_differ_are_reported_with_their_rank():
    reported = []
    same, other = torch.ones(2), torch.tensor([1.0, 1.5])
    whole(Placement.of("replicate"), [same, same, other], lambda rank, *_: reported.append(rank))
    whole(Placement.of("replicate(partial)"), [same, other], lambda rank, *_: reported.append(rank))
    assert reported == [2, 1]


def test_a_sum_in_another_order_is_the_same_value():
    one = torch.tensor([1e8, 1e-3], dtype=torch.float64)
    assert is_same(one, one + torch.tensor([2e-8, 0.0], dtype=torch.float64))
    assert not is_same(one, one + torch.tensor([10.0, 0.0], dtype=torch.float64))
    assert not is_same(one, one.float())
    assert is_same(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    ("declared", "value", "gradient"),
    [
        (TensorInput("x", (2, 3), placement="local"), "local", "local"),
        (TensorInput("x", (2, 3), placement="partial"), "local", "local"),
        (TensorInput("x", (3,), placement="replicate"), "replicate", "replicate"),
        (TensorInput("x", (3,), placement="replicate", gradient="partial"), "replicate", "partial"),
        (TensorInput("x", (3,), placement="replicate", gradient="partial(avg)"), "replicate", "average"),
        (TensorInput("x", (3,), placement="shard(0)"), "shard", "shard"),
    ],
)
def test_the_gradient_of_an_input(declared, value, gradient):
    placed = of_input(declared)
    assert (placed.value.kind, placed.gradient.kind) == (value, gradient)


def test_the_grad_output_of_an_output():
    assert of_output("partial").gradient.kind == "replicate"
    assert of_output("replicate(partial)").gradient.kind == "local"
    assert of_output("on(1)").gradient == Placement("on", 1)


def test_the_columns_of_each_rank():
    rows = columns_of_ranks(Placement.of("shard(1)"), (2, 4), 2)
    assert [r.tolist() for r in rows] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert columns_of_ranks(Placement.of("replicate"), (2, 4), 2) == ()
