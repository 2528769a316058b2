"""Sizes that follow from others, and inputs that ran by chance."""

import ast
from dataclasses import replace

import torch

from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.complexes import provided_for
from gradverify.verifier.collect.inference.cuts import Cuts, cuts_of
from gradverify.verifier.collect.inference.multiples import by_fixed_size, by_parts, by_split, by_sums
from gradverify.verifier.collect.inference.relaxed import Cut, begun_again, evened, is_by_chance, uneven_cuts
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt

CELL = """
def forward(ctx, x, h, w):
    i, f, g, o = (torch.cat([x, h], 1) @ w.t()).chunk(4, 1)
    a, b = h.unbind(0)
    return x.conj() * i
"""


def state(*shapes, parts=(), joins=False):
    """Tensors of distinct symbols, named x, w, b."""
    made, arguments = State((), (), cuts=Cuts(frozenset(parts), joins)), []
    for name, rank in zip("xwb", shapes, strict=False):
        made, dims = made.fresh(rank)
        arguments.append(Argument(name, Guess(Kind.FLOAT, 0.0), dims))
    return replace(made, arguments=tuple(arguments))


def shapes(one):
    return [one.shape(a) for a in one.arguments]


def test_parts_and_joins_are_read_off_the_source():
    found = cuts_of(ast.parse(CELL))
    assert found == Cuts(frozenset({4}), joins=True)
    assert provided_for(ast.parse(CELL)) == {"x"}


def test_a_sum_of_two_symbols_has_a_value_and_is_written():
    dim = Dim(0, times=2, added=1)
    assert dim.value({0: 3, 1: 5}) == 11
    assert dim.written({0: "n", 1: "d"}) == "2*n + d"
    assert dim.symbols == (0, 1) and not dim.is_plain


def test_what_is_cut_becomes_a_multiple_of_what_its_parts_meet():
    before = state(1, 1, parts={4})
    (whole,), (other,) = shapes(before)
    part = -(-whole // 4)
    found = [s for s, _ in by_parts(before, [(part, other)])]
    assert any(s.arguments[0].dims == (Dim(before.arguments[1].dims[0].symbol, times=4),) for s in found)


def test_a_size_is_the_sum_of_two_only_where_something_is_joined():
    for joins in (True, False):
        before = state(2, 1, joins=joins)
        (n, d), (k,) = shapes(before)
        found = [s for s, _ in by_sums(before, [(n + d, k)])]
        assert [s.arguments[1].dims[0].value(s.values) for s in found] == ([n + d] if joins else [])


def test_what_is_split_is_a_multiple_of_its_parts():
    before = state(1, 1)
    (n,), (d,) = shapes(before)
    message = f"sum exactly to {n} (input tensor's size at dimension 0), but got split_sizes=[{d}, {d}]"
    assert shapes(next(by_split(before, message))[0]) == [(2 * d,), (d,)]


def test_a_fixed_last_dimension_is_that_of_one_argument_alone():
    before = state(2)
    shared = replace(before.arguments[0], name="w")
    before = replace(before, arguments=(*before.arguments, shared))
    found, _ = next(by_fixed_size(before, "Expected grid to have size 2 in last dimension", [1]))
    assert shapes(found) == [before.shape(shared), (before.shape(shared)[0], 2)]


def test_unequal_parts_are_seen_and_made_equal():
    before = state(2, parts={4})
    caller = Caller(lambda x: x.chunk(4, 1)[0], {}, {})
    cuts = uneven_cuts(caller, before)
    width = before.shape(before.arguments[0])[1]
    assert cuts == (Cut(width, 4),)
    after = next(evened(before, cuts))
    assert after.shape(after.arguments[0])[1] == 4 * width
    assert uneven_cuts(caller, after) == ()


def test_square_inputs_and_counts_of_one_hide_mistakes():
    free = state(2, 2)
    assert not is_by_chance(free)
    (n, d) = free.arguments[0].dims
    square = free.substituted(d.symbol, n)
    assert is_by_chance(square)
    again = list(begun_again(square))
    assert any(len(a.dims) == 1 for s in again for a in s.arguments)
    assert not is_by_chance(again[0])
    count = Argument("factor", Guess(Kind.LITERAL, 0.0, (1,), found=False))
    assert is_by_chance(replace(free, arguments=(*free.arguments, count)))


def test_a_complex_leaf_gets_a_gradient():
    made = state(1)
    made = made.with_argument(0, replace(made.arguments[0], dtype="complex128"))
    ran = attempt(Caller(lambda x: x * x.conj(), {}, {}), made)
    assert isinstance(ran, Ran)
    assert ran.gradients["x"].dtype is torch.complex128
