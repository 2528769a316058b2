"""Spare cases: other sizes for the diagnosis, valid by the same spec."""

from __future__ import annotations


def spares(plan, text):
    return plan(text).spares


def test_every_size_is_another_one_and_no_two_are_equal(plan):
    found = spares(plan, "{sizes: {b: 3, n: 4, m: 5}, inputs: {x: [b, n], weight: [m, n]}}")
    sizes = dict(found[0].sizes)
    assert min(sizes.values()) >= 3
    assert len(set(sizes.values())) == 3
    assert all(sizes[name] != n for name, n in {"b": 3, "n": 4, "m": 5}.items())
    assert found[0].inputs[0].shape == (sizes["b"], sizes["n"])


def test_conditions_hold_in_spare_cases(plan):
    text = '{sizes: {g: 2, c: 4}, inputs: {x: [c, g]}, where: ["c % g == 0"]}'
    found = spares(plan, text)
    assert found
    assert all(dict(s.sizes)["c"] % dict(s.sizes)["g"] == 0 for s in found)


def test_undeclared_sizes_change_too(plan):
    planned = plan("{inputs: {x: [b, n], weight: [m, n]}}")
    before, after = dict(planned.cases[0].sizes), dict(planned.spares[0].sizes)
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_lengths_change_their_parity(plan):
    found = spares(plan, "{sizes: {h: 4, w: 5, k: 6}, inputs: {x: [h, w], at: [k]}}")
    sizes = dict(found[0].sizes)
    assert all((sizes[name] - n) % 2 for name, n in {"h": 4, "w": 5, "k": 6}.items())
