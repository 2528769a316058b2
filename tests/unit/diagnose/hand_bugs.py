"""Mistakes as people make them, one at a time."""

from __future__ import annotations

import torch

from .mutations import Mutant
from .right_functions import RIGHT, Backward

_RIGHT = {right.name: right for right in RIGHT}


def _bug(id_: str, backward: Backward, *true: str, at: int = 0) -> Mutant:
    return Mutant(id_, _RIGHT[id_.partition("-")[0]], backward, at, frozenset(true))


def _rn(a):
    return a[0].norm(dim=-1, keepdim=True)


def _last_only(a, y, g):
    t = torch.zeros_like(a[0])
    t[a[1]] = g
    return t, None


def _ln(a, *, mean=True, xhat=True, weight=True, over=-1):
    def parts(g):
        x, w, _ = a
        rstd = 1 / (x.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
        h = (x - x.mean(-1, keepdim=True)) * rstd
        gw = g * w if weight else g
        t = gw - (gw.mean(over, keepdim=True) if mean else 0)
        return rstd * (t - (h * (gw * h).mean(over, keepdim=True) if xhat else 0)), (g * h).sum(0), g.sum(0)

    return parts


def _mean_alone(a, y, g):
    x = a[0]
    return (torch.zeros_like(x) if g[0] is None else (g[0][:, None] / x.shape[-1]).expand_as(x).clone(),)


BUGS: tuple[Mutant, ...] = (
    _bug("softmax-uncoupled", lambda a, y, g: (g * y * (1 - y),), "diagonal-only"),
    _bug("softmax-y-only", lambda a, y, g: (g * y,), "missing-term"),
    _bug("softmax-dim0", lambda a, y, g: (y * (g - (g * y).sum(0, keepdim=True)),), "wrong-reduction-dim"),
    _bug("softmax-plus", lambda a, y, g: (y * (g + (g * y).sum(-1, keepdim=True)),), "missing-term"),
    _bug("softmax-coupling", lambda a, y, g: (-y * ((g * y).sum(-1, keepdim=True) - g * y),), "missing-term"),
    _bug("center-identity", lambda a, y, g: (g,), "missing-term", "wrong-reduction-dim"),
    _bug("center-dim1", lambda a, y, g: (g - g.mean(1, keepdim=True),), "wrong-reduction-dim"),
    _bug("center-sum", lambda a, y, g: (g - g.sum(0, keepdim=True),), "missing-term"),
    _bug("rownorm-no-projection", lambda a, y, g: (g / _rn(a),), "missing-term"),
    _bug("rownorm-no-norm", lambda a, y, g: (g - y * (g * y).sum(-1, keepdim=True),), "chain-factor"),
    _bug("rownorm-norm-squared", lambda a, y, g: ((g - y * (g * y).sum(-1, keepdim=True)) / _rn(a) ** 2,),
         "chain-factor"),
    _bug("rownorm-dim0", lambda a, y, g: ((g - y * (g * y).sum(0, keepdim=True)) / _rn(a),),
         "wrong-reduction-dim"),
    _bug("cumsum-forward", lambda a, y, g: (g.cumsum(-1),), "transposed"),
    _bug("cumsum-identity", lambda a, y, g: (g,), "diagonal-only", "missing-term"),
    _bug("cumsum-unflipped", lambda a, y, g: (g.flip(-1).cumsum(-1),), "permuted"),
    _bug("logsumexp-ones", lambda a, y, g: (g[:, None].expand_as(a[0]).clone(),), "chain-factor"),
    _bug("logsumexp-dim0", lambda a, y, g: (g[:, None] * torch.softmax(a[0], 0),), "chain-factor"),
    _bug("logsumexp-log", lambda a, y, g: (g[:, None] * torch.log_softmax(a[0], -1),), "chain-factor"),
    _bug("sigmoid-of-x", lambda a, y, g: (g * a[0] * (1 - a[0]),), "wrong-saved", "chain-factor"),
    _bug("sigmoid-y", lambda a, y, g: (g * y,), "chain-factor"),
    _bug("sigmoid-one-minus", lambda a, y, g: (g * (1 - y),), "chain-factor"),
    _bug("exp-of-x", lambda a, y, g: (g * a[0],), "wrong-saved", "chain-factor"),
    _bug("exp-identity", lambda a, y, g: (g,), "chain-factor"),
    _bug("square-one-x", lambda a, y, g: (a[0] * g,), "constant-factor"),
    _bug("square-of-y", lambda a, y, g: (2 * y * g,), "wrong-saved", "chain-factor"),
    _bug("square-abs", lambda a, y, g: (2 * a[0].abs() * g,), "branch"),
    _bug("leaky-relu", lambda a, y, g: (torch.where(a[0] > 0, g, 0 * g),), "branch"),
    _bug("leaky-all", lambda a, y, g: (g.clone(),), "branch"),
    _bug("leaky-threshold", lambda a, y, g: (torch.where(a[0] > 0.5, g, 0.1 * g),), "branch"),
    _bug("mul-no-b", lambda a, y, g: (g.clone(), g * a[0]), "operand", "chain-factor"),
    _bug("mul-own", lambda a, y, g: (g * a[0], g * a[0]), "operand", "chain-factor", "swapped-inputs"),
    _bug("div-no-chain", lambda a, y, g: (g / (a[1] ** 2 + 1), -g * a[0] / (a[1] ** 2 + 1) ** 2),
         "chain-factor", at=1),
    _bug("div-power", lambda a, y, g: (g / (a[1] ** 2 + 1), -2 * a[1] * g * a[0] / (a[1] ** 2 + 1)),
         "chain-factor", at=1),
    _bug("mse-no-mean", lambda a, y, g: (2 * (a[0] - a[1]) * g, -2 * (a[0] - a[1]) * g), "constant-factor"),
    _bug("mse-batch-mean", lambda a, y, g: (2 * (a[0] - a[1]) * g / a[0].shape[0],
                                           -2 * (a[0] - a[1]) * g / a[0].numel()), "constant-factor"),
    _bug("scaled_tanh-no-scale", lambda a, y, g: (g * (1 - (y / a[1]) ** 2), (g * y / a[1]).sum()),
         "chain-factor", "operand"),
    _bug("scaled_tanh-of-y", lambda a, y, g: (g * a[1] * (1 - y**2), (g * y / a[1]).sum()),
         "wrong-saved", "chain-factor", "operand"),
    _bug("linear-flat-weight", lambda a, y, g: (g @ a[1], (a[0].mT @ g).reshape(a[1].shape)),
         "transposed", at=1),
    _bug("linear-reshaped-weight",
         lambda a, y, g: (g @ a[1].reshape(a[1].shape[::-1]).mT, g.mT @ a[0]),
         "operand"),
    _bug("bmm-mean", lambda a, y, g: (g @ a[1].mT, a[0].mT @ g.mean(0, keepdim=True).expand_as(g)),
         "wrong-reduction-dim", at=1),
    _bug("affine-first", lambda a, y, g: (g * a[1], (g * a[0])[0], g.sum(0)), "not-summed-over-broadcast",
         at=1),
    _bug("affine-last", lambda a, y, g: (g * a[1], (g * a[0]).sum(0), g[-1]), "not-summed-over-broadcast",
         at=2),
    _bug("affine-mean", lambda a, y, g: (g * a[1], (g * a[0]).mean(0), g.sum(0)), "constant-factor", at=1),
    _bug("affine-no-x", lambda a, y, g: (g * a[1], g.sum(0), g.sum(0)), "operand", "swapped-inputs",
         "chain-factor", at=1),
    _bug("affine-no-weight", lambda a, y, g: (g.clone(), (g * a[0]).sum(0), g.sum(0)), "operand",
         "chain-factor"),
    _bug("layernorm-no-mean", lambda a, y, g: _ln(a, mean=False)(g), "missing-term"),
    _bug("layernorm-no-xhat", lambda a, y, g: _ln(a, xhat=False)(g), "missing-term"),
    _bug("layernorm-no-weight", lambda a, y, g: _ln(a, weight=False)(g), "operand", "chain-factor"),
    _bug("layernorm-dim0", lambda a, y, g: _ln(a, over=0)(g), "wrong-reduction-dim"),
    _bug("embedding-assigned", _last_only, "duplicates"),
    _bug("moments-no-var", _mean_alone, "ignored-output", "zero"),
    _bug("product-no-conj", lambda a, y, g: (g * a[1], g * a[0]), "conjugate"),
    _bug("product-conj-all", lambda a, y, g: ((g * a[1].conj()).conj(), (g * a[0].conj())), "conjugate"),
)  # fmt: skip

ALL = BUGS
