"""How a Function shows that its gradient is a choice of its author's, and not meant to be the derivative.

A backward that is no linear function of grad_output: which of those that are chosen on purpose it is.

Found by what backward makes of multiples of one grad_output. A gradient that is cut off is linear at small
ones and stays as it is at large ones, or is zero at small ones and linear at large ones; a normalised one is
the same for all; a rectified one is linear once that of the negative is taken off. Anything else, a square or
an absolute value, is taken for a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gradverify.model import (
    Finding,
)
from gradverify.verifier.checks.neighbours import FLAT, JUMPS, changed, is_flat, with_values
from gradverify.verifier.checks.result import NOT_REPEATED
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, RandomStates
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.calling import Tensors

Gradient = Callable[[Sequence[Tensor]], Tensor | None]
"""From grad_outputs to the gradient of one input; None where backward raises or gives none."""


SMALL, LARGE = 2.0**-60, 2.0**30
"""Multiples of grad_output below and above every bound that somebody sets, and every epsilon in a
denominator. Powers of two add no rounding, and these are within the range of float32."""


INSIDE = 0.1
"""Factor on an input whose values may lie outside of its domain: moderate ones are inside of most then."""


NEAR = 1e-3
"""Relative: a smooth bound, or an epsilon beside an ordinary grad_output, makes no such difference there."""


CUT_OFF = "it cuts off or normalises grad_output"
"""The same for all large grad_outputs: where an epsilon or a bound begins makes no difference."""


def chosen_of(gradient: Gradient, cotangents: Sequence[Tensor]) -> str:
    """What backward does with grad_output, as `it rectifies grad_output`; empty for nothing of the kind."""
    scales = (SMALL, 2 * SMALL, 1.0, -1.0, LARGE, 2 * LARGE)
    several = [gradient([scale * c for c in cotangents]) for scale in scales]
    known = [g for g in several if g is not None and bool(g.isfinite().all())]
    if len(known) < len(several):
        return ""
    small, twice_small, own, back, large, twice_large = known
    if all(_near(g, own) for g in (large, twice_large)):
        return CUT_OFF
    is_linear_below = _near(twice_small, 2 * small)
    is_linear_above = _near(twice_large, 2 * large)
    if (is_linear_below and _near(twice_large, large)) or (is_linear_above and not small.any()):
        return CUT_OFF
    if (
        is_linear_below
        and is_linear_above
        and not _near(-back, own)
        and _is_additive(gradient, cotangents, own - back)
    ):
        return "it rectifies grad_output"
    return ""


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients are the same, and not zero."""
    return bool(other.any()) and bool((one - other).abs().max() <= NEAR * other.abs().max())


def _is_additive(gradient: Gradient, cotangents: Sequence[Tensor], odd: Tensor) -> bool:
    """Whether the gradient less that of the negative, `odd`, is a linear function, and not zero."""
    others = [c.flip(tuple(range(c.dim()))) + 0.5 for c in cotangents]
    pairs = (others, [a + b for a, b in zip(cotangents, others, strict=True)])
    found = []
    for us in pairs:
        ahead, behind = gradient(us), gradient([-u for u in us])
        if ahead is None or behind is None:
            return False
        found.append(ahead - behind)
    second, both = found
    largest = torch.stack([odd.abs().max(), second.abs().max(), both.abs().max()]).max()
    return bool(odd.any()) and bool((both - odd - second).abs().max() <= LINEAR * largest)


SCALES = (-1.0, 64.0)
"""Factors on grad_output. Powers of two up to the sign, so that a linear backward gives the multiple to
within its rounding."""


OTHER = (1.5, 0.3)
"""Factor and summand that make another real number of an argument."""


LINEAR = 1e-6
"""Relative difference up to which a backward is linear: far above what rounding makes of a sum."""


DRAWN = "backward draws random numbers, and forward none"

OTHER_STATES = 8
"""States of the generators to start from: few entries are often rounded to the same numbers by chance."""

DRAWN_FOR_BACKWARD = "its gradient depends on the random numbers that forward draws, and no output does"


def looks_deliberate(sample: Sample, finding: Finding) -> str:
    """How forward shows that its gradient is a choice, as the beginning of `... was guessed`; empty for not.

    What forward returns as it got it needs no backward, and a step has no derivative to give: with such a
    forward somebody wrote a gradient that is meant to be another one. Nobody means one that is no number.
    """
    if finding.code == "GV108":
        return ""
    problem, name = sample.problem, finding.input
    if finding.code == "GV106":
        shown = _shown_by_grad_output(sample, finding)
        return f"that backward should be the derivative ({shown})" if shown else ""
    if name not in problem.input_names or finding.output not in problem.output_positions:
        return ""
    output = problem.output_positions.index(finding.output)
    place = problem.input_names.index(name)
    primal = problem.primals[place]
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or primal.is_complex() or not primal.numel():
        return ""
    shown = next(_shown(sample, place, output, base.value), "")
    return f"that backward should be the derivative ({shown})" if shown else ""


def _shown_by_grad_output(sample: Sample, finding: Finding) -> str:
    """What shows it of a backward that is not linear.

    Nothing where the derivative itself is there, and no other one was chosen. Nobody adds to a gradient what
    does not scale with the loss, but where forward hands the input on, or does not depend on it: that is the
    gradient of a penalty or of a loss of its own.
    """
    if finding.cause == "grad-output-ones":
        return ""
    names = sample.problem.input_names
    place = names.index(finding.input) if finding.input in names else 0
    if finding.input in names and _adds_a_constant(sample, place):
        return _without_derivative(sample, place)
    return _drawn(sample) or _draws_in_backward(sample) or _chosen(sample, place) or _stepping(sample, place)


def _draws_in_backward(sample: Sample) -> str:
    """That backward draws random numbers, whether or not forward does, too; empty where it does not.

    A solver that starts anywhere gives what hangs on its start, and not on grad_output alone, where it does
    not converge. A mask that is drawn anew is none the less linear.
    """
    problem = sample.problem
    pulled = problem.pull_back(problem.primals, _cotangents(sample))
    drawn = not isinstance(pulled, Raised) and not problem.random_states.untouched()
    return "backward draws random numbers" if drawn else ""


def _stepping(sample: Sample, place: int) -> str:
    """That every output is a step in an input, so that any gradient of it is a choice; empty where not.

    The difference that a step of grad_output's makes in ranks, paths or matchings is linear in none.
    """
    problem = sample.problem
    base = problem.evaluate(problem.primals)
    values = () if isinstance(base, Raised) or problem.primals[place].is_complex() else base.value
    steps = bool(values) and all(_is_step(sample, place, k, value) for k, value in enumerate(values))
    return f"forward is a step in `{problem.input_names[place]}`, flat between" if steps else ""


def _without_derivative(sample: Sample, place: int) -> str:
    """How forward needs no backward for an input; empty where it does, or where forward raises."""
    problem = sample.problem
    name, primal, base = problem.input_names[place], problem.primals[place], problem.evaluate(problem.primals)
    if isinstance(base, Raised):
        return ""
    if any(torch.equal(value, primal) for value in base.value):
        return f"forward returns `{name}` as it is"
    slopes = any(_moves(sample, place, k, value, FLAT) for k, value in enumerate(base.value))
    return "" if slopes else f"forward has no slope in `{name}`, and backward gives it a gradient"


def _shown(sample: Sample, place: int, output: int, values: Tensors) -> Iterator[str]:
    """What shows it, the plainest first."""
    name, value = sample.problem.input_names[place], values[output]
    if torch.equal(value, sample.problem.primals[place]):
        yield f"forward returns `{name}` as it is"
    if _is_step(sample, place, output, value):
        yield f"forward is a step in `{name}`, flat between"
    elif _is_staircase(sample, place, output):
        yield f"forward is a step in entries of `{name}`, up to a scale, and backward gives them a gradient"
    else:
        yield from _of_a_step(sample, place, output, value)
    hidden = any(d.of_values for d in sample.subject.doubts)  # labels all alike, say, leave nothing to depend
    if not hidden and not any(_moves(sample, place, k, v, (*FLAT, *JUMPS)) for k, v in enumerate(values)):
        yield f"no output depends on `{name}`, and backward gives it a gradient"
    if drawn := _drawn(sample):
        yield drawn
    alone = _backward_alone_reads(sample, place)
    if alone:
        yield f"backward goes by `{alone}`, and forward does not"
    others = (k for k in range(len(values)) if k != output)
    if any(_is_spiking(sample, place, k, values[k]) for k in others):
        yield "another output is a step, and backward gives it a gradient"
    chosen = _chosen(sample, place)
    if chosen:
        yield chosen


def _is_step(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output is flat in an input here and at small values, and moves from one to the other.

    What is clamped to its domain is flat outside alone.
    """
    if not is_flat(sample, place, output, value) or not _moves(sample, place, output, value, JUMPS):
        return False
    name, primal = sample.problem.input_names[place], sample.problem.primals[place]
    small = with_values(sample, {name: INSIDE * primal})
    there = small.problem.evaluate(small.problem.primals)
    return isinstance(there, Raised) or is_flat(small, place, output, there.value[output])


ENTRIES = 8
"""Entries of an input that are moved alone."""

SHARES = (1.0, 0.7, 0.4, 0.1, -0.2)
"""Shares of its own value that an entry is given. The largest entry stays the largest; some of these
values lie between bounds that clamp the others."""

BETWEEN = (0.0, 0.3, 0.6, 0.9)
"""How far it is moved towards another entry: the least stays the least, too."""

BESIDE = 1e-6
"""How far beside these forward is the same where it is flat, as a share of the largest entry."""

SCALED = 1e-4
"""Relative to how far an output moves: what curvature leaves of one factor for all of it, so near by."""

ROUNDINGS = 8 * torch.finfo(torch.float64).eps
"""Relative to an output: what rounding leaves of one."""

JUMP = 1e-3
"""Relative to an output: a step, over a distance that nothing continuous changes so much in."""

HALVINGS = 40
"""How often the distance is halved in which an output becomes another one."""


MULTIPLES = (-16.0, -4.0, -1.0, 0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 4.0, 16.0)
"""Multiples of an input between which a jump of an output is looked for."""


def _of_a_step(sample: Sample, place: int, output: int, value: Tensor) -> Iterator[str]:
    """That an output jumps in an input, and is a step in another one to which backward gives a gradient.

    Backward is that of another forward then, which has no steps: what moves these, as the step size of a
    quantiser does, has the slope of that forward, too.
    """
    names = sample.problem.input_names
    stepping = (p for p in range(len(names)) if p != place and _is_given(sample, p, output))
    if not _jumps_in(sample, place, output):
        return
    of_steps = (p for p in stepping if _is_step(sample, p, output, value) or _is_staircase(sample, p, output))
    if (first := next(of_steps, None)) is not None:
        given = f"forward is a step in `{names[first]}`, to which backward gives a gradient"
        yield f"{given}, and jumps in `{names[place]}`"


def _is_given(sample: Sample, place: int, output: int) -> bool:
    """Whether backward gives an input a gradient of one output."""
    alone = [c if k == output else None for k, c in enumerate(_cotangents(sample))]
    gradient = _gradient(sample, place, alone)
    return gradient is not None and bool((gradient != 0).any())


def _jumps_in(sample: Sample, place: int, output: int) -> bool:
    """Whether an output jumps somewhere where all of an input is multiplied by one number."""
    primals = sample.problem.primals

    def at(factor: float) -> Tensor | None:
        moved = [factor * p if k == place else p for k, p in enumerate(primals)]
        result = sample.problem.evaluate(moved)
        return None if isinstance(result, Raised) else result.value[output]

    return any(_jumps_between(at, *ends) for ends in pairwise(MULTIPLES))


def _jumps_between(at: Callable[[float], Tensor | None], start: float, end: float) -> bool:
    """Whether halving the distance, always on the side of the larger change, leaves one that stays."""
    one, other = at(start), at(end)
    for _ in range(HALVINGS):
        middle = at((start + end) / 2)
        if one is None or other is None or middle is None:
            return False
        if (middle - one).abs().max() >= (other - middle).abs().max():
            end, other = (start + end) / 2, middle
        else:
            start, one = (start + end) / 2, middle
    if one is None or other is None:
        return False
    return bool((other - one).abs().max() > JUMP * max(one.abs().max(), other.abs().max()))


def _is_staircase(sample: Sample, place: int, output: int) -> bool:
    """Whether an output is a step in a single entry of an input, and backward gives it a gradient.

    Where values are rounded on a scale that hangs on the largest of them, all together move that, and no
    other one alone; on a scale that is a mean, every one moves all levels by one factor. What is clamped is
    not flat at small values, and what selects one of its entries gives the others no gradient.
    """
    gradient, primal = _gradient(sample, place, _cotangents(sample)), sample.problem.primals[place]
    if gradient is None or gradient.shape != primal.shape or primal.is_complex():
        return False
    if gradient.layout is not torch.strided or primal.layout is not torch.strided:
        return False
    entries, given = primal.detach().reshape(-1), gradient.reshape(-1)
    generator = torch.Generator().manual_seed(sample.key)
    beside = BESIDE * entries.abs().max()
    order = torch.randperm(len(entries), generator=generator)
    for entry, other in zip(order[:ENTRIES].tolist(), order.roll(1).tolist(), strict=False):
        if given[entry] == 0:
            continue
        own, there = entries[entry], entries[other]
        at = partial(_output_at, sample, place, output, entry)
        for places in ([share * own for share in SHARES], [own + t * (there - own) for t in BETWEEN]):
            here, near = [at(value) for value in places], [at(value + beside) for value in places]
            if all(_is_multiple(a, b) for a, b in zip(here, near, strict=True)):
                pairs = zip(places, here, strict=True)
                changed_at = [value for value, found in pairs if not _is_multiple(here[0], found)]
                if any(_jumps(at, places[0], value) for value in changed_at):
                    return True
    return False


def _is_multiple(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether an output is another one, but for one factor of all that moves; or one of them is not known.

    That a single entry is a multiple of itself says nothing.
    """
    if one is None or other is None:
        return True
    moved = one != other
    a, b = one[moved], other[moved]
    if a.numel() < 2 or not bool((a * b).any()):
        return a.numel() == 0
    left = b - a * ((a * b).sum() / a.square().sum())
    return bool(left.abs().max() <= SCALED * (b - a).abs().max() + ROUNDINGS * a.abs().max())


def _jumps(at: Callable[[Tensor], Tensor | None], start: Tensor, end: Tensor) -> bool:
    """Whether an output that is no multiple of itself between two values is so at one of them."""
    first = at(start)
    for _ in range(HALVINGS):
        middle = (start + end) / 2
        if _is_multiple(first, at(middle)):
            start = middle
        else:
            end = middle
    one, other = at(start), at(end)
    if one is None or other is None:
        return False
    return bool((other - one).abs().max() > JUMP * max(one.abs().max(), other.abs().max()))


def _output_at(sample: Sample, place: int, output: int, entry: int, value: Tensor) -> Tensor | None:
    """An output where one entry of an input has another value; None where forward raises."""
    primals = [*sample.problem.primals]
    entries = primals[place].reshape(-1).clone()
    entries[entry] = value
    primals[place] = entries.reshape(primals[place].shape)
    result = sample.problem.evaluate(primals)
    return None if isinstance(result, Raised) else result.value[output]


def _adds_a_constant(sample: Sample, place: int) -> bool:
    """Whether backward is what does not scale with grad_output, alone or beside a multiple of it."""
    if sample.problem.primals[place].is_complex():
        return False
    cotangents = _cotangents(sample)
    own = [_gradient(sample, place, [scale * c for c in cotangents]) for scale in (1.0, *SCALES)]
    known = [g for g in own if g is not None and bool(g.isfinite().all())]
    if len(known) < len(own):
        return False
    there, back, far = known
    beside = (there + back) / 2
    largest = max(g.abs().max() for g in known)
    linear = (far - beside) - SCALES[1] * (there - beside)
    return bool(beside.abs().max() > LINEAR * largest and linear.abs().max() <= LINEAR * largest)


def _is_spiking(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output is a step in all that it goes by, and backward gives it a gradient all the same."""
    places = range(len(sample.problem.primals))
    if not all(is_flat(sample, p, output, value) for p in places):
        return False
    if not any(_moves(sample, p, output, value, JUMPS) for p in places):
        return False
    return _is_given(sample, place, output)


def _backward_alone_reads(sample: Sample, place: int) -> str:
    """An argument that backward goes by and forward does not; empty for none.

    Forward is the same function whatever it is, so its derivative is, too: a gradient that changes with it is
    scaled, widened or reversed by choice.
    """
    problem = sample.problem
    cotangents = _cotangents(sample)
    base, own = problem.evaluate(problem.primals), _gradient(sample, place, cotangents)
    if isinstance(base, Raised) or own is None:
        return ""
    for argument in sample.arguments:
        other = None if argument.differentiable else _other(argument.value)
        if other is None:
            continue
        moved = with_values(sample, {argument.name: other})
        result = moved.problem.evaluate(problem.primals)
        if isinstance(result, Raised) or not all(map(torch.equal, result.value, base.value)):
            continue
        gradient = _gradient(moved, place, cotangents)
        if gradient is not None and not torch.equal(gradient, own):
            return argument.name
    return ""


def _other(value: Any) -> Any:  # noqa: ANN401 - an argument
    """Another value of a real number, a real tensor or a mask; None for anything else."""
    if isinstance(value, float):
        return value * OTHER[0] + OTHER[1]
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    if value.dtype is torch.bool:
        return ~value
    return value * OTHER[0] + OTHER[1] if value.is_floating_point() else None


def _drawn(sample: Sample) -> str:
    """How backward's gradient is a sample, where no output is; empty where it is none.

    By other states for every call to start from, or, where it has a source of its own, by another gradient
    each time. Of random numbers that forward uses itself, a mask, say, backward must not draw others.
    """
    problem, own = sample.problem, sample.problem.random_states
    others = [RandomStates(sample.key + k) for k in range(OTHER_STATES)]
    outputs = [replace(problem, random_states=s).evaluate(problem.primals) for s in (own, others[0])]
    base, other = outputs
    if (
        isinstance(base, Raised)
        or isinstance(other, Raised)
        or not all(map(torch.equal, base.value, other.value))
    ):
        return ""
    found, drew = [], False
    for states in (own, own, *others):
        with filled_memory():  # what is never written is another number each time, and no random one
            pulled = replace(problem, random_states=states).pull_back(problem.primals, _cotangents(sample))
        if isinstance(pulled, Raised):
            return ""
        drew = drew or not states.untouched()
        found.append(sample.inputs.flatten(pulled.value))
    if drew or _differ(*found[:2]):
        return DRAWN
    return DRAWN_FOR_BACKWARD if any(_differ(found[1], other) for other in found[2:]) else ""


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients are not the same, but for rounding, and for entries that are NaN in both."""
    known = ~(one.isnan() & other.isnan())
    one, other = one[known], other[known]
    return bool(one.numel()) and bool((one - other).abs().max() > LINEAR * one.abs().max())


def _chosen(sample: Sample, place: int) -> str:
    """Which function of grad_output backward chose to give; empty for a linear one, or for any other."""
    with filled_memory():  # what is never written is NaN then, and no function of anything
        return chosen_of(partial(_gradient, sample, place), _cotangents(sample))


def _gradient(sample: Sample, place: int, cotangents: Sequence[Tensor | None]) -> Tensor | None:
    """What backward gives for one input; None where it raises or gives nothing."""
    result = sample.problem.pull_back(sample.problem.primals, cotangents)
    return None if isinstance(result, Raised) else result.value[place]


def _cotangents(sample: Sample) -> Tensors:
    """Signed grad_outputs of ordinary size, one for each output."""
    generator = torch.Generator().manual_seed(sample.key)
    base = sample.problem.evaluate(sample.problem.primals)
    values = () if isinstance(base, Raised) else base.value
    return tuple(torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v) for v in values)


def _moves(sample: Sample, place: int, output: int, value: Tensor, steps: Sequence[float]) -> bool:
    """Whether an output changes when all entries of an input are moved, each by another distance."""
    several = (changed(sample, place, output, value, step) for step in steps)
    return any(entries is not None and bool(entries.any()) for entries in several)


OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""


def signs_of(sample: Sample, finding: Finding) -> list[str]:
    """What shows that the gradient is not meant to be the derivative: in the source, in the numbers."""
    if finding.cause == NOT_REPEATED:
        return ["that backward should be the derivative (it gives another gradient each time)"]
    if finding.code not in OF_THE_DERIVATIVE:
        return []
    said = [d.what for d in sample.subject.doubts if d.intent][:1]
    return [*said, *filter(None, [looks_deliberate(sample, finding)])]
