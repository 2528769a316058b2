"""How far rounding alone moves what forward and backward return.

Whether the rounding of the target's own operations explains a difference.

Where a right formula saturates, it may lose every digit: `1 + erf(x)` is exactly 0 below -6, the sine of
1e17 is arbitrary. What comes out says nothing about the derivative, and nothing about a wrong formula
either. Forward and backward run again in Monte-Carlo arithmetic: in float64, each arithmetic operation's
result is multiplied by 1 + v*xi, with xi uniform in [-1, 1]. How far results scatter is how far rounding to
a unit v may move them, cancellation and all (Parker, *Monte Carlo arithmetic*, 1997). Operations that only
move values are exact in any precision and stay so. A difference that this reproduces is not judged.

Errors cannot be put into NumPy, C++ and kernels. There the inputs are moved by a few units in the last
place: what backward gives on one side of x is smooth but for its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.compare import UNSEEN, Comparison, finest_rounding
from gradverify.verifier.numerics.jacobian import NumericalJacobian, analytical_rows, natural_slope
from gradverify.verifier.numerics.problem import Gradients, Layout, Problem, Tensors, VjpProblem
from gradverify.verifier.numerics.sampling import OFFSETS, Sampler, typical_values
from gradverify.verifier.numerics.tolerance import EPSILON, FEW_DIGITS, ROUNDINGS, SPREADS

SCALES = (1.1, 1.37, 0.83)
"""Sizes of the grad_outputs: no powers of two, so that every product rounds differently."""

ROUND_OFF = 1e-9
"""A spread beyond this share of the row's largest value is not rounding and excuses nothing."""

OF_ONE = 1e-12
"""Rows whose largest entry is below this, for a grad_output of one, may be nothing but rounding: numbers like
one cancel in backward where a derivative is zero, as in exp(x) exp(-x) - 1."""

ASIDE = 2**20
"""Units in the last place by which inputs are moved to see that: what is a value of its own hardly moves
(2e-10 of itself), what is rounding is another one each time, where a few units may leave it as it is."""

FEW_ROWS = 48
"""Up to this many rows are always measured, of more those alone that rounding could explain."""

LOW_PRECISION = 64.0
"""The same for inputs of lower precision, in units of their own rounding."""


def nudged(x: Tensor, inputs: Layout, generator: torch.Generator, *, most: int) -> Tensor:
    """A point moved by at most that many units in the last place, each coordinate in its own dtype."""
    return x * (1 + torch.randint(-most, most + 1, x.shape, generator=generator) * inputs.rounding)


def backward_round_off(problem: Problem, rows: Tensor, claimed: Tensor) -> Tensor:
    """How far backward's own rounding may move the given rows (bool, M): absolute, M × N, zero elsewhere.

    Measured: the same rows with grad_outputs of other sizes at inputs moved by a few units in the last
    place. A spread beyond `ROUND_OFF` of the largest value is not rounding (it is a backward that is not
    linear, or one that jumps) and excuses nothing. Rows without any large value are looked at further aside.
    """
    largest = claimed.abs().amax(dim=1, keepdim=True)
    tiny = rows & (largest[:, 0] < OF_ONE)
    bound = ROUNDINGS * claimed.abs() * rows[:, None]
    spread = _spread_of_rows(problem, rows & ~tiny, claimed, SCALES, most=4)
    limit = _largest_share(Layout.of(problem.primals)) * largest.clamp_min(EPSILON)
    bound += torch.where(spread <= limit, SPREADS * spread, 0.0)
    if tiny.any():
        spread = _spread_of_rows(problem, tiny, claimed, 3 * SCALES, most=ASIDE)
        # Each takes few values; all of them together take what any of them may take.
        spread[tiny] = spread[tiny].amax()
        rounded = (spread <= OF_ONE) & (spread >= claimed.abs())
        bound += torch.where(rounded, SPREADS * spread, 0.0)
    return bound


def _spread_of_rows(
    problem: Problem, rows: Tensor, claimed: Tensor, scales: Sequence[float], *, most: int
) -> Tensor:
    """How far rows change, M × N: one graph for each size of grad_output, at moved inputs of its own."""
    inputs, generator = Layout.of(problem.primals), torch.Generator().manual_seed(20_261)
    x = inputs.flatten(problem.primals)
    spread = torch.zeros_like(claimed)
    asked = rows.nonzero().flatten().tolist()
    for scale in scales if asked else ():
        moved = inputs.unflatten(nudged(x, inputs, generator, most=most))
        found = analytical_rows(problem, asked, moved, scale)
        if isinstance(found, Raised):
            break
        spread[asked] = torch.maximum(spread[asked], (found.value - claimed[asked]).abs())
    return spread


def may_be_round_off(difference: Tensor, inputs: Layout, analytical: Tensor) -> Tensor:
    """Differences (absolute, M × N) that the rounding of backward could be, as large as it may be at most."""
    largest = analytical.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True)
    most = (SPREADS * _largest_share(inputs) + ROUNDINGS) * largest.clamp_min(EPSILON)
    return ~(difference > torch.where(largest < OF_ONE, 4 * OF_ONE, most))


def _largest_share(inputs: Layout) -> float:
    return max(ROUND_OFF, LOW_PRECISION * inputs.rounding.max().item())


def gradient_noise(second: VjpProblem) -> Tensor:
    """Noise of the first-order gradients, absolute, one for each.

    Measured by scaling grad_output and moving the inputs by a few units in the last place: a gradient that
    cancels to zero is noise, not a value. At least the rounding of the largest entry of the same gradient:
    where a factor like 1 - y² is saturated, its rounding is that of the 1, which no small move shows.
    """
    x, u = second.first_order.primals, second.cotangents
    inputs = Layout.of(x)
    flat, generator = inputs.flatten(x), torch.Generator().manual_seed(5)
    first = second.evaluate(second.primals)
    if isinstance(first, Raised):
        return torch.zeros(inputs.size, dtype=torch.float64)
    base = inputs.flatten(first.value)
    spread = inputs.rounding * typical_values(base, inputs)
    for scale in SCALES:
        moved = inputs.unflatten(nudged(flat, inputs, generator, most=2))
        result = second.evaluate((*moved, *(t * scale for t in u)))
        if isinstance(result, Raised):
            return spread
        spread = torch.maximum(spread, (inputs.flatten(result.value) / scale - base).abs())
    return spread.nan_to_num(0.0, 0.0, 0.0)


def gradient_spread(problem: Problem, u: tuple[Tensor | None, ...], base: Tensor) -> Tensor:
    """The same for a gradient; a gradient that cancels has the rounding of its largest neighbour."""
    size = base.abs().nan_to_num(0.0, 0.0, 0.0)
    size = size.max().expand_as(base) if base.numel() else size
    layout = Layout.of(problem.primals)
    return _spread_nearby(problem, base, size, layout, lambda moved: problem.pull_back(moved, u))


def _spread_nearby(
    problem: Problem,
    base: Tensor,
    size: Tensor,
    results: Layout,
    run: Callable[[Tensors], Returned[Tensors] | Returned[Gradients] | Raised],
) -> Tensor:
    inputs = Layout.of(problem.primals)
    x, spread = inputs.flatten(problem.primals), ROUNDINGS * size
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        result = run(inputs.unflatten(nudged(x, inputs, generator, most=4)))
        if not isinstance(result, Raised):
            off = (results.flatten(result.value) - base).abs()
            spread = torch.maximum(spread, off.nan_to_num(0.0, 0.0, 0.0))
    return spread


_EXACT = frozenset((
    "_coalesced", "_indices", "_sparse_coo_tensor_with_dims_and_tensors", "_to_copy", "_to_dense",
    "_to_sparse", "_unsafe_view", "_values", "abs", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "alias", "amax", "amin", "aminmax", "arange", "argmax", "argmin", "as_strided",
    "as_strided_scatter", "bernoulli", "bitwise_and", "bitwise_not", "bitwise_or", "cat", "ceil",
    "clamp", "clamp_max", "clamp_min", "clone", "conj", "constant_pad_nd", "copy", "copysign", "cummax",
    "cummin", "detach", "diag_embed", "diagonal_backward", "diagonal_scatter", "embedding", "empty",
    "empty_like", "empty_strided", "expand", "eye", "fill", "flip", "floor", "fmax", "fmin", "fmod",
    "fractional_max_pool2d", "full", "full_like", "gather", "hardtanh", "hardtanh_backward",
    "heaviside", "imag", "index", "index_fill", "index_select", "kthvalue", "lift_fresh", "masked_fill",
    "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices", "maximum", "median", "min",
    "minimum", "mode", "nan_to_num", "nanmedian", "native_dropout", "neg", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "normal", "ones", "ones_like",
    "permute", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "real", "relu",
    "repeat", "roll", "round", "scalar_tensor", "scatter", "select_backward", "select_scatter", "sgn",
    "sign", "slice_backward", "slice_scatter", "sort", "split", "stack", "take", "threshold",
    "threshold_backward", "topk", "tril", "triu", "trunc", "unbind", "unfold_backward",
    "value_selecting_reduction_backward", "view_as_complex", "view_as_real", "where", "zero", "zeros",
    "zeros_like",
))  # fmt: skip
"""Operations without arithmetic: what they return is exact in any precision."""

_SELECTING = frozenset(("amax", "amin"))
"""What a reduction by name does that returns one of the values that it is given."""

_SUMS = frozenset((
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_coalesce", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_safe_softmax", "addbmm", "addmm", "addmv", "addr", "avg_pool2d",
    "avg_pool2d_backward", "baddbmm", "bmm", "convolution", "convolution_backward", "cumprod", "cumsum",
    "dot", "embedding_dense_backward", "index_add", "index_put", "linalg_vector_norm", "logcumsumexp",
    "logsumexp", "mean", "mm", "mv", "norm", "prod", "scatter_add", "scatter_reduce", "sum", "trace",
    "upsample_bilinear2d", "upsample_bilinear2d_backward", "var", "vdot",
))  # fmt: skip
"""Operations whose terms each err, and are then added or multiplied."""

MATRIX = 2
"""Dimensions of one: what has fewer is no matrix that is factorised."""

UNKNOWN_STEPS = 8.0
"""Units of rounding by which the inputs of any other kernel err: what it computes between is not seen."""

_FACTORISATIONS = frozenset((
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "cholesky",
    "cholesky_inverse", "geqrf", "linalg_cholesky_ex", "linalg_eig", "linalg_eigvals", "linalg_inv_ex",
    "linalg_ldl_factor_ex", "linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex", "linalg_qr",
))  # fmt: skip
"""Kernels that are accurate to a rounding of the largest entry of their matrix, not of each entry (Higham,
*Accuracy and Stability of Numerical Algorithms*, 2002): where a matrix is singular, the pivot that should be
zero is a rounding of its largest entry."""

_FUSED = (
    "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "native_batch_norm",
    "native_batch_norm_backward", "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid_backward",
    "tanh_backward", "softplus", "softplus_backward", "mish_backward", "elu_backward", "hardswish_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss",
    "huber_loss", "nll_loss_forward", "nll_loss_backward",
    "addcmul", "addcdiv", "binary_cross_entropy", "binary_cross_entropy_backward", "std",
    "var_mean",
)  # fmt: skip
"""Kernels that do several operations at once: written out, so that what cancels inside them shows."""


@cache
def _written_out() -> Mapping[Any, Callable[..., Any]]:
    known = [packet for name in _FUSED if (packet := getattr(torch.ops.aten, name, None)) is not None]
    return dict(get_decompositions(known))


class RandomRounding(Dispatched):  # type: ignore[no-untyped-call]
    """While it is on, every arithmetic operation on float64 or complex128 tensors errs at random."""

    def __init__(self, unit: float, generator: torch.Generator) -> None:
        """Err by up to `unit`, relative; draw from `generator` alone, so that user code draws as ever."""
        super().__init__()
        self.unit = unit
        self.generator = generator
        self.foreign = False
        """An operation ran that is none of torch's own: what happens inside it is not seen."""
        self.guessed = False
        """A kernel of torch's ran whose steps are not seen: its noise is a guess."""
        self.draws = False
        """A random number was drawn: in another dtype it may be another one."""
        self._written_out = _written_out()

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation, and let it err."""
        if func in self._written_out:
            with self:
                return self._written_out[func](*args, **given)
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        name = func.overloadpacket.__name__.rstrip("_")
        if func.is_view or name in _EXACT or _selects(args):
            return func(*args, **given)
        self.foreign |= func.namespace not in {"aten", "prims"}
        written = func._schema.is_mutable  # noqa: SLF001 - torch has no public name for it
        first, rest = (args[:1], args[1:]) if written else ((), args)
        if (
            torch.Tag.pointwise not in func.tags and func.namespace != "prims"
        ):  # a sum, a product of matrices: each of its steps rounds
            many = 1.0 if name in _SUMS else UNKNOWN_STEPS
            self.guessed |= name not in _SUMS
            rest = _pytree.tree_map_only(Tensor, lambda x: self._erring(x, many), tuple(rest))
            if name in _FACTORISATIONS:
                rest = _pytree.tree_map_only(Tensor, self._erring_as_a_whole, rest)
        result = func(*first, *rest, **given)
        if written:
            _pytree.tree_map_only(Tensor, self._err_in_place, result)
            return result
        return _pytree.tree_map_only(Tensor, self._erring, result)

    def _erring(self, x: Tensor, many: float = 1.0) -> Tensor:
        return erring(x, many * self.unit, self.generator)

    def _erring_as_a_whole(self, x: Tensor) -> Tensor:
        """Every entry, zeros too, off by up to a rounding of the largest one of its matrix."""
        if x.dim() < MATRIX or not x.numel():
            return x
        largest = x.abs().amax(dim=(-2, -1), keepdim=True).expand_as(x).to(x.dtype)
        return x + self._erring(largest) - largest

    def _err_in_place(self, x: Tensor) -> Tensor:
        return x.copy_(self._erring(x))


def _selects(args: tuple[Any, ...]) -> bool:
    """Whether an operation is a reduction, named among its arguments, that returns one of its values."""
    return any(type(one) is str and one in _SELECTING for one in args)


def erring(x: Tensor, unit: float, generator: torch.Generator) -> Tensor:
    """The values times 1 + unit*xi; what is neither float64 nor complex128, nor strided, as it is."""
    if x.dtype not in {torch.float64, torch.complex128} or x.layout is not torch.strided:
        return x
    draw = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    centre = complex(1, 1) if x.is_complex() else 1.0
    return x * (1 + unit * (2 * draw - centre))


RUNS = 4
"""Runs with random errors: the largest of four is rarely far below what rounding can do."""

UNIT = 16 * EPSILON
"""Relative error put into each operation. An error of one rounding next to 1 is itself rounded away in three
of eight draws; of sixteen roundings, in one of fifty."""

HOPELESS = 64.0
"""A difference that is so many times what the first runs explain is not asked about again: one draw of a
product's error is rarely that far below the largest of four."""

LEAST_RUNS = 2
"""Runs with random errors before a difference counts as unexplained. In one of fifty runs the error that is
put beside a number like one is itself rounded away, and the result hardly moves."""

ONE_ORDER = 4.0
"""Largest over smallest of what random errors make of a number that is not zero. What is zero but for its
rounding is some 16 times as large with them, and has either sign."""

POINTS = 4
"""Points on either side of x, `ASIDE` apart, to which all inputs move together. What ties stays tied, zeros
stay, and a step of backward at x itself is none among the points on one side."""

FIRST_ROWS = 8
"""Rows whose backward is run first; where rounding explains nothing there, the others are not asked."""

MOST_ROWS = 256
"""Rows that are run after those: each takes `RUNS` calls of backward, slowed by the errors put in."""


@dataclass(frozen=True)
class Spread:
    """How far random errors move a result."""

    values: Tensor
    """The largest distance from the result without them, entry by entry; where the runs are all but alike,
    that between two of them: what all agree on, and the result without errors does not give, is no rounding
    but state."""
    steady: Tensor
    """bool: the result with errors and without keeps its sign and its order of magnitude, so whatever its
    digits are, it is not zero. Where errors make it no number, those that leave it one count."""
    seen: bool
    """Every operation is torch's own, so that errors could be put into each."""


def without_own_rounding(sampler: Sampler, measured: NumericalJacobian, comparison: Comparison) -> Comparison:
    """The comparison in which differences that own rounding explains are not judged.

    Wrong entries become `not_judged`; imprecise ones are within the tolerance and pass. Of very many rows the
    worst are asked about; what is wrong in the others is neither judged nor explained: it stays uncovered.
    """
    off = comparison.difference
    doubtful = (comparison.wrong | comparison.imprecise) & off.isfinite()
    if not doubtful.any():
        return comparison
    explained = doubtful & _by_forward(sampler.problem, measured, comparison)
    explained |= _on_a_sawtooth(sampler, comparison, doubtful & ~explained)
    left = doubtful & ~explained
    rows = left.any(dim=1).nonzero().flatten().tolist()
    asked = torch.where(left, off, torch.inf)
    worst = torch.where(left, off, 0.0).amax(dim=1)
    others = sorted(rows[FIRST_ROWS:], key=lambda row: -worst[row].item())
    unasked = torch.zeros_like(left)
    for some in (rows[:FIRST_ROWS], others[:MOST_ROWS]):
        rounded = _row_round_off(sampler.problem, some, asked[some], measured.flat[some])
        explained[some] |= left[some] & (off[some] <= rounded)
        if not (explained & left).any():
            break
    else:
        unasked[others[MOST_ROWS:]] = left[others[MOST_ROWS:]]
    not_judged = comparison.wrong & explained
    open_still = explained | unasked
    return replace(
        comparison,
        wrong=comparison.wrong & ~open_still,
        imprecise=comparison.imprecise & ~explained,
        covered=comparison.covered & ~(comparison.wrong & open_still),
        not_judged=comparison.not_judged | not_judged,
    )


FURTHER = (2.0**-8, 2.0**-11)
"""Shares of an input's own size at which forward is asked whether it follows a slope that was measured nearer
by. What rounds a difference of numbers like one to so many digits is smooth between two roundings."""

MOST_COLUMNS = 4
"""Inputs that are asked about, the worst first."""

HALF = 0.5
"""Share of the change that a slope tells by which forward's own change must be off to refute it."""


def _on_a_sawtooth(sampler: Sampler, comparison: Comparison, left: Tensor) -> Tensor:
    """Entries (bool, M × N) where forward, a little further, has the claimed slope and not the measured one.

    Near zero (1 - cos(x)) / x² is a constant over x², and another constant beside: each piece has a slope
    that all small steps agree about, and that is none of the function's.
    """
    found = torch.zeros_like(left)
    worst = torch.where(left, comparison.difference, 0.0).amax(dim=0)
    columns = left.any(dim=0).nonzero().flatten().tolist()
    noise: Tensor | None = None
    for column in sorted(columns, key=lambda j: -worst[j].item())[:MOST_COLUMNS]:
        for share in FURTHER:
            step = share * sampler.x[column]
            ends = [sampler.x.clone(), sampler.x.clone()]
            ends[0][column] += step
            ends[1][column] -= step
            above, below = map(sampler.value_at, ends)
            width = ends[0][column] - ends[1][column]
            by_measured, by_claim = (
                slope[:, column] * width for slope in (comparison.numerical, comparison.analytical)
            )
            off = (above - below - by_measured).abs()
            refuted = left[:, column] & (off > HALF * by_measured.abs())
            if not refuted.any():
                break
            noise = _noise(sampler) if noise is None else noise
            follows = (above - below - by_claim).abs() <= noise
            found[:, column] |= refuted & follows & (off > noise)
    return found


def _noise(sampler: Sampler) -> Tensor:
    """How far rounding may move each output (M): by errors put into forward, else a rounding of one."""
    spread = _spread_of(partial(_value, sampler.problem))
    if spread is not None and spread.seen:
        return spread.values
    size = sampler.centre.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1.0)
    return torch.full_like(sampler.centre, FEW_DIGITS * EPSILON * size.item())


def _row_round_off(problem: Problem, rows: Sequence[int], asked: Tensor, zero: Tensor) -> Tensor | float:
    """Differences that own rounding explains in some rows of backward; `asked` are those to be explained.

    (number of rows) × N, all three; infinite in `asked` where nothing is to be explained. `zero` is True
    where the derivative is exactly that.
    """
    if not rows:
        return 0.0
    backward = partial(analytical_rows, problem, rows, problem.primals)
    explained = torch.as_tensor(_explained_by(backward, asked, zero)).expand_as(asked)
    if bool((asked.isinf() | (asked <= explained)).all()):
        return explained
    return torch.maximum(explained, FEW_DIGITS * _roughness(problem, rows, asked))


def _roughness(problem: Problem, rows: Sequence[int], like: Tensor) -> Tensor:
    """How far rows of backward are from smooth at points on the same side of x; zero where it raises.

    Half of the largest second difference: of what is smooth, that is a share of 1e-18.
    """
    inputs = Layout.of(problem.primals)
    x, rough = inputs.flatten(problem.primals), torch.zeros_like(like)
    for side in (1, -1):
        units = (side * ASIDE * k for k in range(1, POINTS + 1))
        points = (inputs.unflatten(x * (1 + unit * inputs.rounding)) for unit in units)
        found = [analytical_rows(problem, rows, point) for point in points]
        values = [one.value for one in found if isinstance(one, Returned)]
        if len(values) == POINTS:
            second = torch.stack(values).diff(n=2, dim=0).abs().amax(dim=0) / 2
            rough = torch.maximum(rough, second.nan_to_num(0.0, 0.0))
    return rough


def _value(problem: Problem) -> Returned[Tensor] | Raised:
    result = problem.evaluate(problem.primals)
    return result if isinstance(result, Raised) else Returned(problem.outputs.flatten(result.value))


def _by_forward(problem: Problem, measured: NumericalJacobian, comparison: Comparison) -> Tensor:
    """Entries (bool, M × N) whose difference forward's rounding explains: its noise over the inputs' size."""
    unseen = _unseen(problem, measured, comparison)
    spread = _spread_of(partial(_value, problem))
    if spread is None:
        return unseen
    nothing = spread.values == 0
    foreign = (nothing & (measured.centre != 0)) | nothing.all() | (not spread.seen)
    foreign |= problem.outputs.rounding > EPSILON
    seen = comparison.difference <= FEW_DIGITS * spread.values[:, None] / measured.scale
    return torch.where(foreign[:, None], unseen, seen)


def _unseen(problem: Problem, measured: NumericalJacobian, comparison: Comparison) -> Tensor:
    """The same where errors cannot be put into forward: NumPy, C++, kernels, a lower precision.

    Numbers as large as the largest output may have been rounded before they cancelled. And where forward
    does not change over the whole stencil, numbers of order one may have, if what backward claims moves it by
    less than their last place.
    """
    outputs = problem.outputs
    slope = natural_slope(measured.centre, measured.scale, outputs)
    largest = UNSEEN * finest_rounding(outputs)[:, None] * slope
    last_place = EPSILON * measured.centre.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1.0)
    reach = max(OFFSETS) * measured.step
    still = measured.flat & (comparison.analytical.abs() * reach <= last_place)
    return (comparison.difference <= largest) | still


def _explained_by(
    run: Callable[[], Returned[Tensor] | Raised], asked: Tensor | None = None, zero: Tensor | None = None
) -> Tensor | float:
    """Differences that own rounding explains; none where what is steady should be `zero` (bool)."""
    spread = _spread_of(run, asked)
    if spread is None:
        return 0.0
    explained = FEW_DIGITS * spread.values
    return explained if zero is None else torch.where(spread.steady & zero, 0.0, explained)


def _spread_of(run: Callable[[], Returned[Tensor] | Raised], asked: Tensor | None = None) -> Spread | None:
    """How far the result of a run moves where every operation errs by one rounding; None where it raises.

    `asked` are the differences to be explained, entry by entry: no more runs where the first are far below.
    """
    base, seen = run(), True
    if isinstance(base, Raised):
        return None
    values, results = torch.zeros_like(base.value), []
    for seed in range(RUNS):
        with RandomRounding(UNIT, torch.Generator().manual_seed(seed)) as mode:
            result = run()
        if isinstance(result, Raised):
            return None
        seen &= not (mode.foreign or mode.missed)
        off = (result.value - base.value).abs().nan_to_num(torch.inf, torch.inf)  # what overflows is lost
        values = torch.maximum(values, torch.where(base.value.isfinite(), off, 0.0))
        results.append(result.value)
        if asked is not None and len(results) >= LEAST_RUNS and not _is_worth_a_run(asked, values):
            break
    runs = torch.stack(results)
    between = (runs.amax(dim=0) - runs.amin(dim=0)).abs().nan_to_num(torch.inf, torch.inf)
    spread = torch.where(HOPELESS * between < values, between, values) if len(results) > 1 else values
    return Spread(spread, _is_steady(torch.cat([base.value[None], runs])), seen)


def _is_steady(results: Tensor) -> Tensor:
    """Entries (bool) of which all numbers among several results have one sign and one order of magnitude."""
    known = results.isfinite()
    least = torch.where(known, results, torch.inf).amin(dim=0)
    most = torch.where(known, results, -torch.inf).amax(dim=0)
    alike = (least * ONE_ORDER > most) & (least > 0) | (most * ONE_ORDER < least) & (most < 0)
    return alike & (known.sum(dim=0) > LEAST_RUNS)


def _is_worth_a_run(asked: Tensor, moved: Tensor) -> bool:
    """Whether another run may explain a difference: see `HOPELESS`."""
    still = (moved == 0) & asked.isfinite()
    return bool((still | (asked <= HOPELESS * FEW_DIGITS * moved)).any())
