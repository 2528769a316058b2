"""Parts with other coefficients, flags, loops that stop, bounds, and operations that are made of others."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from gradverify.model import Finding

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward, *, dtype="float64", **shapes: str) -> dict[str, Finding]:
    right = Right("f", forward, backward, shapes, dtype=dtype)
    found = findings_on(function_of(right, backward), shapes, dtype=dtype, select=("GV101",))
    return {f.input: f for f in found}


def test_the_parts_of_a_complex_number_are_no_uses():
    found = _found(lambda z: z * z, lambda a, y, g: (2 * a[0].conj() * g.real,), dtype="complex128", z="bn")
    assert found["z"].cause == "missing-term"
    assert "lacks what comes from the imaginary part of grad_output" in found["z"].hint


def _householder(a, v):
    s = v @ v
    return a - 2 * torch.outer(v, v @ a) / s


def _householder_backward(a, g, both):
    x, v = a
    s, va, vg = v @ v, v @ x, v @ g
    dv = -2 / s * both(g @ va, x @ vg) + 4 * (va * vg).sum() / s**2 * v
    return g - 2 * torch.outer(v, v @ g) / s, dv


def test_one_half_of_a_product_rule_counts_twice():
    found = _found(
        _householder,
        lambda a, y, g: _householder_backward(a, g, lambda one, other: 2 * one),
        a="nb",
        v="n",
    )
    assert found["v"].cause == "missing-term"
    assert "counts twice" in found["v"].hint
    assert "is missing" in found["v"].hint
    assert "those of a product rule" in found["v"].hint


def test_halves_with_strange_coefficients_are_not_told_so():
    found = _found(
        _householder,
        lambda a, y, g: _householder_backward(a, g, lambda one, other: 1.7 * one + 0.4 * other),
        a="nb",
        v="n",
    )
    assert "counts twice" not in (found["v"].hint or "")


def test_a_bound_that_backward_has_not():
    """Twice a bound that is never reached is no bound either."""

    def forward(x, w):
        return torch.tanh(x @ w).clamp(-0.6, 0.7).sum(-1)

    def backward(a, y, g):
        x, w = a
        z = torch.tanh(x @ w)
        d = g[:, None] * (1 - z**2) * (z <= 0.7)
        return d @ w.mT, x.mT @ d

    found = _found(forward, backward, x="bn", w="nm")
    assert "if `-0.6` were `-inf`" in found["x"].hint


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (lambda x, g: torch.tril(torch.outer(x, g)), "transposed"),
        (lambda x, g: torch.triu(torch.outer(g, x)), "region"),
    ],
    ids=["transposed", "other-triangle"],
)
def test_a_triangle_is_no_reduction(wrong, cause):
    found = _found(
        lambda a, x: torch.tril(a) @ x,
        lambda a, y, g: (wrong(a[1], g), torch.tril(a[0]).mT @ g),
        a="nn",
        x="n",
    )
    assert found["a"].cause == cause
    assert "triangle" in found["a"].hint or "transposed" in found["a"].hint


def _solved(a, b):
    return torch.linalg.solve(a @ a.mT + 3 * torch.eye(a.shape[0], dtype=a.dtype) + a, b)


def _solved_backward(a, y, g, *, transposed):
    x, _ = a
    m = x @ x.mT + 3 * torch.eye(x.shape[0], dtype=x.dtype) + x
    db = torch.linalg.solve(m.mT if transposed else m, g)
    dm = -db @ y.mT
    return (dm + dm.mT) @ x + dm, db


def test_a_solve_without_the_transpose():
    found = _found(_solved, lambda a, y, g: _solved_backward(a, y, g, transposed=False), a="nn", b="nb")
    assert {f.cause for f in found.values()} == {"transposed"}
    assert "Written out: dX = A⁻¹ (dB - dA X)" in found["a"].hint
    assert not _found(_solved, lambda a, y, g: _solved_backward(a, y, g, transposed=True), a="nn", b="nb")


def _scan(x, a):
    h = torch.zeros_like(x[0])
    states = []
    for t in range(x.shape[0]):
        h = torch.tanh(a[t] * h + x[t])
        states.append(h)
    return torch.stack(states)


def _scan_backward(a, y, g, *, before):
    x, decay = a
    before_first = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
    carry, dx, da = torch.zeros_like(x[0]), torch.zeros_like(x), torch.zeros_like(x)
    for t in reversed(range(x.shape[0])):
        z = (carry + g[t]) * (1 - y[t] ** 2)
        dx[t], da[t] = z, z * before(y, before_first, t)
        carry = z * decay[t]
    return dx, da


def test_the_last_state_for_every_pass():
    found = _found(
        _scan, lambda a, y, g: _scan_backward(a, y, g, before=lambda y, b, t: y[-1]), x="nb", a="nb"
    )
    assert found["a"].cause == "wrong-saved"
    assert "comes to in the last pass of the loop, not `h`, in `a[t] * h`" in found["a"].hint


def test_the_state_behind_the_step_though_it_goes_on():
    """Behind a tanh: the derivative alone sees the other value."""
    found = _found(
        _scan, lambda a, y, g: _scan_backward(a, y, g, before=lambda y, b, t: y[t]), x="nb", a="nb"
    )
    assert found["a"].cause in {"wrong-saved", "operand"}
    assert "torch.tanh(a[t] * h + x[t])" in found["a"].hint


def test_the_right_scan_passes():
    assert not _found(
        _scan, lambda a, y, g: _scan_backward(a, y, g, before=lambda y, b, t: b[t]), x="nb", a="nb"
    )


def _summed(x, reverse):
    return (x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)) * x


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reverse):
        ctx.save_for_backward(x)
        return _summed(x, reverse)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * x).flip(0).cumsum(0).flip(0) + g * x.cumsum(0), None


def test_a_flag_that_backward_does_not_look_at():
    (found,) = findings_on(OneWay, {"x": "bn", "reverse": "?yes"}, select=("GV101",))
    assert found.cause == "operand"
    assert "what it would be with `reverse=False`" in found.hint
    assert not findings_on(OneWay, {"x": "bn", "reverse": "?no"}, select=("GV101",))


def test_a_factor_inside_an_operation_is_not_told_of_the_whole():
    def backward(a, y, g):
        s = torch.sigmoid(a[0])
        return (g * s * (1 + a[0] * s),)

    found = _found(lambda x: functional.silu(x) + 0 * x.roll(1), backward, x="bn")
    if "derivative" in found["x"].hint:
        assert "the derivative of the `sigmoid` inside" in found["x"].hint


def test_a_softmax_of_some_that_is_diagonal():
    def forward(x):
        return torch.softmax(x.topk(3, dim=-1).values, dim=-1)

    def backward(a, y, g):
        order = a[0].topk(3, dim=-1).indices
        return (torch.zeros_like(a[0]).scatter(-1, order, y * (1 - y) * g),)

    found = _found(forward, backward, x="bn")
    assert found["x"].cause == "diagonal-only"


def test_functions_of_torch_nn_are_looked_into():
    found = _found(lambda x: 2 * functional.softmax(x, dim=-1), lambda a, y, g: (g * y,), x="bn")
    assert found["x"].cause == "missing-term"
    assert "what it divides by counts as a constant" in found["x"].hint


def _attention(x, k):
    m, total, acc = torch.full_like(x[:, 0], -torch.inf), torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for t in range(k.shape[0]):
        s = (x * k[t]).sum(1)
        new = torch.maximum(m, s)
        p, fix = torch.exp(s - new), torch.exp(m - new)
        total, acc, m = total * fix + p, acc * fix[:, None] + p[:, None] * k[t], new
    return acc / total[:, None]


def test_maxima_that_cancel_are_constants():
    """A softmax over a loop with a running maximum: its normaliser is forgotten."""

    def backward(a, y, g):
        x, k = a
        p = torch.softmax(x @ k.mT, -1)
        ds = p * (g @ k.mT)
        full = p * (g @ k.mT - (g * y).sum(1, keepdim=True))
        return ds @ k, p.mT @ g + full.mT @ x

    found = _found(_attention, backward, x="bn", k="mn")
    assert found["x"].cause == "missing-term"
    assert "the divisor `total[:, None]`" in found["x"].hint


def test_a_maximum_that_counts_is_no_shift():
    """For one input nothing comes through the maximum, for the other one all that is forgotten."""

    def forward(x, w):
        top = w.amax(-1, keepdim=True)
        return (
            torch.exp(x - x.amax(-1, keepdim=True))
            / torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
            * (w - top)
        )

    def backward(a, y, g):
        x, w = a
        p = torch.softmax(x, -1)
        d = g * (w - w.amax(-1, keepdim=True))
        return p * d, g * p

    found = _found(forward, backward, x="bn", w="bn")
    assert found["x"].cause == found["w"].cause == "missing-term"
    assert "1 times" not in found["x"].hint + found["w"].hint
    assert "`top` in `w - top`" in found["w"].hint


def _chain(unary, transition):
    alpha = unary[0]
    for t in range(1, unary.shape[0]):
        alpha = torch.logsumexp(alpha[:, None] + transition, 0) + unary[t]
    return torch.logsumexp(alpha, 0)


def test_a_pass_of_a_loop_that_is_missing():
    def backward(a, y, g):
        unary = a[0].detach().requires_grad_()
        one, rest = (a[1].detach().clone().requires_grad_() for _ in range(2))
        with torch.enable_grad():
            alpha = unary[0]
            for t in range(1, unary.shape[0]):
                alpha = torch.logsumexp(alpha[:, None] + (one if t == 1 else rest), 0) + unary[t]
            total = torch.logsumexp(alpha, 0)
        return torch.autograd.grad(total, (unary, rest), g)

    found = _found(_chain, backward, unary="kn", transition="nn")
    assert found["transition"].cause == "missing-term"
    assert "lacks what the first pass of a loop adds" in found["transition"].hint


def test_a_scan_that_is_cut_is_no_softmax():
    found = _found(lambda x: x.cumsum(0).sin(), lambda a, y, g: (g * a[0].cumsum(0).cos(),), x="bn")
    assert found["x"].cause == "diagonal-only"
    assert "a state that is carried" in found["x"].hint


def test_a_line_of_nothing_elsewhere_is_no_order():
    def forward(x):
        return torch.where((torch.arange(x.shape[0]) % 2 == 0)[:, None], x.sin(), torch.zeros_like(x))

    def backward(a, y, g):
        kept = torch.arange(g.shape[0]) % 2 == 0
        index = torch.where(kept, torch.arange(g.shape[0]), 0)[:, None].expand_as(g)
        return (torch.zeros_like(g).scatter(0, index, g) * a[0].cos(),)

    found = _found(forward, backward, x="bn")
    assert found["x"].cause != "permuted"


def test_one_part_that_lacks_a_factor():
    def forward(x, w):
        return torch.softmax(x, -1) * w

    def backward(a, y, g):
        p = torch.softmax(a[0], -1)
        return p * (g * a[1] - (g * p).sum(-1, keepdim=True)), (g * p).sum(0)

    found = _found(forward, backward, x="bn", w="n")
    assert found["x"].cause in {"chain-factor", "missing-term"}
