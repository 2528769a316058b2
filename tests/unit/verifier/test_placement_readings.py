"""Readings of the placements of a target: which there are, what follows from them, how they are said."""

from __future__ import annotations

import pytest

from gradverify.model import Case, PlacementReading, TensorInput
from gradverify.verifier.readings import _implies, _readings, in_words

LOCAL, SAME, PART = ("local", ""), ("replicate", ""), ("replicate", "partial")


def reading(output, **inputs):
    return PlacementReading(tuple((name, *way) for name, way in inputs.items()), (output,))


@pytest.mark.parametrize(
    ("right", "other", "implied"),
    [
        (reading("local", x=LOCAL), reading("partial", x=LOCAL), True),
        (reading("local", x=LOCAL), reading("on(0)", x=LOCAL), True),
        (reading("local", x=LOCAL), reading("replicate", x=LOCAL), False),
        (reading("local", x=LOCAL), reading("local", x=PART), True),
        (reading("local", x=LOCAL), reading("local", x=SAME), False),
        (reading("replicate", x=LOCAL), reading("local", x=LOCAL), False),
        (reading("local", x=LOCAL, w=SAME), reading("partial", x=PART, w=SAME), True),
        (reading("local", x=LOCAL, w=SAME), reading("local", x=LOCAL, w=PART), False),
    ],
)
def test_what_is_local_is_the_most_general(right, other, implied):
    assert _implies(right, other) is implied


def test_few_tensors_are_read_each_on_its_own_and_many_alike():
    def of(*tensors):
        return list(_readings(Case("c", 0, inputs=tensors)))

    x, tokens = TensorInput("x", (2,)), TensorInput("tokens", (2,), dtype="int64")
    assert len(of(x)) == 12
    assert len(of(x, tokens)) == 24
    assert {r.inputs[0][1:] for r in of(tokens)} == {LOCAL, SAME}
    many = of(*(TensorInput(name, (2,)) for name in "abcd"), tokens)
    assert len(many) == 12
    assert all(len({way[1:] for way in r.inputs[:4]}) == 1 for r in many)


def test_a_reading_is_said_in_words():
    said = in_words(reading("partial", x=LOCAL, w=LOCAL, b=PART, c=SAME))
    assert said == (
        "each rank has its own `x` and `w`, every rank has the same `b` and returns its part of the "
        "gradient, every rank has the same `c`, the sum of the outputs counts"
    )
    assert in_words(reading("on(0)", x=SAME)).endswith("the output of rank 0 alone counts")
