"""Causes that are one operation of forward whose derivative backward takes otherwise, in the user's words."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from gradverify.verifier.checks.saying import Said, of_gradient, times_too_large
from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.paths.naming import ITS_RESULT
from gradverify.verifier.numerics.diagnosis.paths.sites import bracketed

WOULD_BE = "is what it would be"

SAVED_OTHERWISE = "Was another value saved, or taken from what was saved?"


WRITTEN_OUT = {
    "inv": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
    "linalg_inv": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
    "inverse": "d(A⁻¹) = -A⁻¹ dA A⁻¹",
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


def in_forward(cause: Cause, pairs: Pairs, where: InForward) -> Said:
    """What is taken otherwise, and where it stands in forward."""
    said = _WORDS[cause.kind](cause, of_gradient(pairs[0]), where)
    formula = WRITTEN_OUT.get(where.inside_of)
    return said if formula is None else Said(said.what, f"{said.advice} Written out: {formula}.".strip())


def _part(cause: Cause, gradient: str, where: InForward) -> Said:
    through = _through(where)
    if cause.law:
        what = f"the part of {gradient} that comes through {through} is `{cause.law}` times what it should be"
        return Said(what)
    share = cause.factor or 0.0
    if share == 0 and where.inside:
        return Said(
            f"{gradient} lacks a term of {_place(where)}, and is right otherwise: "
            f"{where.inside} counts as a constant"
        )
    if share == 0:
        return Said(f"{gradient} lacks the part that comes through {through}, and is right otherwise")
    return Said(
        f"the part of {gradient} that comes through {through} {times_too_large(share)}, and the rest is right"
    )


def _two_parts(cause: Cause, gradient: str, where: InForward) -> Said:
    other = "" if cause.where_too is None else f", and what comes through {_through(cause.where_too)}"
    return Said(
        f"{gradient} lacks two parts, and is right otherwise: what comes through {_through(where)}{other}",
        "Does backward take these values for constants?",
    )


def _number(cause: Cause, gradient: str, where: InForward) -> Said:
    named = where.argument or "the number"
    value = cause.law.replace("{}", named)
    return Said(f"{gradient} {WOULD_BE} if `{named}` were `{_computed(value)}` in {_place(where)}")


def _computed(expression: str) -> str:
    """A product or the like of plain numbers by its value: `0.5`, not `2 * 0.25`."""
    if not re.fullmatch(r"[0-9.]+ [*/+-] [0-9.]+|[0-9.]+\*\*2", expression):
        return expression
    tree = ast.parse(expression, mode="eval").body
    match tree:
        case ast.BinOp(left=ast.Constant(value=a), op=op, right=ast.Constant(value=b)):
            value = _OPERATORS[type(op)](float(a), float(b))  # type: ignore[arg-type]
            return f"{value:.12g}"
        case _:
            return expression


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
}


def _value(cause: Cause, gradient: str, where: InForward) -> Said:
    value = cause.law.replace("{}", bracketed(where.expression))
    return Said(
        f"{gradient} {WOULD_BE} with the values of `{value}`, not those of {_place(where)}",
        SAVED_OTHERWISE,
    )


def _use(cause: Cause, gradient: str, where: InForward) -> Said:
    own = f"`{where.argument}`" if where.argument else "an argument"
    if cause.kind == "neighbour":
        value = f"{own} of the {cause.law} pass of the loop, not that of its own pass,"
    else:
        value = f"the values of `{cause.law}`, not those of {own},"
    return Said(f"{gradient} {WOULD_BE} with {value} in {_place(where)}", SAVED_OTHERWISE)


def _swapped(cause: Cause, gradient: str, where: InForward) -> Said:
    other = "another" if cause.where_too is None else _place(cause.where_too)
    return Said(
        f"{gradient} {WOULD_BE} if {_place(where)} and {other} had each other's values",
        "Are two values exchanged in backward?",
    )


def _factor(cause: Cause, gradient: str, where: InForward) -> Said:
    """Of a product, or what is like one, the other factor is missing."""
    factor = f"the factor that `{where.beside}` gives in" if where.beside else "the factor of"
    instead = cause.law or number(cause.factor or 0.0)
    has = "" if cause.factor == 1.0 else f", and has `{instead}` instead"
    return Said(f"{gradient} lacks {factor} {_place(where)}{has}; it is right otherwise")


def _formula(cause: Cause, gradient: str, where: InForward) -> Said:
    if cause.law == "1":
        return Said(
            f"{gradient} lacks {_derivative(where)}, and is right otherwise",
            "Multiply by it: a factor of the chain rule is missing.",
        )
    if cause.law == ITS_RESULT:
        return Said(
            f"{gradient} has the value of {_place(where)} in place of its derivative{_times(cause)}, and is "
            "right otherwise"
        )
    return Said(f"{gradient} has `{cause.law}` for {_derivative(where)}, and is right otherwise")


def _duplicates(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"where {_place(where)} picks an entry several times, only the last use counts in {gradient}"
        f"{_times(cause)}",
        "Add the uses up: index_add_ or scatter_add_, not assignment by index.",
    )


def _reduced(cause: Cause, gradient: str, where: InForward) -> Said:
    over = "all entries" if cause.law == "all" else f"dimension {cause.law}, too"
    return Said(
        f"{gradient} {WOULD_BE} with what comes back to {_through(where)} summed over {over}{_times(cause)}",
        "Look for a wrong `dim` in a sum or mean in backward.",
    )


def _output(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} {WOULD_BE} with the result of {_place(where)} in place of its argument{_times(cause)}",
        "Was the result saved instead of the argument, or the other way round?",
    )


def _argument(cause: Cause, gradient: str, where: InForward) -> Said:
    own = f"not at `{where.argument or 'its argument'}`"
    return Said(
        f"{gradient} {WOULD_BE} with {_derivative(where)} taken at `{cause.law}`, {own}{_times(cause)}",
        SAVED_OTHERWISE,
    )


def _operand(cause: Cause, gradient: str, where: InForward) -> Said:
    value = cause.law.replace("{}", bracketed(cause.other or "it"))
    if cause.law == "1 - {}" and cause.other.startswith("1 - "):
        value = cause.other.removeprefix("1 - ")
    place = _place(where)
    swapped = f"`{value}` in place of {_other(cause)}"
    return Said(f"{gradient} {WOULD_BE} with {swapped} in {place}{_times(cause)}")


def _transposed(cause: Cause, gradient: str, where: InForward) -> Said:
    what = {
        "gradient": "what goes back through",
        "grad_output": "what comes back to",
        "operand": f"{_other(cause)} in",
        "operand reshaped": f"{_other(cause)} in",
    }[cause.law]
    how = "transposed and reshaped" if cause.law == "operand reshaped" else "transposed"
    return Said(
        f"{gradient} {WOULD_BE} with {what} {_place(where)} {how}{_times(cause)}",
        "A transpose is missing there, or one too many.",
    )


def _conjugate(cause: Cause, gradient: str, where: InForward) -> Said:
    what = _derivative(where) if cause.law == "derivative" else f"{_other(cause)} of {_place(where)}"
    return Said(f"{gradient} lacks a `.conj()`, or has one too many, for {what}{_times(cause)}")


def _slice(cause: Cause, gradient: str, where: InForward) -> Said:
    through = f"`{where.argument}`" if where.argument else "a value"
    return Said(
        f"{through} is spread over the result of {_place(where)}, but {gradient} comes from the {cause.law} "
        f"of it only{_times(cause)}",
        "Sum over that dimension instead of indexing it.",
    )


def _one_pass(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} is made of the {cause.law} pass of a loop alone, of those that use {_through(where)}",
        "Add the passes up: is there a `=` where a `+=` is meant?",
    )


def _dim(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(f"{gradient} {WOULD_BE} for {_place(where)} along dimension {cause.law}{_times(cause)}")


def _instead(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(f"{gradient} {WOULD_BE} with {cause.law} in {_derivative(where)}{_times(cause)}")


def _nothing(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} lacks the derivative of what lies between `{cause.law}` and "
        f"{_place(where)}{_times(cause)}, and is right otherwise",
        "Multiply by it: factors of the chain rule are missing.",
    )


def _one_too_many(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} is right but for one factor too many, `{cause.law}`, at {_place(where)}{_times(cause)}",
        "Divide by it, or look for what it stands in the place of.",
    )


_WORDS: dict[str, Callable[[Cause, str, InForward], Said]] = {
    "path": _part,
    "paths": _two_parts,
    "number": _number,
    "value": _value,
    "use": _use,
    "neighbour": _use,
    "swapped": _swapped,
    "ones": _factor,
    "formula": _formula,
    "duplicates": _duplicates,
    "slice": _slice,
    "pass": _one_pass,
    "reduced": _reduced,
    "output": _output,
    "argument": _argument,
    "operand": _operand,
    "transposed": _transposed,
    "conjugate": _conjugate,
    "dim": _dim,
    "instead": _instead,
    "nothing": _nothing,
    "times": _one_too_many,
}
"""How each kind of change is said."""


def _times(cause: Cause) -> str:
    if cause.condition:
        return f", times `{cause.condition}`"
    return "" if cause.factor in {None, 1.0} else f", times {number(cause.factor or 0.0)}"


def _other(cause: Cause) -> str:
    if cause.other:
        return f"`{cause.other}`"
    return "a factor" if cause.where is not None and cause.where.inside else "the other argument"


def _through(where: InForward) -> str:
    if where.inside:
        return f"{where.inside} in {_place(where)}"
    if where.argument and where.argument != where.expression:
        divisor = "the divisor " if where.is_divisor else ""
        return f"{divisor}`{where.argument}` in {_place(where)}"
    return _place(where)


def _derivative(where: InForward) -> str:
    return _place(where) if where.inside else f"the derivative of {_place(where)}"


def _place(where: InForward) -> str:
    """`` `x - mean` (norms.py:12) ``."""
    quoted = f"`{where.expression}`" if where.expression else f"`{where.operation}`"
    quoted = f"the derivative of {quoted}" if where.inside else quoted
    return f"{quoted} ({where.file}:{where.line})" if where.line else f"{quoted} of forward"
