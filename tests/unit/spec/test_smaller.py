"""Smaller sizes for a case that fails: greedy, valid by the spec, never below what fails."""

from __future__ import annotations

import pytest

from gradverify.cases.further import Asked
from gradverify.cases.smaller import at_sizes_of, smallest


def counted(fails):
    asked = []

    def ask(sizes):
        asked.append(dict(sizes))
        return fails(sizes)

    return ask, asked


def test_what_fails_everywhere_shrinks_to_ones_in_one_try():
    ask, asked = counted(lambda _: True)
    assert smallest({"b": 3, "n": 4, "m": 5}, ask) == {"b": 1, "n": 1, "m": 1}
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda s: s["n"] >= 2, {"b": 1, "n": 2, "m": 1}),
        (lambda s: s["n"] == 4, {"b": 1, "n": 4, "m": 1}),
        (lambda s: s["b"] != s["m"] and min(s.values()) > 1, {"b": 3, "n": 2, "m": 2}),
        (lambda s: s == {"b": 3, "n": 4, "m": 5}, {"b": 3, "n": 4, "m": 5}),
    ],
)
def test_each_size_goes_down_as_far_as_it_fails(fails, expected):
    ask, asked = counted(fails)
    found = smallest({"b": 3, "n": 4, "m": 5}, ask)
    assert found == expected
    assert fails(found)
    assert len(asked) <= 12


def test_an_empty_case_stays_empty():
    ask, _ = counted(lambda s: s["b"] == 0)
    assert smallest({"b": 0, "n": 4}, ask) == {"b": 0, "n": 1}


SPEC = """
gradverify: 1
module: m.py
functions:
  free@Conv:
    sizes: {h: [6, 5], k: [3, 1]}
    inputs: {x: [h, h], w: [k, k], mode: {choices: [a, b]}}
    where: ["h >= k"]
"""


@pytest.fixture
def functions(read):
    return read(SPEC).functions


def test_the_spec_has_its_say(functions):
    case = functions["free@Conv"].cases[0]
    asked = Asked(functions["free@Conv"].sweep, "free@Conv")
    assert at_sizes_of(asked, case, {"h": 2, "k": 3}) is None
    small = at_sizes_of(asked, case, {"h": 2, "k": 1})
    assert (small.sizes, small.options) == ((("h", 2), ("k", 1)), case.options)
    assert small.inputs[0].shape == (2, 2)
    assert small.seed not in (0, case.seed)
