"""What `gradverify list` prints: the targets, where their inputs come from, and what would be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import InputSource, ModuleReport, Target, TargetPlan
from gradverify.report.console import TextStyle, emit
from gradverify.report.layout import field, hang
from gradverify.report.text import module_lines, nothing_lines
from gradverify.report.words import clean, plural

_CASES = 4
"""Case ids listed at normal verbosity."""


@dataclass(frozen=True)
class ListedTarget:
    """One discovered target with what would be done to it."""

    target: Target
    plan: TargetPlan | None = None
    """None where nothing could be planned; `reason` then says why."""
    checks: tuple[str, ...] = ()
    """The checks that would run, in order."""
    too_large: tuple[str, ...] = ()
    """Why cases would not be run that cannot fit into memory."""
    reason: str = ""
    """Why it would not be checked, in words; empty if it would."""


def render_listing(targets: Sequence[ListedTarget], modules: Sequence[ModuleReport], style: TextStyle) -> str:
    """Return the list: targets in the given order under their modules, then modules without any."""
    if not targets:
        return emit(nothing_lines(modules, style)[:-2] or [Text("no module to list")], style)
    lines: list[Text] = []
    for file, members in groupby(targets, lambda listed: listed.target.file):
        listed = list(members)
        heading = Text.assemble((clean(file), "bold"), f"  {plural(len(listed), 'function')}")
        lines += [heading, Text()]
        names = max(cell_len(clean(one.target.name)) for one in listed)
        for one in listed:
            lines += _listed(one, names, style)
        for passed in (p for m in modules if m.file == file for p in m.passed_over if p.line):
            prefix = Text(f"  {clean(passed.name).ljust(names)}  ")
            lines += hang(prefix, f"passed over: {passed.reason}", style, cell_len(prefix.plain))
        lines.append(Text())
    for module in modules:
        lines += [*module_lines(module, style), Text()] if not module.targets else []
    return emit([*lines, _total(targets)], style)


def _listed(one: ListedTarget, names: int, style: TextStyle) -> list[Text]:
    name = clean(one.target.name)
    prefix = Text(f"  {name}{' ' * (names - cell_len(name))}  ")
    indent = cell_len(prefix.plain)
    if one.plan is not None and one.plan.skip:
        return hang(prefix, f"skipped: {one.plan.skip}", style, indent)
    if one.plan is None or one.reason:
        return hang(prefix, f"unchecked: {one.reason or 'no inputs are known'}", style, indent)
    lines = hang(prefix, f"{plural(len(one.plan.cases), 'case')}, {_source(one.plan)}", style, indent)
    return lines + _details(one, one.plan, style)


def _source(plan: TargetPlan) -> str:
    match plan.source:
        case InputSource.SPEC:
            return (
                f"inputs from {plan.spec_file}:{plan.spec_line}" if plan.spec_file else "inputs from the spec"
            )
        case InputSource.INFERRED:
            return "inputs inferred"
        case InputSource.NONE:
            return "inputs not known yet"


def _details(one: ListedTarget, plan: TargetPlan, style: TextStyle) -> list[Text]:
    ids = [case.id for case in plan.cases]
    kept = ids if style.verbosity > 0 else ids[:_CASES]
    if len(kept) < len(ids):
        kept = [*kept, f"and {len(ids) - len(kept)} more (-v)"]
    if plan.infeasible:
        kept = [*kept, f"({plan.infeasible} more dropped: no valid inputs exist)"]
    checks = ", ".join(one.checks)
    pairs = [("cases" if place == 0 else "", text) for place, text in enumerate(kept)]
    pairs += [("too large", text) for text in one.too_large]
    pairs += [("checks", checks)] if checks else []
    pairs += [("reference", plan.reference)] if plan.reference else []
    pairs += [("ignored", f"{code}: {reason}") for code, reason in plan.ignore]
    return [Text.assemble("  ", line) for label, prose in pairs for line in field(label, prose, style)]


def _total(targets: Sequence[ListedTarget]) -> Text:
    planned = [one for one in targets if one.plan is not None and not one.plan.skip and not one.reason]
    cases = sum(len(one.plan.cases) for one in planned if one.plan is not None)
    return Text(f"{plural(len(targets), 'function')}, {plural(cases, 'case')}")
