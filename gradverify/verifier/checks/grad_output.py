"""GV106: backward must be linear in grad_output, at every magnitude.

The rows of a Jacobian are gradients for unit grad_outputs; what a loss sends is a mixture of these.

Backward is not linear in grad_output: which function of it is used in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Finding
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import is_float32, number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import SINGLE
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem
from gradverify.verifier.numerics.round_off import gradient_round_off
from gradverify.verifier.numerics.tolerance import EPSILON, distance

SAME = 1e-6
"""Gradients agree within this share of the sum of their terms; the true Jacobian is a measured one."""

ROUNDED_TERMS = 1e-11
"""... and within this share of the largest: what cancels in backward has the rounding of its terms."""

ONES = "1"
"""In place of grad_output: backward ignores it."""

_FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("grad_output.sign()", torch.sign),
    ("grad_output.abs()", torch.abs),
    ("grad_output.relu()", torch.relu),
    ("grad_output / grad_output.norm()", lambda u: u / u.norm()),
    ("grad_output**2", lambda u: u * u),
    ("(grad_output > 0)", lambda u: (u > 0).double()),
    ("(grad_output != 0)", lambda u: (u != 0).double()),
)
"""What is in the place of grad_output, as a user would write it."""


@dataclass(frozen=True)
class Mixture:
    """One backward of a dense grad_output."""

    cotangent: Tensor
    """M entries."""
    gradient: Tensor
    """One input's, n entries."""


def cotangent_function(mixtures: Sequence[Mixture], true: Tensor) -> str | None:
    """φ in Python, where gradient = trueᵀ φ(grad_output) for every mixture; these differ in magnitude.

    `true` is M × n. A gradient that is the same for every grad_output, and not zero, is trueᵀ 1: `ONES`.
    None where grad_output itself fits all of them: then what is wrong is wrong for others.
    """
    if all(_agrees(m, true, m.cotangent) for m in mixtures):
        return None
    if all(_agrees(m, true, torch.ones_like(m.cotangent)) for m in mixtures):
        return ONES
    for text, function in _FUNCTIONS:
        if all(_agrees(m, true, function(m.cotangent)) for m in mixtures):
            return text
    bound = _clamp(mixtures, true)
    return None if bound is None else f"grad_output.clamp(-{bound:.4g}, {bound:.4g})"


def _agrees(mixture: Mixture, true: Tensor, cotangent: Tensor) -> bool:
    terms = cotangent.abs() @ true.abs()
    allowed = SAME * terms + ROUNDED_TERMS * terms.max()
    return bool((distance(mixture.gradient, cotangent @ true) <= allowed).all()) and bool(terms.any())


ENTRIES_OF_A_CLAMP = 2
"""Entries of a gradient that must agree in the bound of one."""


def _clamp(mixtures: Sequence[Mixture], true: Tensor) -> float | None:
    """The c of a clamp to ±c: the largest grad_output shows it, the others must agree.

    In one entry of a gradient there is such a number for anything.
    """
    largest = max(mixtures, key=lambda m: m.cotangent.abs().min().item())
    signed = largest.cotangent.sign() @ true
    if signed.count_nonzero() < ENTRIES_OF_A_CLAMP:
        return None
    square = (signed @ signed).item()
    c = (largest.gradient @ signed).item() / square if square > 0 else 0.0
    if c <= 0 or not all(_agrees(m, true, m.cotangent.clamp(-c, c)) for m in mixtures):
        return None
    return c


MAGNITUDES = (6.0, 2.0**-20, 2.0**20)
"""Sizes of the grad_outputs tried: moderate (clamps), small (thresholds; a mean over many tokens sends such)
and large. The proof has these, too: what keeps it from closing is looked for here."""

LINEAR = 1e-6
"""Relative deviation that is no longer rounding, not even that of one step in float32."""

MOST_ROUNDINGS = 64.0
"""Roundings, of the coarsest dtype that goes into a backward, that may add up there."""

FEW_ROUNDINGS = 4.0
"""The same of an output of 16 bits whose inputs have more: so many as above would be half of a value."""

OTHER = -3.0
"""Factor between two grad_outputs whose gradients must differ."""

DRAWS = 3
"""Mixed grad_outputs at which a shorter dtype must show; each must say the same."""

COARSE = (torch.float16, torch.bfloat16)
"""Dtypes of fewer digits than `LINEAR`: what casts to them is not linear."""

SHOWS = 1e-9
"""Share of its largest value by which a gradient must be off to be asked about: float32 rounds by 6e-8."""

VANISHES = 1e-3
"""What may be left of that for a grad_output that the dtype holds: float64 rounds by far less."""


def nonlinearity(sample: Sample, analytical: Tensor, measured: NumericalJacobian) -> Finding | None:
    """Compare backward of mixed grad_outputs with the same mixture of its rows.

    `analytical` holds the rows for unit grad_outputs, M × N. Rows that are not finite are another check's.
    """
    problem, inputs = sample.problem, sample.inputs
    if not analytical.isfinite().all() or not analytical.numel():
        return None
    mixtures = []
    largest = min(torch.finfo(b.dtype).max for b in (*inputs.blocks, *problem.outputs.blocks))
    for offset, magnitude in enumerate(MAGNITUDES):
        u = random_signs(problem.outputs.size, sample.case.seed + offset) * magnitude
        if max(u.abs().max(), (u @ analytical).abs().max()) > largest:
            continue  # in float16 infinite by nature
        u = problem.outputs.flatten(problem.outputs.unflatten(u))  # as it is in the dtypes of the outputs
        gradient = _gradient(sample, u)
        if gradient is None:
            return None
        mixtures.append((u, gradient))
    rounding = roundings(sample)
    round_off = rounding * (
        analytical.abs().max() + _natural_slope(inputs.flatten(problem.primals), measured)
    )
    same = len(mixtures) > 1 and torch.equal(mixtures[0][1], mixtures[1][1])
    for u, gradient in mixtures:
        mixed = u @ analytical
        share = max(LINEAR, rounding) * (u.abs() @ analytical.abs())
        excess = distance(gradient, mixed) - share - round_off * u.abs().max()
        if (excess > 0).any() and not same:
            excess -= gradient_round_off(problem, problem.outputs.unflatten(u))
        if (excess > 0).any() or not gradient.isfinite().all():
            worst = int(excess.nan_to_num(torch.inf).argmax())
            number_of = inputs.block_of(worst)
            own = slice(inputs.blocks[number_of].start, inputs.blocks[number_of].stop)
            function = cotangent_function([Mixture(v, g[own]) for v, g in mixtures], measured.value[:, own])
            name = problem.input_names[number_of]
            if name in ignoring_grad_output(problem):
                return _ignores(sample, name, is_sum=function == ONES)
            found = _not_linear(sample, name, (gradient[worst].item(), mixed[worst].item()))
            if function is None or function == ONES:  # that is zero where grad_output is
                whole = WHOLE.format(name=name) if _is_sum_of_outputs(sample, u, gradient, own) else ""
                return replace(found, hint=whole or _of_digits(sample, analytical, name, own) or LOOK_FOR)
            hint = IN_PLACE.format(name=name, function=function)
            return replace(found, hint=hint, cause="grad-output-nonlinear")
    return None


def ignoring_grad_output(problem: CallProblem) -> frozenset[str]:
    """Names of the inputs whose gradient is not zero, and the same for three grad_outputs, zeros among them.

    The Jacobian of a loss has one row, for a grad_output of one, which is all that such a backward is
    right for.
    """
    u = random_signs(problem.outputs.size, 0)
    found = [problem.pull_back(problem.primals, problem.outputs.unflatten(v)) for v in (u, OTHER * u, 0 * u)]
    gradients = [one.value for one in found if not isinstance(one, Raised)]
    if len(gradients) < len(found):
        return frozenset()
    return frozenset(
        name
        for name, one, *others in zip(problem.input_names, *gradients, strict=True)
        if one is not None and one.any() and all(g is not None and torch.equal(one, g) for g in others)
    )


def rounded_to(sample: Sample, analytical: Tensor, dtype: torch.dtype) -> tuple[str, ...]:
    """Names of the inputs whose gradient has only a dtype's digits for grad_outputs that have more.

    The rows of a Jacobian need not show it: unit grad_outputs are ones and zeros, which any precision
    holds. A mixed one shows it, and one that is rounded beforehand does not.
    """
    drawn = [random_signs(sample.problem.outputs.size, sample.case.seed + draw) for draw in range(DRAWS)]
    found = [g for g in (_gradient(sample, u) for u in drawn) if g is not None]
    if len(found) < DRAWS:
        return ()
    gradients, expected = torch.stack(found), torch.stack([u @ analytical for u in drawn])

    def rounds_what_it_gets(columns: slice) -> bool:
        for u, gradient in zip(drawn, gradients, strict=True):
            off = _largest_share(gradient - u @ analytical, u @ analytical, columns)
            if not off > SHOWS:  # nor where it is NaN
                return False
            short = u.to(dtype).to(torch.float64)
            held = _gradient(sample, short)
            if held is None:
                return False
            if not _largest_share(held - short @ analytical, short @ analytical, columns) <= VANISHES * off:
                return False
        return True

    names = []
    for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True):
        own = slice(block.start, block.stop)
        single = dtype is torch.float32 and is_float32(gradients[:, own], expected[:, own])
        if single or (sample.problem.outputs.is_double and rounds_what_it_gets(own)):
            names.append(name)
    return tuple(names)


def _of_digits(sample: Sample, analytical: Tensor, name: str, own: slice) -> str:
    """What to do where an input's gradient is right for grad_outputs of a shorter dtype; else empty.

    A backward that casts gives the same for a grad_output as for what the cast makes of it. `own` are the
    columns of the input.
    """
    dtype = next((d for d in COARSE if name in rounded_to(sample, analytical, d)), None)
    if dtype is None:
        return ""
    short = str(dtype).removeprefix("torch.")
    right = f"For a grad_output that {short} holds it is right: "
    for draw in range(DRAWS):
        u = random_signs(sample.problem.outputs.size, sample.case.seed + draw)
        got, held = _gradient(sample, u), _gradient(sample, u.to(dtype).to(torch.float64))
        if got is None or held is None or not _largest_share(got - held, held, own) <= SHOWS:
            return f"{right}what backward makes of further digits (their bits, say) does not scale with it."
    remedy = "Keep its dtype, or turn autocast off inside backward."
    return f"{right}backward rounds grad_output to {short}. {remedy}"


def _is_sum_of_outputs(sample: Sample, u: Tensor, gradient: Tensor, own: slice) -> bool:
    """Whether a gradient is the sum of those for each output's own grad_output, the others' being zeros.

    `u` and `gradient` are flat, (M,) and (N,); `own` are the entries of the input. A Jacobian has rows for
    which the others' are undefined.
    """
    total, terms = torch.zeros_like(gradient), torch.zeros_like(gradient)
    blocks = sample.problem.outputs.blocks
    for block in blocks:
        alone = torch.zeros_like(u)
        alone[block.start : block.stop] = u[block.start : block.stop]
        part = _gradient(sample, alone)
        if part is None:
            return False
        total, terms = total + part, terms + part.abs()
    return len(blocks) > 1 and bool((distance(total, gradient) <= SAME * terms)[own].all())


def _gradient(sample: Sample, u: Tensor) -> Tensor | None:
    """The gradient (flat, N) for a grad_output (flat, M); None where backward raises."""
    result = sample.problem.pull_back(sample.problem.primals, sample.problem.outputs.unflatten(u))
    return None if isinstance(result, Raised) else sample.inputs.flatten(result.value)


def _largest_share(difference: Tensor, expected: Tensor, columns: slice) -> float:
    """The largest difference as a share of the largest value that was expected."""
    largest = expected[columns].abs().max().item() if expected[columns].numel() else 0.0
    return difference[columns].abs().max().item() / largest if largest else 0.0


def roundings(sample: Sample) -> float:
    """What may add up in backward, relative: it gets what forward got, and a grad_output like each output."""
    own = (layout.rounding for layout in (sample.inputs, sample.problem.outputs))
    of_inputs, of_outputs = (r.max().item() if r.numel() else 0.0 for r in own)
    return max(MOST_ROUNDINGS * max(EPSILON, of_inputs, min(of_outputs, SINGLE)), FEW_ROUNDINGS * of_outputs)


def _natural_slope(x: Tensor, measured: NumericalJacobian) -> Tensor:
    """|f| / |x|: gradients far below its rounding are round-off, in which nothing is linear."""
    size = x.abs()[x != 0]
    typical = size.median() if size.numel() else torch.ones((), dtype=torch.float64)
    return measured.centre.abs().nan_to_num(0.0, 0.0, 0.0).max() / typical


def _ignores(sample: Sample, name: str, *, is_sum: bool) -> Finding:
    found = sample.finding(
        "GV106",
        f"backward ignores grad_output: the gradient of `{name}` is the same for every grad_output"
        + (", and equals the gradient of y.sum()" if is_sum else ""),
        hint="Multiply by grad_output: every returned gradient must be proportional to it.",
        input=name,
    )
    return replace(found, cause="grad-output-ones") if is_sum else found


LOOK_FOR = (
    "Look for a clamp, sign, threshold or norm of grad_output inside backward, a cast to fewer digits, or "
    "random numbers: the gradient must scale with it."
)
WHOLE = (
    "Where every output has a grad_output, zeros among them, it is linear. It is not where one is None, as "
    "that of an output which no loss uses (`set_materialize_grads(False)`): look at what backward makes of "
    "None, which must give `{name}` what zeros would."
)
IN_PLACE = (
    "The gradient of `{name}` is what `{function}` gives in place of grad_output (checked at "
    f"{len(MAGNITUDES)} grad_outputs of different size). Use grad_output itself: the gradient must scale "
    "with it."
)


def _not_linear(sample: Sample, name: str, values: tuple[float, float]) -> Finding:
    got, expected = map(number, values)
    if got == expected:
        got, expected = (f"{value:.12g}" for value in values)
    said = (
        f"for a mixed grad_output the gradient of `{name}` is {got} where the sum of its parts is {expected}"
    )
    message = f"backward is not linear in grad_output: {said}"
    return sample.finding("GV106", message, input=name)
