"""Functions that need no verdict of their own: what was verified applies them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradverify.model import PassedOver, Verdict
from gradverify.session.planning import Planned
from gradverify.session.verifying import Judged

VERIFIED = frozenset({Verdict.PASSED, Verdict.FAILED, Verdict.XFAILED})
"""Verdicts on a target whose calls count as verification of what they apply."""


def verified_elsewhere(planned: Sequence[Planned], judged: Sequence[Judged]) -> dict[str, PassedOver]:
    """The targets that calls of a verified one apply, by their id: those without inputs, or not selected.

    `judged` are the verdicts on the first of `planned`, in the same order.
    """
    by_whom = {
        (Path(file).resolve(), name): one.report.target.name
        for one in judged
        if one.report.status in VERIFIED
        for file, name in one.applied
    }
    if not by_whom:
        return {}
    unselected = {t.id: (m, t) for m in {id(p.module): p.module for p in planned}.values() for t in m.unnamed}
    without_inputs = {
        one.report.target.id: (plan.module, one.report.target)
        for plan, one in zip(planned, judged, strict=False)
        if one.report.status is Verdict.UNCHECKED
        and any(f.code == "GV001" for f in one.report.findings)
        and not one.report.cases
    }
    found: dict[str, PassedOver] = {}
    for name, (module, target) in {**unselected, **without_inputs}.items():
        whom = by_whom.get((module.path.resolve(), target.attribute))
        if whom is not None:
            found[name] = PassedOver(target.name, target.line, f"verified where `{whom}` applies it")
    return found
