"""Whether a target computes in float32, whatever it is given: then float64 proves nothing of it.

Whether a map computes in fewer digits than it is given, whatever dtype it returns.

Along a short line a smooth map is a polynomial of low degree, so its third differences vanish, and those of
its rounding do not (Moré and Wild, *Estimating computational noise*, 2011). What a kink or a steep place
leaves shrinks with the step; rounding stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import drawn_value, native_arguments
from gradverify.verifier.numerics.native_rounding import as_real
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.numerics.round_off import nudged

STEPS = (2.0**-20, 2.0**-23)
"""Distances between neighbouring points, in units of the inputs: 16 and 2 roundings of float32."""

POINTS = 6
"""On each line; three third differences for each value."""

SCALE = (3 * 2 * 1) ** 2 / (6 * 5 * 4 * 3 * 2 * 1)
"""(3!)² / 6!: times the mean square of third differences of independent errors, this is their variance."""

FINEST = 2.0**-33
"""Share of the largest value above which errors are none of float64: it leaves room for 20 lost bits."""

COARSEST = 2.0**-10
"""Share above which they are no rounding of float32 either: a map that jumps is another thing."""

SHARE = 0.25
"""Share of the changed values that must be off: rounding affects most of them, a kink only a few."""

SHRINKS = 6.0
"""Over a step 8 times smaller, a kink's differences shrink by 8 or more, curvature's by 512."""


def computes_in_fewer_digits(values: Callable[[Tensor], Tensor | None], x: Tensor) -> bool:
    """Whether `values`, of a flat float64 point, has errors as large as float32 makes them.

    It is called 6 or 12 times beside `x`, then twice at it; None where it refuses leaves it unknown, which is
    no. Rounding repeats itself: what differs as much between two calls at one point is no rounding.
    """
    generator = torch.Generator().manual_seed(20_265)
    sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    typical = x.abs().median() if x.numel() else x.new_ones(())
    way = (0.5 + torch.rand(x.shape, generator=generator, dtype=x.dtype) / 2) * sign
    way = way * torch.where(x != 0, x.abs(), typical)
    before: float | None = None
    for step in STEPS:
        line = [values(x + k * step * way) for k in range(POINTS)]
        points = [p for p in line if p is not None]
        noise = _noise(torch.stack(points)) if len(points) == POINTS else 0.0
        if not FINEST < noise < COARSEST or (before is not None and noise < before / SHRINKS):
            return False
        before = noise
    one, other = values(x), values(x)
    if one is None or other is None or before is None:
        return False
    size = one.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return bool(((one - other).abs().nan_to_num(0.0, 0.0, 0.0) <= before / SHRINKS * size).all())


def _noise(line: Tensor) -> float:
    """Errors of the values along a line (points × values), as a share of the largest; 0 where few err."""
    moving = line.isfinite().all(dim=0) & (line != line[0]).any(dim=0)
    line = line[:, moving]
    if not line.numel():
        return 0.0
    third = line.diff(n=3, dim=0)
    errors = (SCALE * third.square().mean(dim=0)).sqrt() / line.abs().max()
    return float(errors.sort().values[int((1 - SHARE) * (errors.numel() - 1))])


FLOAT64 = torch.finfo(torch.float64).eps
"""Relative spacing of float64, in which derivatives are measured."""

COARSE_GRID = 4096.0
"""Values that are whole multiples of 1/4096 are float32 numbers by nature."""

FEWEST_VALUES = 2
"""Values needed to call an output float32: one may be so by chance, with a probability of 2^-29."""

ALIKE = 1e-2
"""Relative to the largest value: what is computed in float32 in both cases is nearer, unless it cancels."""

BESIDE = 2**40
"""Units in the last place by which inputs move for further values: 2e-4 of themselves."""

COTANGENT_SEED = 83
"""Added to a case's seed for the grad_output of this question; any other would do."""


def float32_inside(sample: Sample, *, kernels: bool) -> frozenset[int]:
    """Positions of the outputs of a forward that computes in float32 on the way, whatever it returns.

    Some part of it does, so it is all of them. Of kernels backward counts as well, for they accumulate in
    float32 by design. Any other backward that does, where forward does not, is wrong.
    """
    problem, inputs = sample.problem, sample.inputs
    x = inputs.flatten(problem.primals)
    signs = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed + COTANGENT_SEED))

    def values(moved: Tensor) -> Tensor | None:
        result = problem.evaluate(inputs.unflatten(moved))
        return None if isinstance(result, Raised) else problem.outputs.flatten(result.value)

    def gradient(moved: Tensor) -> Tensor | None:
        result = problem.pull_back(inputs.unflatten(moved), signs)
        return None if isinstance(result, Raised) else inputs.flatten(result.value)

    if not x.numel() or not problem.outputs.size:
        return frozenset()
    if kernels and computes_in_fewer_digits(gradient, x):
        return frozenset(problem.output_positions)
    if computes_in_fewer_digits(values, x) and _gives_the_same_in_float32(sample):
        return frozenset(problem.output_positions)
    return frozenset()


def single_precision_outputs(sample: Sample, values: Tensor) -> frozenset[int]:
    """Positions of the outputs that forward computes in float32: no value of theirs needs more digits.

    Values on a coarse grid (counts, signs, halves) say nothing, nor does anything where the inputs
    themselves have only float32's digits. Of inputs that are given in float32 no output can be more.
    """
    if is_given_short(sample):
        return frozenset(sample.problem.output_positions)
    inputs = sample.inputs.flatten(sample.problem.primals)
    if not _needs_float64(inputs):
        return frozenset()
    found = set()
    for position, block in zip(sample.problem.output_positions, sample.problem.outputs.blocks, strict=True):
        own = _informative(values[block.start : block.stop])
        if own.numel() and not _needs_float64(own):
            own = _informative(torch.cat([own, *_values_nearby(sample, block)]))
            if own.numel() >= FEWEST_VALUES and not _needs_float64(own):
                found.add(position)
    return frozenset(found) if found and _gives_the_same_in_float32(sample) else frozenset()


def _gives_the_same_in_float32(sample: Sample) -> bool:
    """Whether a call in float32 may be what forward does in float64, too: it gives the same values.

    What loses its digits by cancellation, `(x + 1e12) - 1e12`, loses other ones in float32. Where no such
    call can be made, nothing speaks against it.
    """
    problem = sample.problem
    pair = native_arguments(problem.arguments, "float32", drawn_value)
    if pair is None:
        return True
    native, exact = (replace(problem, arguments=arguments) for arguments in pair)
    short, long = native.evaluate(native.primals), exact.evaluate(exact.primals)
    if isinstance(short, Raised) or isinstance(long, Raised):
        return True
    values = [
        torch.cat([as_real(t).flatten().to(torch.float64) for t in of.value if t.numel()] or [torch.zeros(0)])
        for of in (short, long)
    ]
    if values[0].shape != values[1].shape:
        return True
    known = values[0].isfinite() & values[1].isfinite()
    off, size = (values[0] - values[1]).abs()[known], values[1].abs()[known]
    return not off.numel() or bool(off.max() <= ALIKE * size.max())


def tells_digits(sample: Sample) -> bool:
    """Whether every output has a value here, or beside, whose digits say something: no zero, no count."""
    return all(values.numel() for values in _telling_values(sample))


def every_output_is_float32(sample: Sample, *, kernels: bool) -> bool:
    """Whether forward computes every output in float32, whatever it is given; of kernels backward counts."""
    result = sample.problem.evaluate(sample.problem.primals)
    if isinstance(result, Raised):
        return False
    short = single_precision_outputs(sample, sample.problem.outputs.flatten(result.value))
    if short == frozenset(sample.problem.output_positions) or float32_inside(sample, kernels=kernels):
        return True
    found = _telling_values(sample) if not short else []
    return (
        bool(found)
        and all(v.numel() >= FEWEST_VALUES and not _needs_float64(v) for v in found)
        and _gives_the_same_in_float32(sample)
    )


def _telling_values(sample: Sample) -> list[Tensor]:
    """Of each output the values whose digits say something; those beside x where its own say nothing."""
    result = sample.problem.evaluate(sample.problem.primals)
    if isinstance(result, Raised):
        return []
    values, found = sample.problem.outputs.flatten(result.value), []
    for block in sample.problem.outputs.blocks:
        own = _informative(values[block.start : block.stop])
        beside = [] if own.numel() else _values_nearby(sample, block)
        found.append(_informative(torch.cat(beside)) if beside else own)
    return found


def _informative(values: Tensor) -> Tensor:
    return values[values.isfinite() & ((values * COARSE_GRID).round() != values * COARSE_GRID)]


def _values_nearby(sample: Sample, output: Block) -> list[Tensor]:
    """Values of one output where all inputs move by a little: a loss has one value alone."""
    flat, found = sample.inputs.flatten(sample.problem.primals), []
    for seed in range(FEWEST_VALUES):
        beside = nudged(flat, sample.inputs, torch.Generator().manual_seed(seed), most=BESIDE)
        result = sample.problem.evaluate(sample.inputs.unflatten(beside))
        if not isinstance(result, Raised):
            found.append(sample.problem.outputs.flatten(result.value)[output.start : output.stop])
    return found


def is_given_short(sample: Sample) -> bool:
    """Whether every input that is differentiated is itself of fewer digits than float64."""
    return all(is_short(sample, name) for name in sample.problem.input_names)


def is_short(sample: Sample, name: str) -> bool:
    """Whether an input is given in fewer digits than float64: its gradient can have no more."""
    block = sample.inputs.blocks[sample.problem.input_names.index(name)]
    return torch.finfo(block.dtype).eps > FLOAT64


def _needs_float64(values: Tensor) -> bool:
    return bool((values.to(torch.float32).to(torch.float64) != values).any())
