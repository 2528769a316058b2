"""What `check --fix` says of the files that it has changed, and of those that it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from gradverify.model import Verdict
from gradverify.report.console import TextStyle, emit
from gradverify.report.finding import SIGNED
from gradverify.report.fixes import signed_lines
from gradverify.report.words import clean, plural

if TYPE_CHECKING:
    from gradverify.session.fixing import Fixes


def _what_else(fixes: Fixes) -> str:
    """What there is to say where no change was written, and none was left."""
    failed = [target for target in fixes.report.targets if target.status is Verdict.FAILED]
    derivable = [t.target.id for t in failed if any(found.derivable for found in t.findings)]
    if derivable:
        return (
            f": no small change is known; `gradverify suggest {derivable[0]} --write` tries a whole backward"
        )
    return ": no change of a backward is known to make it right" if failed else ""


def fixes_text(fixes: Fixes, style: TextStyle) -> str:
    """The changes that were written, and why others were not."""
    lines: list[Text] = []
    for fix in fixes.written:
        for patch in fix.patches:
            place = f"{clean(patch.path)}:{patch.line}"
            lines.append(Text.assemble((f"fixed {place}", "bold"), f" {clean(fix.name)}"))
            lines += [Text(f"  {clean(line)}", SIGNED[line[0]]) for line in signed_lines(patch)]
    lines += [Text(f"not fixed: {clean(name)}: {clean(why)}") for name, why in fixes.left]
    if not lines:
        lines.append(Text(f"nothing to fix{_what_else(fixes)}"))
    elif fixes.written:
        lines.append(Text(f"{plural(len(fixes.written), 'Function')} fixed, and verified again at two seeds"))
    return emit([*lines, Text()], style)
