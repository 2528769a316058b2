"""A forward that stands on stairs: its rows are flat, and the few beside an edge are left to be measured.

Where nothing moves by a short step, backward has to give zeros; but a forward that rounds to bfloat16 inside
does not move either, and has a slope. So each row has to stay as it is further out than such a rounding
could leave it: far on one side, or less far on both. Where a few rows do not, only they are in question, and
only the columns that reach them: that they are all is seen, too, for the others do not move these rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.numerics.central import value_at, weigh
from gradverify.verifier.numerics.certificate import LEVELS, Certificate
from gradverify.verifier.numerics.dependence import reached_outputs
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.functionals import BESIDE, ProofPoint, pull_back
from gradverify.verifier.numerics.parts import Restricted
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import FIRST_STEP
from gradverify.verifier.numerics.verdict import NotJudged, centre_of

AROUND = 2.0**-7
"""How far a row has to stay on both sides, in units of the tangent, which is half an entry's size at least:
a stair of bfloat16 is 2^-7 of that wide at most, and ends within."""

MOST_OPEN = 1 / 8
"""Share of the rows that may lie beside an edge: where forward rounds inside, it is most."""

NEAR = LEVELS[1].step
"""The step at which every row has to stay on both sides."""


def beside_edges(problem: Problem, *, rtol: float) -> Certificate | Restricted | None:
    """The few entries of a Jacobian of zeros that are left to measure, or none: then it is proven.

    None where forward moves by a short step, backward gives more than zeros, or too much would be left. 3
    forwards where it moves; else some 15, a backward for each grad_output, and two for each slice of the
    inputs.
    """
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    if not x.numel() or not problem.outputs.size or not bool(x.isfinite().all()):
        return None
    point = ProofPoint(problem, inputs, x, tangent_of(x, inputs, 0), 0, None, rtol, None)
    here = _value(point, point.tangent, 0.0)
    edges = None if here is None else _beside_edges(point, here)
    if here is None or edges is None or isinstance(centre_of(problem), NotJudged):
        return None
    if not _pulls_back_zeros(point, here):
        return None
    if not bool(edges.any()):
        return Certificate(LEVELS[1].allowed * point.typical)
    columns = _reaching(point, here, edges)
    if columns is None:
        return None
    rows = edges.nonzero().flatten()
    return Restricted(problem, inputs, x, tuple(columns.tolist()), tuple(rows.tolist()))


def _beside_edges(point: ProofPoint, here: Tensor) -> Tensor | None:
    """Rows (bool, M) that move too near; None where some move by a short step, or too many do."""
    near = _stays(point, point.tangent, here, NEAR)
    if near is None or not bool(torch.stack(near).all()):
        return None
    stays = [_stays(point, point.tangent, here, share) for share in (AROUND / 2, AROUND, BESIDE)]
    sides = [torch.stack(found) for found in stays if found is not None]
    if len(sides) < len(stays):
        return None
    around = sides[0] & sides[1]
    moved = ~(around.all(dim=0) | (around & sides[2]).any(dim=0))
    return moved if int(moved.count_nonzero()) <= MOST_OPEN * moved.numel() else None


def _reaching(point: ProofPoint, here: Tensor, rows: Tensor) -> Tensor | None:
    """The columns that reach some rows (bool, M), ascending; None where others move these, too."""
    far = point.tangent * (BESIDE / FIRST_STEP)
    reached = reached_outputs(point.problem, here, far) | reached_outputs(point.problem, here, -far)
    columns = reached[rows].any(dim=0)
    others = torch.where(columns, 0.0, point.tangent)
    for share in (AROUND, BESIDE):
        stays = _stays(point, others, here, share)
        if stays is None or not bool(torch.stack(stays)[:, rows].all()):
            return None
    found = columns.nonzero().flatten()
    return found if found.numel() else None


def _pulls_back_zeros(point: ProofPoint, here: Tensor) -> bool:
    """Whether backward gives exact zeros for random grad_outputs in all rows."""
    weighed = weigh(point.problem.outputs, torch.zeros_like(here), here, 1.0)
    functionals = None if weighed is None else pull_back(point, weighed)
    return functionals is not None and functionals.vanish()


def _stays(point: ProofPoint, tangent: Tensor, here: Tensor, share: float) -> tuple[Tensor, Tensor] | None:
    """Rows (bool, M) that are what they are at x ahead and behind; None where forward raises."""
    ahead, behind = (_value(point, tangent, side) for side in (share, -share))
    return None if ahead is None or behind is None else (ahead == here, behind == here)


def _value(point: ProofPoint, tangent: Tensor, share: float) -> Tensor | None:
    value = value_at(point.problem, point.inputs.moving(point.x, tangent)(share))
    return None if value is None else value.clone()  # forward may return the same memory every time
