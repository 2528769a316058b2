"""Both Jacobians of a problem in full: the one its backward gives, and the one its forward has.

Matrices are M × N: M real coordinates of the outputs, N of the inputs (a complex number counts twice).
Cost: 6N forwards (a few more where a column does not resolve) and M forwards with M backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.difference import EPSILON, OFFSETS, Samples, six_point
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem

FIRST_STEP = 2.0**-10
"""Step of the first pass in units of the entry's own scale: truncation and noise balance near 1e-12 for a
sixth-order formula on functions of order one."""

REFINED_STEPS = (2.0**-17, 2.0**-23, 2.0**-5)
"""Steps tried where the first does not resolve an entry: the small ones step over fewer kinks, the large
one is for rows that noise limits."""

KINK_STEPS = (2.0**-17, 2.0**-23)
"""The two steps whose one-sided slopes are compared to tell a kink from curvature."""

RESOLVED = 1e-8
"""An entry is resolved when its error is below this share of (|D| + median |D| of its row)."""

SAFETY = 10.0
"""An analytical value is in conflict with a measured one beyond this many measured errors."""

SMALLEST_SCALE = 2.0**-8
"""An entry near zero is moved by this share of its tensor's typical magnitude."""

UNTRUSTED = 1e-3
"""A value with a larger relative error than this does not speak against a jump."""

INDEPENDENT_STEPS = (0.37, 1.83)
"""Steps of the confirmation, in units of the step that was used: no multiples of it."""


@dataclass(frozen=True)
class NumericalJacobian:
    """The derivative of forward, measured. All tensors are M × N unless said otherwise."""

    value: Tensor
    error: Tensor
    """How far `value` may be off, absolute; infinite where f is not finite nearby."""
    flat: Tensor
    """True where no step whatever changed the output: the derivative is exactly zero."""
    kink: Tensor
    """Half the difference of the one-sided slopes at a kink, zero elsewhere."""
    step: Tensor
    """The step behind each value."""
    centre: Tensor
    """f(x), M entries."""


def analytical_jacobian(problem: Problem) -> Returned[Tensor] | Raised:
    """The Jacobian that backward claims: one backward for each output coordinate, each on a fresh graph.

    The grad_outputs of the other outputs stay undefined, as they are when a user differentiates one.
    """
    inputs = Layout.of(problem.primals)
    rows = torch.zeros(problem.outputs.size, inputs.size, dtype=torch.float64)
    for position in range(problem.outputs.size):
        row = analytical_row(problem, inputs, position, problem.primals)
        if isinstance(row, Raised):
            return row
        rows[position] = row.value
    return Returned(rows)


def analytical_row(
    problem: Problem, inputs: Layout, position: int, primals: tuple[Tensor, ...], scale: float = 1.0
) -> Returned[Tensor] | Raised:
    """One row: backward of `scale` times the unit grad_output at one output coordinate, divided by it."""
    unit = torch.zeros(problem.outputs.size, dtype=torch.float64)
    unit[position] = scale
    block = problem.outputs.block_of(position)
    cotangents = [
        tensor if number == block else None for number, tensor in enumerate(problem.outputs.unflatten(unit))
    ]
    result = problem.pull_back(primals, cotangents)
    return result if isinstance(result, Raised) else Returned(inputs.flatten(result.value) / scale)


@dataclass(frozen=True)
class KnownColumns:
    """The last columns of a Jacobian, known from elsewhere: those of a linear part need no measuring."""

    value: Tensor
    """M × (number of known columns)."""
    error: Tensor


def numerical_jacobian(
    problem: Problem,
    centre: Tensor,
    *,
    suspect: Tensor | None = None,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
) -> NumericalJacobian:
    """The Jacobian that forward has, column by column.

    `centre` is f(x) flattened; `suspect` is the analytical Jacobian where one is known: columns in conflict
    with it are measured again with other steps before anybody is accused. `noise` is a known noise of f
    (M entries), for outputs whose rounding is larger than their values tell. `known` are columns that are
    not measured.
    """
    sampler = _Sampler(problem, centre)
    count = sampler.size - (known.value.shape[1] if known is not None else 0)
    suspect = suspect[:, :count] if suspect is not None else None
    columns = [sampler.column(j, FIRST_STEP) for j in range(count)]
    floor = _noise_floor(columns, centre, problem.outputs)
    if noise is not None:
        floor = torch.maximum(floor, noise)
    result = _first_pass(columns, floor, sampler, centre)
    unresolved = _unresolved_columns(result, suspect)
    if unresolved:
        refined = [{step: sampler.column(j, step) for step in REFINED_STEPS} for j in unresolved]
        floor = _refined_floor(refined, floor, centre)
        for j, samples in zip(unresolved, refined, strict=True):
            _refine_column(result, samples, j, sampler.x[j], floor, suspect)
    return result if known is None else _joined(result, known)


def confirm_columns(
    problem: Problem,
    measured: NumericalJacobian,
    analytical: Tensor,
    wrong: Tensor,
    known: KnownColumns | None = None,
) -> Tensor:
    """Measure columns with conflicts again at steps that share nothing with the first measurement.

    Columns that were known need no confirmation. Returns the conflicts (bool, M × N) that showed the same difference each time. A difference made by
    noise or by luck does not repeat itself; a wrong formula does.
    """
    sampler = _Sampler(problem, measured.centre)
    confirmed = wrong.clone()
    count = wrong.shape[1] - (known.value.shape[1] if known is not None else 0)
    for j in wrong[:, :count].any(dim=0).nonzero().flatten().tolist():
        first = measured.value[:, j] - analytical[:, j]
        used = measured.step[:, j][wrong[:, j]].median().item()
        for factor in INDEPENDENT_STEPS:
            samples = sampler.column_at(j, used * factor)
            again = samples.derivative - analytical[:, j]
            error = SAFETY * samples.error(_own_noise(measured.centre))
            agrees = (again.abs() > error) & ((again - first).abs() <= 0.3 * first.abs() + error)
            confirmed[:, j] &= agrees | (measured.kink[:, j] > 0)
    return confirmed


def backward_round_off(problem: Problem, rows: Tensor, analytical: Tensor) -> Tensor:
    """How far backward's own rounding may move the given rows (bool, M): absolute, M × N, zero elsewhere.

    Measured: the same rows with grad_outputs of other sizes at inputs moved by a few units in the last
    place. A spread beyond 1e-9 of the largest value is not rounding (it is a backward that is not linear,
    or one that jumps) and excuses nothing.
    """
    inputs = Layout.of(problem.primals)
    generator = torch.Generator().manual_seed(20_261)
    bound = torch.zeros_like(analytical)
    x = inputs.flatten(problem.primals)
    for position in rows.nonzero().flatten().tolist():
        spread = torch.zeros(inputs.size, dtype=torch.float64)
        for scale in (1.1, 1.37, 0.83):
            ulps = torch.randint(-4, 5, x.shape, generator=generator)
            moved = inputs.unflatten(x * (1 + ulps * EPSILON))
            row = analytical_row(problem, inputs, position, moved, scale)
            if isinstance(row, Raised):
                break
            spread = torch.maximum(spread, (row.value - analytical[position]).abs())
        largest = max(analytical[position].abs().max().item(), EPSILON)
        excused = spread <= 1e-9 * largest
        bound[position] = torch.where(excused, 3 * spread, torch.zeros_like(spread))
    return bound + 4 * EPSILON * analytical.abs() * rows[:, None]


class _Sampler:
    """Evaluates one coordinate's neighbourhood; keeps the flat point and its scales."""

    def __init__(self, problem: Problem, centre: Tensor) -> None:
        self._problem = problem
        self._inputs = Layout.of(problem.primals)
        self.x = self._inputs.flatten(problem.primals)
        self._centre = centre
        self.scales = _scales(self.x, self._inputs)

    @property
    def size(self) -> int:
        return self._inputs.size

    def column(self, j: int, relative_step: float) -> Samples:
        return self.column_at(j, relative_step * self.scales[j].item())

    def column_at(self, j: int, step: float) -> Samples:
        here = self.x[j].item()
        exact = (here + step) - here
        values = {k: self._at(j, here + k * exact) for k in OFFSETS}
        return six_point(values, self._centre, exact)

    def _at(self, j: int, value: float) -> Tensor | None:
        moved = self.x.clone()
        moved[j] = value
        result = self._problem.evaluate(self._inputs.unflatten(moved))
        if isinstance(result, Raised):
            return None
        return self._problem.outputs.flatten(result.value)


def _scales(x: Tensor, inputs: Layout) -> Tensor:
    """A power of two near each entry's magnitude, kept within a range of its tensor's typical one."""
    scales = torch.ones_like(x)
    for block in inputs.blocks:
        part = x[block.start : block.stop].abs()
        nonzero = part[(part > 0) & part.isfinite()]
        typical = nonzero.median().item() if nonzero.numel() else 1.0
        typical = 2.0 ** math.floor(math.log2(typical))
        clamped = part.nan_to_num(typical, typical, typical).clamp(SMALLEST_SCALE * typical, typical)
        scales[block.start : block.stop] = torch.exp2(clamped.log2().floor())
    return scales


def _own_noise(centre: Tensor) -> Tensor:
    """The rounding of f itself."""
    return EPSILON * centre.abs().nan_to_num(0.0, 0.0, 0.0)


def _noise_floor(columns: list[Samples], centre: Tensor, outputs: Layout) -> Tensor:
    """Noise of f for each row (M): its own rounding, and what the sixth differences of all columns show.

    One sample may be small by luck, so samples are pooled over the columns of a row and over the rows of an
    output. The median keeps a few columns that step over a kink out of it.
    """
    floor = _own_noise(centre)
    if not columns:
        return floor
    samples = torch.stack([c.noise for c in columns])
    floor = torch.maximum(floor, _robust_noise(samples, dim=0))
    for block in outputs.blocks:
        rows = slice(block.start, block.stop)
        touched = samples[:, rows][samples[:, rows] > 0]
        if touched.numel() >= 8 and block.stop - block.start > 1:
            pooled = torch.minimum(touched.square().mean().sqrt(), 3 * touched.median())
            own = _own_noise(centre)[rows]
            # A row far smaller than its neighbours has its own, smaller noise: pool relative to magnitude.
            relative = own / own.max().clamp_min(torch.finfo(torch.float64).tiny)
            floor[rows] = torch.maximum(floor[rows], pooled * relative.clamp_max(1.0))
    return floor


def _robust_noise(samples: Tensor, dim: int) -> Tensor:
    """min(rms, 3 · median) over the positive samples of each row."""
    positive = torch.where(samples > 0, samples, torch.nan)
    median = positive.nanmedian(dim=dim).values.nan_to_num(0.0)
    rms = positive.square().nanmean(dim=dim).sqrt().nan_to_num(0.0)
    return torch.minimum(rms, 3 * median)


def _first_pass(
    columns: list[Samples], floor: Tensor, sampler: _Sampler, centre: Tensor
) -> NumericalJacobian:
    m, n = centre.numel(), len(columns)

    def stack(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, dim=1) if parts else torch.zeros(m, n, dtype=torch.float64)

    return NumericalJacobian(
        value=stack([c.derivative for c in columns]),
        error=stack([_error(c, floor, sampler.x[j]) for j, c in enumerate(columns)]),
        flat=stack([c.flat for c in columns]).bool(),
        kink=torch.zeros(m, n, dtype=torch.float64),
        step=torch.tensor([c.step for c in columns], dtype=torch.float64).expand(m, n).clone(),
        centre=centre,
    )


def _error(samples: Samples, floor: Tensor, x: Tensor) -> Tensor:
    """Error of a column; x + k·t itself is rounded, which moves f by the slope times half an ulp of x."""
    rounding = EPSILON * samples.derivative.abs() * x.abs()
    return samples.error(torch.maximum(floor, rounding))


def _joined(measured: NumericalJacobian, known: KnownColumns) -> NumericalJacobian:
    none = torch.zeros_like(known.value)
    return NumericalJacobian(
        value=torch.cat([measured.value, known.value], dim=1),
        error=torch.cat([measured.error, known.error], dim=1),
        flat=torch.cat([measured.flat, none.bool()], dim=1),
        kink=torch.cat([measured.kink, none], dim=1),
        step=torch.cat([measured.step, none + FIRST_STEP], dim=1),
        centre=measured.centre,
    )


def _unresolved_columns(result: NumericalJacobian, suspect: Tensor | None) -> list[int]:
    size = result.value.abs()
    median = size.median(dim=1, keepdim=True).values if size.shape[1] else size
    unresolved = result.error > RESOLVED * (size + median)
    # A zero entry of a sparse row has no scale of its own: noise below that of its largest entry is fine.
    unresolved &= result.error > RESOLVED * size.amax(dim=1, keepdim=True) if size.shape[1] else unresolved
    if suspect is not None:
        unresolved |= ~((result.value - suspect).abs() <= SAFETY * result.error)
    return [int(j) for j in unresolved.any(dim=0).nonzero().flatten().tolist()]


def _refined_floor(refined: list[dict[float, Samples]], floor: Tensor, centre: Tensor) -> Tensor:
    """The noise of f told from kinks and curvature: noise does not shrink with the step, they do."""
    coarse, fine = (
        _robust_noise(torch.stack([samples[step].noise for samples in refined]), dim=0) for step in KINK_STEPS
    )
    is_noise = fine >= coarse / 8  # a kink shrinks by 64 from the one step to the other, curvature faster
    noise = 2 * torch.where(is_noise, torch.maximum(fine, coarse), fine)
    return torch.minimum(floor, torch.maximum(_own_noise(centre), noise))


def _refine_column(
    result: NumericalJacobian,
    by_step: dict[float, Samples],
    j: int,
    x: Tensor,
    floor: Tensor,
    suspect: Tensor | None,
) -> None:
    """Merge one column's other steps: keep, row by row, the value with the smallest error."""
    for samples in by_step.values():
        result.flat[:, j] &= samples.flat
    for samples in by_step.values():
        error = _error(samples, floor, x)
        # Flat at one step only is a staircase (a float32 interior): it proves nothing beside one that moved.
        error = torch.where(samples.flat & ~result.flat[:, j], torch.inf, error)
        better = error < result.error[:, j]
        if suspect is not None:
            # A step that agrees within a much smaller error than the conflict acquits.
            conflict = (result.value[:, j] - suspect[:, j]).abs()
            agrees = (samples.derivative - suspect[:, j]).abs() <= SAFETY * error
            better |= agrees & (SAFETY * error < conflict / 3)
        result.value[:, j] = torch.where(better, samples.derivative, result.value[:, j])
        result.error[:, j] = torch.where(better, error, result.error[:, j])
        result.step[:, j] = torch.where(better, samples.step, result.step[:, j])
    coarse, fine = (by_step[step] for step in KINK_STEPS)
    at_kink = _is_kink(coarse, fine, result.centre)
    result.kink[:, j] = torch.where(at_kink, fine.half_jump, 0.0)
    result.value[:, j] = torch.where(at_kink, (fine.left + fine.right) / 2, result.value[:, j])
    result.error[:, j] = torch.where(at_kink, floor / fine.step, result.error[:, j])
    jump = _is_jump(coarse, fine, floor) & ~at_kink
    jump &= result.error[:, j] > UNTRUSTED * result.value[:, j].abs()
    result.error[:, j] = torch.where(jump, torch.inf, result.error[:, j])


def _is_kink(coarse: Samples, fine: Samples, centre: Tensor) -> Tensor:
    """The one-sided slopes differ by the same amount at both steps.

    Curvature would shrink with the step and noise would grow against it, both by the ratio of the steps.
    """
    stable = (fine.half_jump >= 0.3 * coarse.half_jump) & (fine.half_jump <= 3 * coarse.half_jump)
    return stable & (fine.half_jump > 20 * _own_noise(centre) / fine.step) & fine.half_jump.isfinite()


def _is_jump(coarse: Samples, fine: Samples, floor: Tensor) -> Tensor:
    """The difference quotient grows like 1/step, well above the noise: f jumps here."""
    grows = fine.derivative.abs() > 0.5 * coarse.step / fine.step * coarse.derivative.abs()
    return grows & (fine.derivative.abs() > 20 * floor / fine.step)
