"""Matrix functions whose derivative is written out, one use of a value, and the value of another pass."""

from __future__ import annotations

import pytest
import torch

from gradverify.model import Finding

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _one(forward, backward, **shapes: str) -> Finding:
    right = Right("f", forward, backward, shapes)
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    return found


def _spd(x):
    return x @ x.mT + 2 * torch.eye(x.shape[0], dtype=x.dtype)


def _through_spd(x, d):
    return ((d + d.mT) @ x,)


def _factor(x):
    return torch.linalg.cholesky(_spd(x))


def _phi(p, *, lower=True, half=True):
    p = p.tril() if lower else p
    return p - 0.5 * p.diagonal().diag() if half else p


def _factor_backward(a, g, *, transposed=True, **phi):
    low = _factor(a[0])
    inside = torch.linalg.inv(low)
    p = _phi((low.mT if transposed else low) @ g, **phi)
    return _through_spd(a[0], 0.5 * (inside.mT @ p @ inside + (inside.mT @ p @ inside).mT))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"half": False}, "missing-term"),
        ({"lower": False}, "missing-term"),
        ({"transposed": False}, "transposed"),
    ],
    ids=["no-half", "no-triangle", "not-transposed"],
)
def test_a_mistake_inside_a_factorisation(change, cause):
    found = _one(_factor, lambda a, y, g: _factor_backward(a, g, **change), x="nb")
    assert found.cause == cause
    assert "derivative of `torch.linalg.cholesky(_spd(x))`" in found.hint
    assert "Written out: dL = L Φ(L⁻¹ dA L⁻ᵀ)" in found.hint


def test_the_right_factorisation_passes():
    right = Right("f", _factor, lambda a, y, g: _factor_backward(a, g), {"x": "nb"})
    assert findings_on(function_of(right, right.backward), right.shapes) == ()


def test_a_mistake_that_no_part_of_a_factorisation_makes_has_no_such_name():
    def backward(a, y, g):
        low = _factor(a[0])
        return _through_spd(a[0], torch.sin(low @ g))

    found = [
        f.hint
        for f in findings_on(
            function_of(Right("f", _factor, backward, {"x": "nb"}), backward), {"x": "nb"}, select=("GV101",)
        )
    ]
    assert not any("Written out" in hint for hint in found)


def test_eigenvectors_that_are_transposed_everywhere():
    def values(x):
        return torch.linalg.eigvalsh(_spd(x))

    def backward(a, y, g):
        v = torch.linalg.eigh(_spd(a[0]))[1].mT
        return _through_spd(a[0], (v * g) @ v.mT)

    found = _one(values, backward, x="nb")
    assert found.cause == "transposed"
    assert "a factor in the derivative of `torch.linalg.eigvalsh(_spd(x))`" in found.hint


WEIGHTED = {"x": "bn", "r": "bn", "w": "n"}


def _weighted(x, r, w):
    s = x + r
    return torch.tanh(s) * s * w


def _weighted_backward(a, g, *, saved):
    x, r, w = a
    s = x + r
    t = torch.tanh(s)
    d = g * w * ((1 - t * t) * s + t)
    return d, d, (g * torch.tanh(s) * saved(x, s)).sum(0)


def test_one_use_of_a_value_is_another_value():
    found = _one(_weighted, lambda a, y, g: _weighted_backward(a, g, saved=lambda x, s: x), **WEIGHTED)
    assert (found.input, found.cause) == ("w", "wrong-saved")
    assert "with the values of `x`, not those of `s`, in `torch.tanh(s) * s`" in found.hint


def test_a_use_of_what_is_no_value_of_forward_has_no_such_name():
    found = _one(
        _weighted,
        lambda a, y, g: _weighted_backward(a, g, saved=lambda x, s: x**3 - s),
        x="bn",
        r="bn",
        w="n",
    )
    assert found.cause != "wrong-saved"


def _scan(x, k):
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(k * h + x[:, t])
    return h


def test_the_state_of_another_pass_of_a_loop():
    """The gradient of the decay, with the states after each step in place of those before."""

    def backward(a, y, g):
        x, k = a
        states, h = [], torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = torch.tanh(k * h + x[:, t])
            states.append(h)
        dx, dk = torch.zeros_like(x), 0.0
        for t in reversed(range(x.shape[1])):
            dx[:, t] = g * (1 - states[t] ** 2)
            dk = dk + (dx[:, t] * (states[t] if t < x.shape[1] - 1 else 0 * h)).sum(0)
            g = dx[:, t] * k
        return dx, dk

    found = _one(_scan, backward, x="bmd", k="d")
    assert (found.input, found.cause) == ("k", "wrong-saved")
    assert "with `h` of the next pass of the loop, not that of its own pass, in `k * h`" in found.hint


def test_an_index_that_is_one_further():
    """In one of two terms: as a whole, the gradient is no shifted one."""

    def picked(x, w, index):
        return torch.index_select(x, 0, index) * w + (x * x).sum(0)

    def backward(a, y, g):
        x, w, index = a
        dx = torch.zeros_like(x).index_add(0, (index + 1) % x.shape[0], g * w)
        return dx + 2 * x * g.sum(0), g * x[index], None

    found = _one(picked, backward, x="mn", w="kn", index="!m/k")
    assert (found.input, found.cause) == ("x", "permuted")
    assert "with the index one further in the derivative of `torch.index_select(x, 0, index)`" in found.hint
