"""A change of forward's own gradient as a cause."""

from __future__ import annotations

from pathlib import Path

from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward, Strength
from gradverify.verifier.numerics.diagnosis.chain import written
from gradverify.verifier.numerics.diagnosis.formulas import MULTIPLES
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge, OnePass
from gradverify.verifier.numerics.diagnosis.paths.exchange import Exchange
from gradverify.verifier.numerics.diagnosis.paths.glance import Candidate
from gradverify.verifier.numerics.diagnosis.paths.operations import LINEAR_IN_EACH
from gradverify.verifier.numerics.diagnosis.paths.own_forward import OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import argument_text, bracketed, text_of
from gradverify.verifier.numerics.diagnosis.paths.taken_for import instead_cause

ITS_RESULT = "its result"
"""The value of an operation, in a formula of it."""

_INSIDE = {("div", 1): "what it divides by", ("sub", 1): "what it subtracts", ("mul", 1): "its factor"}
"""What carries a part of the derivative inside an operation that is made of others."""

_DIVISORS = frozenset({("div", 1), ("rdiv", 0)})

MASKING = frozenset({"where", "masked_fill"})
"""Operations whose factor is a condition."""

_NAMES = {
    "output": "wrong-saved",
    "saved": "wrong-saved",
    "transposed": "transposed",
    "conjugate": "conjugate",
    "dim": "wrong-reduction-dim",
    "operand": "operand",
    "argument": "operand",
    "reduced": "wrong-reduction-dim",
    "averaged": "wrong-reduction-dim",
    "duplicates": "duplicates",
    "slice": "not-summed-over-broadcast",
    "nothing": "chain-factor",
    "times": "chain-factor",
}


def _name(change: Change) -> str:
    if change.name == "operand reshaped":
        return "operand"
    return _NAMES[change.kind] if change.kind != "instead" else instead_cause(change.edge.site.operation)


def cause_of(candidate: Candidate, law: str, own: OwnForward) -> Cause:
    """Another local derivative as a cause; `law` is what its coefficient is, where sizes change it."""
    change = candidate.altered.instead
    if change is not None and candidate.within is not None:
        return Cause(
            "chain-factor",
            Strength.WEAK,
            kind="within",
            where=where_of(change.edge, own),
            where_too=where_of(candidate.within, own),
        )
    return _of_part(candidate, law, own) if change is None else _of_change(change, candidate.share, law, own)


def _of_part(candidate: Candidate, law: str, own: OwnForward) -> Cause:
    one = next((c for c in candidate.altered.dropped if isinstance(c, OnePass)), None)
    if one is not None:
        where = where_of(one.edge, own)
        if one.which.startswith("all but"):
            return Cause("missing-term", Strength.WEAK, kind="lost pass", law=one.which, where=where)
        return Cause("duplicates", Strength.WEAK, kind="pass", law=one.which, where=where)
    edges = sorted(
        (c for c in candidate.altered.dropped if isinstance(c, Edge)),
        key=lambda e: (e.site.line, e.site.start, e.place),
    )
    weights = dict(candidate.weights)
    return Cause(
        "missing-term",
        Strength.WEAK,
        factor=weights.get(edges[0], candidate.share),
        factor_too=weights.get(edges[-1]),
        law=law,
        kind="path" if len(edges) == 1 else "paths",
        where=where_of(edges[0], own),
        where_too=None if len(edges) == 1 else where_of(edges[1], own),
    )


def _of_change(change: Change, share: float, law: str, own: OwnForward) -> Cause:
    where = where_of(change.edge, own)
    if change.kind == "formula":
        ones = change.name == "1" and where.others
        formula = "" if ones else _formula(change, share, own)
        return Cause(
            "branch" if ones and change.edge.site.operation in MASKING else "chain-factor",
            Strength.WEAK,
            factor=share,
            kind="ones" if ones else "formula",
            law=law or formula,
            where=where,
        )
    other = (
        argument_text(change.edge.site, own.path(Edge(change.edge.site, change.other)))
        if change.other >= 0
        else ""
    )
    return Cause(
        _name(change),
        Strength.WEAK,
        factor=share,
        kind=change.kind,
        other=other,
        law=change.name,
        condition=law,
        where=where,
    )


def _formula(change: Change, share: float, own: OwnForward) -> str:
    value = bracketed(argument_text(change.edge.site, own.path(change.edge)) or "its argument")
    name = ITS_RESULT if change.of_result else value
    if share not in MULTIPLES or change.name == "1":
        return f"{share:.6g}"
    return written(share, change.name.replace("{}", name))


def cause_of_exchange(exchange: Exchange, own: OwnForward) -> Cause:
    """Another number or value in forward as a cause."""
    own_values = exchange.kind in {"value", "use", "neighbour", "final"} and "{}" not in exchange.text
    too = None if exchange.other is None else where_of(Edge(exchange.other, -1), own)
    name = "wrong-saved" if own_values else "operand"
    return Cause(
        "transposed" if exchange.kind == "transposed" else name,
        Strength.WEAK,
        kind=exchange.kind,
        law=exchange.text,
        where=where_of(Edge(exchange.site, exchange.place), own),
        where_too=too,
    )


def where_of(edge: Edge, own: OwnForward) -> InForward:
    """An argument in forward's source."""
    site = edge.site
    return InForward(
        file=Path(site.file).name,
        line=max(0, site.line) if site.file else 0,
        expression=text_of(site),
        argument=argument_text(site, own.path(edge)),
        operation=site.operation,
        others=site.operation in LINEAR_IN_EACH,
        inside=_INSIDE.get((site.operation, edge.place), f"its `{site.operation}`") if site.part else "",
        beside=_beside(edge, own),
        is_divisor=(site.operation, edge.place) in _DIVISORS,
        inside_of=site.outer,
    )


def _beside(edge: Edge, own: OwnForward) -> str:
    """The one other argument of a product or quotient."""
    return argument_text(edge.site, own.path(Edge(edge.site, 1 - edge.place))) if edge.place in {0, 1} else ""
