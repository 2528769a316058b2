"""The report as text: the list of targets, a block for each failure, the user's mistakes, the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePosixPath

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import (
    LIMITING,
    Effort,
    Finding,
    InputSource,
    LinePatch,
    Location,
    Mistake,
    ModuleReport,
    Report,
    Severity,
    TargetReport,
    Verdict,
)
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit
from gradverify.report.fixes import patches_of
from gradverify.report.layout import STYLES, captured, field, hang, pointed, raised, spot, verbatim
from gradverify.report.targets import because, is_shown, target_lines
from gradverify.report.words import clean, in_a_row, listed, plural

NATIVE = ("float32", "bfloat16", "float16")
"""Dtypes in which something can be judged beside float64."""
MOST_NAMED = 8
"""Targets of a module that a spec does not name: so many are named, of the others their number."""

INTERPRETED = "Triton kernels ran in Triton's interpreter, on the CPU: not judged as compiled."
"""What is said of the kernels of a target that passed."""
PINNED = "Inputs were inferred: gradverify init <module>{options} writes them into a spec, to be pinned."
"""What to do about undeclared inputs."""


def render_text(report: Report, style: TextStyle) -> str:
    """Return the report for a person to read."""
    if not report.targets:
        return emit(_no_targets(report, style), style)
    modules = _modules(report, style) if style.verbosity >= 0 else []
    return emit(_spaced([*modules, *_found(report, style), _end(report, style)]), style)


def render_scrolled(report: Report, style: TextStyle) -> str:
    """Return the report with the list of targets last: of a screen that scrolls, the end stays."""
    if not report.targets:
        return emit(_no_targets(report, style), style)
    above = replace(style, findings="above")
    return emit(_spaced([*_found(report, style), *_modules(report, above), _end(report, style)]), style)


def _found(report: Report, style: TextStyle) -> list[list[Text]]:
    explained: set[str] = set()
    blocks = [block_lines(target, style, explained) for target in report.targets]
    return blocks + [mistake_lines(mistake, style) for mistake in report.errors]


def not_judged(report: Report) -> str:
    """Say which native dtypes some pass says nothing of, and that kernels were not compiled; else empty."""
    passed = [target for target in report.targets if target.status is Verdict.PASSED]
    left = [name for name in NATIVE if not all(name in target.swept.dtypes for target in passed)]
    dtypes = f"Not judged everywhere: {', '.join(left)} (--dtype adds one)." if left else ""
    interpreted = INTERPRETED if any(target.swept.interpreted for target in passed) else ""
    return " ".join(filter(None, (dtypes, interpreted)))


def not_named(report: Report) -> list[str]:
    """Say for each module what is not checked, where a spec was the target and does not name it."""
    return [_not_named(module) for module in report.modules if module.unnamed]


def _not_named(module: ModuleReport) -> str:
    names = [clean(passed.name) for passed in module.not_named]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"Not named in {clean(module.spec)}, so not checked: {', '.join(names[:MOST_NAMED])}{more} "
        f"(`gradverify check {clean(module.file)}` checks all of the module)."
    )


def _spaced(blocks: Sequence[list[Text]]) -> list[Text]:
    lines: list[Text] = []
    for block in filter(None, blocks):
        lines += [Text(), *block] if lines else block
    return lines


def _no_targets(report: Report, style: TextStyle) -> list[Text]:
    if not report.errors:
        return nothing_lines(report.modules, style)
    lines = [line for mistake in report.errors for line in mistake_lines(mistake, style)]
    return [*lines, Text(), Text(f"{closing(report.errors)}; nothing was checked")]


def _modules(report: Report, style: TextStyle) -> list[list[Text]]:
    blocks: list[list[Text]] = []
    for file, members in groupby(report.targets, lambda target: target.target.file):
        targets = list(members)
        heading = [_module_heading(file, targets, report), *_without(file, report, style)]
        blocks.append([*heading, Text(), *target_lines(targets, style)])
    look = module_lines if style.verbosity > 0 else empty_line
    blocks += [look(module, style) for module in report.modules if not module.targets]
    return blocks


def _without(file: str, report: Report, style: TextStyle) -> list[Text]:
    """Say what a module was imported without."""
    left = (one for module in report.modules if module.file == file for one in module.without)
    return [line for one in left for line in hang(Text("  "), f"imported without {one}", style, 2)]


def _module_heading(file: str, targets: Sequence[TargetReport], report: Report) -> Text:
    """Set a module's heading: what was looked at, and every setting that changes what a pass means."""
    settings = report.settings
    words = [
        plural(len(targets), "function"),
        plural(sum(target.cases for target in targets), "case"),
        f"seed {settings.seed}",
        "float64",
    ]
    if settings.every_device or settings.device != "cpu":
        words.append("every device" if settings.every_device else settings.device)
    if settings.effort is not Effort.NORMAL:
        words.append(f"{settings.effort} effort")
    if settings.select:
        words.append(f"only {', '.join(settings.select)}")
    if settings.strict:
        words.append("warnings fail")
    if settings.ignore:
        words.append(f"without {', '.join(settings.ignore)}")
    return Text.assemble((clean(file), "bold"), f"  {clean(', '.join(words))}")


def _end(report: Report, style: TextStyle) -> list[Text]:
    """Set what holds for the whole run, the summary last."""
    lines: list[Text] = []
    if report.stopped_early:
        lines += hang(
            Text(), f"Stopped early ({report.stopped_by}): later functions were not checked.", style, 0
        )
    for sentence in not_named(report):
        lines += hang(Text(), sentence, style, 0)
    if style.verbosity >= 0 and (unjudged := not_judged(report)):
        lines += hang(Text(), unjudged, style, 0, "dim")
    if style.verbosity >= 0 and any(target.inputs is InputSource.INFERRED for target in report.targets):
        device = report.settings.device
        options = "" if device == "cpu" else f" --device {device}"
        lines += hang(Text(), PINNED.format(options=options), style, 0, "dim")
    if report.settings.every_device:
        lines += hang(Text(), _devices_reported(report), style, 0)
    if slowest := slowest_lines(report):
        lines += [Text("Slowest, each with its time:"), *map(Text, slowest)]
    return lines + summary_lines(report, style)


def _devices_reported(report: Report) -> str:
    """Say which devices were compared under --device all, and which could not be."""
    found = sorted({device for target in report.targets for device in target.devices})
    others = [device for device in found if device != "cpu"]
    if not others:
        return "--device all: no device but the CPU was compared with, so GV701 was not run."
    alone = all(device.endswith(":0") for device in others)
    untried = "; there is one of its kind, so an index that is not the default was not tried" if alone else ""
    return f"--device all: {listed(found)}{untried}."


def summary_lines(report: Report, style: TextStyle) -> list[Text]:
    """Count the verdicts, the codes and what is not shown: on one line where the width allows it."""
    parts = [_verdicts(report)]
    if report.errors:
        parts.append(Text(closing(report.errors)))
    findings = [found for target in report.targets for found in target.findings if not found.expected]
    codes = Counter(found.code for found in findings if found.severity is not Severity.NOTE)
    if codes:
        parts.append(Text(", ".join(f"{code} x{count}" for code, count in sorted(codes.items()))))
    strict = sum(_warned_only(target) for target in report.targets)
    if report.settings.strict and strict:
        parts.append(Text(f"{strict} failed by warnings alone (--strict)"))
    hidden = [] if style.verbosity > 0 else LIMITING
    notes = sum(found.severity is Severity.NOTE and found.code not in hidden for found in findings)
    if notes:
        parts.append(Text(plural(notes, "note") + ("" if style.verbosity > 0 else " (-v shows them)")))
    line = Text("   ").join(parts)
    if style.width is None or cell_len(line.plain) <= style.width:
        return [line]
    return [text for part in parts for text in hang(Text(), part.plain, style, 2)]


def _warned_only(target: TargetReport) -> bool:
    wrong = any(found.severity is Severity.ERROR and not found.expected for found in target.findings)
    return target.status is Verdict.FAILED and not wrong


def slowest_lines(report: Report) -> list[str]:
    """Return the slowest targets with their seconds, where these were asked for."""
    if report.slowest is None:
        return []
    timed = sorted(
        (t for t in report.targets if t.duration_s is not None), key=lambda t: -(t.duration_s or 0)
    )
    kept = timed[: report.slowest] if report.slowest else timed
    return [f"{target.duration_s or 0:8.2f} s  {clean(target.target.id)}" for target in kept]


def _verdicts(report: Report) -> Text:
    counts = dict(report.summary)
    words = [Text(f"{counts[each]} {each}", STYLES[each]) for each in Verdict if counts.get(each)]
    only = counts.get("first_order_only", 0)
    if only:
        count = "" if only == counts[Verdict.FAILED] else f"{only} "
        place = [each for each in Verdict if counts.get(each)].index(Verdict.FAILED)
        words[place].append(f" ({count}in second order alone)")
    return Text.assemble(f"{plural(len(report.targets), 'function')}: ", Text(", ").join(words))


def nothing_lines(modules: Sequence[ModuleReport], style: TextStyle) -> list[Text]:
    """Set the screen of a run that discovered nothing, its last line being that nothing was checked."""
    lines: list[Text] = []
    for module in modules:
        lines += [*module_lines(module, style), Text()]
    if not modules:
        lines += [Text("no module to check"), Text()]
    return [*lines, Text("nothing was checked")]


def empty_line(module: ModuleReport, style: TextStyle) -> list[Text]:
    """Say in one line that a module has nothing to verify, for a run that verified others."""
    passed = len(module.passed_over)
    words = f" ({plural(passed, 'definition')} passed over: -v says why)" if passed else ""
    return hang(Text.assemble((clean(module.file), "bold"), ": "), f"no function to check{words}", style, 2)


def module_lines(module: ModuleReport, style: TextStyle) -> list[Text]:
    """Set one module that has nothing to verify."""
    file = clean(module.file)
    lines = [Text.assemble((file, "bold"), ": no function to check")]
    if style.verbosity < 0:
        return lines
    if file.endswith("/"):
        why = "no Python file in it defines a torch.autograd.Function, and no spec names one"
        return [*lines, Text(), *_said(why, style)]
    if not module.passed_over:
        return [
            *lines,
            Text(),
            *_said("no torch.autograd.Function is found in it, and no spec names it", style),
        ]
    lines += [Text(), Text(f"  looked at {plural(len(module.passed_over), 'definition')}")]
    places = [f"{file}:{passed.line}" for passed in module.passed_over]
    names = [clean(passed.name) for passed in module.passed_over]
    for place, name, passed in zip(_even(places), _even(names), module.passed_over, strict=True):
        prefix = f"    {place}  {name}  "
        lines += hang(Text(prefix), passed.reason, style, cell_len(prefix))
    spec = PurePosixPath(file).with_suffix(".gradverify.yaml")
    how = f"A callable that is not a torch.autograd.Function is checked once a spec gives its inputs: {spec}"
    return [*lines, Text(), *_said(how, style)]


def _said(prose: str, style: TextStyle) -> list[Text]:
    return hang(Text("  "), prose, style, 2)


def _even(words: Sequence[str]) -> list[str]:
    widest = max(map(cell_len, words))
    return [word + " " * (widest - cell_len(word)) for word in words]


_TELLING = (
    *("GV901", "GV002", "GV102", "GV105"),
    *("GV410", "GV408", "GV401", "GV402", "GV403"),
    *("GV106", "GV301", "GV108", "GV101", "GV107", "GV103", "GV104"),
)
"""Codes whose findings come first, each before what it makes wrong: what raises or does not return, what
another call or a write has spoiled, wrong values; shapes and dtypes beside wrong values at last."""

_WRITES = frozenset({"GV401", "GV403"})
"""Of these: writes of backward."""

_VALUES = frozenset({"GV106", "GV301", "GV101", "GV107"})
"""Wrong values of first order: a write comes before them only if without it they are right."""

SECOND_ORDER = "GV2"
"""How codes begin that come last: whatever is wrong of first order comes before."""

_CONTINUED = 4
"""Columns before the further lines of a heading."""


def render_failure(report: TargetReport, style: TextStyle) -> str:
    """Return the block of one failed target alone, as the message of an exception."""
    return emit(block_lines(report, style, set()), style)


def block_lines(report: TargetReport, style: TextStyle, explained: set[str]) -> list[Text]:
    """Set a failed target's block; when quiet, whatever the list would have said about another one.

    `explained` holds the codes whose page was named already, and gains those named here.
    """
    if report.status is Verdict.FAILED:
        return _failure(report, style, explained)
    if style.verbosity >= 0 or report.status in (Verdict.SKIPPED, Verdict.XFAILED):
        return []
    shown = [found for found in report.findings if is_shown(found, style)]
    if not shown and report.status is Verdict.UNCHECKED:
        return _heading(report, None, because("unchecked", report), style)
    lines: list[Text] = []
    for found in shown:
        lines += _heading(report, found, found.message, style)
        lines += field("hint", found.hint, style) if found.hint else []
    return lines


def _failure(report: TargetReport, style: TextStyle, explained: set[str]) -> list[Text]:
    shown = [found for found in report.findings if is_shown(found, style)]
    if not shown:
        return _heading(report, None, because("failed", report), style)
    beside = _wrong_anyway(shown)
    worst, *others = sorted(shown, key=lambda found: _rank(found, beside))
    lines = [*_heading(report, worst, worst.message, style), Text(), *_body(worst, style, explained)]
    before, reported, said = worst, True, {worst.hint}
    same, others = _of_one_mistake(worst, others) if style.verbosity <= 0 else ([], others)
    for code in dict.fromkeys(found.code for found in same):
        inputs = dict.fromkeys(clean(found.input or "") for found in same if found.code == code)
        names = in_a_row([f"`{name}`" for name in inputs])
        lines += [Text(), *field("also", f"{code} for {names}: the fix makes that right, too", style)]
    for found in others:
        # One root may have many findings: what helps is said once.
        shown_hint = "" if found.hint in said and style.verbosity <= 0 else found.hint
        said.add(found.hint)
        body = _body(replace(found, hint=shown_hint), style, explained, before)
        lines += [Text()] if reported or body else []
        lines += [*_also(found, before, style), *body]
        before, reported = found, bool(body)
    return lines


def _of_one_mistake(worst: Finding, others: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that the fix of the worst one makes right, and the rest."""
    fix = _lines_of(worst)
    same = [f for f in others if fix and f.input and _lines_of(f) == fix]
    return same, [f for f in others if f not in same]


def _lines_of(found: Finding) -> list[LinePatch]:
    """The lines of its fix, wherever that was checked."""
    return [replace(patch, points=0) for patch in patches_of([found])]


def _wrong_anyway(shown: Sequence[Finding]) -> list[Finding]:
    """Writes of backward beside wrong values that are not known to come of them."""
    errors = [f for f in shown if f.severity is Severity.ERROR]
    values = [f for f in errors if f.code in _VALUES]
    fixes = [_lines_of(f) for f in values]
    return [f for f in errors if f.code in _WRITES and values and (_lines_of(f) or None) not in fixes]


def _rank(found: Finding, beside: Sequence[Finding]) -> tuple[int, int, float]:
    """Order findings by severity, then what explains others before what follows from it, then by size.

    Those `beside` others explain nothing.
    """
    last = len(_TELLING) + found.code.startswith(SECOND_ORDER)
    place = _TELLING.index(found.code) if found.code in _TELLING and found not in beside else last
    return list(Severity).index(found.severity), place, -found.badness


def _heading(report: TargetReport, found: Finding | None, message: str, style: TextStyle) -> list[Text]:
    """Set `file:line: CODE name: message`, in the form that editors jump to."""
    where = found.location if found and found.location else Location(report.target.file, report.target.line)
    code = Text.assemble((one.label(found), one.look(found)), " ") if found else Text()
    name = (clean(report.target.name), "bold" if found else STYLES[report.status])
    prefix = Text.assemble((spot(where), "bold"), ": ", code, name, ": ")
    return hang(prefix, message, style, _CONTINUED)


def _also(found: Finding, before: Finding, style: TextStyle) -> list[Text]:
    """Set the heading of a further finding; its place only where that is another one."""
    place = f"{spot(found.location)}: " if found.location and found.location != before.location else ""
    prefix = Text.assemble(f"  also {place}", (one.label(found), one.look(found)), ": ")
    return hang(prefix, found.message, style, _CONTINUED)


def _body(found: Finding, style: TextStyle, explained: set[str], before: Finding | None = None) -> list[Text]:
    if found.severity is not Severity.ERROR and style.verbosity <= 0:
        return field("hint", found.hint, style) if found.hint else []
    lines = one.fields(found, style, before)
    if found.code not in explained:
        explained.add(found.code)
        lines += verbatim("explain", [f"gradverify explain {found.code}"])
    return lines


_GUTTER = 5
"""Columns for the line number beside a source line."""


def render_mistakes(mistakes: Sequence[Mistake], style: TextStyle) -> str:
    """Return the screen of a run that stopped at mistakes, all of them, and a line that counts them."""
    lines = [line for mistake in mistakes for line in mistake_lines(mistake, style)]
    return emit([*lines, Text(), Text(f"{closing(mistakes)}; nothing was checked")], style)


def mistake_lines(mistake: Mistake, style: TextStyle) -> list[Text]:
    """Set one mistake."""
    prefix = Text.assemble((spot(mistake.location), "bold"), ": ") if mistake.location else Text()
    lines = hang(prefix, mistake.message, style, _CONTINUED)
    shown = mistake.raised is not None and mistake.raised.frames
    if mistake.location and mistake.source_line and not shown:
        gutter = f"{mistake.location.line:>{_GUTTER}} | "
        start = max(mistake.location.column - 1, 0)
        end = start + max(mistake.length, 1) if mistake.location.column else start
        lines += pointed(mistake.source_line.rstrip(), start, end, gutter)
    if mistake.raised is not None:
        lines += raised(mistake.raised, style)
    return lines + captured(mistake.captured, style)


def closing(mistakes: Sequence[Mistake]) -> str:
    """Count mistakes by what they are: `2 errors in 1 spec file`, `1 module could not be imported`."""
    parts = []
    for kind, noun in (("spec", "spec file"), ("config", "configuration file")):
        these = [mistake for mistake in mistakes if mistake.kind == kind]
        files = {mistake.location.file for mistake in these if mistake.location}
        within = f" in {plural(len(files), noun)}" if files else f" in the {noun}"
        if these:
            parts.append(plural(len(these), "error") + within)
    imports = sum(mistake.kind == "import" for mistake in mistakes)
    if imports:
        parts.append(f"{plural(imports, 'module')} could not be imported")
    if any(mistake.kind == "usage" for mistake in mistakes):
        parts.append("nothing can be checked: see the error")
    return ", ".join(parts)
