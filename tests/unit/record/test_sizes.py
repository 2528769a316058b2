"""Recorded dimensions become symbols: equal in every call is one size; small sizes keep the order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradverify.record.entries import dimensions_of, relations, shrunk, sizings, strong_relations
from gradverify.record.reading import Call, forms_of


def tensor(*shape, dtype="float32", **more):
    return {
        "kind": "tensor",
        "shape": list(shape),
        "dtype": dtype,
        "requires_grad": True,
        "layout": "strided",
        **more,
    }


def literal(value):
    return {"kind": "literal", "value": value}


def call(**arguments):
    return Call(tuple(arguments.items()))


def found(*calls):
    (form,) = forms_of(calls)
    return dimensions_of(form, form.names)


def test_what_is_equal_in_every_call_is_one_size():
    sizes = found(call(x=tensor(8, 4), w=tensor(8, 4)), call(x=tensor(6, 4), w=tensor(8, 4)))
    assert sizes.vectors == {"n": (8, 6), "d": (4, 4), "m": (8, 8)}


def test_a_size_of_one_broadcasts_and_stays():
    sizes = found(call(x=tensor(8, 1), w=tensor(1)))
    assert sizes.vectors == {"n": (8,)}
    assert sizes.places[(0,), 1] == "1"


def test_a_tensor_that_is_absent_in_some_calls_says_nothing_about_them():
    sizes = found(call(x=tensor(8, 4), b=literal(None)), call(x=tensor(6, 4), b=tensor(4)))
    assert sizes.places[(1,), 0] == "d"


def test_names_of_parameters_are_no_sizes():
    assert list(found(call(n=tensor(8, 4))).vectors) == ["d", "m"]


def test_other_ranks_are_another_form():
    first, second = forms_of([call(x=tensor(3)), call(x=tensor(3, 4)), call(x=tensor(5))])
    assert [len(form.calls) for form in (first, second)] == [2, 1]


def test_empty_tensors_are_left_out_where_there_are_others():
    (form,) = forms_of([call(x=tensor(0, 4)), call(x=tensor(3, 4))])
    assert len(form.calls) == 1
    assert len(forms_of([call(x=tensor(0, 4))])) == 1


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(32, 8), (64, 16), (96, 24)], {"n": "4 * d"}),
        ([(33, 32), (17, 16), (9, 8)], {"n": "d + 1"}),
        ([(33, 32), (18, 16), (9, 8)], {}),
    ],
)
def test_a_relation_over_several_sizes_is_kept(calls, expected):
    sizes = found(*(call(x=tensor(a), y=tensor(b)) for a, b in calls))
    assert strong_relations(sizes) == expected


def test_a_relation_of_one_call_may_be_chance():
    sizes = found(call(x=tensor(32, 8), y=tensor(4)))
    assert strong_relations(sizes) == {}
    assert relations(sizes)["n"] == "4 * d"


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=12))
def test_shrunk_sizes_keep_order_and_are_distinct(sizes):
    small = shrunk(sizes)
    assert sorted(small) == sorted(sizes)
    assert [small[size] for size in sorted(sizes)] == sorted(set(small.values()))
    assert all(small[size] <= size for size in sizes)
    assert all(small[size] == size for size in sizes if size <= 5)


def test_an_even_size_stays_even():
    assert shrunk([2, 64, 99, 512]) == {2: 2, 64: 4, 99: 5, 512: 6}


def test_the_last_sizes_to_be_tried_are_the_recorded_ones():
    sizes = found(call(x=tensor(64, 10)), call(x=tensor(17, 10)))
    first, *_, last = sizings(sizes)
    assert first.values == {"n": (5, 6), "d": (4,)}
    assert last.values == {"n": (17,), "d": (10,)}
