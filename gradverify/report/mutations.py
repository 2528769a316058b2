"""What became of planted faults: by target for `--mutate`, by fault for `selftest`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gradverify.model import Mutation, MutationOutcome, Report, TargetReport
from gradverify.report.console import TextStyle, emit
from gradverify.report.layout import hang
from gradverify.report.words import clean, listed, plural

_HEADING = "Planted faults: what the checks would notice of these functions, at these sizes and values"
_NEXT = "What escapes or has no effect would not be noticed: add sizes (3 and more, not square) and values."
_SAID = {
    MutationOutcome.ESCAPED: ("escaped", "yellow"),
    MutationOutcome.NO_EFFECT: ("no effect", "dim"),
}
_INDENT = 15
"""Columns before what is said of single faults."""


def mutation_lines(report: Report, style: TextStyle) -> list[Text]:
    """Set the section of `--mutate`; nothing where no faults were planted."""
    planted = [target for target in report.targets if target.mutations is not None]
    if not planted:
        return []
    lines = [Text(_HEADING), Text()]
    for target in planted:
        lines += _target(target, style)
    if any(m.outcome is not MutationOutcome.CAUGHT for t in planted for m in t.mutations or ()):
        lines += [Text(), *hang(Text(), _NEXT, style, 0, "dim")]
    return lines


def _target(report: TargetReport, style: TextStyle) -> list[Text]:
    mutations = report.mutations or ()
    name = Text.assemble("  ", (clean(report.target.name), "bold"), "  ")
    lines = hang(name, _counts(mutations), style, 4)
    for outcome, (word, look) in _SAID.items():
        for mutation in mutations:
            if mutation.outcome is outcome:
                prefix = Text.assemble("    ", (word.ljust(_INDENT - 4), look))
                lines += hang(prefix, _what(mutation), style, _INDENT)
    return lines


def _what(mutation: Mutation) -> str:
    inputs = listed([f"`{name}`" for name in mutation.inputs])
    return f"{mutation.fault}: {inputs}" if inputs else mutation.fault


def _counts(mutations: Sequence[Mutation]) -> str:
    counts = {outcome: sum(m.outcome is outcome for m in mutations) for outcome in MutationOutcome}
    words = [f"{counts[MutationOutcome.CAUGHT]} caught", f"{counts[MutationOutcome.ESCAPED]} escaped"]
    if counts[MutationOutcome.NO_EFFECT]:
        words.append(f"{counts[MutationOutcome.NO_EFFECT]} without effect")
    return f"{plural(len(mutations), 'fault')} planted: {', '.join(words)}"


def render_selftest(report: Report, style: TextStyle) -> str:
    """Return the table of `selftest`: a line for each fault, then whatever was not caught."""
    mutations = [m for target in report.targets for m in target.mutations or ()]
    names = [target.target.name for target in report.targets]
    lines = [Text(f"Known faults planted in {listed(names)}, which are right:"), Text()]
    lines += _table(mutations)
    for target in report.targets:
        for mutation in target.mutations or ():
            if mutation.outcome is not MutationOutcome.CAUGHT:
                word, look = _SAID[mutation.outcome]
                said = Text.assemble("  ", (word.ljust(_INDENT - 2), look))
                lines += hang(said, f"{target.target.name}, {_what(mutation)}", style, _INDENT)
        if target.mutations is None:
            lines.append(
                Text(f"  {clean(target.target.name)} is {target.status} without a fault", "bold red")
            )
    return emit([*lines, Text(), Text(_counts(mutations))], style)


def _table(mutations: Sequence[Mutation]) -> list[Text]:
    faults = list(dict.fromkeys(m.fault for m in mutations))
    rows = [("fault", "planted", "caught", "located", "codes")]
    for fault in faults:
        same = [m for m in mutations if m.fault == fault and m.outcome is not MutationOutcome.NO_EFFECT]
        caught = [m for m in same if m.outcome is MutationOutcome.CAUGHT]
        one_input = [m for m in caught if m.inputs]
        located = str(sum(m.located for m in one_input)) if one_input else "-"
        codes = ", ".join(sorted({m.code for m in caught}))
        rows.append((fault, str(len(same)), str(len(caught)), located, codes))
    width = max(len(row[0]) for row in rows)
    return [
        Text(f"  {row[0].ljust(width)}  {row[1]:>7}  {row[2]:>6}  {row[3]:>7}  {row[4]}".rstrip())
        for row in rows
    ] + [Text()]
