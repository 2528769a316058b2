"""Causes that are one operation of forward whose derivative backward takes otherwise, in the user's words."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from gradverify.verifier.checks.places_in_forward import (
    WRITTEN_OUT,
    derivative,
    other,
    place,
    through,
    times,
)
from gradverify.verifier.checks.saying import Said, of_gradient, times_too_large
from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.paths.naming import ITS_RESULT
from gradverify.verifier.numerics.diagnosis.paths.sites import bracketed

WOULD_BE = "is what it would be"

SAVED_OTHERWISE = "Was another value saved, or taken from what was saved?"


def in_forward(cause: Cause, pairs: Pairs, where: InForward) -> Said:
    """What is taken otherwise, and where it stands in forward."""
    said = _WORDS[cause.kind](cause, of_gradient(pairs[0]), where)
    formula = WRITTEN_OUT.get(where.inside_of)
    return said if formula is None else Said(said.what, f"{said.advice} Written out: {formula}.".strip())


def _part(cause: Cause, gradient: str, where: InForward) -> Said:
    way = through(where)
    if cause.law:
        what = f"the part of {gradient} that comes through {way} is `{cause.law}` times what it should be"
        return Said(what)
    share = cause.factor or 0.0
    if share == 0 and where.inside:
        return Said(
            f"{gradient} lacks a term of {place(where)}, and is right otherwise: "
            f"{where.inside} counts as a constant"
        )
    if share == 0:
        return Said(f"{gradient} lacks the part that comes through {way}, and is right otherwise")
    return Said(
        f"the part of {gradient} that comes through {way} {times_too_large(share)}, and the rest is right"
    )


def _two_parts(cause: Cause, gradient: str, where: InForward) -> Said:
    if cause.factor_too is not None and cause.where_too is not None:
        return _weighted_parts(cause, gradient, where, cause.where_too)
    too = "" if cause.where_too is None else f", and what comes through {through(cause.where_too)}"
    return Said(
        f"{gradient} lacks two parts, and is right otherwise: what comes through {through(where)}{too}",
        "Does backward take these values for constants?",
    )


def _weighted_parts(cause: Cause, gradient: str, where: InForward, too: InForward) -> Said:
    """One of two parts lost or turned, and the other with a coefficient, too."""
    one, other = cause.factor or 0.0, cause.factor_too or 0.0
    both = {one, other} == {0.0, 2.0}
    return Said(
        f"of {gradient} what comes through {through(where)} {_weight(one)}, what comes through "
        f"{through(too)} {_weight(other)}, and the rest is right",
        "Is one of two parts, as those of a product rule, taken for the other?" if both else "",
    )


def _weight(share: float) -> str:
    return {0.0: "is missing", 2.0: "counts twice"}.get(share) or times_too_large(share)


def _number(cause: Cause, gradient: str, where: InForward) -> Said:
    named = where.argument or "the number"
    value = cause.law.replace("{}", named)
    return Said(f"{gradient} {WOULD_BE} if `{named}` were `{_computed(value)}` in {place(where)}")


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
        f"{gradient} {WOULD_BE} with the values of `{value}`, not those of {place(where)}",
        SAVED_OTHERWISE,
    )


def _use(cause: Cause, gradient: str, where: InForward) -> Said:
    own = f"`{where.argument}`" if where.argument else "an argument"
    if cause.kind == "neighbour":
        value = f"{own} of the {cause.law} pass of the loop, not that of its own pass,"
    elif cause.kind == "final":
        value = f"what `{cause.law}` comes to in the last pass of the loop, not {own},"
    else:
        value = f"the values of `{cause.law}`, not those of {own},"
    return Said(f"{gradient} {WOULD_BE} with {value} in {place(where)}", SAVED_OTHERWISE)


def _swapped(cause: Cause, gradient: str, where: InForward) -> Said:
    too = "another" if cause.where_too is None else place(cause.where_too)
    return Said(
        f"{gradient} {WOULD_BE} if {place(where)} and {too} had each other's values",
        "Are two values exchanged in backward?",
    )


def _factor(cause: Cause, gradient: str, where: InForward) -> Said:
    """Of a product, or what is like one, the other factor is missing."""
    factor = f"the factor that `{where.beside}` gives in" if where.beside else "the factor of"
    instead = cause.law or number(cause.factor or 0.0)
    has = "" if cause.factor == 1.0 else f", and has `{instead}` instead"
    return Said(f"{gradient} lacks {factor} {place(where)}{has}; it is right otherwise")


def _within(cause: Cause, gradient: str, where: InForward) -> Said:
    """One part lacks a factor that the others have."""
    factor = f"the factor that `{where.beside}` gives in" if where.beside else "the factor of"
    part = "" if cause.where_too is None else through(cause.where_too)
    return Said(
        f"the part of {gradient} that comes through {part} lacks {factor} {place(where)}, and the rest is "
        "right"
    )


def _saved(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} {WOULD_BE} with {derivative(where)} written by its result, and `{cause.law}` in the "
        f"place of that{times(cause)}",
        SAVED_OTHERWISE,
    )


def _formula(cause: Cause, gradient: str, where: InForward) -> Said:
    if cause.law == "1":
        return Said(
            f"{gradient} lacks {derivative(where)}, and is right otherwise",
            "Multiply by it: a factor of the chain rule is missing.",
        )
    if cause.law == ITS_RESULT:
        return Said(
            f"{gradient} has the value of {place(where)} in place of its derivative{times(cause)}, and is "
            "right otherwise"
        )
    return Said(f"{gradient} has `{cause.law}` for {derivative(where)}, and is right otherwise")


def _duplicates(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"where {place(where)} picks an entry several times, only the last use counts in {gradient}"
        f"{times(cause)}",
        "Add the uses up: index_add_ or scatter_add_, not assignment by index.",
    )


def _reduced(cause: Cause, gradient: str, where: InForward) -> Said:
    how = "averaged" if cause.kind == "averaged" else "summed"
    over = "all entries" if cause.law == "all" else f"dimension {cause.law}, too"
    return Said(
        f"{gradient} {WOULD_BE} with what comes back to {through(where)} {how} over {over}{times(cause)}",
        "Look for a wrong `dim` in a sum or mean in backward.",
    )


def _output(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} {WOULD_BE} with the result of {place(where)} in place of its argument{times(cause)}",
        "Was the result saved instead of the argument, or the other way round?",
    )


def _argument(cause: Cause, gradient: str, where: InForward) -> Said:
    own = f"not at `{where.argument or 'its argument'}`"
    return Said(
        f"{gradient} {WOULD_BE} with {derivative(where)} taken at `{cause.law}`, {own}{times(cause)}",
        SAVED_OTHERWISE,
    )


def _operand(cause: Cause, gradient: str, where: InForward) -> Said:
    value = cause.law.replace("{}", bracketed(cause.other or "it"))
    if cause.law == "1 - {}" and cause.other.startswith("1 - "):
        value = cause.other.removeprefix("1 - ")
    swapped = f"`{value}` in place of {other(cause)}"
    return Said(f"{gradient} {WOULD_BE} with {swapped} in {place(where)}{times(cause)}")


def _transposed(cause: Cause, gradient: str, where: InForward) -> Said:
    what = {
        "gradient": "what goes back through",
        "grad_output": "what comes back to",
        "operand": f"{other(cause)} in",
        "operand reshaped": f"{other(cause)} in",
    }[cause.law]
    how = "transposed and reshaped" if cause.law == "operand reshaped" else "transposed"
    return Said(
        f"{gradient} {WOULD_BE} with {what} {place(where)} {how}{times(cause)}",
        "A transpose is missing there, or one too many.",
    )


def _conjugate(cause: Cause, gradient: str, where: InForward) -> Said:
    what = derivative(where) if cause.law == "derivative" else f"{other(cause)} of {place(where)}"
    return Said(f"{gradient} lacks a `.conj()`, or has one too many, for {what}{times(cause)}")


def _slice(cause: Cause, gradient: str, where: InForward) -> Said:
    value = f"`{where.argument}`" if where.argument else "a value"
    return Said(
        f"{value} is spread over the result of {place(where)}, but {gradient} comes from the {cause.law} "
        f"of it only{times(cause)}",
        "Sum over that dimension instead of indexing it.",
    )


def _one_pass(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} is made of the {cause.law} pass of a loop alone, of those that use {through(where)}",
        "Add the passes up: is there a `=` where a `+=` is meant, or does backward stop after one pass?",
    )


def _lost_pass(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} lacks what the {cause.law.rpartition(' ')[2]} pass of a loop adds, of those that use "
        f"{through(where)}, and is right otherwise",
        "Look at the bounds of the loop in backward.",
    )


def _dim(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(f"{gradient} {WOULD_BE} for {place(where)} along dimension {cause.law}{times(cause)}")


def _instead(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(f"{gradient} {WOULD_BE} with {cause.law} in {derivative(where)}{times(cause)}")


def _nothing(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} lacks the derivative of what lies between `{cause.law}` and "
        f"{place(where)}{times(cause)}, and is right otherwise",
        "Multiply by it: factors of the chain rule are missing.",
    )


def _one_too_many(cause: Cause, gradient: str, where: InForward) -> Said:
    return Said(
        f"{gradient} is right but for one factor too many, `{cause.law}`, at {place(where)}{times(cause)}",
        "Divide by it, or look for what it stands in the place of.",
    )


_WORDS: dict[str, Callable[[Cause, str, InForward], Said]] = {
    "path": _part,
    "paths": _two_parts,
    "number": _number,
    "value": _value,
    "use": _use,
    "neighbour": _use,
    "final": _use,
    "swapped": _swapped,
    "ones": _factor,
    "formula": _formula,
    "duplicates": _duplicates,
    "slice": _slice,
    "pass": _one_pass,
    "lost pass": _lost_pass,
    "reduced": _reduced,
    "averaged": _reduced,
    "output": _output,
    "saved": _saved,
    "within": _within,
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
