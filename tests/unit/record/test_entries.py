"""What an entry says of each argument: ranges that occurred, bounds of indices, choices, constants."""

from types import SimpleNamespace

import pytest

from gradverify.record.entries import TO_FILL_IN, as_recorded, dimensions_of, entry_of
from gradverify.record.reading import forms_of
from gradverify.spec.draft import entry_data
from tests.unit.record.test_sizes import call, literal, tensor


def entry(*calls):
    """What is written, and its inputs as plain data."""
    (form,) = forms_of(calls)
    found = dimensions_of(form, form.names)
    written = entry_of(found, as_recorded(found))
    inputs = entry_data(written.spec)["inputs"]
    return SimpleNamespace(inputs=inputs, remarks=written.remarks, gaps=written.gaps)


def index(*shape, low, high, **more):
    return tensor(*shape, dtype="int64", low=low, high=high, **more) | {"requires_grad": False}


def constant(*shape, **more):
    return tensor(*shape, **more) | {"requires_grad": False}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-3.2, 4.1, None),
        (0.001234, 0.9996, [0.00124, 0.999]),
        (-0.5, 0.25, [-0.5, 0.25]),
        (0.0, 7.0, [0.0, 7.0]),
        (-120.4, -2.001, [-120.0, -2.01]),
        (1.0, 1.0, None),
    ],
)
def test_the_range_of_floats_is_inside_what_occurred(low, high, expected):
    x = entry(call(x=tensor(4, low=low, high=high))).inputs["x"]
    assert (x.get("range") if isinstance(x, dict) else None) == expected


def test_values_that_are_not_finite_give_no_range():
    assert entry(call(x=tensor(4, finite=False)), call(x=tensor(5, low=0.1, high=0.2))).inputs["x"] == ["n"]


def test_an_index_is_bounded_by_the_size_just_above_it():
    inputs = entry(call(table=tensor(30, 8), i=index(6, low=0, high=28))).inputs
    assert inputs["i"]["range"] == [0, "n"]
    inputs = entry(call(logits=tensor(64, 10), t=index(64, low=0, high=9))).inputs
    assert inputs["t"]["range"] == [0, "d"]


def test_an_index_above_every_size_keeps_its_numbers():
    assert entry(call(x=tensor(3), i=index(3, low=2, high=11))).inputs["i"]["range"] == [2, 12]


def test_a_negative_index_is_not_drawn_but_reported():
    written = entry(call(x=tensor(9, 4), i=index(3, low=-100, high=8)))
    assert written.inputs["i"]["range"] == [0, "n"]
    assert "-100 was recorded too" in dict(written.remarks)["i"]


def test_offsets_end_with_a_size():
    cu = index(4, low=0, high=20, sorted=True) | {"dtype": "int32"}
    assert entry(call(q=tensor(20, 8), cu=cu)).inputs["cu"] == {
        "shape": ["m"],
        "dtype": "int32",
        "structure": "offsets",
        "range": [0, "n"],
    }


@pytest.mark.parametrize(("count", "distinct"), [(30, True), (3, False)])
def test_distinct_indices_count_only_where_chance_would_repeat_one(count, distinct):
    given = index(count, low=0, high=29, distinct=True)
    assert ("distinct" in entry(call(x=tensor(30), i=given)).inputs["i"]) is distinct


def test_what_never_requires_grad_is_a_constant():
    written = entry(call(x=tensor(4), mask=constant(4)))
    assert written.inputs["mask"] == {"shape": ["n"], "requires_grad": False}
    assert "never required grad" in dict(written.remarks)["mask"]


def test_without_any_gradient_nothing_is_called_constant():
    assert entry(call(x=constant(4), y=constant(5))).inputs == {"x": ["n"], "y": ["d"]}


def test_literals_become_choices_and_sizes():
    calls = (
        call(x=tensor(8), mode=literal("sum"), k=literal(8)),
        call(x=tensor(6), mode=literal("mean"), k=literal(6)),
    )
    inputs = entry(*calls).inputs
    assert inputs["mode"] == {"choices": ["sum", "mean"]}
    assert inputs["k"] == {"size": "n"}


def test_true_and_one_are_different_literals():
    assert entry(call(x=tensor(8), flag=literal(1))).inputs["flag"] == 1
    yes = {"kind": "literal", "value": True}
    assert len(forms_of([call(x=tensor(8), f=literal(1)), call(x=tensor(8), f=yes)])) == 2


def test_none_in_some_calls_is_optional():
    written = entry(call(x=tensor(8), b=literal(None)), call(x=tensor(8), b=tensor(8)))
    assert written.inputs["b"] == {"shape": ["n"], "optional": True}


def test_what_no_spec_can_say_is_a_gap_with_its_reason():
    nameless = {"kind": "object", "path": "", "type": "`<lambda>`"}
    written = entry(call(x=tensor(8), f=nameless))
    assert written.inputs["f"] == {"object": TO_FILL_IN}
    assert written.gaps == (("f", "is `<lambda>`, which cannot be imported by a name"),)
    (gap,) = entry(call(x=tensor(8), q=tensor(8, dtype="qint8"))).gaps
    assert gap[1] == "is a tensor of dtype qint8"
