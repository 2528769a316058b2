"""Causes that are one operation of forward: its derivative left out, or taken at another value."""

from __future__ import annotations

import torch

from gradverify.model import Finding

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _one(forward, backward, **shapes: str) -> Finding:
    right = Right("f", forward, backward, shapes)
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    return found


def _normed(x):
    centred = x - x.mean(-1, keepdim=True)
    var = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(var + 0.1)


def _normed_parts(a):
    centred = a - a.mean(-1, keepdim=True)
    s = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 0.1)
    return centred, s


def test_a_path_that_is_missing():
    """The variance is taken for a constant."""

    def backward(a, y, g):
        _, s = _normed_parts(a[0])
        g = g * s
        return (g - g.mean(-1, keepdim=True),)

    found = _one(_normed, backward, x="bn")
    assert found.cause == "missing-term"
    assert "lacks the part that comes through `torch.rsqrt(var + 0.1)`" in found.hint


def test_a_path_with_the_wrong_sign():
    def backward(a, y, g):
        c, s = _normed_parts(a[0])
        g = g * s + c * s**3 * (g * c).mean(-1, keepdim=True)
        return (g - g.mean(-1, keepdim=True),)

    found = _one(_normed, backward, x="bn")
    assert found.cause == "missing-term"
    assert "has the wrong sign, and the rest is right" in found.hint


def test_two_paths_that_are_missing():
    found = _one(_normed, lambda a, y, g: (g * _normed_parts(a[0])[1],), x="bn")
    assert found.cause == "missing-term"
    assert "lacks two parts" in found.hint
    assert "`x.mean(-1, keepdim=True)`" in found.hint


def test_the_derivative_of_one_operation():
    found = _one(
        lambda x, w: torch.tanh(x @ w).cumsum(-1),
        lambda a, y, g: (g.flip(-1).cumsum(-1).flip(-1) @ a[1].mT, _of_weight(a, g)),
        x="bn",
        w="nm",
    )
    assert (found.cause, found.input) == ("chain-factor", "x")
    assert "lacks the derivative of `torch.tanh(x @ w)`" in found.hint


def _of_weight(a, g):
    return a[0].mT @ (g.flip(-1).cumsum(-1).flip(-1) * (1 - torch.tanh(a[0] @ a[1]) ** 2))


def test_another_operand():
    """The gate itself stands where its sigmoid should."""

    def backward(a, y, g):
        x, z, w = a
        return (g @ w.mT) * z, (g @ w.mT) * x * torch.sigmoid(z) * torch.sigmoid(-z), _gated(x, z).mT @ g

    found = _one(lambda x, z, w: (x * torch.sigmoid(z)) @ w, backward, x="bn", z="bn", w="nm")
    assert found.cause == "operand"
    assert "with `z` in place of `torch.sigmoid(z)` in `x * torch.sigmoid(z)`" in found.hint


def _gated(x, z):
    return x * torch.sigmoid(z)


def test_another_value_in_the_whole_formula():
    """`x` was saved where `2 * x` is needed."""
    found = _one(
        lambda x: torch.log1p(torch.exp(2 * x)).cumsum(-1) / 2,
        lambda a, y, g: (g.flip(-1).cumsum(-1).flip(-1) * torch.sigmoid(a[0]),),
        x="bn",
    )
    assert found.cause == "wrong-saved"
    assert "the values of `x`, not those of `2 * x`" in found.hint


def test_a_number_of_forward():
    """What keeps the root from zero is forgotten."""

    def backward(a, y, g):
        r = (a[0] * a[0]).sum(-1, keepdim=True)
        y = a[0] / torch.sqrt(r)
        return ((g - y * (g * y).sum(-1, keepdim=True)) / torch.sqrt(r),)

    found = _one(lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True) + 0.5), backward, x="bn")
    assert found.cause == "operand"
    assert "if `0.5` were `0`" in found.hint


def test_a_factor_for_which_a_size_stands():
    """Each row has a count of its own, and is divided by the length."""

    def forward(x, w):
        count = 1 + (w > 0).sum(-1, keepdim=True)
        return torch.tanh(x) * x / count

    def backward(a, y, g):
        x, w = a
        t = torch.tanh(x)
        return g * (t + x * (1 - t * t)) / x.shape[-1], torch.zeros_like(w)

    found = _one(forward, backward, x="bn", w="bn")
    assert (found.cause, found.input) == ("chain-factor", "x")
    assert "the factor that `count` gives" in found.hint
    assert "and has `1 / x.shape[1]` instead" in found.hint


def test_a_mistake_that_is_no_change_of_one_operation_has_no_cause():
    def backward(a, y, g):
        _, s = _normed_parts(a[0])
        return (g * s + torch.sin(3 * a[0]) * g.flip(-1).cumsum(-1),)

    assert _one(_normed, backward, x="bn").cause == ""


def test_a_sum_over_everything_in_one_term():
    def backward(a, y, g):
        c, s = _normed_parts(a[0])
        g = g.flip(0).cumsum(0).flip(0)
        g = g * s - c * s**3 * (g * c).mean()
        return (g - g.mean(-1, keepdim=True),)

    found = _one(lambda x: _normed(x).cumsum(0), backward, x="bn")
    assert found.cause == "wrong-reduction-dim"
    assert "summed over all entries, times `1 / x.shape[0]`" in found.hint


def test_the_last_use_in_a_product():
    """Entries that are picked several times, by one of two terms."""

    def backward(a, y, g):
        table, index, w = a
        part = torch.zeros_like(table)
        part[index] = g * w
        return part + 2 * table * g.sum(), None, g * table[index]

    found = _one(
        lambda table, index, w: table[index] * w + (table * table).sum(),
        backward,
        table="n",
        index="!n/k",
        w="k",
    )
    assert (found.cause, found.input) == ("duplicates", "table")
    assert "where `table[index]`" in found.hint


def test_a_forward_that_writes_in_place():
    """The decay is forgotten on the way back through a loop that fills a tensor."""

    def forward(x, a):
        out = torch.zeros_like(x)
        h = x[:, 0] * 1.0
        for t in range(x.shape[1]):
            h = torch.tanh(a * h) * 2
            h += x[:, t]
            out[:, t] = h
        return out

    def backward(a, y, g):
        x, a = a
        dx, da, acc = torch.zeros_like(x), torch.zeros_like(a), torch.zeros_like(x[:, 0])
        for t in reversed(range(x.shape[1])):
            acc = acc + g[:, t]
            dx[:, t] += acc
            before = y[:, t - 1] if t else x[:, 0]
            s = 2 * (1 - torch.tanh(a * before) ** 2)
            da += acc * s * before
            acc = acc * s
        dx[:, 0] += acc
        return dx, da

    right = Right("f", forward, backward, {"x": "bn", "a": "b"})
    found = findings_on(function_of(right, right.backward), right.shapes)
    (x,) = (f for f in found if f.input == "x")
    assert x.cause == "chain-factor"
    assert "lacks the factor that `a` gives in `a * h`" in x.hint


def test_an_argument_in_a_list_is_named():
    """The second of two tensors that are joined has no gradient."""

    right = Right(
        "f",
        lambda x, w: torch.cat((torch.sin(x), torch.exp(x)), -1) @ torch.cat((w, w), 0),
        lambda a, y, g: ((g @ a[1].mT) * torch.cos(a[0]), (torch.sin(a[0]) + torch.exp(a[0])).mT @ g),
        {"x": "bn", "w": "nm"},
    )
    found = findings_on(function_of(right, right.backward), right.shapes)
    (x,) = (f for f in found if f.input == "x")
    assert x.cause == "missing-term"
    assert "what comes through `torch.exp(x)`" in x.hint.replace("the part that comes", "what comes")


def test_a_term_inside_one_operation():
    """Softmax without the sum: its normaliser counts as a constant."""

    def backward(a, y, g):
        x, w = a
        p = torch.softmax(x @ w, -1)
        g = g.flip(-1).cumsum(-1).flip(-1)
        whole = p * (g - (p * g).sum(-1, keepdim=True))
        return (p * g) @ w.mT, x.mT @ whole

    found = _one(lambda x, w: torch.softmax(x @ w, -1).cumsum(-1), backward, x="bn", w="nm")
    assert found.cause == "missing-term"
    assert "what it divides by counts as a constant" in found.hint


def test_a_sign_in_one_of_two_parts():
    """The sine and the cosine of one product: `as if w were negated` gives these numbers, and tells less."""

    def backward(a, y, g):
        x, w = a
        s, c = torch.sin(x @ w), torch.cos(x @ w)
        one, two = g.chunk(2, -1)
        d = one * c + two * s
        return d @ w.mT, x.mT @ (one * c - two * s)

    found = _one(lambda x, w: torch.cat([torch.sin(x @ w), torch.cos(x @ w)], -1), backward, x="bn", w="nm")
    assert found.cause == "missing-term"
    assert "has the wrong sign, and the rest is right" in found.hint


def test_a_mask_turned_round():
    def backward(a, y, g):
        x, index = a
        g = g.flip(-1).cumsum(-1).flip(-1)
        return g * (index == 0).to(g) * torch.cos(x), None

    right = Right(
        "f", lambda x, index: (torch.sin(x) * (index > 0)).cumsum(-1), backward, {"x": "bn", "index": "!d/bn"}
    )
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    assert found.cause == "operand"
    assert "with `1 - (index > 0)` in place of `index > 0`" in found.hint


def test_what_lies_between_two_values_is_left_out():
    """The activation, three operations, on the way to `x` alone."""

    def backward(a, y, g):
        x, w = a
        t = torch.tanh(x @ w)
        g = g.flip(-1).cumsum(-1).flip(-1)
        return g @ w.mT, x.mT @ (g * (t + (x @ w) * (1 - t * t)) * 0.5)

    def forward(x, w):
        z = x @ w
        return (0.5 * torch.tanh(z) * z).cumsum(-1)

    found = _one(forward, backward, x="bn", w="nm")
    assert (found.cause, found.input) == ("chain-factor", "x")
    assert "what lies between `x @ w` and `0.5 * torch.tanh(z) * z`" in found.hint


def test_a_factor_that_is_one_too_many():
    """The mask stands at the residual, too."""

    def backward(a, y, g):
        x, index = a
        m = (index > 0).to(g)
        g = g.flip(-1).cumsum(-1).flip(-1)
        return g * m * torch.cos(x) + g * m * 2 * x, None

    right = Right(
        "f",
        lambda x, index: (torch.sin(x) * (index > 0) + x * x).cumsum(-1),
        backward,
        {"x": "bn", "index": "!d/bn"},
    )
    (found,) = findings_on(function_of(right, right.backward), right.shapes)
    assert found.cause == "chain-factor"
    assert "one factor too many, `index > 0`, at" in found.hint


def _variation(x):
    return (torch.sqrt((torch.roll(x, -1, 0) - x) ** 2 + 0.01) + (torch.roll(x, -1, 1) - x) ** 2).sum()


def _of_variation(x, g, *, shift=1, dim=1):
    p, q = torch.roll(x, -1, 0) - x, torch.roll(x, -1, 1) - x
    p = p / torch.sqrt(p * p + 0.01)
    return (g * (torch.roll(p, shift, 0) - p + torch.roll(2 * q, 1, dim) - 2 * q),)


def test_a_shift_is_no_dimension():
    """Both are numbers of `roll`: each mistake is told by its own."""
    turned = _one(_variation, lambda a, y, g: _of_variation(a[0], g, shift=-1), x="bn")
    assert turned.cause == "permuted"
    assert "with the shift turned round in the derivative of `torch.roll(x, -1, 0)`" in turned.hint
    other = _one(_variation, lambda a, y, g: _of_variation(a[0], g, dim=0), x="bn")
    assert other.cause == "wrong-reduction-dim"
    assert "for `torch.roll(x, -1, 1)`" in other.hint
    assert "along dimension 0" in other.hint
