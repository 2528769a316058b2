"""Right maps are never called wrong; kinks are kinks, jumps and noise are not covered."""

import pytest
import torch

from gradverify.verifier.numerics.verdict import Judged, NotJudged


def exact_jacobian(maps, function, tensors):
    """The real Jacobian by torch.func, complex numbers as pairs."""

    def real(*parts):
        inputs = [
            torch.view_as_complex(p) if t.is_complex() else p for p, t in zip(parts, tensors, strict=True)
        ]
        outputs = maps.returned_tensors(function(*inputs))
        return torch.cat([(torch.view_as_real(y) if y.is_complex() else y).reshape(-1) for y in outputs])

    parts = tuple(torch.view_as_real(t) if t.is_complex() else t for t in tensors)
    blocks = torch.func.jacrev(real, argnums=tuple(range(len(parts))))(*parts)
    return torch.cat([b.reshape(b.shape[0], -1) for b in blocks], dim=1)


def assert_innocent(judged, where, kinds=("wrong", "imprecise", "nonfinite")):
    assert isinstance(judged, Judged), (where, judged)
    comparison = judged.comparison
    for kind in kinds:
        assert not getattr(comparison, kind).any(), (where, kind, comparison)


def test_smooth_maps_are_measured_to_within_their_error(maps, smooth):
    function, tensors = maps.drawn(smooth, 0)
    judged = maps.judged(function, *tensors)
    exact = exact_jacobian(maps, function, tensors)
    assert ((judged.measured.value - exact).abs() <= 10 * judged.measured.error).all()
    assert (judged.measured.value - exact).abs().max() <= 1e-9 * exact.abs().max()
    assert judged.comparison.covered.all()
    assert not judged.comparison.kinks.any()


def test_right_maps_are_never_wrong(maps, right, seeds):
    for seed in seeds:
        function, tensors = maps.drawn(right, seed)
        first, second = maps.judged_twice(function, *tensors, seed=seed)
        assert_innocent(first, (seed, "first"))
        if second is not None:
            # A backward with float32 inside is imprecise indeed.
            assert_innocent(second, (seed, "second"), ("wrong", "nonfinite"))


def test_smooth_maps_are_covered_at_second_order(maps, smooth):
    function, tensors = maps.drawn(smooth, 0)
    _, second = maps.judged_twice(function, *tensors)
    assert second.comparison.covered.all()


def test_kinks_are_marked_and_never_wrong(maps, kinked):
    function, values = kinked
    judged = maps.judged(function, torch.tensor(values, dtype=torch.float64))
    assert_innocent(judged, values)
    assert judged.comparison.kinks[:, 0].any()
    assert not judged.comparison.kinks[:, 2].any()


def test_jumps_are_uncovered_and_never_wrong(maps, jumping):
    function, values = jumping
    judged = maps.judged(function, torch.tensor(values, dtype=torch.float64))
    assert_innocent(judged, values)
    assert not judged.comparison.covered[0, 0]
    assert not judged.measured.error[0, 0].isfinite()
    assert judged.comparison.covered[:, 2].all()


@pytest.mark.parametrize("name", ["float32 inside", "cancelling", "large offset"])
def test_noise_is_reported(maps, name, seeds):
    for seed in seeds:
        function, tensors = maps.drawn(maps.HARD[name], seed)
        judged = maps.judged(function, *tensors)
        assert_innocent(judged, seed)
        exact, bound = judged.comparison.analytical, judged.comparison.bound
        honest = (judged.measured.value - exact).abs() <= bound
        assert (honest | ~judged.comparison.covered).all()
        assert (bound.diagonal() > 1e-9 * exact.diagonal().abs()).any()


class Surrogate(torch.autograd.Function):
    """Says one where forward is a kink: outside the one-sided slopes."""

    @staticmethod
    def forward(ctx, x):
        return torch.relu(x)

    @staticmethod
    def backward(ctx, g):
        return g * 3.0


def test_gradient_outside_the_slopes_of_a_kink_is_wrong(maps):
    judged = maps.judged(Surrogate.apply, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert judged.comparison.wrong.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("x", [1e-9, 2.1 * 2.0**-31, 5 / 3 * 2.0**-31, 5 / 3 * 2.0**-25, 2.0**-22, 1e-12])
def test_beside_a_kink_the_slope_is_the_slope(maps, x):
    """Some of the six points lie beyond the kink, in a way that D4 and D6 agree on."""
    judged = maps.judged(torch.relu, torch.tensor([x, 1.0, -1.5], dtype=torch.float64))
    assert_innocent(judged, x)
    assert judged.comparison.covered.all()
    assert not judged.comparison.kinks.any()


@pytest.mark.parametrize("height", [1e-6, 1e-4, 1e-2, 1.0])
def test_small_jumps_are_never_wrong_and_reported(maps, height):
    """Where other columns show how little noise there is, a jump is a jump and not noise."""
    x = torch.tensor([1.0, 0.3, -2.7, 0.8, 1.4], dtype=torch.float64)
    judged = maps.judged(lambda t: 10 * torch.sin(t).sum() + height * torch.floor(t[0]), x)
    assert_innocent(judged, height)
    assert judged.comparison.covered.tolist()[0][1:] == [True] * 4
    assert judged.measured.error[0, 0].isfinite() == (height < 1e-3)
    assert judged.measured.error[0, 0] > 10 * judged.measured.error[0, 1:].max()


def test_a_period_of_the_step_is_seen_through(maps):
    """At larger steps every sample has the same phase: a derivative of zero, without any noise."""
    x = torch.tensor([0.3, 0.26, 0.45], dtype=torch.float64)
    judged = maps.judged(lambda t: torch.sin(2 * torch.pi * 2**15 * t), x)
    assert_innocent(judged, "aliased")
    assert judged.comparison.covered.all()


def test_a_value_that_stands_alone_is_uncovered_and_never_wrong(maps):
    x = torch.tensor([1.0, 0.3, -2.7], dtype=torch.float64)
    judged = maps.judged(lambda t: torch.where(t == 1, t + 5, t), x)
    assert_innocent(judged, "alone")
    assert judged.comparison.covered.tolist() == [[False, True, True], [True] * 3, [True] * 3]


def test_random_forward_is_replayed_and_stochastic_one_is_not_judged(maps):
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    assert_innocent(maps.judged(lambda t: torch.nn.functional.dropout(t, 0.5) * t, x), "dropout")
    calls = []

    def drifting(t):
        calls.append(1)
        return t * len(calls)

    assert isinstance(maps.judged(drifting, x), NotJudged)


def test_empty_tensors(maps):
    judged = maps.judged(lambda x: x * 2, torch.zeros(0, dtype=torch.float64))
    assert judged.comparison.wrong.shape == (0, 0)
    judged = maps.judged(lambda x, y: y * 2 + x.sum(), torch.zeros(0).double(), torch.ones(2).double())
    assert judged.comparison.covered.all()


@pytest.mark.parametrize("shift", [8.0, 9.0, 10.0, 10.5])
def test_what_stands_still_below_some_step_is_not_the_function(maps, shift):
    """x · (1 - tanh²) far out: below some step tanh does not move, and x · constant is exactly linear."""

    class Saturated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x + shift)
            ctx.save_for_backward(x, y)
            return x * (1 - y * y)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            slope = 1 - y * y
            return g * (slope - 2 * x * y * slope)

    x = torch.tensor([0.72, 0.84, -0.41, 1.8], dtype=torch.float64)
    assert_innocent(maps.judged(Saturated.apply, x), shift, kinds=("wrong", "nonfinite"))


SEEDS = (1, 3, 4)


def _costs(seed):
    generator = torch.Generator().manual_seed(seed)
    return 3.5 * torch.rand(3, 4, generator=generator, dtype=torch.float64) - 1.75


def _plan(cost):
    return torch.exp(torch.log_softmax(torch.log_softmax(-cost / 0.02, 1), 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_hardly_moves_at_any_step_has_no_derivative_to_speak_of(maps, seed):
    """Entries far below the rounding of others in their row, whose expansion converges at no step."""
    judged = maps.judged(_plan, _costs(seed))
    assert_innocent(judged, "saturated")
    assert judged.comparison.covered.all()


@pytest.mark.parametrize("seed", SEEDS)
def test_but_a_gradient_is_wrong_there(maps, seed):
    class Plan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, cost):
            ctx.save_for_backward(cost)
            return _plan(cost)

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                cost = ctx.saved_tensors[0].detach().requires_grad_()
                (right,) = torch.autograd.grad(_plan(cost), cost, g)
            return right + 1e-6 * g

    wrong = maps.judged(Plan.apply, _costs(seed)).comparison.wrong
    assert wrong.diagonal().any()
    assert not (wrong & ~torch.eye(12, dtype=torch.bool)).any()


@pytest.mark.parametrize(("added", "verdict"), [(1e-6, "uncovered"), (1e-3, "wrong")])
def test_where_float32_stands_still_a_little_is_neither_right_nor_wrong(maps, added, verdict):
    """Numbers like one may have swallowed what moves; what they cannot have swallowed is a mistake."""

    class Narrow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (1e-4 * x[:1]).float()

        @staticmethod
        def backward(ctx, g):
            return torch.cat([1e-4 * g.double(), added * g.double()])

    comparison = maps.judged(Narrow.apply, torch.tensor([1.0, 1.5], dtype=torch.float64)).comparison
    assert comparison.wrong[0, 1] == (verdict == "wrong")
    assert not (comparison.covered[0, 1] and not comparison.wrong[0, 1])


def test_zero_where_larger_steps_leave_the_domain_is_zero(maps):
    """Entries of a Cholesky factor above the diagonal, of a matrix with a variable in tiny units."""

    def factor(x):
        return torch.linalg.cholesky(torch.diag(x) + 1e-9 * torch.ones(3, 3, dtype=x.dtype))

    judged = maps.judged(factor, torch.tensor([1e-7, 4.0, 400.0], dtype=torch.float64))
    assert judged.comparison.covered[judged.comparison.analytical == 0].all()


def test_stairs_near_the_edge_of_the_domain_prove_nothing(maps):
    """Larger steps leave the domain, and within the finest one float16 does not move: no zero is measured."""

    def stairs(x):
        inside = torch.where((x - 1.0).abs() < 1e-6, x, torch.nan)
        return inside.half().double() * torch.tensor([1.0, 0.0], dtype=x.dtype)

    judged = maps.judged(stairs, torch.tensor([1.0, 1.0], dtype=torch.float64))
    assert not judged.comparison.wrong.any()
