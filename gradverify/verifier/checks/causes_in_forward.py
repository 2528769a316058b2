"""Causes that are one operation of forward whose derivative backward takes otherwise, in the user's own words."""

from __future__ import annotations

from gradverify.verifier.checks.saying import Said, of_gradient, times_too_large
from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.paths.sites import bracketed


def in_forward(cause: Cause, pairs: Pairs, where: InForward) -> Said:
    """What is taken otherwise, and where it stands in forward."""
    gradient = of_gradient(pairs[0])
    if cause.name == "missing-term":
        return _part(cause, gradient, where)
    if cause.kind == "number":
        return _number(cause, gradient, where)
    if cause.kind in {"value", "swapped"}:
        return _value(cause, gradient, where)
    if cause.kind in {"formula", "ones"}:
        return _formula(cause, gradient, where)
    return _exchanged(cause, gradient, where)


def _part(cause: Cause, gradient: str, where: InForward) -> Said:
    through = _through(where)
    if cause.where_too is not None:
        return Said(
            f"{gradient} is right but for two parts that are missing: what comes through {through}, and through "
            f"{_through(cause.where_too)}",
            "Are these values taken for constants?",
        )
    if cause.law:
        return Said(
            f"of {gradient} the part that comes through {through} is `{cause.law}` times what it should be"
        )
    share = cause.factor or 0.0
    if share == 0:
        return Said(f"{gradient} lacks the part that comes through {through}, and is right otherwise")
    return Said(
        f"of {gradient} the part that comes through {through} {times_too_large(share)}, and the rest is right"
    )


def _number(cause: Cause, gradient: str, where: InForward) -> Said:
    named = where.argument or "the number"
    value = cause.law.replace("{}", named)
    return Said(f"{gradient} is what it would be if `{named}` were `{value}` in {_place(where)}")


def _value(cause: Cause, gradient: str, where: InForward) -> Said:
    if cause.where_too is not None:
        return Said(
            f"{gradient} is what it would be if {_place(where)} and {_place(cause.where_too)} had each other's values",
            "Are two values exchanged in backward?",
        )
    value = cause.law.replace("{}", bracketed(where.expression))
    return Said(
        f"{gradient} is what it would be with the values of `{value}` in place of those of {_place(where)}",
        "Was another value saved, or taken from what was saved?",
    )


def _formula(cause: Cause, gradient: str, where: InForward) -> Said:
    if cause.kind == "ones":
        factor = f"the factor that `{where.beside}` gives in" if where.beside else "the factor of"
        has = "" if cause.factor == 1.0 else f", and has `{cause.law or number(cause.factor or 0.0)}` instead"
        return Said(
            f"{gradient} lacks {factor} {_place(where)}{has}; it is right otherwise",
            "Multiply by what this operation multiplies by." if not has else "",
        )
    if cause.law == "1":
        return Said(
            f"{gradient} lacks the derivative of {_place(where)}, and is right otherwise",
            "Multiply by it: a factor of the chain rule is missing.",
        )
    return Said(f"{gradient} has `{cause.law}` for the derivative of {_place(where)}, and is right otherwise")


def _exchanged(cause: Cause, gradient: str, where: InForward) -> Said:
    times = "" if cause.factor in {None, 1.0} else f", times {number(cause.factor or 0.0)}"
    place = _place(where)
    if cause.kind == "duplicates":
        return Said(
            f"where {place} picks an entry several times, only the last use counts in {gradient}{times}",
            "Add the uses up: index_add_ or scatter_add_, not assignment by index.",
        )
    if cause.kind == "reduced":
        over = "all entries" if cause.law == "all" else f"dimension {cause.law}, too,"
        times = f", times `{cause.condition}`" if cause.condition else times
        return Said(
            f"{gradient} is right with what comes back to {_through(where)} summed over {over}{times}",
            "Look for a wrong `dim` in a sum or mean in backward.",
        )
    if cause.kind == "instead":
        return Said(f"{gradient} is right with {cause.law} in the derivative of {place}{times}")
    if cause.kind == "argument":
        return Said(
            f"{gradient} is right with the derivative of {place} at `{cause.law}` in place of its argument{times}",
            "Was another value saved, or taken from what was saved?",
        )
    if cause.kind == "output":
        return Said(
            f"{gradient} is right with the result of {place} in place of its argument{times}",
            "Was the result saved instead of the argument, or the other way round?",
        )
    if cause.kind == "conjugate":
        return Said(
            f"{gradient} lacks a `.conj()`, or has one too many, for {_other(cause)} of {place}{times}"
        )
    if cause.kind == "dim":
        return Said(f"{gradient} is right for {place} along dimension {cause.law} instead{times}")
    if cause.kind == "transposed":
        what = {
            "gradient": "the gradient that goes back through",
            "grad_output": "the gradient that comes back to",
            "operand": f"{_other(cause)} in",
        }[cause.law]
        return Said(
            f"{gradient} is right with {what} {place} transposed{times}",
            "A transpose is missing there, or one too many.",
        )
    value = cause.law.replace("{}", bracketed(cause.other or "it"))
    return Said(f"{gradient} is right with `{value}` in place of {_other(cause)} in {place}{times}")


def _other(cause: Cause) -> str:
    return f"`{cause.other}`" if cause.other else "the other argument"


def _through(where: InForward) -> str:
    if where.argument and where.argument != where.expression:
        return f"`{where.argument}` in {_place(where)}"
    return _place(where)


def _place(where: InForward) -> str:
    """`` `x - mean` (line 12 of the file) ``."""
    quoted = f"`{where.expression}`" if where.expression else f"`{where.operation}`"
    return f"{quoted} (line {where.line})" if where.line else f"{quoted} of forward"
