"""Cases past constants of the source: valid by the same spec, and only where no case is past them yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradverify.cases.further import with_cases
from gradverify.cases.past import BLOCK_OF_THREADS, MULTIPLES_OF_16
from gradverify.model import SizeConstant
from gradverify.spec.plan import plan_function

BLOCK = SizeConstant(128, "BLOCK")


@pytest.fixture
def beyond(read):
    """The plan of the function `free` whose entry is the text, past constants."""

    def planned(entry, *constants):
        spec = read(f"module: m.py\nfunctions: {{free: {entry}}}\n")
        plan = plan_function(spec, "free")
        return with_cases(plan, replace(plan.asked, constants=constants))

    return planned


def at_of(plan):
    return [b.case.id for b in plan.beyond if ", at " in b.case.id or ", just past " in b.case.id]


def test_conditions_of_the_spec_hold(beyond):
    assert at_of(beyond('{inputs: {x: [n]}, where: ["n % 2 == 0"]}', BLOCK))[1:] == [
        "n=128, at BLOCK = 128",
        "n=256, at BLOCK = 128",
    ]
    assert len(at_of(beyond('{inputs: {x: [n]}, where: ["n <= 128"]}', BLOCK))) == 2


def test_what_is_not_tried_is_said(beyond):
    plan = beyond("{inputs: {x: [n]}}", SizeConstant(8192, "BLOCK"))
    assert len(plan.beyond) == 1
    assert plan.not_beyond == ("BLOCK = 8192: it is too large to be tried",)
    plan = beyond("{inputs: {x: [4, 3]}}", BLOCK)
    assert (plan.beyond, plan.not_beyond) == ((), ("BLOCK = 128: the spec names no sizes",))
    assert beyond("{inputs: {x: [4, 3]}}", SizeConstant(2)).not_beyond == ()


def test_inputs_and_their_number_stay_bounded(beyond):
    plan = beyond("{inputs: {x: [a, b, c]}}", *(SizeConstant(k) for k in (20, 100, 500, 2000)))
    assert 8 < len(plan.beyond) <= 12
    assert set(plan.not_beyond) == {
        "100 (line 0) (c=200): enough other sizes are tried",
        "500 (line 0) (a=500): enough other sizes are tried",
        "500 (line 0) (a=501): enough other sizes are tried",
        "500 (line 0) (a=1000): enough other sizes are tried",
        *(f"2000 (line 0) (a={n}): enough other sizes are tried" for n in (2000, 2001, 4000)),
    }
    large = beyond("{sizes: {a: 2001, n: 3}, inputs: {x: [a, n]}}", SizeConstant(1000, "ROWS"))
    assert "ROWS = 1000 (n=2000): its inputs would be too large" in large.not_beyond


@pytest.mark.parametrize(
    ("entry", "device", "tried", "said"),
    [
        ("{sizes: {b: [4, 2]}, inputs: {x: [b]}}", "cpu", 4, ()),
        (
            "{sizes: {b: [4, 2]}, inputs: {x: [b]}}",
            "cuda",
            0,
            tuple(f"{c}: the spec lists the sizes" for c in (MULTIPLES_OF_16, BLOCK_OF_THREADS)),
        ),
        ("{inputs: {x: [b]}}", "cuda", 4, ()),
    ],
)
def test_sizes_that_a_spec_lists_are_not_passed_on_a_gpu_which_is_said(read, entry, device, tried, said):
    """A compiled kernel that leaves its tensors there may lose the device."""
    spec = read(f"module: m.py\nfunctions: {{free: {entry}}}\n")
    plan = plan_function(spec, "free")
    asked = replace(plan.asked, constants=(BLOCK_OF_THREADS,), on_cpu=device == "cpu")
    plan = with_cases(plan, asked)
    assert len(plan.beyond) == tried
    assert plan.not_beyond == said


def test_each_constant_its_double_and_its_successor_are_tried_and_16(beyond):
    plan = beyond("{inputs: {x: [b, n]}}", SizeConstant(64, "HEAD"))
    assert at_of(plan) == [
        "b=16,n=16, at multiples of 16",
        "b=64,n=64, at HEAD = 64",
        "b=65,n=65, just past HEAD = 64",
        "b=128,n=128, at HEAD = 64",
    ]
    assert not any(b.declared for b in plan.beyond)


def test_sizes_are_tried_alone_where_together_they_are_many_or_forbidden(beyond):
    large = beyond("{inputs: {x: [a, b, c, d]}}", SizeConstant(17, "C"))
    assert at_of(large)[:2] == ["a=16,b=16,c=16,d=16, at multiples of 16", "a=17, at C = 17"]
    apart = beyond('{inputs: {x: [a, b]}, where: ["a != b"]}')
    assert at_of(apart) == ["a=16, at multiples of 16", "b=16, at multiples of 16"]
    assert at_of(beyond('{inputs: {x: [a]}, where: ["a < 16"]}')) == []


def test_a_size_that_the_spec_lists_is_not_tried_again(beyond):
    plan = beyond("{sizes: {n: [4, 16]}, inputs: {x: [n]}}", SizeConstant(16, "C"))
    assert at_of(plan) == ["n=17, just past C = 16", "n=32, at C = 16"]
    assert all(b.declared for b in plan.beyond)


def test_sizes_in_pairs_stay_pairs_at_a_constant_too(beyond):
    even = "{sizes: {n: [4, 8]}, inputs: {x: [n]}}"
    assert at_of(beyond(even, SizeConstant(6, line=3))) == [
        "n=6, at 6 (line 3)",
        "n=12, at 6 (line 3)",
        "n=16, at multiples of 16",
    ]
    assert at_of(beyond(even, SizeConstant(4, line=3))) == ["n=16, at multiples of 16"]
