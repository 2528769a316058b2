"""Slopes of closed forms lie within their errors; forward is never called outside of what was declared."""

import pytest
import torch
from extent import extent
from hypothesis import given, settings
from hypothesis import strategies as st

from gradverify.verifier.witnesses.claim import units
from gradverify.verifier.witnesses.judge import OTHER_SHARE
from gradverify.verifier.witnesses.values import FLOAT32, Values

FORMS = {
    "exp": (torch.exp, torch.exp),
    "sin": (torch.sin, torch.cos),
    "steep sine": (lambda x: (300 * x).sin(), lambda x: 300 * (300 * x).cos()),
    "cube": (lambda x: x**3, lambda x: 3 * x * x),
    "root": (lambda x: (x * x + 1).sqrt(), lambda x: x / (x * x + 1).sqrt()),
    "cancels": (lambda x: (x + 1e6) - 1e6 + x**2, lambda x: 1 + 2 * x),
}


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
@settings(max_examples=extent(20, 60), deadline=None)
def test_no_two_slopes_refute_the_derivative(made, name, data):
    """One may be lucky in its rounding, and is measured again with other steps before anything is wrong."""
    function, derivative = FORMS[name]
    entries = st.floats(0.05, 3).map(lambda v: round(v, 4))
    x = torch.tensor(data.draw(st.lists(entries, min_size=1, max_size=4)), dtype=torch.float64)
    values = Values(made.problem_of(function, x))
    for column in range(len(x)):
        v = values.unit(column)
        expected = torch.where(torch.arange(len(x)) == column, derivative(x), 0.0)
        refuted = torch.ones_like(x, dtype=torch.bool)
        for share in (1.0, OTHER_SHARE):
            if share == OTHER_SHARE:
                values.know_noise()
            found = values.slope(v, share).times(1 / float(v[column]))
            allowed = torch.maximum(found.error, 1e-7 * expected.abs() + 1e-15)
            refuted &= (found.value - expected).abs() > allowed
        assert not bool(refuted.any())


def test_a_kink_has_both_slopes(made):
    x = torch.tensor([0.0, 1.5], dtype=torch.float64)
    values = Values(made.problem_of(torch.abs, x))
    found = values.slope(values.unit(0)).times(1 / float(values.scale[0]))
    assert found.kink.tolist() == [True, False]
    assert (round(float(found.low[0]), 6), round(float(found.high[0]), 6)) == (-1.0, 1.0)


def test_a_curve_has_none(made):
    x = torch.tensor([0.0, 1.5], dtype=torch.float64)
    values = Values(made.problem_of(lambda t: t**2 + t**4, x))
    assert not bool(values.slope(values.unit(0)).kink.any())


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-2.0, 0.25)])
def test_forward_is_called_within_the_declared_range_alone(made, ends):
    met = []

    def function(x):
        met.append(x.detach().clone())
        return x.exp()

    low, high = ends
    x = torch.tensor([low, high, (low + high) / 2, high - 1e-5], dtype=torch.float64)
    bounds = torch.full_like(x, low), torch.full_like(x, high)
    values = Values(made.problem_of(function, x), bounds=bounds)
    for column in range(len(x)):
        v = values.unit(column)
        found = values.slope(v)
        expected = float(x[column].exp() * v[column])
        assert abs(float(found.value[column]) - expected) <= float(found.error[column])
    values.first_difference(values.direction(3), 2.0**-12)
    every = torch.stack(met)
    assert bool(((every >= low) & (every <= high)).all())


def test_float32_inside_is_within_its_error(made):
    x = torch.tensor([0.3, 1.1, 2.7], dtype=torch.float64)
    values = Values(made.problem_of(lambda t: t.float().sin().double(), x), steps=FLOAT32)
    for column in range(3):
        v = values.unit(column)
        found = values.slope(v).times(1 / float(v[column]))
        assert abs(float(found.value[column] - x[column].cos())) <= float(found.error[column]) < 1e-2


def test_held_entries_do_not_move(made):
    x = torch.tensor([0.3, 1.1], dtype=torch.float64)
    held = torch.tensor([True, False])
    values = Values(made.problem_of(torch.sin, x), held=held)
    assert float(values.direction(1)[0]) == 0.0


def test_a_few_rows_take_no_memory_for_all():
    assert units(10**7, [3])[0].nonzero().tolist() == [[3]]
