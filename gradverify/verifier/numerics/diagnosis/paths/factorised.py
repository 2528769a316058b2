"""Derivatives of matrix functions written out: what an author writes who derives them by hand.

The value is the operation's own; only the gradient goes through what stands here. Factors are constants in
it, as in the differential of each: `d(A⁻¹) = -A⁻¹ dA A⁻¹`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.switches import Carried


def with_gradient_of(tensor: Tensor, value: Tensor) -> Tensor:
    """A value whose gradient is that of another tensor."""
    return Carried.apply(tensor, value)  # type: ignore[no-any-return, no-untyped-call]


def inverse(a: Tensor) -> Tensor:
    """-X A X with X = A⁻¹."""
    x = torch.linalg.inv(a.detach())
    return with_gradient_of(-(x @ a @ x), _left_alone(torch.linalg.inv, a))


def _left_alone(operation: Callable[..., Tensor], *args: Tensor, **named: Any) -> Tensor:  # noqa: ANN401
    """A value that is none of the factors of the derivative: what is altered in these leaves it as it is."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - the only way past a mode
        value: Tensor = operation(*(a.detach() for a in args), **named)
    return value


def solution(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """X (B - A Y) with X = A⁻¹, of Y = X B."""
    return _solution(a, a, b, _left_alone(torch.linalg.solve, a, b, left=left), left=left)


def triangular_solution(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The same, where one triangle of A counts."""
    if unitriangular:
        raise TypeError
    value = _left_alone(torch.linalg.solve_triangular, a, b, upper=upper, left=left)
    return _solution(a, torch.triu(a) if upper else torch.tril(a), b, value, left=left)


def solution_by_factor(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:  # noqa: FBT001, FBT002
    """The same for A = L Lᵀ."""
    if upper:
        raise TypeError
    low = torch.tril(factor)
    return _solution(factor, low @ low.mT, b, _left_alone(torch.cholesky_solve, b, factor), left=True)


def _solution(given: Tensor, a: Tensor, b: Tensor, value: Tensor, *, left: bool) -> Tensor:
    is_vector = b.dim() == 1 and given.dim() == 2 and left
    if given.is_complex() or not (is_vector or b.dim() >= given.dim()):
        raise TypeError
    x = torch.linalg.inv(a.detach())
    y = value.clone()
    return with_gradient_of(x @ (b - a @ y) if left else (b - y @ a) @ x, value)


def determinant(a: Tensor) -> Tensor:
    """det(A) tr(X A)."""
    value = torch.linalg.det(a.detach())
    inner = (torch.linalg.inv(a.detach()).mT * a).sum((-2, -1))
    return with_gradient_of(value * inner, value)


def log_determinant(a: Tensor) -> Tensor:
    """tr(X A)."""
    value = torch.logdet(a.detach())
    return with_gradient_of((torch.linalg.inv(a.detach()).mT * a).sum((-2, -1)), value)


def cholesky(a: Tensor, *, upper: bool = False) -> Tensor:
    """L Φ(L⁻¹ A L⁻ᵀ), where Φ takes the lower triangle and half of the diagonal."""
    if upper or a.is_complex():
        raise TypeError
    factor = torch.linalg.cholesky(a.detach())
    inside = torch.linalg.inv(factor)
    p = inside @ ((a + a.mT) * 0.5) @ inside.mT
    half = torch.diag_embed(torch.diagonal(p, dim1=-2, dim2=-1)) * 0.5
    return with_gradient_of(factor @ (p - p.triu(1) - half), factor)


def symmetric_eigenvalues(a: Tensor) -> Tensor:
    """The diagonal of Vᵀ A V."""
    values: Tensor = symmetric_eigen(a)[0]
    return values


def symmetric_eigen(a: Tensor) -> Any:  # noqa: ANN401 - torch's pair
    """The diagonal of E = Vᵀ A V, and V (F ∘ E) with F = 1 / (wⱼ - wᵢ) off the diagonal."""
    if a.is_complex():
        raise TypeError
    found: Any = torch.linalg.eigh(a.detach())
    w, v = found
    e = v.mT @ a @ v
    apart = w[..., None, :] - w[..., :, None]
    f = torch.where(apart == 0, 0.0, 1 / apart)
    values = with_gradient_of(torch.diagonal(e, dim1=-2, dim2=-1), w)
    return type(found)((values, with_gradient_of(v @ (f * e), v)))


def singular_values(a: Tensor) -> Tensor:
    """The diagonal of Uᵀ A V."""
    if a.is_complex():
        raise TypeError
    u, s, vh = torch.linalg.svd(a.detach(), full_matrices=False)
    return with_gradient_of(((u.mT @ a) * vh).sum(-1), s)


def singular(a: Tensor, full_matrices: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - torch's own
    """The singular values so; the vectors as torch differentiates them."""
    found: Any = torch.linalg.svd(a, full_matrices=full_matrices)
    u, _, vh = found
    return type(found)((u, singular_values(a), vh))


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:  # noqa: ANN401, FBT001, FBT002
    """The root of a sum of squares."""
    if p not in {2, None} or x.is_complex():
        raise TypeError
    dims = tuple(range(x.dim())) if dim is None else dim
    return (x * x).sum(dims, keepdim=keepdim).sqrt()
