"""The Jacobian that forward has, measured column by column.

Matrices are M × N: M real coordinates of the outputs, N of the inputs (a complex number counts twice).
Cost: 6N forwards, 18 or 24 more for a column that does not resolve.

The Jacobian that backward claims.

Entries that the first step did not resolve: other steps, kinks, jumps and staircases.

Tensors of this module are (columns that are refined) × M where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.problem import Layout, Problem
from gradverify.verifier.numerics.sampling import (
    ROUND_OFF_GAIN,
    Sampler,
    Samples,
    noise_floor,
    persistent_noise,
    typical_values,
)
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY

FEW_ROWS = 2
"""Up to this many rows a graph for each costs no more than one graph and its verification."""

SAME_ROWS = 1e-12
"""Rows of one graph are taken when a fresh graph gives their mixture to within this share of its terms."""


def analytical_jacobian(problem: Problem) -> Returned[Tensor] | Raised:
    """The Jacobian that backward claims: one backward for each output coordinate.

    The grad_outputs of the other outputs stay undefined, as they are when a user differentiates one. Each
    row is what backward gives on a fresh graph: rows are taken from one graph only where a fresh one
    confirms them, so a backward that spoils what it saved cannot spoil other rows.
    """
    count = problem.outputs.size
    if count > FEW_ROWS:
        together = analytical_rows(problem, range(count), problem.primals)
        if isinstance(together, Returned) and _repeats(problem, together.value):
            return together
    rows = torch.zeros(count, Layout.of(problem.primals).size, dtype=torch.float64)
    for position in range(count):
        row = analytical_rows(problem, (position,), problem.primals)
        if isinstance(row, Raised):
            return row
        rows[position] = row.value[0]
    return Returned(rows)


def analytical_rows(
    problem: Problem, positions: Iterable[int], primals: Sequence[Tensor], scale: float = 1.0
) -> Returned[Tensor] | Raised:
    """Some rows, from one graph: backward of `scale` times each unit grad_output, divided by it.

    (number of positions) × N.
    """
    inputs = Layout.of(problem.primals)
    units = (unit_cotangent(problem, position, scale) for position in positions)
    result = problem.pull_back_each(primals, units)
    if isinstance(result, Raised):
        return result
    rows = [inputs.flatten(gradients) for gradients in result.value]
    return Returned(torch.stack(rows) / scale if rows else torch.zeros(0, inputs.size, dtype=torch.float64))


def unit_cotangent(problem: Problem, position: int, scale: float = 1.0) -> list[Tensor | None]:
    """The grad_outputs that are `scale` at one output coordinate; other outputs' stay undefined."""
    unit = torch.zeros(problem.outputs.size, dtype=torch.float64)
    unit[position] = scale
    return _alone(problem, position, unit)


def _alone(problem: Problem, position: int, flat: Tensor) -> list[Tensor | None]:
    """grad_outputs of the output that a row belongs to; the others' stay undefined."""
    block = problem.outputs.block_of(position)
    return [t if number == block else None for number, t in enumerate(problem.outputs.unflatten(flat))]


def _repeats(problem: Problem, rows: Tensor) -> bool:
    """Whether fresh graphs give the same: a random mixture of each output's rows in one backward."""
    inputs, generator = Layout.of(problem.primals), torch.Generator().manual_seed(20_262)
    u = torch.rand(rows.shape[0], generator=generator, dtype=torch.float64) + 0.5
    for own in problem.outputs.slices:
        fresh = problem.pull_back(problem.primals, _alone(problem, own.start, u))
        if isinstance(fresh, Raised):
            return False
        mixed, terms = u[own] @ rows[own], u[own] @ rows[own].abs()
        if not ((inputs.flatten(fresh.value) - mixed).abs() <= SAME_ROWS * terms).all():
            return False
    return True


FIRST_STEP = 2.0**-10
"""Step of the first pass in units of the entry's own scale: truncation and noise balance near 1e-12 for a
sixth-order formula on functions of order one."""

LARGE_STEP = 2.0**-5
"""A step for rows that noise limits, in the same units."""

CONSTANT_AS_FAR = 2.0**-3
"""How far a row is constant on one side of x that has no derivative but zero, in the same units: what
rounds to 8 bits inside has moved by then."""

KINK_STEPS = (2.0**-17, 2.0**-23)
"""Small steps, which step over fewer kinks; one-sided slopes at both tell a kink from curvature."""

UNTRUSTED = 1e-3
"""A value with a larger relative error than this does not speak against a jump."""

CONVERGED = 1e-2
"""Where the fourth-order and the sixth-order value differ by a larger share, the expansion behind both has
not converged, and their difference is no error estimate."""

CLEARLY_CONVERGED = 1e-6
"""Where they differ by less than this share, no kink and no oscillation lies within the step."""

LARGEST_NOISE = 1e-2
"""Noise is noise up to this share of f's typical value (bfloat16 inside makes 4e-3)."""

CUSP_GROWTH = 2.0
"""From the coarser to the finer of `KINK_STEPS` the half-jump of |x|^p grows by 64^(1-p): by this much for
p up to 5/6. That of a kink stays, curvature's shrinks."""

RESOLUTION = 16 * EPSILON
"""Rounding of a few numbers of the size of one, in f."""

QUIET = 1e-9
"""Where moving an input by a share of itself moves an output by no more than this part of that share, for
large steps, and by no more than this part of it for small ones, there is no derivative to speak of, whatever
the expansion says: as in rows of a saturated softmax."""

VISIBLE_KINK = 20.0
"""A jump of the slope counts as a kink beyond this many noises divided by the step."""


@dataclass(frozen=True)
class Refined:
    """The best that all steps together say, M × (columns that were refined); see `NumericalJacobian`."""

    value: Tensor
    error: Tensor
    flat: Tensor
    kink: Tensor
    step: Tensor
    noise: Tensor
    """The noise of f (M), separated from kinks and curvature."""


def refine(
    sampler: Sampler,
    columns: list[int],
    first: Samples,
    floor: Tensor,
    resolved: Tensor,
    claimed: Tensor | None,
) -> Refined:
    """Measure columns again at a larger and at smaller steps and merge everything, entry by entry.

    `floor` is the noise of f as the first pass measured it (M). Errors below `resolved` (M) need no better
    value. `claimed` is what backward has there, where that is known.
    """
    scales, x = sampler.scales[columns, None], sampler.x[columns, None]
    large, coarse, fine = (sampler.sample(columns, step * scales[:, 0]) for step in (LARGE_STEP, *KINK_STEPS))
    levels, outputs = (first.noise, coarse.noise, fine.noise), sampler.problem.outputs
    noise = persistent_noise(levels, floor, sampler.own, outputs)
    nearer = _own_scale(sampler, columns)
    candidates = [large, first, coarse, fine, *(nearer[:1] if nearer else ())]
    flat = _flat(candidates, finest=fine)
    flat |= _constant_on_one_side(sampler, columns, first, large)
    errors = []
    for samples in candidates:
        error = measured_error(samples, noise, x, sampler.own)
        unresolved = ~converged(samples, floor, sampler.typical) & (error > resolved)
        # Flat at one step only is a staircase (a float32 interior): no evidence beside a step that moved.
        errors.append(torch.where((samples.flat & ~flat) | unresolved, torch.inf, error))
    errors = _within_resolution(candidates[:4], errors[:4], x, sampler.typical) + errors[4:]
    value, error, step = _best(candidates, errors)
    if claimed is not None:
        error = torch.where(_staircase((coarse, fine), flat, noise, claimed), torch.inf, error)
    kink = _is_kink(coarse, fine, sampler.own)
    if nearer is not None:  # seen from nearer, it may lie beside the kink
        kink &= ~(nearer[1] & (SAFETY * errors[-1] < 0.1 * fine.half_jump))
    jump = _is_jump(coarse, fine, noise) & (error > UNTRUSTED * value.abs()) | _is_cusp(coarse, fine, noise)
    error = torch.where(kink, noise / fine.step + _bent(coarse, fine), torch.where(jump, torch.inf, error))
    negligible, shares = QUIET * sampler.typical, (large.step / scales, first.step / scales, 1.0, 1.0)
    quiet = error.isinf() & _hardly_moves((large, first, coarse, fine), shares, negligible)
    return Refined(
        value=torch.where(kink, (fine.left + fine.right) / 2, value).mT,
        error=torch.where(quiet, negligible / scales, error).mT,
        flat=flat.mT,
        kink=torch.where(kink, fine.half_jump, 0.0).mT,
        step=torch.where(kink, fine.step, step).mT,
        noise=noise,
    )


def _hardly_moves(
    candidates: Sequence[Samples], shares: Sequence[Tensor | float], negligible: Tensor
) -> Tensor:
    """Whether no step moves f by more than its share of what is negligible; see `QUIET`."""
    still = []
    for samples, share in zip(candidates, shares, strict=True):
        moved = torch.maximum(samples.derivative.abs(), samples.steepest) * samples.step
        still.append(samples.truncation.isfinite() & (moved <= negligible * share))
    return torch.stack(still).all(dim=0)


def _flat(candidates: list[Samples], *, finest: Samples) -> Tensor:
    """Whether no step moves f; one that leads out of its domain says nothing.

    The finest alone proves nothing: it does not move f over the steps of a coarse interior.
    """
    outside = torch.stack([c.truncation.isinf() for c in candidates])
    flat = torch.stack([c.flat for c in candidates])
    telling = torch.stack([c.flat for c in candidates if c is not finest])
    return (flat | outside).all(dim=0) & telling.any(dim=0)


def _constant_on_one_side(sampler: Sampler, columns: list[int], first: Samples, large: Samples) -> Tensor:
    """Rows that a usual step does not move, and that one side of x leaves as they are much further off.

    Beside a clamp the larger step leads over its kink. A staircase moves on both sides. Up to six
    evaluations for each column, where a row may be such a one.
    """
    sides = [first.flat & ~large.flat & (slope == 0) for slope in (large.left, large.right)]
    if not (sides[0] | sides[1]).any():
        return torch.zeros_like(first.flat)
    far = sampler.sample(columns, CONSTANT_AS_FAR * sampler.scales[columns])
    return (sides[0] & (far.left == 0)) | (sides[1] & (far.right == 0))


def measured_error(samples: Samples, floor: Tensor, x: Tensor, own: Tensor) -> Tensor:
    """Error of samples for a noise in f.

    Other columns' noise says nothing about a row that stays the same bit for bit: it has moved by less than
    f's own rounding. Elsewhere, x + k·t itself is rounded, which moves f by the slope times half an ulp of x.
    """
    noise = torch.maximum(floor, EPSILON * samples.derivative.abs() * x.abs())
    return samples.error(torch.where(samples.flat, own, noise))


def converged(samples: Samples, floor: Tensor, typical: Tensor) -> Tensor:
    """Whether the error estimate means something: truncation is small, or is what noise makes of it.

    An oscillation far faster than the step looks like noise as large as f itself; no noise to reckon with
    is that large.
    """
    small = samples.truncation <= CONVERGED * samples.derivative.abs()
    noisy = samples.truncation <= samples.amplified(floor)
    return small | (noisy & (2 * samples.noise <= LARGEST_NOISE * typical))


def _own_scale(sampler: Sampler, columns: list[int]) -> tuple[Samples, Tensor] | None:
    """A step relative to the entry itself where even the smallest is large for it, and which these are."""
    x, scales = sampler.x[columns].abs(), sampler.scales[columns]
    finest = min(KINK_STEPS)
    tiny = (x > 0) & (FIRST_STEP * x < finest * scales)
    if not tiny.any():
        return None
    steps = torch.where(tiny, FIRST_STEP * x, finest / 2 * scales)
    return sampler.sample(columns, steps), tiny[:, None]


def _within_resolution(
    candidates: list[Samples], errors: list[Tensor], x: Tensor, typical: Tensor
) -> list[Tensor]:
    """A small step cannot contradict a larger one by less than what its numbers resolve.

    Inside f, numbers of the size of one may be rounded before they cancel: 1 + erf(x) becomes a function
    of steps, each exactly linear with another slope than its own. Within a step nothing shows that.
    """
    size = torch.maximum(x.abs().clamp_min(1.0), typical)
    checked = list(errors)
    for finer, samples in enumerate(candidates):
        resolved = RESOLUTION * size / samples.step.abs()
        for larger in candidates[:finer]:
            difference = (samples.derivative - larger.derivative).abs()
            doubtful = larger.truncation.isfinite() & (difference <= resolved)
            checked[finer] = torch.where(doubtful, torch.maximum(checked[finer], difference), checked[finer])
    return checked


def _best(candidates: list[Samples], errors: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Value, error and step with the smallest error; candidates run from large steps to small ones.

    Where two steps contradict each other beyond both errors, one has seen something else than the
    derivative, and the difference is its error. That is the smaller one if the larger one's expansion had
    clearly converged: inside a saturated function the float64 values do not change below some step, and what
    is left is exactly linear, with another slope. Else it is the larger one (a kink nearby, another branch,
    too fast an oscillation).
    """
    values = torch.stack([c.derivative for c in candidates])
    stacked = torch.stack(errors)
    checked = stacked.clone()
    for k, samples in enumerate(candidates):
        clear = samples.truncation <= CLEARLY_CONVERGED * samples.derivative.abs()
        # A slope of exactly zero between values that move is a symmetry of the step, and proves nothing.
        clear &= (samples.derivative != 0) | samples.flat
        for finer in range(k + 1, len(candidates)):
            difference = (values[k] - values[finer]).abs()
            contradicted = difference > SAFETY * (stacked[k] + stacked[finer])
            for wrong, other in ((finer, clear), (k, ~clear)):
                larger = torch.maximum(checked[wrong], difference)
                checked[wrong] = torch.where(contradicted & other, larger, checked[wrong])
    error, choice = checked.min(dim=0)
    steps = torch.stack([c.step.expand_as(error) for c in candidates])
    return values.gather(0, choice[None])[0], error, steps.gather(0, choice[None])[0]


def _staircase(fine: tuple[Samples, ...], flat: Tensor, noise: Tensor, claimed: Tensor) -> Tensor:
    """Flat at a small step, moving at a larger one, and backward says zero: either may be the derivative."""
    most = SAFETY * ROUND_OFF_GAIN * noise
    return torch.stack([s.flat & ~flat & (claimed.abs() <= most / s.step) for s in fine]).any(dim=0)


def _is_kink(coarse: Samples, fine: Samples, own: Tensor) -> Tensor:
    """The one-sided slopes differ by the same amount at both steps.

    Curvature would shrink with the step and noise would grow against it, both by the ratio of the steps.
    """
    visible = VISIBLE_KINK * own / fine.step
    stable = (fine.half_jump >= 0.3 * coarse.half_jump) & (fine.half_jump <= 3 * coarse.half_jump)
    middle = ((fine.left + fine.right) - (coarse.left + coarse.right)).abs() / 2
    steady = middle <= 0.3 * fine.half_jump + visible
    return stable & steady & (fine.half_jump > visible) & fine.half_jump.isfinite()


def _bent(coarse: Samples, fine: Samples) -> Tensor:
    """How far the one-sided slopes at the finer step may still be off because the pieces are curved.

    That error is proportional to the step, so the slopes at both steps tell it.
    """
    off = torch.maximum((fine.left - coarse.left).abs(), (fine.right - coarse.right).abs())
    return off * fine.step / (coarse.step - fine.step)


def _is_jump(coarse: Samples, fine: Samples, floor: Tensor) -> Tensor:
    """A difference quotient grows like 1/step, well above the noise: f jumps here.

    The symmetric one sees a step, the half-jump a value that stands alone.
    """
    growth = 0.5 * coarse.step / fine.step
    visible = VISIBLE_KINK * floor / fine.step
    step = (fine.derivative.abs() > growth * coarse.derivative.abs()) & (fine.derivative.abs() > visible)
    alone = (fine.half_jump > growth * coarse.half_jump) & (fine.half_jump > visible)
    return step | alone


def _is_cusp(coarse: Samples, fine: Samples, floor: Tensor) -> Tensor:
    """The half-jump grows as the step shrinks, well above the noise: the one-sided slopes are infinite.

    By symmetry the central differences of sqrt(|x|) are exactly 0 at 0, where there is no derivative.
    """
    visible = VISIBLE_KINK * floor / fine.step
    growth = fine.half_jump / coarse.half_jump
    jumps = 0.5 * coarse.step / fine.step
    return (growth > CUSP_GROWTH) & (growth < jumps) & (fine.half_jump > visible)


RESOLVED = 1e-8
"""An entry is resolved when its error is below this share of (|D| + median |D| of its row)."""

NEGLIGIBLE = 1e-9
"""A derivative that is zero to within its error is resolved when moving the input by its whole size changes
the output by less than this share of it."""

ENTRIES = ("value", "error", "flat", "kink", "step")
"""What is known of each entry."""


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
    noise: Tensor
    """The noise in f, M entries."""
    scale: Tensor
    """The size of each input coordinate, N entries: a power of two."""

    def with_columns(self, columns: Sequence[int], other: NumericalJacobian | Refined) -> NumericalJacobian:
        """The same with some columns as they are in another measurement, which has these alone."""
        changed = {name: getattr(self, name).clone() for name in ENTRIES}
        for name, whole in changed.items():
            whole[:, columns] = getattr(other, name)
        return replace(self, noise=other.noise, **changed)


@dataclass(frozen=True)
class KnownColumns:
    """The last columns of a Jacobian, known from elsewhere: those of a linear part need no measuring."""

    value: Tensor
    """M × (number of known columns)."""
    error: Tensor

    @property
    def count(self) -> int:
        """How many columns are known."""
        return self.value.shape[1]

    def joined(self, measured: NumericalJacobian, own: Tensor) -> NumericalJacobian:
        """The measured columns, then these: no better than the noise `own` of f (M), whose values they are.

        They are its values at coordinates of size one.
        """
        none = torch.zeros_like(self.value)
        # What is linear in a coordinate with the coefficient zero does not depend on it at all.
        error, flat = torch.maximum(self.error, own[:, None]), self.value == 0
        known = dict(zip(ENTRIES, (self.value, error, flat, none, none + FIRST_STEP), strict=True))
        whole = {name: torch.cat([getattr(measured, name), own], dim=1) for name, own in known.items()}
        scale = torch.cat([measured.scale, measured.scale.new_ones(self.count)])
        return replace(measured, **whole, scale=scale)


def numerical_jacobian(
    sampler: Sampler, *, suspect: Tensor | None = None, only: Sequence[int] | None = None
) -> NumericalJacobian:
    """The Jacobian that forward has, column by column.

    `suspect` is the analytical Jacobian where one is known: columns in conflict with it are measured again
    with other steps. `only` are the columns that are measured: the result has these alone then.
    """
    outputs = sampler.problem.outputs
    asked = list(range(sampler.x.numel()) if only is None else only)
    samples = sampler.sample(asked, FIRST_STEP * sampler.scales[asked])
    floor = noise_floor(samples.noise, sampler.own, outputs)
    value = samples.derivative.mT.contiguous()
    result = NumericalJacobian(
        value=value,
        error=measured_error(samples, floor, sampler.x[asked, None], sampler.own).mT.contiguous(),
        flat=samples.flat.mT.contiguous(),
        kink=torch.zeros_like(value),
        step=samples.step.mT.expand_as(value).clone(),
        centre=sampler.centre,
        noise=floor,
        scale=sampler.scales[asked],
    )
    claimed = None if suspect is None else suspect[:, asked]
    columns = _unresolved_columns(result, claimed, outputs)
    if not columns:
        return result
    refined = refine(
        sampler,
        [asked[k] for k in columns],
        samples.at(torch.tensor(columns)),
        floor,
        RESOLVED * _largest(result.value),
        None if claimed is None else claimed[:, columns].mT,
    )
    return result.with_columns(columns, refined)


def natural_slope(centre: Tensor, scale: Tensor, outputs: Layout) -> Tensor:
    """|f| / |x| for every entry (M × N): the largest value of each output over the size of each input."""
    return typical_values(centre, outputs)[:, None] / scale


def _largest(value: Tensor) -> Tensor:
    return value.abs().amax(dim=1) if value.shape[1] else value.new_zeros(value.shape[0])


def _unresolved_columns(result: NumericalJacobian, claimed: Tensor | None, outputs: Layout) -> list[int]:
    if not result.value.numel():
        return []
    size = result.value.abs()
    # A zero entry of a sparse row has no scale of its own: noise below that of its largest entry is fine.
    reference = torch.maximum(size + size.median(dim=1, keepdim=True).values, _largest(size)[:, None])
    slope = natural_slope(result.centre, result.scale, outputs)
    zero = (size <= SAFETY * result.error) & (result.error <= NEGLIGIBLE * slope)
    unresolved = (result.error > RESOLVED * reference) & ~zero & ~result.flat
    if claimed is not None:
        unresolved |= ~((result.value - claimed).abs() <= SAFETY * result.error)
    # Where f itself is not finite, no other step helps.
    unresolved &= result.centre.isfinite()[:, None]
    return [int(j) for j in unresolved.any(dim=0).nonzero().flatten().tolist()]
