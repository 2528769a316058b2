"""One tensor at one point: drawn values, put onto their structure.

Structured inputs: how a free draw becomes a point of the structure, and how steps stay on it.

A manifold has a *retraction*: a differentiable map from the ambient space onto the manifold that leaves the
base point where it is. Composed with the target it makes every derivative tangential: numerical steps stay
valid, and autograd projects the gradient by itself. (Absil, Mahony, Sepulchre: *Optimization Algorithms on
Matrix Manifolds*, 2008, ch. 4.)

Values that no spec asks for: large and small ones, zeros, ties, duplicates, masks of one value.

A formula often has branches (a threshold, a series for small arguments, a guard for zero), and a wrong
backward may hide in one that moderate values never enter. Draw 0 of a regime is what the spec declares;
the draws after it are drawn here, and what cannot be judged there counts for nothing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Point, TensorInput
from gradverify.model.case import (
    EQUAL_INPUTS,
    FEWEST_STRATA,
    KEEP_AWAY,
    MIRRORED,
    MODERATE,
    SMALL_VALUES,
    SQUARE,
    UNDECLARED_BESIDE,
    WHOLE_FROM,
    ZEROS,
    allows_zero,
    is_declared,
    is_free,
    is_signed,
)
from gradverify.verifier.inputs.values import (
    DOMAINS,
    SMALL,
    draw_booleans,
    draw_integers,
    draw_plain,
    draw_values,
    integers_of,
    interval_of,
    source_of,
    with_special,
)

LARGE = (1.0, 100.0)
"""Magnitudes of large values: the usual thresholds (1, 3, 6, 20) lie between, and exp of them is finite."""

FAR = (100.0, 1e4)
"""Magnitudes in the second round, which a thorough run makes: the squares of these, too, are thresholds."""

ROWS_OF_THEIR_OWN = 2
"""Rows of one input that become even: one of zeros, one of a value. A third one is the same in all inputs."""

SMALL_ROW = 1e-3
"""What one row is multiplied by: its squared norm is below the usual thresholds of series, 1e-4 to 1e-6."""

KINDS = 3
"""Of wide draws in a round: large, mirrored and small ones."""

NEAR_AN_END = (1e-4, 0.3)
"""How far values of the domain `unit` are from its ends."""


def draw_undeclared(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """The entries of a real floating tensor in row-major order, at a draw that is not declared."""
    if point is Point.WIDE and WHOLE_FROM <= draw < UNDECLARED_BESIDE:
        return _whole(spec, seed, draw)
    if point is Point.WIDE:
        plain = not is_free(spec) or draw == UNDECLARED_BESIDE
        return draw_values(spec, seed, point, draw) if plain else _wide(spec, seed, draw)
    values = draw_values(spec, seed, point, draw)
    source = source_of(seed, spec.name, f"{point} places", draw)
    if (draw - 1) % 2 == ZEROS:
        _tie(source, values, spec)
        if allows_zero(spec):
            _small_row(source, values, spec)
            for place in source.sample(range(len(values)), min(len(values), _zeros_among(values, spec))):
                values[place] = 0.0
    elif spec.structure in SQUARE:
        values = [0.0] * len(values)  # zeros, or a multiple of the identity: all eigenvalues are one
    elif not spec.distinct and not spec.structure:
        shared = _row_of_all(values, spec, seed, draw)
        _even_rows(source, values, spec, shared)
    return values


def draw_duplicates(spec: TensorInput, seed: int, draw: int) -> list[int]:
    """Integers half of which are the same one, or all of them, where that is valid: a special one, if any is.

    Where every label is one to ignore, a mean divides by nothing.
    """
    values = draw_integers(spec, seed, Point.SPECIAL, draw)
    if spec.distinct or not values:
        return values
    source = source_of(seed, spec.name, "duplicates", draw)
    half = (draw - 1) % 2 == ZEROS
    same = int(spec.special[0]) if spec.special and not half else source.choice(values)
    for place in source.sample(range(len(values)), (len(values) + 1) // 2 if half else len(values)):
        values[place] = same
    return values


def draw_one_truth(spec: TensorInput, draw: int) -> list[bool]:
    """A mask that lets everything through, or nothing."""
    return [(draw - 1) % 2 == ZEROS] * math.prod(spec.shape)


def _whole(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Typical values of one sign; then all beyond a threshold, and all far below it."""
    values, number = draw_values(spec, seed, Point.TYPICAL, 0), draw - WHOLE_FROM
    if not is_free(spec) or spec.structure:
        return values
    if number < 2:
        sign = -1 if number else 1
        return [sign * abs(v) for v in values] if is_signed(spec) and not spec.avoid else values
    place, is_small = divmod(number - 2, 2)
    if len(spec.beside) < 2 * place + 2:
        return values
    nearer, beyond = spec.beside[2 * place : 2 * place + 2]
    source, count = source_of(seed, spec.name, Point.WIDE, draw), len(values)
    shares = [float(f"{1 + (k + source.random()) / count:.3g}") for k in range(count)]
    source.shuffle(shares)
    size = nearer / (8 * count) if is_small else beyond  # of so many entries a norm is below it, too
    found = [
        math.copysign(share * size, v if is_small else beyond)
        for share, v in zip(shares, values, strict=True)
    ]
    low, high = DOMAINS[spec.domain]
    return [
        f if low < f < high and not _is_avoided(spec, f) else v for f, v in zip(found, values, strict=True)
    ]


def _wide(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Values of magnitudes spread evenly over the decades, in random order and of alternating sign."""
    kind, span = wide_span(spec, draw)
    source = source_of(seed, spec.name, Point.WIDE, draw)
    count = math.prod(spec.shape)
    values = _spread(source, count, span, spec)
    if is_signed(spec):
        values = [v if (count - k + (kind == MIRRORED)) % 2 else -v for k, v in enumerate(values)]
    elif spec.domain == "negative":
        values = [-v for v in values]
    elif spec.domain == "unit" and kind != SMALL_VALUES:
        values = [1 - v for v in values]
    source.shuffle(values)
    if not spec.avoid:
        return values
    moderate = draw_values(spec, seed, Point.WIDE, draw)
    return [m if _is_avoided(spec, v) else v for v, m in zip(values, moderate, strict=True)]


def _spread(source: random.Random, count: int, span: tuple[float, float], spec: TensorInput) -> list[float]:
    """One short decimal from each of the largest of several logarithmic strata, in ascending order."""
    strata, digits, margin = strata_of(count, span, spec)
    places = (
        (k + margin + (1 - 2 * margin) * source.random()) / strata for k in range(strata - count, strata)
    )
    return [float(f"{span[0] * (span[1] / span[0]) ** place:.{digits}e}") for place in places]


def wide_span(spec: TensorInput, draw: int) -> tuple[int, tuple[float, float]]:
    """The kind of an undeclared wide draw, and between which magnitudes it lies."""
    kind = (draw - 1) % KINDS
    large = LARGE if draw - 1 < KINDS else FAR
    return kind, NEAR_AN_END if spec.domain == "unit" else SMALL if kind == SMALL_VALUES else large


def strata_of(count: int, span: tuple[float, float], spec: TensorInput) -> tuple[int, int, float]:
    """How many strata, digits behind the first one, and the share of a stratum left free at each end."""
    strata = max(count, FEWEST_STRATA) if span in (LARGE, FAR) else count
    digits = 2 + max(0, math.ceil(math.log10(max(count, 1) / 50)))
    return strata, digits, 0.25 if spec.distinct else 0.0


def _is_avoided(spec: TensorInput, value: float) -> bool:
    return any(abs(value - point) < KEEP_AWAY * MODERATE for point in spec.avoid)


def _zeros_among(values: list[float], spec: TensorInput) -> int:
    return 1 if spec.distinct else max(1, len(values) // 4)


def _tie(source: random.Random, values: list[float], spec: TensorInput) -> None:
    """Make about a third of the entries equal to a neighbour."""
    if spec.distinct or spec.structure or len(values) < 2:
        return
    for place in source.sample(range(1, len(values)), max(1, len(values) // 3)):
        values[place] = values[place - 1]


def _small_row(source: random.Random, values: list[float], spec: TensorInput) -> None:
    """Make one row small as a whole, of several: series for a small norm begin there, and nowhere else."""
    width = spec.shape[-1] if spec.shape else 1
    count = len(values) // width if width else 0
    if count > 1:
        start = width * source.randrange(count)
        values[start : start + width] = [SMALL_ROW * v for v in values[start : start + width]]


def _row_of_all(values: list[float], spec: TensorInput, seed: int, draw: int) -> int | None:
    """Make one row what it is in every input of this shape and these values: a distance is zero there."""
    width = spec.shape[-1] if spec.shape else 1
    count = len(values) // width if width else 0
    if count < ROWS_OF_THEIR_OWN + 1:
        return None
    row = source_of(seed, "", "the row of all", draw).randrange(count)
    common = draw_values(replace(spec, name=""), seed, Point.SPECIAL, draw)
    values[row * width : (row + 1) * width] = common[row * width : (row + 1) * width]
    return row


def _even_rows(source: random.Random, values: list[float], spec: TensorInput, shared: int | None) -> None:
    """Fill a row with each declared special value and with zeros, if allowed; make another one all alike.

    The row of all inputs stays as it is. A branch on a norm or a sum is entered by a row as a whole.
    """
    width = spec.shape[-1] if spec.shape else 1
    free = [row for row in range(len(values) // width) if row != shared] if width else []
    filled = [*dict.fromkeys((*spec.special, *[0.0] * allows_zero(spec))), math.nan]
    rows = source.sample(free, min(max(ROWS_OF_THEIR_OWN, len(filled)), len(free)))
    for row, value in zip(rows, filled, strict=False):
        start = row * width
        values[start : start + width] = [values[start] if math.isnan(value) else value] * width


Retraction = Callable[[Tensor], Tensor]
"""From an ambient tensor near the base point to the manifold."""

DIAGONAL = 2.0
"""What is added to the diagonal where a matrix must be well away from singular."""


def fits(structure: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can have the structure."""
    return structure not in SQUARE or (len(shape) > 1 and shape[-1] == shape[-2])


def place(structure: str, free: Tensor) -> Tensor:
    """A point of a floating structure near freely drawn values of the same shape.

    Matrix structures act on the last two dimensions, `unit-norm`, `simplex` and `sorted` on the last one.
    Values keep four decimals where the structure allows, so that a person can read them.
    """
    if structure not in _PLACES:
        raise ValueError(f"`{structure}` is no floating structure")
    return _PLACES[structure](free)


def retraction(structure: str, base: Tensor) -> Retraction | None:
    """How steps from `base` stay on the structure; None where every small step does."""
    match structure:
        case "spd" | "symmetric":
            return lambda x: base + _symmetric_part(x - base)
        case "triangular" | "cholesky-factor":
            return lambda x: base + torch.tril(x - base)
        case "orthogonal":
            return lambda x: _cayley(base, x)
        case "unit-norm":
            return lambda x: torch.nn.functional.normalize(x, dim=-1)
        case "simplex":
            return lambda x: x - (x - base).mean(dim=-1, keepdim=True)
        case _:
            return None


def place_integers(spec: TensorInput, source: random.Random) -> list[int]:
    """Entries of an integer structure in row-major order.

    `offsets`: 0 … exactly the upper bound, increasing (cumulative lengths). `permutation`: each of 0 … n - 1
    once. `sorted`: ascending values of the range. `one-hot`: one 1 in each row.
    """
    count = math.prod(spec.shape)
    match spec.structure:
        case "offsets":
            bounds = tuple(int(bound) for bound in spec.range or (0, 2))
            inner = range(bounds[0] + 1, bounds[1])
            wanted = max(0, count - 2)
            cuts = (
                source.sample(inner, wanted)
                if len(inner) >= wanted
                else source.choices(range(bounds[0], bounds[1] + 1), k=wanted)
            )
            return [bounds[0], *sorted(cuts), bounds[1]][-count:] if count > 1 else [bounds[0]] * count
        case "permutation":
            return source.sample(range(count), count)
        case "sorted":
            places, at = integers_of(spec)
            return sorted(map(at, source.choices(places, k=count)))
        case "one-hot":
            return [bit for _ in range(count // spec.shape[-1]) for bit in _one_hot(spec.shape[-1], source)]
        case structure:
            raise ValueError(f"`{structure}` is no integer structure")


def _one_hot(width: int, source: random.Random) -> list[int]:
    chosen = source.randrange(width)
    return [int(k == chosen) for k in range(width)]


def _symmetric_part(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _cayley(base: Tensor, x: Tensor) -> Tensor:
    """Base times the Cayley transform of the skew part of the step: orthogonal for every step."""
    step = base.mT @ (x - base)
    skew = (step - step.mT) / 2
    identity = _identity(base)
    rotation: Tensor = torch.linalg.solve(identity - skew / 2, identity + skew / 2)
    return base @ rotation


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _sign_of_diagonal(x: Tensor) -> Tensor:
    sign = torch.sign(torch.diagonal(x, dim1=-2, dim2=-1))
    return torch.where(sign == 0, 1.0, sign).unsqueeze(-1)


def _short(x: Tensor) -> Tensor:
    """Rounded to four decimals: the structures this is used for survive it."""
    return torch.round(x, decimals=4)


def _spd(free: Tensor) -> Tensor:
    lower = torch.tril(free)
    return _short(lower @ lower.mT / free.shape[-1] + DIAGONAL / 2 * _identity(free))


def _cholesky_factor(free: Tensor) -> Tensor:
    diagonal = torch.diagonal(free, dim1=-2, dim2=-1).abs() + DIAGONAL / 4
    return _short(torch.tril(free, -1) + torch.diag_embed(diagonal))


def _orthogonal(free: Tensor) -> Tensor:
    q, r = torch.linalg.qr(free + _identity(free) / 4)
    turned: Tensor = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)
    return turned


def _simplex(free: Tensor) -> Tensor:
    weights = free.abs() + DIAGONAL / 8
    return weights / weights.sum(dim=-1, keepdim=True)


def _one_of_each_row(free: Tensor) -> Tensor:
    return torch.zeros_like(free).scatter_(-1, free.argmax(dim=-1, keepdim=True), 1.0)


_PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "spd": _spd,
    "symmetric": lambda free: _short(_symmetric_part(free)),
    "invertible": lambda free: _short(free + DIAGONAL * _identity(free) * _sign_of_diagonal(free)),
    "triangular": torch.tril,
    "cholesky-factor": _cholesky_factor,
    "orthogonal": _orthogonal,
    "unit-norm": lambda free: torch.nn.functional.normalize(free, dim=-1),
    "simplex": _simplex,
    "sorted": lambda free: free.sort(dim=-1).values,
    "one-hot": _one_of_each_row,
}


INTEGER_STRUCTURES = frozenset({"offsets", "permutation", "one-hot", "sorted"})
"""Structures that integer tensors can have; the other ones are of floating tensors."""

FEWEST_OFFSETS = 2
"""Of one segment; of more, one is empty where values are special."""

MANY = 100_000
"""From this many entries on most are repetitions: 10^6 numbers of Python take seconds to draw."""

DRAWN = 10_000
"""Entries of such a tensor that are drawn."""

APART = 1e-6
"""How much nearer each repetition of these is to the middle of its interval: no two entries are equal."""

TURN = 7919
"""Entries by which each repetition is turned, a prime: no two rows are alike."""

TIED = 2
"""Neighbours along every dimension that are equal where a spec says `ties: true`."""

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
}


def build_tensor(
    spec: TensorInput, seed: int, point: Point, draw: int, device: str, live: Mapping[str, Any] | None = None
) -> Tensor:
    """Draw one tensor, build it from its literal value, or let the user's own function make it.

    `live` holds the objects behind `make:` by their path. Raises whatever that function raises.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.make:
        generator = torch.Generator(device=device).manual_seed(stream(seed, spec.name, draw))
        made = (live or {})[spec.make](generator, torch.device(device), dtype, tuple(spec.shape))
        return _checked(made, spec)
    if spec.value is not None:
        return torch.tensor(_lists(spec.value), dtype=dtype).reshape(spec.shape).to(device)
    drawn = _drawn(spec, dtype, seed, point, draw).reshape(spec.shape)
    if spec.structure and _is_floating(dtype):
        drawn = place(spec.structure, drawn)
    return drawn.to(device)


def stream(seed: int, name: str, draw: int = 0) -> int:
    """The seed of what user code draws for an input: another one for each case, input and draw."""
    return random.Random(f"{seed}/{name}/made/{draw}").getrandbits(63)


def is_differentiable(spec: TensorInput, value: Tensor | None = None) -> bool:
    """Whether a tensor is differentiated: as the spec says, else every floating or complex one.

    `value` is the tensor itself, where there is one: what `make:` returns may be a mask or an index.
    """
    if spec.mutated or (value is not None and not _is_floating(value.dtype)):
        return False
    return _is_floating(getattr(torch, spec.dtype)) if spec.requires_grad is None else spec.requires_grad


def step_of(spec: TensorInput, base: Tensor) -> Retraction | None:
    """What happens to a moved value before the target sees it: back onto the structure, into the layout."""
    stays = retraction(spec.structure, base) if spec.structure else None
    convert = LAYOUTS.get(spec.layout)
    if stays is not None and convert is not None:
        return lambda x: convert(stays(x))
    return stays or convert


def held_of(constant_at: Sequence[tuple[int, tuple[int, ...]]], base: Tensor) -> Tensor | None:
    """Mask of the entries that are never perturbed; None where every entry is."""
    if not constant_at:
        return None
    mask = torch.zeros_like(base, dtype=torch.bool)
    for dimension, indices in constant_at:
        mask.index_fill_(dimension, torch.tensor(indices, device=base.device), value=True)
    return mask


def _drawn(spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int) -> Tensor:
    """All entries, as a vector; of very many floating ones the first `DRAWN` repeat themselves."""
    count, width = math.prod(spec.shape), min(spec.shape[-1], DRAWN) if spec.shape else 1
    if count < MANY or not _is_floating(dtype):
        return torch.tensor(_entries(spec, dtype, seed, point, draw), dtype=dtype)
    few = replace(spec, shape=(DRAWN // width, width))
    part = torch.tensor(_entries(few, dtype, seed, point, draw), dtype=dtype)
    centre = sum(interval_of(spec, point)) / 2 if is_declared(point, draw) else 0.0
    apart, turn = (0.0, 0) if point is Point.SPECIAL and not spec.distinct else (APART, TURN)
    values = torch.empty(count, dtype=dtype)
    for k, start in enumerate(range(0, count, len(part))):
        again = ((part - centre) * (1 - k * apart) + centre) if k * apart else part
        values[start : start + len(part)] = again.roll(k * turn)[: count - start]
    return values


def _entries(spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int) -> Sequence[Any]:
    if (point, draw) == (Point.SPECIAL, EQUAL_INPUTS):
        point = Point.TYPICAL
    if not is_declared(point, draw):
        return _undeclared_entries(spec, dtype, seed, point, draw)
    if not _is_floating(dtype):
        return _whole_entries(spec, seed, point, draw)
    drawn = draw_plain if point is Point.PLAIN else draw_values
    if dtype.is_complex:
        real, imaginary = drawn(spec, seed, point, draw), drawn(spec, seed + 1, point, draw)
        return [complex(a, b) for a, b in zip(real, imaginary, strict=True)]
    values = drawn(spec, seed, point, draw)
    return _tied(values, spec.shape) if spec.ties and point is Point.SPECIAL else values


def _whole_entries(spec: TensorInput, seed: int, point: Point, draw: int) -> Sequence[int]:
    """Entries of an integer tensor, or of a boolean one."""
    if spec.structure in INTEGER_STRUCTURES:
        source = random.Random(f"{seed}/{spec.name}/{draw}")
        values = place_integers(spec, source)
        return sorted(with_special(spec, values, seed, point, draw)) if spec.special else values
    if spec.dtype == "bool":
        return draw_booleans(spec, seed, point, draw)
    return draw_integers(spec, seed, point, draw)


def _undeclared_entries(
    spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int
) -> Sequence[Any]:
    if _is_floating(dtype) and not dtype.is_complex:
        return draw_undeclared(spec, seed, point, draw)
    if dtype.is_complex:
        real, imaginary = (draw_undeclared(spec, s, point, draw) for s in (seed, seed + 1))
        return [complex(a, b) for a, b in zip(real, imaginary, strict=True)]
    if point is Point.WIDE or spec.structure in INTEGER_STRUCTURES:
        values = _entries(spec, dtype, seed, Point.TYPICAL, draw)
        return _with_empty_segment(spec, values, seed, draw) if point is Point.SPECIAL else values
    return draw_one_truth(spec, draw) if dtype is torch.bool else draw_duplicates(spec, seed, draw)


def _with_empty_segment(spec: TensorInput, values: Sequence[Any], seed: int, draw: int) -> Sequence[Any]:
    """Offsets of which two neighbours are equal; everything else as it is."""
    if spec.structure != "offsets" or len(values) <= FEWEST_OFFSETS:
        return values
    place_ = random.Random(f"{seed}/{spec.name}/empty/{draw}").randrange(1, len(values) - 1)
    return [*values[:place_], values[place_ - 1], *values[place_ + 1 :]]


def _tied(values: list[float], shape: Sequence[int]) -> list[float]:
    """The largest and the smallest value in turn, each twice along every dimension.

    Whatever a reduction sees, a row, a column or a window of three entries and more, ties at an end of it.
    """
    if len(values) <= 1:
        return values
    ends = max(values), min(values)
    places = itertools.product(*map(range, shape))
    return [ends[sum(place_) // TIED % len(ends)] for place_ in places]


def _checked(made: Any, spec: TensorInput) -> Tensor:  # noqa: ANN401
    if not isinstance(made, Tensor):
        raise TypeError(f"`{spec.make}` returned {type(made).__name__}, not a tensor")
    if tuple(made.shape) != spec.shape:
        raise ValueError(f"`{spec.make}` returned shape {list(made.shape)}, the spec says {list(spec.shape)}")
    if spec.requires_grad and not _is_floating(made.dtype):
        raise TypeError(f"`{spec.make}` returned {made.dtype}, which cannot require grad as the spec says")
    return made.detach()


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _lists(value: Any) -> Any:  # noqa: ANN401 - nested tuples to nested lists
    return [_lists(v) for v in value] if isinstance(value, tuple) else value
