"""Layouts that the sweep puts tensors into: the same values, elsewhere in memory."""

import pytest
import torch

from gradverify.verifier.guard import RandomStates
from gradverify.verifier.numerics.calling import Snapshot, same_bits
from gradverify.verifier.questions.changes import (
    CHANNELS_LAST,
    CONJUGATED,
    FROM_SUMS,
    SLICED,
    TRANSPOSED,
    arranged,
)
from gradverify.verifier.questions.findings import listed_names

ARRANGEMENTS = (TRANSPOSED, SLICED, CHANNELS_LAST)

DTYPES = [torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool]
SHAPES = [(), (1,), (5,), (3, 4), (1, 4), (2, 3, 4), (2, 3, 2, 2), (2, 3, 2, 2, 2), (0, 3)]


def filled(shape, dtype):
    count = torch.Size(shape).numel()
    return (torch.arange(1, count + 1) % 7).to(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda a: a.name)
def test_values_stay_and_memory_differs(arrangement, shape, dtype):
    x = filled(shape, dtype)
    made = arrangement.arrange(x)
    if made is not None:
        assert torch.equal(made, x)
        assert made.dtype == dtype
        assert not made._is_view()
        assert made.storage_offset() or not made.is_contiguous()


def test_which_shapes_have_which_layouts():
    names = {
        shape: [a.name for a in ARRANGEMENTS if a.arrange(filled(shape, torch.float64)) is not None]
        for shape in SHAPES
    }
    assert names[()] == names[(1,)] == names[(5,)] == ["sliced out of a larger tensor"]
    assert names[(0, 3)] == []
    assert names[(3, 4)][0] == "transposed"
    assert names[(2, 3, 2, 2)][-1] == "channels-last"


def test_strides_are_those_of_the_name():
    x = filled((2, 3, 4, 5), torch.float64)
    made = {a.name: a.arrange(x) for a in ARRANGEMENTS}
    assert made["transposed"].permute(3, 2, 1, 0).is_contiguous()
    assert made["channels-last"].is_contiguous(memory_format=torch.channels_last)
    assert made["sliced out of a larger tensor"].stride() == (84, 28, 7, 1)
    assert made["sliced out of a larger tensor"].storage_offset() == 1
    assert SLICED.arrange(x.flatten()).stride() == (2,)


def test_expanded_memory_holds_other_values_too():
    """What reads it as contiguous gets a wrong value, and stays within the storage."""
    made = FROM_SUMS[0].arrange(filled((3, 4), torch.float32) + 1.5)
    assert made.stride() == (0, 0)
    assert torch.equal(made, torch.full((3, 4), 2.5))
    assert made.untyped_storage().nbytes() >= 12 * 4
    assert not torch.equal(made.as_strided((3, 4), (4, 1)), made)


def test_one_row_expanded():
    x = filled((3, 4), torch.float64)
    made = FROM_SUMS[1].arrange(x)
    assert made.stride() == (0, 1)
    assert torch.equal(made, x[:1].expand(3, 4))
    assert FROM_SUMS[1].arrange(x[:1]) is None


def test_an_arranged_argument_keeps_its_graph():
    x = filled((3, 4), torch.float64).requires_grad_()
    made = arranged(x, ARRANGEMENTS[0])
    weights = filled((3, 4), torch.float64)
    (grad,) = torch.autograd.grad((made * weights).sum(), x)
    assert torch.equal(grad, weights)


def test_same_bits_knows_nan_and_conjugates():
    nan = torch.tensor([1.0, torch.nan])
    assert same_bits(nan, nan.clone())
    assert not same_bits(nan, torch.tensor([1.0, 2.0]))
    assert not same_bits(nan, nan.double())
    z = torch.tensor([1 + 2j, complex(torch.nan, 0)])
    assert same_bits(z.conj(), z.conj().clone())


def test_a_snapshot_sees_writes_behind_the_version_counter():
    x = torch.ones(3)
    taken = Snapshot.of(x)
    assert not taken.changed
    x.data.mul_(2)
    assert taken.changed
    y = torch.ones(3)
    taken = Snapshot.of(y)
    y.mul_(1)
    assert taken.changed
    assert not taken.rewritten


def test_random_states_know_whether_something_was_drawn():
    states = RandomStates(3)
    states.replay()
    assert states.untouched()
    torch.rand(1)
    assert not states.untouched()
    states.replay()
    assert states.untouched()
    numpy = pytest.importorskip("numpy")
    states.replay()
    numpy.random.rand()
    assert not states.untouched()


def test_names_are_listed():
    assert listed_names(["x"]) == "`x`"
    assert listed_names(["x", "y", "z"]) == "`x`, `y` and `z`"


def test_a_lazy_conjugate_has_the_values_and_its_memory_has_not():
    z = torch.tensor([1 + 2j, 3 - 1j])
    made = CONJUGATED.arrange(z)
    assert made.is_conj()
    assert torch.equal(made, z)
    assert torch.equal(made.conj().view(torch.float32), z.conj().resolve_conj().view(torch.float32))
    assert CONJUGATED.arrange(z.real) is None
