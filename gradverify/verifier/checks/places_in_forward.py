"""Where in forward a derivative is taken otherwise, in words: an operation, an argument, a line."""

from __future__ import annotations

from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward

WRITTEN_OUT = {
    "inv": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
    "linalg_inv": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
    "inverse": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
    "solve": "dX = A⁻¹ (dB - dA X)",
    "linalg_solve": "dX = A⁻¹ (dB - dA X)",
    "solve_triangular": "dX = A⁻¹ (dB - dA X)",
    "linalg_solve_triangular": "dX = A⁻¹ (dB - dA X)",
    "cholesky_solve": "dX = A⁻¹ (dB - dA X) with A = L Lᵀ, dA = dL Lᵀ + L dLᵀ",
    "det": "d det(A) = det(A) tr(A⁻¹ dA)",
    "linalg_det": "d det(A) = det(A) tr(A⁻¹ dA)",
    "logdet": "d log det(A) = tr(A⁻¹ dA)",
    "cholesky": "dL = L Φ(L⁻¹ dA L⁻ᵀ), where Φ takes the lower triangle and half of the diagonal",
    "linalg_cholesky": "dL = L Φ(L⁻¹ dA L⁻ᵀ), where Φ takes the lower triangle and half of the diagonal",
    "linalg_eigh": "dw = diag(Vᵀ dA V), dV = V (F ∘ (Vᵀ dA V)), where F is 1 / (wⱼ - wᵢ) off the diagonal",
    "linalg_eigvalsh": "dw = diag(Vᵀ dA V)",
    "linalg_svdvals": "ds = diag(Uᵀ dA V)",
    "linalg_svd": "ds = diag(Uᵀ dA V)",
}
"""Differentials as textbooks have them, of operations whose derivatives are altered in parts."""


def times(cause: Cause) -> str:
    """`, times 2`, where what stands instead has a coefficient, too."""
    if cause.condition:
        return f", times `{cause.condition}`"
    return "" if cause.factor in {None, 1.0} else f", times {number(cause.factor or 0.0)}"


def other(cause: Cause) -> str:
    """The argument that is exchanged."""
    if cause.other:
        return f"`{cause.other}`"
    return "a factor" if cause.where is not None and cause.where.inside else "the other argument"


def through(where: InForward) -> str:
    """What a part of the gradient comes through."""
    if where.inside:
        return f"{where.inside} in {place(where)}"
    if where.argument and where.argument != where.expression:
        divisor = "the divisor " if where.is_divisor else ""
        return f"{divisor}`{where.argument}` in {place(where)}"
    return place(where)


def derivative(where: InForward) -> str:
    """The derivative of an operation, or of one of those that it is made of."""
    if where.inside:
        # What is made of several operations has only the one of them otherwise.
        return f"the derivative of the `{where.operation}` inside {place(where)}"
    return f"the derivative of {place(where)}"


def place(where: InForward) -> str:
    """`` `x - mean` (norms.py:12) ``."""
    quoted = f"`{where.expression}`" if where.expression else f"`{where.operation}`"
    quoted = f"the derivative of {quoted}" if where.inside else quoted
    return f"{quoted} ({where.file}:{where.line})" if where.line else f"{quoted} of forward"
