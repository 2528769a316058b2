"""The six-point difference against derivatives that mpmath knows to fifty digits."""

import mpmath
import pytest
import torch

from gradverify.verifier.numerics.sampling import OFFSETS, six_point
from gradverify.verifier.numerics.tolerance import EPSILON

mpmath.mp.dps = 50

FUNCTIONS = {
    "sin": (torch.sin, mpmath.sin, (-2.0, 0.0, 0.7, 3.0, 40.0)),
    "exp": (torch.exp, mpmath.exp, (-20.0, 0.0, 0.7, 10.0)),
    "log": (torch.log, mpmath.log, (1e-3, 0.7, 1.0, 1e6)),
    "sqrt": (torch.sqrt, mpmath.sqrt, (1e-3, 0.7, 2.0, 1e6)),
    "reciprocal": (torch.reciprocal, lambda x: 1 / x, (1e-3, -0.7, 2.0, 1e6)),
    "tanh": (torch.tanh, mpmath.tanh, (-15.0, -0.7, 0.0, 2.0)),
    "erf": (torch.erf, mpmath.erf, (-4.0, -0.7, 0.0, 2.0)),
    "cube": (lambda x: x * x * x, lambda x: x * x * x, (-2.0, 0.0, 0.7, 1e6)),
    "atan": (torch.atan, mpmath.atan, (-20.0, 0.0, 0.7)),
    "lgamma": (torch.lgamma, mpmath.loggamma, (0.3, 1.7, 30.0)),
    "bump": (lambda x: torch.exp(-x * x), lambda x: mpmath.exp(-x * x), (0.0, 0.7, 4.0)),
}
CASES = [(name, x) for name, (_, _, points) in FUNCTIONS.items() for x in points]


def sampled(function, x, step):
    """Samples of a function of one number."""
    point = torch.tensor([x], dtype=torch.float64)
    exact = (point + step) - point
    return six_point({k: function(point + k * exact) for k in OFFSETS}, function(point), exact)


def rounding(function, x, step):
    """A few units in the last place of the largest value sampled: what torch's elementary functions keep."""
    points = x + torch.arange(-3, 4, dtype=torch.float64) * step
    return 4 * EPSILON * function(points).abs().max()


def scale_of(x):
    return 2.0 ** int(mpmath.floor(mpmath.log(abs(x), 2))) if x else 1.0


@pytest.mark.parametrize("relative", [2.0**-5, 2.0**-10, 2.0**-17, 2.0**-23])
@pytest.mark.parametrize(("name", "x"), CASES, ids=[f"{name}({x:g})" for name, x in CASES])
def test_error_bounds_the_true_error(name, x, relative):
    function, exact, _ = FUNCTIONS[name]
    samples = sampled(function, x, relative * scale_of(x))
    floor = rounding(function, x, relative * scale_of(x))
    true = abs(mpmath.diff(exact, mpmath.mpf(x)) - mpmath.mpf(samples.derivative.item()))
    assert true <= samples.error(floor).item()


@pytest.mark.parametrize(("name", "x"), CASES, ids=[f"{name}({x:g})" for name, x in CASES])
def test_error_is_not_absurd(name, x):
    function, exact, _ = FUNCTIONS[name]
    samples = sampled(function, x, 2.0**-10 * scale_of(x))
    value = function(torch.tensor([x], dtype=torch.float64)).abs()
    slope = abs(float(mpmath.diff(exact, mpmath.mpf(x))))
    natural = slope + value.item() / scale_of(x)
    assert samples.error(EPSILON * value).item() <= 1e-6 * natural


def test_polynomials_to_degree_six_are_exact_up_to_rounding():
    for degree in range(7):
        samples = sampled(lambda x, n=degree: x**n, 1.5, 2.0**-8)
        assert samples.derivative.item() == pytest.approx(degree * 1.5 ** (degree - 1), rel=1e-12)


def test_sixth_difference_measures_noise():
    generator = torch.Generator().manual_seed(4)
    sigma, count = 1e-9, 4000
    noisy = {k: sigma * torch.randn(count, generator=generator, dtype=torch.float64) for k in (*OFFSETS, 0)}
    centre = noisy.pop(0)
    samples = six_point(noisy, centre, torch.full((count,), 0.5, dtype=torch.float64))
    assert samples.noise.square().mean().sqrt().item() == pytest.approx(sigma, rel=0.05)
    error = samples.error(torch.full((count,), 2 * sigma, dtype=torch.float64))
    assert (samples.derivative.abs() <= 3 * error).all()


def test_what_cannot_be_evaluated_has_infinite_error():
    centre = torch.tensor([1.0, 2.0], dtype=torch.float64)
    values = {k: centre + k for k in OFFSETS}
    values[2] = torch.tensor([torch.nan, 4.0], dtype=torch.float64)
    samples = six_point(values, centre, torch.tensor(1.0, dtype=torch.float64))
    assert samples.truncation.tolist() == [torch.inf, 0.0]
    assert samples.derivative.tolist() == [0.0, 1.0]


def test_flat_is_bit_for_bit():
    centre = torch.tensor([1.0, 1.0], dtype=torch.float64)
    values = {k: centre.clone() for k in OFFSETS}
    values[3] = torch.tensor([1.0, 1.0 + EPSILON], dtype=torch.float64)
    samples = six_point(values, centre, torch.tensor(1.0, dtype=torch.float64))
    assert samples.flat.tolist() == [True, False]


def test_many_points_at_once_are_the_points_one_by_one():
    x = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    step = torch.tensor([2.0**-10, 2.0**-9, 2.0**-8], dtype=torch.float64)[:, None]
    points = {
        k: torch.stack([(x[:, None] + k * step).sin(), (x[:, None] + k * step).exp()], -1)[:, 0]
        for k in OFFSETS
    }
    centre = torch.stack([x.sin(), x.exp()], -1)
    together = six_point(points, centre, step)
    for row in range(3):
        alone = six_point({k: v[row] for k, v in points.items()}, centre[row], step[row])
        assert torch.equal(together.derivative[row], alone.derivative)
        assert torch.equal(together.noise[row], alone.noise)
