"""Mistakes in other Functions, written after the ladder was frozen: what the first set cannot flatter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .mutations import Mutant
from .right_functions import Right

sigmoid = torch.sigmoid


def _silu(a, y, g):
    s = sigmoid(a[0])
    return (g * (s + a[0] * s * (1 - s)),)


def _rms(a, y, g):
    x, w = a
    r = (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    gw = g * w
    return r * gw - x * r**3 * (gw * x).mean(-1, keepdim=True), (g * x * r).sum(0)


def _cosine(a, y, g):
    p, q = a
    n, m = p.norm(dim=-1, keepdim=True), q.norm(dim=-1, keepdim=True)
    g, y = g[:, None], y[:, None]
    return g * (q / (n * m) - y * p / n**2), g * (p / (n * m) - y * q / m**2)


def _cross_entropy(a, y, g):
    x, t = a
    return g * (torch.softmax(x, -1) - t) / x.shape[0], -g * torch.log_softmax(x, -1) / x.shape[0]


def _prod(a, y, g):
    return (g[:, None] * y[:, None] / a[0],)


def _bias(a, y, g):
    x, w, _ = a
    return g @ w, g.mT @ x, g.sum(0)


def _quadratic(a, y, g):
    x, m = a
    return g[:, None] * (x @ (m + m.mT)), x.mT @ (g[:, None] * x)


def _var(a, y, g):
    x = a[0]
    return (g * 2 * (x - x.mean(0)) / (x.shape[0] - 1),)


def _minmax(a, y, g):
    x, z = a
    m = (x > z).to(g.dtype)
    return g * m, g * (1 - m)


def _gated(a, y, g):
    x, z = a
    s = sigmoid(z)
    return g * s, g * x * s * (1 - s)


def _stack(a, y, g):
    x, z = a
    gs = [torch.zeros_like(x) if t is None else t for t in g]
    return gs[0] + gs[1] * z, gs[0] + gs[1] * x


def _tri(a, y, g):
    return (g.tril(),)


R = {
    "silu": Right("silu", F.silu, _silu, {"x": "bn"}),
    "softplus": Right("softplus", F.softplus, lambda a, y, g: (g * sigmoid(a[0]),), {"x": "bn"}),
    "rms": Right("rms", lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * w, _rms,
                 {"x": "bn", "weight": "n"}),
    "cosine": Right("cosine", lambda p, q: F.cosine_similarity(p, q, -1), _cosine, {"p": "bn", "q": "bn"}),
    "entropy": Right("entropy", lambda x, t: -(t * torch.log_softmax(x, -1)).sum() / x.shape[0],
                     lambda a, y, g: (g * (torch.softmax(a[0], -1) * a[1].sum(-1, keepdim=True) - a[1])
                                      / a[0].shape[0],
                                      -g * torch.log_softmax(a[0], -1) / a[0].shape[0]),
                     {"logits": "bn", "target": "bn"}),
    "prod": Right("prod", lambda x: x.prod(-1), _prod, {"x": "bn"}),
    "bias": Right("bias", lambda x, w, b: x @ w.mT + b, _bias, {"x": "bn", "weight": "mn", "bias": "m"}),
    "quadratic": Right("quadratic", lambda x, m: ((x @ m) * x).sum(-1), _quadratic, {"x": "bn", "m": "nn"}),
    "roll": Right("roll", lambda x: x.roll(1, -1), lambda a, y, g: (g.roll(-1, -1),), {"x": "bn"}),
    "var": Right("var", lambda x: x.var(0), _var, {"x": "bn"}),
    "maximum": Right("maximum", torch.maximum, _minmax, {"x": "bn", "z": "bn"}),
    "gated": Right("gated", lambda x, z: x * sigmoid(z), _gated, {"x": "bn", "z": "bn"}),
    "stack": Right("stack", lambda x, z: (x + z, x * z), _stack, {"x": "bn", "z": "bn"}),
    "cube": Right("cube", lambda x: x**3, lambda a, y, g: (3 * a[0] ** 2 * g,), {"x": "bnm"}),
    "hardtanh": Right("hardtanh", lambda x: x.clamp(-1, 1),
                      lambda a, y, g: (g * (a[0].abs() < 1),), {"x": "bn"}),
    "tril": Right("tril", torch.tril, _tri, {"x": "bn"}),
    "squared": Right("squared", lambda x: (x * x).sum(), lambda a, y, g: (2 * a[0] * g,), {"x": "bn"}),
    "cabs": Right("cabs", lambda z: (z * z.conj()).real, lambda a, y, g: (2 * g * a[0],), {"z": "bn"},
                  dtype="complex128"),
    "csquare": Right("csquare", lambda z: z * z, lambda a, y, g: (2 * g * a[0].conj(),), {"z": "bn"},
                     dtype="complex128"),
    "gather": Right("gather", lambda x, i: x[i] * 2.0,
                    lambda a, y, g: (torch.zeros_like(a[0]).index_add(0, a[1], 2 * g), None),
                    {"x": "nd", "index": "!n/k"}),
}  # fmt: skip


def _bug(id_, backward, *true, at=0):
    return Mutant(id_, R[id_.partition("-")[0]], backward, at, frozenset(true))


def _with(name, k, change):
    def backward(a, y, g):
        grads = list(R[name].backward(a, y, g))
        grads[k] = change(grads[k], a, y, g)
        return tuple(grads)

    return backward


def _assigned(a, y, g):
    t = torch.zeros_like(a[0])
    t[a[1]] = 2 * g
    return t, None


def _zero_at(t: Tensor, *place) -> Tensor:
    t = t.clone()
    t[place] = 0
    return t


SECOND = (
    _bug("silu-no-product-rule", lambda a, y, g: (g * sigmoid(a[0]),), "missing-term", "chain-factor"),
    _bug("silu-other-half", lambda a, y, g: (g * y * (1 - sigmoid(a[0])),), "missing-term"),
    _bug(
        "silu-derivative-of-sigmoid",
        lambda a, y, g: (g * sigmoid(a[0]) * (1 - sigmoid(a[0])),),
        "chain-factor",
    ),
    _bug("softplus-y", lambda a, y, g: (g * y,), "wrong-saved", "chain-factor"),
    _bug("softplus-sigmoid-y", lambda a, y, g: (g * sigmoid(y),), "wrong-saved"),
    _bug("softplus-complement", lambda a, y, g: (g * sigmoid(-a[0]),), "chain-factor", "operand"),
    _bug(
        "rms-no-coupling",
        lambda a, y, g: (g * a[1] * (a[0].square().mean(-1, keepdim=True) + 1e-3).rsqrt(), _rms(a, y, g)[1]),
        "missing-term",
    ),
    _bug("rms-sum", lambda a, y, g: (_rms_summed(a, g), _rms(a, y, g)[1]), "missing-term"),
    _bug("rms-weight-twice", _with("rms", 0, lambda t, a, y, g: t * a[1]), "operand", "chain-factor"),
    _bug(
        "rms-weight-grad-without-r",
        lambda a, y, g: (_rms(a, y, g)[0], (g * a[0]).sum(0)),
        "chain-factor",
        at=1,
    ),
    _bug(
        "cosine-no-projection",
        "bias-total",
        "cube-channel",
        "tril-strict",
        lambda a, y, g: (
            g[:, None] * a[1] / (a[0].norm(dim=-1, keepdim=True) * a[1].norm(dim=-1, keepdim=True)),
            _cosine(a, y, g)[1],
        ),
        "missing-term",
    ),
    _bug("cosine-swapped", lambda a, y, g: _cosine(a, y, g)[::-1], "swapped-inputs"),
    _bug("entropy-no-mean", _with("entropy", 0, lambda t, a, y, g: t * a[0].shape[0]), "constant-factor"),
    _bug(
        "entropy-mean-twice",
        _with("entropy", 1, lambda t, a, y, g: t / a[0].shape[1]),
        "constant-factor",
        at=1,
    ),
    _bug(
        "entropy-unnormalised",
        _with("entropy", 0, lambda t, a, y, g: g * (torch.softmax(a[0], -1) - a[1]) / a[0].shape[0]),
    ),
    _bug("prod-no-division", lambda a, y, g: ((g * y)[:, None].expand_as(a[0]).clone(),), "chain-factor"),
    _bug("prod-ones", lambda a, y, g: (g[:, None] / a[0],), "chain-factor"),
    _bug("bias-not-summed", lambda a, y, g: (*_bias(a, y, g)[:2], g[0]), "not-summed-over-broadcast", at=2),
    _bug("bias-mean", lambda a, y, g: (*_bias(a, y, g)[:2], g.mean(0)), "constant-factor", at=2),
    _bug(
        "bias-total",
        lambda a, y, g: (*_bias(a, y, g)[:2], g.sum().expand_as(a[2]).clone()),
        "wrong-reduction-dim",
        at=2,
    ),
    _bug(
        "bias-weight-reshaped", _with("bias", 1, lambda t, a, y, g: t.mT.reshape(t.shape)), "transposed", at=1
    ),
    _bug(
        "quadratic-one-side",
        lambda a, y, g: (g[:, None] * (a[0] @ a[1]), _quadratic(a, y, g)[1]),
        "missing-term",
    ),
    _bug(
        "quadratic-twice",
        lambda a, y, g: (g[:, None] * (2 * a[0] @ a[1]), _quadratic(a, y, g)[1]),
        "transposed",
    ),
    _bug(
        "quadratic-last-sample",
        lambda a, y, g: (_quadratic(a, y, g)[0], a[0][:-1].mT @ (g[:-1, None] * a[0][:-1])),
        "region",
        "not-summed-over-broadcast",
        at=1,
    ),
    _bug("roll-again", lambda a, y, g: (g.roll(1, -1),), "transposed", "permuted"),
    _bug("roll-identity", lambda a, y, g: (g.clone(),), "permuted"),
    _bug(
        "var-biased",
        lambda a, y, g: (_var(a, y, g)[0] * (a[0].shape[0] - 1) / a[0].shape[0],),
        "constant-factor",
    ),
    _bug("var-no-mean", lambda a, y, g: (g * 2 * a[0] / (a[0].shape[0] - 1),), "missing-term"),
    _bug(
        "var-dim1-mean", lambda a, y, g: (g * 2 * (a[0] - a[0].mean(1, keepdim=True)) / (a[0].shape[0] - 1),)
    ),
    _bug("maximum-both", lambda a, y, g: (g.clone(), g.clone()), "branch"),
    _bug("maximum-swapped", lambda a, y, g: _minmax(a, y, g)[::-1], "swapped-inputs"),
    _bug("maximum-by-sign", lambda a, y, g: (g * (a[0] > 0), g * (a[0] <= 0))),
    _bug("gated-no-derivative", lambda a, y, g: (g * sigmoid(a[1]), g * a[0]), "chain-factor", at=1),
    _bug("gated-raw-gate", lambda a, y, g: (g * a[1], _gated(a, y, g)[1]), "chain-factor", "operand"),
    _bug(
        "stack-second-lost",
        lambda a, y, g: (torch.zeros_like(a[0]) if g[0] is None else g[0].clone(), _stack(a, y, g)[1]),
        "ignored-output",
    ),
    _bug(
        "stack-second-operand",
        lambda a, y, g: (
            _stack(a, y, (g[0], None if g[1] is None else g[1] * a[0] / a[1]))[0],
            _stack(a, y, g)[1],
        ),
        "operand",
        "chain-factor",
        "swapped-inputs",
    ),
    _bug("cube-square", lambda a, y, g: (2 * a[0] ** 2 * g,), "constant-factor"),
    _bug("cube-power", lambda a, y, g: (3 * a[0] * g,), "chain-factor"),
    _bug("cube-moved", _with("cube", 0, lambda t, a, y, g: t.transpose(0, 1).reshape(t.shape)), "transposed"),
    _bug("cube-channel", _with("cube", 0, lambda t, a, y, g: _zero_at(t, slice(None), 1)), "region"),
    _bug("cube-corner", _with("cube", 0, lambda t, a, y, g: _zero_at(t, 0, 0, 0)), "region"),
    _bug(
        "cube-border", _with("cube", 0, lambda t, a, y, g: _zero_at(_zero_at(t, ..., 0), ..., -1)), "region"
    ),
    _bug("hardtanh-wide", lambda a, y, g: (g * (a[0].abs() < 1.5),), "branch"),
    _bug("hardtanh-upper-only", lambda a, y, g: (g * (a[0] < 1),), "branch"),
    _bug("tril-full", lambda a, y, g: (g.clone(),), "region"),
    _bug("tril-strict", lambda a, y, g: (g.tril(-1),), "region"),
    _bug("squared-half", lambda a, y, g: (a[0] * g,), "constant-factor"),
    _bug("squared-normalised", lambda a, y, g: (2 * a[0] / a[0].norm() * g,), "chain-factor"),
    _bug("cabs-half", lambda a, y, g: (g * a[0],), "constant-factor"),
    _bug("cabs-conj", lambda a, y, g: (2 * g * a[0].conj(),), "conjugate"),
    _bug("csquare-no-conj", lambda a, y, g: (2 * g * a[0],), "conjugate"),
    _bug("csquare-conj-g", lambda a, y, g: (2 * g.conj() * a[0].conj(),), "conjugate"),
    _bug("gather-assigned", _assigned, "duplicates"),
    _bug(
        "gather-half", lambda a, y, g: (torch.zeros_like(a[0]).index_add(0, a[1], g), None), "constant-factor"
    ),
)


def _rms_summed(a, g):
    x, w = a
    r = (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    gw = g * w
    return r * gw - x * r**3 * (gw * x).sum(-1, keepdim=True)


ALL = SECOND

UNNAMED = frozenset(
    {
        "cosine-no-projection",
        "bias-total",
        "cube-channel",
        "tril-strict",
        "entropy-unnormalised",
        "gated-no-derivative",
        "maximum-by-sign",
        "quadratic-one-side",
        "silu-no-product-rule",
        "silu-other-half",
        "softplus-y",
        "var-dim1-mean",
    }
)
"""Mistakes for which no hypothesis holds: no name is what they get."""
