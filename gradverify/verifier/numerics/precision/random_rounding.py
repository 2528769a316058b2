"""Monte-Carlo arithmetic: torch code run in float64 with a random relative error in every operation.

Each arithmetic operation's result is multiplied by 1 + v*xi, with xi uniform in [-1, 1]. How far results
scatter is how far rounding to a unit v may move them, cancellation and all (Parker, *Monte Carlo
arithmetic*, 1997). Operations that only move values are exact in any precision and stay so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils import _pytree

from gradverify.verifier.dispatching import Dispatched

_EXACT = frozenset((
    "_coalesced", "_indices", "_sparse_coo_tensor_with_dims_and_tensors", "_to_copy", "_to_dense",
    "_to_sparse", "_unsafe_view", "_values", "abs", "alias", "amax", "amin", "arange", "argmax",
    "argmin", "as_strided", "as_strided_scatter", "bernoulli", "bitwise_and", "bitwise_not",
    "bitwise_or", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "conj", "constant_pad_nd",
    "copy", "copysign", "cummax", "cummin", "detach", "diag_embed", "diagonal_backward",
    "diagonal_scatter", "embedding", "empty", "empty_like", "empty_strided", "expand", "eye", "fill",
    "flip", "floor", "full", "full_like", "gather", "imag", "index", "index_fill", "index_select",
    "lift_fresh", "masked_fill", "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "maximum", "min", "minimum", "native_dropout", "neg",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "normal", "ones",
    "ones_like", "permute", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "real",
    "relu", "repeat", "roll", "round", "scalar_tensor", "scatter", "select_backward", "select_scatter",
    "sgn", "sign", "slice_backward", "slice_scatter", "sort", "split", "stack", "threshold",
    "threshold_backward", "topk", "tril", "triu", "trunc", "unbind", "unfold_backward",
    "value_selecting_reduction_backward", "view_as_complex", "view_as_real", "where", "zero", "zeros",
    "zeros_like",
))  # fmt: skip
"""Operations without arithmetic: what they return is exact in any precision."""

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
        if func.is_view or name in _EXACT:
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


def erring(x: Tensor, unit: float, generator: torch.Generator) -> Tensor:
    """The values times 1 + unit*xi; what is neither float64 nor complex128, nor strided, as it is."""
    if x.dtype not in {torch.float64, torch.complex128} or x.layout is not torch.strided:
        return x
    draw = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    centre = complex(1, 1) if x.is_complex() else 1.0
    return x * (1 + unit * (2 * draw - centre))
