"""What is taken for what in a backward, as tables: before, what may be meant, and the cause."""

from __future__ import annotations

FORMS: tuple[tuple[str, str, str], ...] = (
    ("a + b", "a - b; a; b", "missing-term"),
    ("a - b", "a + b; b - a; a; b", "missing-term"),
    ("a * b", "a / b; a; b", "chain-factor"),
    ("a / b", "a * b; a; b", "chain-factor"),
    ("a / b", "b / a", "operand"),
    ("a @ b", "b @ a", "transposed"),
    ("a @ b", "a; b", "operand"),
    ("a ** b", "a; b", "chain-factor"),
    ("a ** b", "b ** a", "operand"),
    ("a // b", "a; b", "operand"),
    ("a % b", "a; b", "operand"),
    ("a & b", "a | b; a; b", "branch"),
    ("a | b", "a & b; a; b", "branch"),
    ("a < b", "a > b; a <= b", "branch"),
    ("a > b", "a < b; a >= b", "branch"),
    ("a <= b", "a >= b; a < b", "branch"),
    ("a >= b", "a <= b; a > b", "branch"),
    ("a == b", "a != b", "branch"),
    ("a != b", "a == b", "branch"),
    ("a if c else b", "a; b", "branch"),
    ("~a", "a", "branch"),
    ("-a", "a", "missing-term"),
    ("a.mT", "a", "transposed"),
    ("a.T", "a", "transposed"),
    ("a.mH", "a", "transposed"),
    ("a.real", "a.imag", "conjugate"),
    ("a.imag", "a.real", "conjugate"),
    ("a.matmul(b)", "b.matmul(a)", "transposed"),
    ("a.mm(b)", "b.mm(a)", "transposed"),
    ("a.bmm(b)", "b.bmm(a)", "transposed"),
    ("a.outer(b)", "b.outer(a)", "transposed"),
    ("a.flip(b).cumsum(b).flip(b)", "a.cumsum(b)", "permuted"),
    ("a.cumsum(b)", "a.flip(b).cumsum(b).flip(b)", "permuted"),
    ("torch.cumsum(a, b)", "a.flip(b).cumsum(b).flip(b)", "permuted"),
    ("reversed(a)", "a", "permuted"),
)
"""Small letters stand for any expression."""

TWINS = (
    ("missing-term", "sum mean"),
    ("operand", "sin cos, sinh cosh, tanh sigmoid, sqrt rsqrt, erf erfc, log log1p, exp expm1"),
    ("branch", "max min, amax amin, argmax argmin, maximum minimum, clamp_min clamp_max"),
    ("region", "tril triu"),
    ("permuted", "floor ceil, floor round, searchsorted bucketize"),
    ("conjugate", "fft ifft"),
    (
        "duplicates",
        "index_copy index_add, index_copy_ index_add_, scatter scatter_add, scatter_ scatter_add_",
    ),
)
"""The cause where one of two functions is taken for the other."""

DROPPED = (
    ("transposed", "t transpose permute"),
    ("conjugate", "conj"),
    ("permuted", "flip roll cumsum"),
    ("region", "tril triu"),
    ("missing-term", "neg"),
    ("operand", "abs sqrt rsqrt square pow exp log sigmoid tanh softmax sign reciprocal"),
    ("branch", "relu clamp clamp_min clamp_max where masked_fill"),
    ("wrong-reduction-dim", "mean sum"),
    ("float32-inside", "float half bfloat16 to"),
)
"""The cause where a function is one too many."""

MOVING = {"roll": "permuted", "flip": "permuted", "gather": "permuted", "transpose": "transposed"}
"""The cause where arguments of such functions are exchanged; `operand` for others."""

OF_ENTRIES = (
    ("missing-term", "-e; 2 * e; e / 2"),
    ("chain-factor", "1 - e; e ** 2; 1 / e; 1 - e ** 2; e * (1 - e); e.sqrt(); e.exp(); e.abs()"),
)
"""Functions of each entry that may be lost around a value, by their cause."""

OF_COMPLEX = (("conjugate", "e.conj()"), ("operand", "e.real; e.imag"))

OF_SQUARES = (
    ("transposed", "(e + e.mT) / 2"),
    ("region", "e.tril(); e.triu(); e.tril(-1); e.triu(1)"),
    ("missing-term", "e + e.mT; e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1))"),
    ("missing-term", "e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1)) / 2"),
)
"""Of matrices with as many rows as columns."""

ALONG = (("permuted", "e.flip({0}); e.roll(1, {0}); e.roll(-1, {0})"),)
"""Along each dimension, of tensors of any dtype."""

SUMS_ALONG = (
    ("permuted", "e.cumsum({0}); e.flip({0}).cumsum({0}).flip({0})"),
    ("missing-term", "e - e.mean({0}, keepdim=True)"),
    ("wrong-reduction-dim", "e.sum({0}, keepdim=True).expand_as(e)"),
)
"""Along each dimension, of floating ones."""

PLACES = "e + 1; e - 1"
"""Other numbers where one is an index, a dimension, or a bound."""

NUMBERS = f"-e; {PLACES}; 2 * e; e / 2; 1 / e; 1 - e; e ** 2; e ** 0.5"
"""Other numbers where one is a value."""

REDUCTIONS = "sum mean amax amin prod softmax log_softmax logsumexp norm var std cumsum"
"""Functions along a dimension."""
