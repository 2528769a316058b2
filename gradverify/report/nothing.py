"""What is said of modules without anything to verify: what was looked at, and why it was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import ModuleReport
from gradverify.report.console import TextStyle
from gradverify.report.layout import hang
from gradverify.report.words import clean, plural


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
        return [*lines, Text(), *_said("it defines no torch.autograd.Function, and no spec names it", style)]
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
    """Set a sentence, indented."""
    return hang(Text("  "), prose, style, 2)


def _even(words: Sequence[str]) -> list[str]:
    """Pad words to the widest."""
    widest = max(map(cell_len, words))
    return [word + " " * (widest - cell_len(word)) for word in words]
