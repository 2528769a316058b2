"""Layouts: tensors to one vector and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradverify.verifier.numerics.problem import Layout

DTYPES = (torch.float64, torch.float32, torch.complex128)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
described = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4)


def tensors_of(description):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape, dtype in description]


@given(described)
def test_round_trip(description):
    tensors = tensors_of(description)
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors)
    back = layout.unflatten(vector)
    assert vector.dtype is torch.float64
    assert vector.numel() == layout.size
    for before, after in zip(tensors, back, strict=True):
        assert torch.equal(before, after)
        assert before.dtype is after.dtype
        assert before.shape == after.shape


@given(described)
def test_every_position_has_its_index(description):
    tensors = tensors_of(description)
    layout = Layout.of(tensors)
    vector = layout.flatten(tensors)
    for position in range(layout.size):
        number = layout.block_of(position)
        tensor = tensors[number]
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert real[layout.blocks[number].index(position)].item() == vector[position].item()


@given(described)
def test_unflattened_tensors_are_fresh(description):
    layout = Layout.of(tensors_of(description))
    vector = torch.arange(layout.size, dtype=torch.float64)
    before = vector.clone()
    for tensor in layout.unflatten(vector):
        assert not tensor._is_view()
        tensor.fill_(7)
    assert torch.equal(vector, before)


def test_flattened_vectors_are_fresh():
    x = torch.ones(3, dtype=torch.float64)
    vector = Layout.of([x]).flatten([x])
    vector.zero_()
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_missing_is_zero_and_real_fits_complex():
    z = torch.zeros(2, dtype=torch.complex128)
    layout = Layout.of([z, torch.zeros(1, dtype=torch.float64)])
    assert layout.flatten([None, torch.ones(1, dtype=torch.float64)]).tolist() == [0, 0, 0, 0, 1]
    assert layout.flatten([torch.ones(2, dtype=torch.float64), None]).tolist() == [1, 0, 1, 0, 0]


def test_conjugate_and_negative_views_are_resolved():
    z = torch.tensor([1 + 2j], dtype=torch.complex128)
    assert Layout.of([z]).flatten([z.conj()]).tolist() == [1.0, -2.0]
    imaginary = z.conj().imag
    assert imaginary.is_neg()
    assert Layout.of([imaginary]).flatten([imaginary]).tolist() == [-2.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_another_shape_is_refused(dtype):
    layout = Layout.of([torch.zeros(2, 3, dtype=dtype)])
    with pytest.raises(ValueError, match="laid out"):
        layout.flatten([torch.zeros(3, 2, dtype=dtype)])
    with pytest.raises(ValueError, match="laid out"):
        layout.flatten([torch.zeros(6, dtype=dtype)])


def test_rounding_is_each_dtypes_own():
    layout = Layout.of([torch.zeros(1, dtype=d) for d in (torch.float64, torch.float32, torch.complex64)])
    assert layout.rounding.tolist() == [2.0**-52, 2.0**-23, 2.0**-23, 2.0**-23]
