"""How far rounding moves what a call computes: the call with every operation off by one rounding at random.

Monte Carlo arithmetic (Parker, *Monte Carlo Arithmetic*, 1997). What operations cannot show (NumPy, compiled
code) is asked by moving the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.weak import WeakTensorKeyDictionary

from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.dispatching import Dispatched, line_of_caller

DRAWS = 8
"""Calls; all but the first few have their inputs moved as well."""

STILL = 3
"""Calls whose inputs stay where they are."""

APART = 0.6
"""Power of the rounding that is the relative distance of points whose second differences are rounding, 2^-31
and 2^-14: what NumPy and compiled code round is the same at numbers nearer to each other, and curves show at
larger ones."""

OF_A_JUMP = 1e-3
"""Share of a jump within which values lie on either side of it; those that rounding scatters lie between."""

FACTOR = 64.0
"""What a difference may be in units of the spread of so few draws (measured: `engine.md` §12.3), or in
roundings of its largest number: what a few dozen operations make."""

OF_A_ROW = 1e-3
"""Share of a row's largest entry that rounding may explain at declared values."""

OF_ALL = 1e-11
"""The same of the largest entry of the whole gradient."""

UNITS = {
    torch.float64: 2.0**-53,
    torch.complex128: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.complex64: 2.0**-24,
    torch.bfloat16: 2.0**-9,
    torch.float16: 2.0**-12,
}
"""Half the distance from 1 to the next number."""

SHORT = frozenset(UNITS) - {torch.float64, torch.complex128}
"""Formats with fewer digits than float64."""

EIGHT_BITS = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})
"""Formats of what floats are quantised to."""

SIXTEEN_BITS = EIGHT_BITS | {torch.bfloat16, torch.float16}
"""Formats whose steps no difference quotient sees through."""

OF_FLOAT32 = 2.0**-18
"""The same of a few dozen roundings of float32."""

OF_FEW_BITS = 2.0**-6
"""Share of a row's largest entry that keeping numbers in 8 or 16 bits may be off by."""

EXACT = frozenset(
    [
        "clone",
        "to_copy",
        "copy",
        "neg",
        "abs",
        "sign",
        "sgn",
        "floor",
        "ceil",
        "round",
        "trunc",
        "where",
        "index",
        "gather",
        "index_select",
        "cat",
        "stack",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "max",
        "min",
        "amax",
        "amin",
        "aminmax",
        "sort",
        "topk",
        "masked_fill",
        "fill",
        "fill_scalar",
        "zero",
        "zeros",
        "ones",
        "full",
        "arange",
        "empty",
        "empty_strided",
        "eye",
        "scatter",
        "index_put",
        "tril",
        "triu",
        "flip",
        "roll",
        "constant_pad_nd",
        "maximum",
        "minimum",
        "eq",
        "lift_fresh",
        "lift_fresh_copy",
        "unsafe_view",
        "im2col",
        "repeat",
        "argmax",
        "argmin",
        "local_scalar_dense",
        "scalar_tensor",
        "select_backward",
        "slice_backward",
        "select_scatter",
        "slice_scatter",
        "unfold_copy",
        "diagonal_copy",
        "rand",
        "randn",
        "bernoulli",
        "uniform",
        "normal",
        "one_hot",
        "max_pool2d_with_indices",
        "masked_select",
        "nan_to_num",
        "repeat_interleave",
        "diag_embed",
        "nonzero",
        "heaviside",
        "threshold",
        "hardtanh",
        "set",
        "resize",
        "view_as_complex",
        "view_as_real",
        "threshold_backward",
        "logical_not",
        "polar",
        "index_fill",
        "take",
        "put",
        "frac",
        "native_dropout",
        "embedding",
        "fmod",
        "remainder",
        "item",
    ]
)
"""Operations of torch that round nothing, without what marks those in place, private, or `like` another."""


class Arithmetic(Dispatched):  # type: ignore[no-untyped-call]
    """While it is on, each operation errs by up to one rounding more, of forward's precision at most."""

    def __init__(self, seed: int, unit: float) -> None:
        """What only backward computes shorter is not excused: `unit` is forward's rounding."""
        super().__init__()
        self.unit = unit
        self.generator = torch.Generator().manual_seed(seed)

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation, and move what it gave."""
        result = func(*args, **given)
        for one in _pytree.tree_leaves(result):
            if not isinstance(one, Tensor) or one.dtype not in UNITS or one.is_inference():
                continue
            if _rounds(func) and one.numel():
                noise = torch.rand(one.shape, generator=self.generator, dtype=torch.float64).mul_(4).sub_(2)
                with torch.no_grad():
                    one.mul_((1 + self.unit_of(one.dtype) * noise).to(one.device))
        return result

    def unit_of(self, dtype: torch.dtype) -> float:
        """By how much a result of a dtype errs, relative."""
        return min(self.unit, UNITS[dtype])


def _rounds(func: Any) -> bool:  # noqa: ANN401
    schema = func._schema  # noqa: SLF001 - it has no public name
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    name = schema.name.partition("::")[2].strip("_").removeprefix("new_").removesuffix("_like")
    return not is_view and name not in EXACT


class Formats(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the shortest formats that numbers have gone through on their way from some inputs."""

    may_leave = False

    def __init__(self, inputs: Sequence[Tensor] | None = None) -> None:
        """Without `inputs` every tensor counts: what a ctx keeps comes back as another one."""
        super().__init__()
        self.every = inputs is None
        self.through: Any = WeakTensorKeyDictionary()
        self.moves: Any = WeakTensorKeyDictionary()
        self.outside: Any = WeakTensorKeyDictionary()
        self.met: frozenset[torch.dtype] = frozenset()
        """Short ones that numbers were turned into, for an output or for backward alone."""
        self.count = 0
        """Operations so far."""
        self.compares = False
        """Numbers are compared: which branch is taken may hang on them."""
        self.made = ""
        """The first line on which numbers of float32 are made out of none, as those without a dtype are."""
        for one in inputs or ():
            self.moves[one], self.outside[one] = True, False

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation; its results have gone through what they are and were made of."""
        self.count += 1
        result = func(*args, **given)
        read = [a for a in _pytree.tree_leaves((args, dict(given))) if isinstance(a, Tensor)]
        made_of = {f for a in read for f in self.of(a)}
        moves, from_outside = any(map(self._moves, read)), any(map(self.is_from_outside, read))
        for one in _pytree.tree_leaves(result):
            if not isinstance(one, Tensor):
                continue
            self.moves[one], self.outside[one] = moves, from_outside
            self.compares |= one.dtype is torch.bool and any(map(_is_float, read))
            if not read and one.dtype is torch.float32 and not self.made:
                self.made = line_of_caller()
            if moves and _has_levels(one) and any(map(_is_float, read)):
                self.through[one] = made_of | {one.dtype}
            elif one.dtype in UNITS or made_of & EIGHT_BITS:
                self.through[one] = self.of(one) | made_of
            self.met |= self.through.get(one, frozenset())
        return result

    def _moves(self, one: Tensor) -> bool:
        """Whether it changes with the inputs: a mask or a constant in few bits loses no digit of a number."""
        return bool(self.moves.get(one, self.every))

    def is_from_outside(self, one: object) -> bool:
        """Whether numbers come from where no operation was seen to make them, as from NumPy."""
        return isinstance(one, Tensor) and bool(self.outside.get(one, True))

    def of(self, tensor: Tensor) -> frozenset[torch.dtype]:
        """Short formats that a tensor has gone through."""
        known: frozenset[torch.dtype] = self.through.get(tensor, frozenset())
        is_quantised = self.every and tensor.dtype in EIGHT_BITS
        is_short = is_quantised or (tensor.dtype in SHORT and self._moves(tensor))
        return known | {tensor.dtype} if is_short else known


def _has_levels(one: Tensor) -> bool:
    """Whether it is what numbers were quantised to: integers of signs and masks have two levels at most."""
    if one.dtype not in EIGHT_BITS or one.is_floating_point():
        return one.dtype in EIGHT_BITS
    return bool(one.numel()) and bool(one.abs().max() > 1)


def operations(call: Callable[[], object]) -> int | None:
    """How many a call runs; None where it raises. A loop runs more at a larger size."""
    with Formats() as seen:
        result = call()
    return None if isinstance(result, Raised) else seen.count


def _is_float(one: Tensor) -> bool:
    return one.is_floating_point() and one.dtype not in EIGHT_BITS


def finite_part(values: Tensor) -> Tensor:
    """The values, and 0 for those that are not finite."""
    return values.nan_to_num(0.0, 0.0, 0.0)


def survives_float32(values: Tensor) -> Tensor:
    """Which float64 values have no more digits than float32 (bool)."""
    return values.to(torch.float32).to(torch.float64) == values


def has_digits_of_float32(values: Tensor) -> bool:
    """Whether float64 values all survive float32, and some need many digits (NumPy tells no formats)."""
    finite = values[values.isfinite() & (values != 0)]
    needs = finite.to(torch.float16).to(torch.float64) != finite
    return int(needs.sum()) > 1 and bool(survives_float32(finite).all())


def spread(
    call: Callable[[Tensor], Tensor | None], x: Tensor, epsilon: float, *, branches: bool = False
) -> Tensor | None:
    """The largest deviation from the mean of each entry of `call(x)` over the draws; None where it fails.

    `epsilon` is the distance from 1 to the next number in forward's precision. With `branches`
    a jump is none: inputs that move across one give one value on each side.
    """
    found = _drawn(
        call, [x] * STILL + [_moved(x, epsilon, 91 + draw) for draw in range(STILL, DRAWS)], epsilon
    )
    if found is None:
        return None
    graded = _drawn(call, [_moved(x, k * epsilon**APART, 57) for k in (-2, -1, 1, 2)], epsilon)
    if graded is None:
        return None
    line = torch.cat([graded[:2], found[:1], graded[2:]])
    bend = (line[:-2] - 2 * line[1:-1] + line[2:]).abs().amax(0).nan_to_num(0.0) / 2
    whole = torch.maximum(_deviation(found), bend)
    if not branches:
        return whole
    off = (torch.cat([found[STILL:], graded]) - found[0]).abs()
    share = off / off.amax(0)
    jumps = ((share <= OF_A_JUMP) | (share >= 1 - OF_A_JUMP)).all(0)
    return torch.where(jumps, _deviation(found[:STILL]), whole)


def _drawn(
    call: Callable[[Tensor], Tensor | None], points: Sequence[Tensor], epsilon: float
) -> Tensor | None:
    """The call at each point, every time with other roundings."""
    found = []
    for draw, point in enumerate(points):
        with Arithmetic(17 + draw, epsilon / 2):
            made = call(point)
        if made is None:
            return None
        found.append(made)
    return torch.stack(found)


def _deviation(every: Tensor) -> Tensor:
    """Infinite where some roundings make a number, and others none."""
    known = every.isfinite()
    found = (every - every.mean(0)).abs().amax(0).nan_to_num(0.0)
    return torch.where(known.any(0) & ~known.all(0), torch.inf, found)


def _moved(x: Tensor, epsilon: float, seed: int) -> Tensor:
    """Numbers a few units in the last place away; equal ones move together, so that a tie stays one."""
    generator = torch.Generator().manual_seed(seed)
    found, number = torch.unique(x.abs(), return_inverse=True)
    shift = torch.rand(found.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    return x * (1 + epsilon * shift[number])


def explained(spread_of: Tensor, rows: Tensor, unseen: Tensor | None) -> Tensor:
    """How large a difference rounding explains (K × N); `rows` are the gradients, whose size limits it.

    `unseen` (N) is what it may explain whatever their size; None at what nobody declared: no limit.
    """
    allowed = FACTOR * spread_of
    if unseen is None:
        return allowed
    size = finite_part(rows.abs())
    cap = torch.maximum(OF_A_ROW * size.amax(dim=1, keepdim=True), OF_ALL * size.max())
    return torch.minimum(allowed, torch.maximum(cap, unseen))
