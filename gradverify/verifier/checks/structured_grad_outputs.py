"""GV106 for what a loss sends and random grad_outputs never are: ones, balanced sums, one-hot rows, zeros.

A backward may take a path of its own for each, and the rows of a Jacobian, which are gradients for unit
grad_outputs, need not show it. So the gradient for each is held to superposition with that for a grad_output
of random sign; and a grad_output times a power of two, as a whole or row by row, has to give the gradient
times it, which floating point does exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, Point, RaisedError, Severity
from gradverify.source import iterates
from gradverify.verifier.checks.grad_output import LINEAR, MOST_ROUNDINGS, roundings
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import apart, number
from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.numerics.compare import SINGLE
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block, Layout, VjpProblem
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.tolerance import EPSILON, KNOWN, SAFETY, distance
from gradverify.verifier.numerics.tracing import short_format

DIGITS = 128.0
"""Random grad_outputs are multiples of 1 / 128, so that sums with the others are exact in float32."""

MOST_BITS = 40
"""The largest power of two by which a grad_output is scaled: thresholds in use lie between 1e-12 and 1e12."""

STEP_BITS = 2
"""Between two scales at which it is asked whether a deviation sets in gradually."""

SHARE_OF_ROOM = 3
"""A third of what is left to the ends of the dtype: backward may multiply two numbers of that size inside."""

SPREAD = 17
"""Entries of one grad_output are spread over so many powers of two."""

CLASSES = 4
"""Rows are scaled up, down, left alone and set to zero in turn."""

ONE_VALUE = "Look for a path that backward takes where all entries of grad_output are equal."

SUM = "Look for a test of a sum of grad_output: a sum of zero does not mean that nothing arrives."

ONE_ENTRY = "Look for a test of how many entries of grad_output are not zero, or for its largest entry."

SIGN = "Look for a test of the largest or smallest entry of grad_output: the size is that of `abs()`."

SKIPPED = "Is something skipped by a test of grad_output, as rows whose first entry is zero?"

THRESHOLD = (
    "Look for a clamp, a threshold or a small constant that grad_output, or its largest entry, is compared "
    "with or divided by."
)

OF_AN_ITERATION = (
    "Backward repeats a step, and takes fewer of them here. If it stops at an absolute tolerance, gradients "
    "below that are lost: compare with the norm of grad_output."
)


Make = Callable[[], Tensor]
"""Makes a grad_output (flat, M), the same each time: of large outputs there is no memory to keep them all."""


@dataclass(frozen=True)
class Combination:
    """A grad_output that is a sum of others times constants: its gradient has to be that of theirs."""

    said: str
    """What it is, or what one of its parts is: `of ones, as y.sum().backward() sends it`."""
    hint: str
    whole: Make
    parts: tuple[Make, ...]
    factors: tuple[float, ...]

    @property
    def asked(self) -> Iterator[Tensor]:
        """Every grad_output it needs, its own first."""
        return (make() for make in (self.whole, *self.parts))

    def expected(self, gradients: Sequence[Tensor]) -> Tensor:
        """What the gradient has to be, from those of the parts."""
        return sum((f * g for f, g in zip(self.factors, gradients, strict=True)), torch.zeros(()))

    def allowed(self, gradients: Sequence[Tensor], share: float, linear: float = LINEAR) -> Tensor:
        """What rounding may leave, entry by entry: `gradients` are of the whole, then of the parts.

        `linear` is the share of each of them, `share` that of their largest entries.

        A part that is zero at an entry, exactly, does not reach it, and leaves no rounding there.
        """
        total = linear * gradients[0].abs()
        for factor, u, g in zip((1.0, *self.factors), self.asked, gradients, strict=True):
            size, own = abs(factor), g.abs().nan_to_num(0.0, 0.0, 0.0)
            # Numbers of the size of grad_output may cancel where a gradient vanishes: float32's at most.
            of_one = min(share, MOST_ROUNDINGS * SINGLE) * u.abs().max().item()
            reached = max(share * own.max().item(), of_one) * (g != 0)
            total = total + size * (linear * own + reached)
        return total


@dataclass(frozen=True)
class NotTaken:
    """A grad_output for which backward raises, where it runs for one of random sign."""

    error: RaisedError
    said: str
    scaled: bool = False
    """It is out of the ordinary: backward may compute something of it that does not fit."""


def wrong_with_structure(sample: Sample) -> Finding | NotTaken | None:
    """What is wrong for such grad_outputs, at the first typical draw of the first case of its options."""
    first = sample.point is Point.TYPICAL and sample.draw == 0 and sample.subject.is_first_of_options
    outputs = sample.problem.outputs
    if not first or not outputs.size or not sample.inputs.size:
        return None
    u = _exact(outputs, _of_both_signs(random_signs(outputs.size, sample.case.seed + 57)))
    structures = _structures(outputs, u, sample.case.seed)
    rows = _rows(outputs)
    masks = [rows == k for k in range(CLASSES - 1)]
    factors = [(-1.0) ** k / 2 ** (1 + k % 3) for k in range(len(structures))]

    def together() -> Tensor:
        return u + sum((f * s.whole() for f, s in zip(factors, structures, strict=True)), torch.zeros(()))

    everything = Combination("", "", together, (lambda: u, *(s.whole for s in structures)), (1.0, *factors))
    of_rows = (u * m for m in masks)
    given = (together(), u, torch.zeros_like(u))
    found = _gradients(sample, chain(given, (s.whole() for s in structures), of_rows))
    if found is None:
        return _not_taken(sample, u, structures)
    whole, of_u, of_zeros, *rest = found
    if not of_u.isfinite().all():
        return None
    if not (of_zeros.abs() <= _floor(sample, found)).all():
        wrong = _wrong_for_zeros(sample, of_u)
        if wrong is not None:
            return wrong
    if _is_off(everything, [whole, of_u, *rest[: len(structures)]], roundings(sample)).any():
        wrong = next(filter(None, (_confirmed(sample, s) for s in structures)), None)
        if wrong is not None:
            return wrong
    del found, whole, rest[: len(structures)]
    return _wrong_when_scaled(sample, u, of_u, masks, rest)


def _of_both_signs(u: Tensor) -> Tensor:
    """The same with a positive first entry, and a negative one after it."""
    first, rest = u[:1].abs(), u[1:]
    return torch.cat([first, -rest.abs()]) if bool((rest > 0).all()) else torch.cat([first, rest])


def _structures(outputs: Layout, u: Tensor, seed: int) -> list[Combination]:
    """Each grad_output with what it is held to: that of its sum with one of random sign, less that one's."""

    def each(make: Callable[[tuple[int, ...], torch.Generator], Tensor]) -> Make:
        def whole() -> Tensor:
            generator = _generator(seed)
            return _blocks(outputs, lambda shape: make(shape, generator))

        return whole

    def some() -> Tensor:
        return u * (torch.rand(len(u), generator=_generator(seed)) < 0.5)

    def powers() -> Tensor:
        return u * 2.0 ** -torch.randint(0, SPREAD, u.shape, generator=_generator(seed))

    made: tuple[tuple[str, str, Make], ...] = (
        ("of ones, as y.sum().backward() sends it", ONE_VALUE, lambda: _blocks(outputs, torch.ones)),
        ("of one small value, as y.mean().backward() sends it", ONE_VALUE, lambda: _blocks(outputs, _mean)),
        ("whose rows sum to zero", SUM, each(partial(_balanced, along="rows"))),
        ("whose columns sum to zero", SUM, each(partial(_balanced, along="columns"))),
        ("whose rows and columns sum to zero", SUM, each(partial(_balanced, along="rows and columns"))),
        ("with a single entry in each row", ONE_ENTRY, each(_one_hot)),
        ("with a single entry, its first", ONE_ENTRY, each(partial(_one_entry, place=0))),
        ("with a single entry, its last", ONE_ENTRY, each(partial(_one_entry, place=-1))),
        ("without a negative entry", SIGN, u.abs),
        ("without a positive entry, as a negated loss sends it", SIGN, lambda: -u.abs()),
        ("with zeros among its entries", SKIPPED, some),
        ("whose entries differ by powers of two", THRESHOLD, powers),
    )
    structures: dict[float, Combination] = {}
    for said, hint, make in made:
        s = make()
        if s.any():
            one = Combination(said, hint, make, (partial(_sum_of, make, u), lambda: u), (1.0, -1.0))
            structures.setdefault(_told_apart_by(s), one)
    return list(structures.values())


def _told_apart_by(values: Tensor) -> float:
    """A number that others have only by chance: the sum of the entries times random ones."""
    random = torch.rand(len(values), generator=_generator(0), dtype=torch.float64)
    return float((random * values).sum())


def _sum_of(make: Make, u: Tensor) -> Tensor:
    return u + make()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed + 83) % 2**63)


def _blocks(outputs: Layout, make: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """One such grad_output for each output, flat; of complex ones the real parts alone."""
    parts = []
    for block in outputs.blocks:
        shape = block.shape[:-1] if block.is_complex else block.shape
        real = make(shape).to(torch.float64) if math.prod(shape) else torch.zeros(shape, dtype=torch.float64)
        parts.append((torch.stack([real, 0 * real], dim=-1) if block.is_complex else real).reshape(-1))
    return torch.cat(parts)


def _mean(shape: tuple[int, ...]) -> Tensor:
    """Of a single entry a half: one is among the others."""
    return torch.full(shape, 1.0 / max(2, math.prod(shape)), dtype=torch.float64)


def _balanced(shape: tuple[int, ...], generator: torch.Generator, *, along: str) -> Tensor:
    """Small integers whose sums along some dimensions are exactly zero; zeros where a dimension has one."""
    if not shape or max(shape) == 1:
        return torch.zeros(shape)
    dims = {"rows": [len(shape) - 1], "columns": [0]}.get(along, range(len(shape)))
    made = torch.randint(1, 4, shape, generator=generator)
    made = made * (2 * torch.randint(0, 2, shape, generator=generator) - 1)
    for dim in dims:
        if shape[dim] > 1 or len(dims) == 1:
            rest = made.narrow(dim, 0, shape[dim] - 1)
            made = torch.cat([rest, -rest.sum(dim, keepdim=True)], dim)
    return made


def _one_hot(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """One entry of 1 or -1 in turn in each row, at random places."""
    if not shape:
        return torch.ones(shape)
    place = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    sign = 1.0 - 2.0 * (torch.arange(math.prod(shape[:-1])) % 2).reshape(*shape[:-1], 1)
    return torch.zeros(shape).scatter(-1, place, sign)


def _one_entry(shape: tuple[int, ...], _: torch.Generator, *, place: int) -> Tensor:
    """One entry of 1 at a place, as a loss that picks one sends it."""
    made = torch.zeros(math.prod(shape))
    made[place:][:1] = 1.0
    return made.reshape(shape)


def _rows(outputs: Layout) -> Tensor:
    """The number of each entry's row modulo `CLASSES`, flat; entries of a vector are rows."""

    def of_block(block: Block) -> Tensor:
        shape = block.shape[:-1] if block.is_complex else block.shape
        width = (block.shape[-1] if block.is_complex else 1) * (shape[-1] if len(shape) > 1 else 1)
        return torch.arange(block.stop - block.start) // max(width, 1) % CLASSES

    return torch.cat([of_block(block) for block in outputs.blocks])


def _exact(outputs: Layout, u: Tensor) -> Tensor:
    """The same to a few binary digits, as the dtypes of the outputs hold it."""
    return outputs.flatten(outputs.unflatten((u * DIGITS).round() / DIGITS))


def _wrong_when_scaled(
    sample: Sample,
    u: Tensor,
    of_u: Tensor,
    masks: Sequence[Tensor],
    of_rows: Sequence[Tensor],
    inside: torch.dtype | None = None,
) -> Finding | NotTaken | None:
    """A grad_output times a power of two, as a whole and row by row.

    `inside` is a shorter format that its numbers have to stay normal in, where one is known.
    """
    bits = _bits(sample, u, of_u, inside)
    asked = _scaled(bits, u, masks)
    if not bits:
        return None
    found = _gradients(sample, (one.whole() for one in asked))
    if found is None:
        return _first_refused(sample, asked, scaled=True)
    of_parts = ([of_u], [of_u], of_rows)
    for number_of, (one, gradient) in enumerate(zip(asked, found, strict=True)):
        parts = of_parts[number_of]
        if not _is_off(one, [gradient, *parts], roundings(sample)).any():
            continue
        wrong = _confirmed(sample, one)
        smaller = (_scaled(b, u, masks)[number_of] for b in range(bits - STEP_BITS, 0, -STEP_BITS))
        if wrong is None or _sets_in_gradually(sample, smaller, parts):
            continue
        short = short_format(sample.problem) if inside is None else ""
        if short and getattr(torch, short).is_floating_point:
            return _wrong_when_scaled(sample, u, of_u, masks, of_rows, getattr(torch, short))
        return _of_an_iteration(wrong) if _stops_earlier(sample, u, one.whole()) else wrong
    return None


class _Counting(Dispatched):  # type: ignore[no-untyped-call]
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation as it is."""
        self.count += 1
        return func(*args, **given)


def _stops_earlier(sample: Sample, u: Tensor, smaller: Tensor) -> bool:
    """Whether a backward that repeats a step takes fewer of them for a grad_output that is smaller by far.

    A clamp or a threshold takes as many operations for either.
    """
    function = sample.subject.function_class
    if function is None or smaller.abs().max() >= u.abs().max() or not iterates(own_backward(function)):
        return False
    counts = []
    for given in (u, smaller):
        with _Counting() as counting:
            _gradient(sample, given)
        counts.append(counting.count)
    return bool(counts[1] < counts[0])


def _of_an_iteration(wrong: Finding) -> Finding:
    """A warning of what is lost at an absolute tolerance."""
    return replace(wrong, severity=Severity.WARNING, hint=OF_AN_ITERATION)


def _scaled(bits: int, u: Tensor, masks: Sequence[Tensor]) -> list[Combination]:
    """A grad_output of random sign times a power of two, divided by it, and with its rows scaled by each."""
    up, down = 2.0**bits, 2.0**-bits
    factors = (up, down, 1.0)

    def rows() -> Tensor:
        return sum((f * u * m for f, m in zip(factors, masks, strict=True)), torch.zeros(()))

    by_rows = f"whose rows are scaled by 2^{bits}, 2^-{bits}, 1 and 0"
    larger, smaller = (f"2^{bits} times as {size} as one that is right" for size in ("large", "small"))
    return [
        Combination(larger, THRESHOLD, lambda: up * u, (lambda: u,), (up,)),
        Combination(smaller, THRESHOLD, lambda: down * u, (lambda: u,), (down,)),
        Combination(by_rows, THRESHOLD, rows, tuple(partial(torch.mul, u, m) for m in masks), factors),
    ]


def _sets_in_gradually(sample: Sample, smaller: Iterable[Combination], parts: Sequence[Tensor]) -> bool:
    """Whether the gradient is off a little before it is off by much, along ever smaller scales.

    A clamp or a threshold changes nothing, to the last bit, until it is met. Rounding that grows with
    grad_output does (`matrix_exp` scales it with its matrix), and an iteration that stops at a tolerance.
    """
    share = roundings(sample)
    for one in smaller:
        found = _gradients(sample, [one.whole()])
        if found is None:
            return False
        gradients = [found[0], *parts]
        if not _is_off(one, gradients, share).any():
            return bool((_off(one, gradients) > one.allowed(gradients, share, linear=share)).any())
    return False


def _bits(sample: Sample, u: Tensor, gradient: Tensor, inside: torch.dtype | None) -> int:
    """The power of two by which a grad_output may be scaled: it and the gradient stay normal numbers."""
    sizes = torch.cat([u.abs(), gradient.abs()])
    sizes = sizes[sizes > EPSILON * sizes.max()]
    room = math.inf
    blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
    for dtype in {block.dtype for block in blocks} | ({inside} if inside is not None else set()):
        info = torch.finfo(dtype)
        up = math.log2(info.max) - math.log2(sizes.max().item())
        down = math.log2(sizes.min().item()) - math.log2(info.tiny)
        room = min(room, up, down)
    return max(0, min(MOST_BITS, int(room) // SHARE_OF_ROOM))


def _confirmed(sample: Sample, asked: Combination) -> Finding | None:
    """The finding, if a forward for each gradient shows the same beyond what rounding is measured to move.

    One forward for all would show as well what one backward leaves in the graph for the next. Rounding is
    measured for the parts alone: what moves the gradient where ones are moved by their last bit is no
    rounding, but the path that is looked for.
    """
    outputs = sample.problem.outputs
    found = [_gradient(sample, given) for given in asked.asked]
    gradients = [g for g in found if g is not None]
    if len(gradients) < len(found) or not all(g.isfinite().all() for g in gradients[1:]):
        return None
    noise = torch.zeros_like(gradients[0])
    for factor, part, gradient in zip(asked.factors, asked.parts, gradients[1:], strict=True):
        own = gradient_noise(VjpProblem(sample.problem, outputs.unflatten(part())))
        size = gradient.abs().nan_to_num(0.0, 0.0, 0.0).max()
        noise += abs(factor) * (SAFETY * own).clamp_max(KNOWN * size.item())
    wrong = _is_off(asked, gradients, roundings(sample), noise)
    if not wrong.any():
        return None
    expected = asked.expected(gradients[1:])
    worst = int(torch.where(wrong, _off(asked, gradients).nan_to_num(torch.inf), -1.0).argmax())
    name = sample.problem.input_names[sample.inputs.block_of(worst)]
    got, wanted = apart(gradients[0][worst].item(), expected[worst].item())
    message = (
        f"backward is not linear in grad_output: for a grad_output {asked.said}, the gradient of `{name}` is "
        f"{got}; by the gradients for others it must be {wanted}"
    )
    return sample.finding("GV106", message, hint=asked.hint, input=name)


def _is_off(
    asked: Combination, gradients: Sequence[Tensor], share: float, noise: Tensor | float = 0.0
) -> Tensor:
    """Entries (bool, N) at which the gradient of the whole is not what its parts make."""
    return ~(_off(asked, gradients) <= asked.allowed(gradients, share) + noise)


def _off(asked: Combination, gradients: Sequence[Tensor]) -> Tensor:
    whole, *parts = gradients
    return distance(whole, asked.expected(parts))


def _wrong_for_zeros(sample: Sample, of_u: Tensor) -> Finding | None:
    """A grad_output of zeros alone has a gradient of zeros."""
    zeros = torch.zeros(sample.problem.outputs.size, dtype=torch.float64)
    gradient = _gradient(sample, zeros)
    if gradient is None:
        return None
    noise = gradient_noise(VjpProblem(sample.problem, sample.problem.outputs.unflatten(zeros)))
    wrong = ~(gradient.abs() <= _floor(sample, [gradient, of_u]) + SAFETY * noise)
    if not wrong.any():
        return None
    worst = int(torch.where(wrong, gradient.abs().nan_to_num(torch.inf), -1.0).argmax())
    name = sample.problem.input_names[sample.inputs.block_of(worst)]
    nothing = number(gradient[worst].item())
    return sample.finding(
        "GV106",
        f"for a grad_output of zeros alone the gradient of `{name}` is {nothing}, not 0",
        hint="Where a loss is masked away grad_output is all zeros: look for a division by its norm, its sum "
        "or its largest entry.",
        input=name,
    )


def _floor(sample: Sample, gradients: Sequence[Tensor]) -> float:
    """What rounding may leave of zero: of the largest entry, and of a grad_output of one."""
    largest = max(g.abs().nan_to_num(0.0, 0.0, 0.0).max().item() for g in gradients)
    share = roundings(sample)
    return max(share * largest, min(share, MOST_ROUNDINGS * SINGLE))


def _not_taken(sample: Sample, u: Tensor, structures: Sequence[Combination]) -> NotTaken | None:
    """The first of them for which backward raises, where it runs for a grad_output of random sign."""
    zeros = Combination("of zeros alone", "", lambda: torch.zeros_like(u), (), ())
    return None if _gradient(sample, u) is None else _first_refused(sample, [*structures, zeros])


def _first_refused(sample: Sample, asked: Sequence[Combination], *, scaled: bool = False) -> NotTaken | None:
    outputs = sample.problem.outputs
    for one in asked:
        result = sample.problem.pull_back(sample.problem.primals, outputs.unflatten(one.whole()))
        if isinstance(result, Raised):
            return NotTaken(result.error, one.said, scaled)
    return None


def _gradients(sample: Sample, given: Iterable[Tensor]) -> list[Tensor] | None:
    """The gradients (flat, N) for grad_outputs (flat, M), from one graph; None where backward raises."""
    problem = sample.problem

    def flat(gradients: Gradients) -> Gradients:
        return (sample.inputs.flatten(gradients),)

    result = problem.pull_back_each(problem.primals, map(problem.outputs.unflatten, given), flat)
    return None if isinstance(result, Raised) else [one for (one,) in result.value if one is not None]


def _gradient(sample: Sample, given: Tensor) -> Tensor | None:
    """The gradient (flat, N) for a grad_output (flat, M), by a forward of its own."""
    problem = sample.problem
    result = problem.pull_back(problem.primals, problem.outputs.unflatten(given))
    return None if isinstance(result, Raised) else sample.inputs.flatten(result.value)
